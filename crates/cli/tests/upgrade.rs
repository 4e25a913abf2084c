//! A cluster that is upgraded one server at a time, under load, to the
//! release after this one, which knows a kind of entry that this one does
//! not; and one that somebody tries to take back.
//!
//! The second binary is this one with the feature `next-version`. `test.sh`
//! builds it and says where it is in `TENURE_NEXT`; without that nothing is
//! tried here, and that is said where the harness does not swallow it.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::servers::{Cluster, SOON, objects};
use common::{TENURE, poll_until};
use rustix::process::{Pid, Signal, kill_process};

/// The newest version that this release speaks.
const OURS: u64 = 2;

/// Appends lines until it is told to end; each is acknowledged before the
/// next is written.
struct Load {
    ended: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<u64>,
}

impl Load {
    fn start(url: &str) -> Self {
        let mut append = Command::new(TENURE)
            .args(["log", "append", "--timeout", "30s", "--store", url, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let (ended, done) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (told, count) = (Arc::clone(&ended), Arc::<AtomicU64>::clone(&done));
        let thread = std::thread::spawn(move || {
            let mut input: ChildStdin = append.stdin.take().expect("its input");
            let numbers = BufReader::new(append.stdout.take().expect("its output"));
            let mut numbers = numbers.lines();
            let mut lines = 0;
            while !told.load(Ordering::Acquire) {
                writeln!(input, "line {lines}").expect("it reads");
                numbers.next().expect("a number").expect("text");
                lines += 1;
                count.store(lines, Ordering::Release);
            }
            drop(input);
            assert!(append.wait().expect("it ends").success());
            lines
        });
        Self {
            ended,
            done,
            thread,
        }
    }

    /// Waits until some more lines were acknowledged, which on a slow disk
    /// takes longer than all the rest.
    fn goes_on(&self) {
        let done = || self.done.load(Ordering::Acquire);
        let goal = done() + 3;
        let more = poll_until(SOON, || (done() >= goal).then_some(()));
        assert!(more.is_some(), "{} of {goal} lines", done());
    }

    /// How many lines were acknowledged.
    fn end(self) -> u64 {
        self.ended.store(true, Ordering::Release);
        self.thread.join().expect("every line was acknowledged")
    }
}

/// The version of the cluster as each server sees it, and what it speaks;
/// nothing unless all three have said so, for one that is slow to answer has
/// not said otherwise.
fn versions(url: &str) -> Option<Vec<(u64, u64)>> {
    let seen = objects(&["status", "--json", "--store", url]);
    let both = |it: &serde_json::Value| {
        let number = |name: &str| it[name].as_u64();
        Some((number("cluster_version")?, number("speaks")?))
    };
    let said: Option<Vec<_>> = seen.iter().map(both).collect();
    said.filter(|it| it.len() == 3)
}

/// Ends a server as its service manager would, and starts it as `binary`.
fn restart(cluster: &mut Cluster, id: usize, binary: &str) {
    let server = &mut cluster.servers[id - 1];
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), Signal::TERM).expect("it runs");
    server.wait().expect("it has ended");
    cluster.servers[id - 1] = cluster.command(binary, id).spawn().expect("a server");
}

#[test]
fn a_cluster_is_upgraded_one_server_at_a_time_and_not_taken_back() {
    let Some(next) = std::env::var_os("TENURE_NEXT") else {
        // Not `eprintln!`: of a test that passes the harness shows none of it.
        let said = "NOT TRIED: the upgrade of a cluster, since $TENURE_NEXT names no binary of \
                    the next release; ./test.sh builds one\n";
        std::io::stderr()
            .write_all(said.as_bytes())
            .expect("a stderr");
        return;
    };
    let next = next.to_str().expect("text").to_owned();
    let mut cluster = Cluster::start();
    let url = cluster.url();
    let load = Load::start(&url);
    let leader = cluster.leader();
    let others = (1..=3).filter(|id| *id != leader);
    let order: Vec<usize> = others.chain([leader]).collect();
    for (done, id) in order.iter().enumerate() {
        load.goes_on();
        let before = || versions(&url)?.iter().all(|it| it.0 == OURS).then_some(());
        poll_until(SOON, before).expect("all three are at this release's version");
        restart(&mut cluster, *id, &next);
        let upgraded = || {
            let seen = versions(&url)?;
            let new = seen
                .iter()
                .filter(|(_, speaks)| *speaks == OURS + 1)
                .count();
            (new == done + 1).then_some(())
        };
        poll_until(SOON, upgraded).expect("it is back");
    }
    // The last of them has told that it speaks more: now all may.
    let risen = || {
        versions(&url)?
            .iter()
            .all(|it| *it == (OURS + 1, OURS + 1))
            .then_some(())
    };
    poll_until(SOON, risen).expect("the cluster's version rises");
    load.goes_on();
    let lines = load.end();
    let log = Command::new(TENURE)
        .args(["log", "read", "--store", &url])
        .output()
        .expect("it runs");
    let log = String::from_utf8(log.stdout).expect("text");
    let expected: Vec<_> = (0..lines).map(|line| format!("line {line}")).collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);

    // The new kind of entry is in the log, and this release does not guess.
    let leader = cluster.leader();
    let back = leader % 3 + 1;
    let data = cluster.directory.path().join(back.to_string());
    let inspect = |binary: &str| {
        let data = data.to_str().expect("text");
        let output = Command::new(binary).args(["wal", "inspect", data]).output();
        let output = output.expect("it runs");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    // The leader writes it with a heartbeat after the rise; it has to have
    // reached this disk before the server is killed.
    let noted = || {
        let (known, said) = inspect(&next);
        (known && said.contains("is noted")).then_some(())
    };
    poll_until(SOON, noted).unwrap_or_else(|| panic!("{}", inspect(&next).1));
    cluster.kill(back);

    // Taken back, the server stops and says why; the others go on.
    let mut old = cluster.command(TENURE, back);
    let old = old.stderr(Stdio::piped()).spawn().expect("a server");
    let output = old.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("release"), "{said}");
    cluster.servers[back - 1] = cluster.command(&next, back).spawn().expect("a server");
    poll_until(SOON, || versions(&url)).expect("it is back");
}
