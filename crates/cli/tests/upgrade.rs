//! A cluster that is upgraded one server at a time, under load: from the
//! release before this one, and to the release after it, which knows a kind
//! of entry that this one does not; and one that somebody tries to take back.
//!
//! The release before is built from the history of the repository, the one
//! after is this one with the feature `next-version`. `test.sh` builds both
//! and says where they are in `TENURE_BEFORE` and `TENURE_NEXT`; without that
//! nothing is tried here, and that is said where the harness does not swallow
//! it. `TENURE_UPGRADE_SECONDS=60` holds the upgrade half-way for a minute.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::servers::{Cluster, Heard, SOON, objects};
use crate::common::{Ledger, TENURE, poll_until};
use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

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
        Self::of(TENURE, url, "line")
    }

    /// The same as any release of tenure, with lines that begin so.
    fn of(binary: &str, url: &str, word: &'static str) -> Self {
        let mut append = Command::new(binary)
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
                writeln!(input, "{word} {lines}").expect("it reads");
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

/// The binary that a variable names; says that nothing is tried without it.
fn binary(variable: &str, of: &str) -> Option<String> {
    let found = std::env::var_os(variable);
    if found.is_none() {
        // Not `eprintln!`: of a test that passes the harness shows none of it.
        let said = format!(
            "NOT TRIED: the upgrade of a cluster, since ${variable} names no binary of the \
             release {of} this one; ./test.sh builds one\n"
        );
        let written = std::io::stderr().write_all(said.as_bytes());
        written.expect("a stderr");
    }
    found.map(|it| it.into_string().expect("text"))
}

/// The lines of the log that begin so, in their order.
fn lines_of(url: &str, word: &str) -> Vec<String> {
    let log = Command::new(TENURE)
        .args(["log", "read", "--store", url])
        .output()
        .expect("it runs");
    let log = String::from_utf8(log.stdout).expect("text");
    let lines = log.lines().filter(|line| line.starts_with(word));
    lines.map(str::to_owned).collect()
}

fn expected(word: &str, lines: u64) -> Vec<String> {
    (0..lines).map(|line| format!("{word} {line}")).collect()
}

#[test]
fn a_cluster_is_upgraded_one_server_at_a_time_and_not_taken_back() {
    let Some(next) = binary("TENURE_NEXT", "after") else {
        return;
    };
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
    assert_eq!(lines_of(&url, ""), expected("line", lines));

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

/// Appends so many entries at once, in the mixed cluster: states are compared
/// at every 256th.
fn append_many(url: &str, word: &str, entries: usize) {
    let mut append = Command::new(TENURE)
        .args(["log", "append", "--timeout", "60s", "--store", url, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let lines: String = (0..entries).map(|at| format!("{word} {at}\n")).collect();
    let mut input = append.stdin.take().expect("its input");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    assert!(append.wait().expect("it ends").success());
}

/// How often any server, leading, found the states equal, and how often not.
fn compared(cluster: &Cluster) -> (u64, u64) {
    let count = |text: &str, name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |number| number.trim().parse().expect("a number"))
    };
    let mut sum = (0, 0);
    for address in &cluster.clients {
        let Ok(mut stream) = TcpStream::connect(address) else {
            continue;
        };
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let mut text = String::new();
        let asked = stream.write_all(request);
        if asked
            .and_then(|()| stream.read_to_string(&mut text))
            .is_ok()
        {
            sum.0 += count(&text, "tenure_states_compared_total");
            sum.1 += count(&text, "tenure_states_disagreed_total");
        }
    }
    sum
}

/// The cluster as it is in the middle: what has to be true of it, whichever
/// server leads.
fn mixed_cluster_works(cluster: &mut Cluster, url: &str, order: &[usize]) {
    let long = std::env::var("TENURE_UPGRADE_SECONDS").ok();
    let long = long.map_or(0, |text| text.parse().expect("seconds"));
    let until = clock::boot().after(Duration::from_secs(long));
    let mut round = 0;
    loop {
        // An old one leads, and a new one.
        for leader in [order[2], order[0]] {
            let to = leader.to_string();
            let moved = || {
                let args = ["member", "transfer", "--to", &to, "--store", url];
                let moved = Command::new(TENURE).args(args).output().expect("it runs");
                moved.status.success().then_some(())
            };
            poll_until(SOON, moved).expect("it leads");
            let before = compared(cluster).0;
            round += 1;
            append_many(url, "many", 700);
            let equal = || (compared(cluster).0 > before).then_some(());
            poll_until(SOON, equal).expect("a majority has the same state");
            let at_first = || versions(url)?.iter().all(|it| it.0 == 1).then_some(());
            poll_until(SOON, at_first).expect("a mixed cluster stays what it was");
            nobody_has_ended(cluster);
        }
        if clock::boot() >= until {
            break;
        }
    }
    assert_eq!(compared(cluster).1, 0, "states differ");
    let many = lines_of(url, "many");
    assert_eq!(many.len(), round * 700, "each of them once");
}

fn nobody_has_ended(cluster: &mut Cluster) {
    for (server, id) in cluster.servers.iter_mut().zip(1..) {
        let ended = server.try_wait().expect("it can be asked");
        assert!(ended.is_none(), "server {id} has ended: {ended:?}");
    }
}

#[test]
fn the_release_before_is_upgraded_one_server_at_a_time_and_refused_afterwards() {
    let Some(before) = binary("TENURE_BEFORE", "before") else {
        return;
    };
    let mut cluster = Cluster::start_as(&before, "127.0.0.1");
    let url = cluster.url();
    let loads = [
        Load::of(&before, &url, "old"),
        Load::of(TENURE, &url, "new"),
    ];
    let ledger = Ledger::new();
    let candidate = |binary: &str, name: &str| {
        let command = ledger.command(false);
        let command = command.iter().map(String::as_str);
        let args = [
            "run", "e", "--store", &url, "--lease", "5s", "--name", name, "--",
        ];
        let mut run = Command::new(binary);
        run.args(args.into_iter().chain(command))
            .env("CANDIDATE", name);
        Heard::start(run)
    };
    let candidates = [candidate(&before, "old"), candidate(TENURE, "new")];
    let first = ledger.await_term_above(0, SOON);
    let leader = cluster.leader();
    let others = (1..=3).filter(|id| *id != leader);
    let order: Vec<usize> = others.chain([leader]).collect();
    for (done, id) in order.iter().enumerate() {
        loads.iter().for_each(Load::goes_on);
        restart(&mut cluster, *id, TENURE);
        let upgraded = || {
            let seen = versions(&url)?;
            let new = seen.iter().filter(|(_, speaks)| *speaks == OURS).count();
            (new == done + 1).then_some(())
        };
        poll_until(SOON, upgraded).expect("it is back");
        nobody_has_ended(&mut cluster);
        if done == 0 {
            mixed_cluster_works(&mut cluster, &url, &order);
        }
    }
    let risen = || {
        versions(&url)?
            .iter()
            .all(|it| *it == (OURS, OURS))
            .then_some(())
    };
    poll_until(SOON, risen).expect("the cluster's version rises");
    // The election changes hands once more, and nobody was elected twice.
    drop(candidates);
    let last = candidate(TENURE, "last");
    ledger.await_term_above(first.term, SOON);
    drop(last);
    ledger.runs();
    loads.iter().for_each(Load::goes_on);
    append_many(&url, "after", 700);
    for (load, word) in loads.into_iter().zip(["old", "new"]) {
        let lines = load.end();
        assert_eq!(lines_of(&url, word), expected(word, lines));
    }
    assert_eq!(compared(&cluster).1, 0, "states differ");
    nobody_has_ended(&mut cluster);
    is_refused(&mut cluster, &before);
}

/// The old release, started on a disk that has been upgraded, ends and says
/// why; the others go on.
fn is_refused(cluster: &mut Cluster, before: &str) {
    let back = cluster.leader() % 3 + 1;
    cluster.kill(back);
    let mut old = cluster.command(before, back);
    let old = old.stderr(Stdio::piped()).spawn().expect("a server");
    let output = old.wait_with_output().expect("it has ended");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    // What it meets first: a vote that names its disk, or the log's version.
    let clear = ["this release is too old", "a later release wrote it"];
    assert!(clear.iter().any(|words| said.contains(words)), "{said}");
    let url = cluster.url();
    append_many(&url, "on", 10);
    cluster.servers[back - 1] = cluster.serve(back);
    poll_until(SOON, || versions(&url)).expect("it is back");
}
