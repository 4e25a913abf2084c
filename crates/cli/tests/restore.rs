//! A cluster that is lost and restored from a backup, with real processes: who
//! led when it was lost is over before anybody else leads.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::servers::{free, led, objects};
use crate::common::{Candidate, Ledger, TENURE, poll_until};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(60);
const LEASE: &str = "4s";

/// A cluster of one server, killed when this is dropped.
struct Server(Child);

impl Server {
    fn start(peer: &str, listen: &str, data: &str) -> Self {
        let mut serve = Command::new(TENURE);
        let peers = format!("1={peer}");
        serve.args(["serve", "--quiet", "--id", "1", "--peers", &peers]);
        serve.args(["--data", data, "--listen", listen]);
        let server = Self(serve.stdout(Stdio::null()).spawn().expect("a server"));
        led(&format!("tenure://{listen}"));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tenure(args: &[&str]) -> (bool, String, String) {
    let output = Command::new("timeout")
        .args(["60", TENURE])
        .args(args)
        .output();
    let output = output.expect("tenure runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, said) = (text(&output.stdout), text(&output.stderr));
    (output.status.success(), out, said)
}

fn done(args: &[&str]) -> String {
    let (done, out, said) = tenure(args);
    assert!(done, "{args:?}: {said}");
    out
}

#[test]
fn a_leader_of_the_lost_cluster_is_over_before_anybody_leads_in_the_restored_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, listen] = free();
    let url = format!("tenure://{listen}");
    let server = Server::start(&peer, &listen, &path("old"));
    let ledger = Ledger::new();
    let flags = ["--lease", LEASE];
    let first = Candidate::start(&url, "first", &ledger, &flags);
    let run = ledger.await_term_above(0, SOON);
    first.signal(Signal::TERM);
    let leader = || {
        let found = objects(&["leader", "payroll", "--json", "--store", &url]);
        found.into_iter().next()
    };
    let vacant = || leader().filter(|it| it["led"] == false);
    poll_until(SOON, vacant).expect("a vacant election");
    // In the backup no candidate holds it, and one that looks might race at
    // once.
    done(&["backup", &path("backup"), "--store", &url]);

    let second = Candidate::start(&url, "second", &ledger, &flags);
    let lost = ledger.await_term_above(run.term, SOON);
    assert_eq!(lost.candidate, "second");
    // From now on it hears of nothing, and its guardian counts alone.
    second.stop();
    drop(server);

    let (backup, data) = (path("backup"), path("new"));
    let restored = objects(&["restore", &backup, "--data", &data, "--id", "1", "--json"]);
    // What a later restore must not go below.
    let (life, step) = (&restored[0]["life"], &restored[0]["term_step"]);
    assert_eq!((life, step), (&1.into(), &1_000_000.into()));
    assert_eq!(restored[0]["elections"], 1, "{restored:?}");
    assert_eq!(restored[0]["held_ms"], 4_000, "{restored:?}");
    let _server = Server::start(&peer, &listen, &data);
    let held = leader().expect("it is held");
    assert_eq!(held["name"], "restored-from-backup", "{held}");
    let _third = Candidate::start(&url, "third", &ledger, &flags);
    // That no two of them wrote at the same time is for the ledger to say.
    let next = ledger.await_term_above(lost.term, SOON);
    assert_eq!(next.candidate, "third");
    assert_eq!(next.term, run.term + 1_000_000 + 1);
}

/// A server that started there would found a cluster that knows no term.
#[test]
fn a_server_does_not_start_where_a_restore_was_cut_short() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, listen] = free();
    let url = format!("tenure://{listen}");
    let server = Server::start(&peer, &listen, &path("old"));
    done(&["log", "append", "--store", &url, "one"]);
    let (backup, data) = (path("backup"), path("new"));
    done(&["backup", &backup, "--store", &url]);
    drop(server);
    let restore = ["restore", &backup, "--data", &data, "--id", "1"];
    let peers = format!("1={peer}");
    let serve = [
        "serve", "--id", "1", "--peers", &peers, "--data", &data, "--listen", &listen,
    ];
    // No number of its own can be written, or no log, or not that it asks for a token.
    for obstacle in [
        "ulimit -f 0",
        "ulimit -f 8",
        &*format!("mkdir {data}/own-token.$$.tmp"),
    ] {
        let words = restore.join(" ");
        let script = format!("mkdir -p {data} && {obstacle} && exec {TENURE} {words}");
        let cut = Command::new("sh").args(["-c", &script]).output();
        let cut = cut.expect("it runs");
        let said = String::from_utf8_lossy(&cut.stderr);
        assert_eq!(cut.status.code(), Some(1), "{said}");
        assert!(said.contains("nothing was restored"), "{said}");
        let (started, _, said) = tenure(&serve);
        assert!(!started && said.contains("restore was cut short"), "{said}");
        std::fs::remove_dir_all(&data).expect("emptied");
    }
    done(&restore);
    let _server = Server::start(&peer, &listen, &data);
    let read = done(&["log", "read", "--from", "1", "--store", &url]);
    assert!(read.contains("one"), "{read}");
}

#[test]
fn the_log_says_where_it_was_restored_and_goes_on_behind_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, listen] = free();
    let url = format!("tenure://{listen}");
    let server = Server::start(&peer, &listen, &path("old"));
    done(&["log", "append", "--store", &url, "one", "two"]);
    let (backup, data) = (path("backup"), path("new"));
    done(&["backup", &backup, "--store", &url]);
    let lost = done(&["log", "append", "--store", &url, "lost", "lost too"]);
    assert_eq!(lost, "3\n4\n");
    drop(server);

    done(&["restore", &backup, "--data", &data, "--id", "1"]);
    let _server = Server::start(&peer, &listen, &data);
    let next = 3 + (1u64 << 40);
    let (all, entries, said) = tenure(&["log", "read", "--store", &url]);
    assert!(all && entries == "one\ntwo\n", "{entries}{said}");
    assert!(said.contains(&format!("goes on at {next}")), "{said}");
    let new = done(&["log", "append", "--store", &url, "three"]);
    assert_eq!(new, format!("{next}\n"));
    assert_eq!(done(&["log", "read", "--store", &url]), "one\ntwo\nthree\n");
    // Who had read an entry of the lost one is not sent on in silence.
    let (went_on, entries, said) = tenure(&["log", "read", "--from", "4", "--store", &url]);
    assert!(!went_on && entries.is_empty(), "{entries}");
    assert!(said.contains(&format!("it goes on at {next}")), "{said}");
    let from = next.to_string();
    let read = done(&["log", "read", "--from", &from, "--store", &url]);
    assert_eq!(read, "three\n");
}

/// What is restored is backed up and restored again, though nobody has
/// appended in between.
#[test]
fn a_restored_cluster_is_restored_again_and_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, listen] = free();
    let url = format!("tenure://{listen}");
    let mut server = Server::start(&peer, &listen, &path("life-0"));
    done(&["log", "append", "--store", &url, "one"]);
    for life in 1..=3u64 {
        let (backup, data) = (
            path(&format!("backup-{life}")),
            path(&format!("life-{life}")),
        );
        done(&["backup", &backup, "--store", &url]);
        drop(server);
        let restored = objects(&["restore", &backup, "--data", &data, "--id", "1", "--json"]);
        assert_eq!(restored[0]["life"], life, "{restored:?}");
        done(&["wal", "verify", &data]);
        server = Server::start(&peer, &listen, &data);
        // Another register, but no entry of the plain log.
        let job = format!("job-{life}");
        done(&["run", &job, "--once", "--store", &url, "--", "true"]);
        let (all, entries, said) = tenure(&["log", "read", "--store", &url]);
        assert!(all && entries == "one\n", "{entries}{said}");
        let next = 2 + life * (1 << 40);
        assert!(said.contains(&format!("goes on at {next}")), "{said}");
    }
    let next = 2 + 3 * (1u64 << 40);
    let new = done(&["log", "append", "--store", &url, "two"]);
    assert_eq!(new, format!("{next}\n"));
    assert_eq!(done(&["log", "read", "--store", &url]), "one\ntwo\n");
    for life in 1..=3u64 {
        let job = format!("job-{life}");
        let led = objects(&["leader", &job, "--json", "--store", &url]);
        assert!(!led.is_empty(), "{job}");
    }
    drop(server);
}

/// It has printed entries that are in no backup.
#[test]
fn a_tail_over_a_restore_says_which_entries_are_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, listen] = free();
    let url = format!("tenure://{listen}");
    let server = Server::start(&peer, &listen, &path("old"));
    done(&["log", "append", "--store", &url, "1", "2"]);
    let (backup, data) = (path("backup"), path("new"));
    done(&["backup", &backup, "--store", &url]);
    done(&["log", "append", "--store", &url, "3", "4", "5", "6", "7"]);
    let (out, said) = (path("out"), path("said"));
    let file = |path: &str| std::fs::File::create(path).expect("a file");
    let read = |path: &str| std::fs::read_to_string(path).expect("text");
    let mut tail = Command::new(TENURE);
    tail.args(["log", "tail", "--from", "1", "--store", &url]);
    tail.stdout(file(&out)).stderr(file(&said));
    // Ended when it is dropped, as a server.
    let _tail = Server(tail.spawn().expect("a tail"));
    let lines = |count| {
        let out = &out;
        move || (read(out).lines().count() == count).then_some(())
    };
    poll_until(SOON, lines(7)).expect("all of the old cluster");
    drop(server);

    done(&["restore", &backup, "--data", &data, "--id", "1"]);
    let _server = Server::start(&peer, &listen, &data);
    done(&["log", "append", "--store", &url, "new"]);
    let next = 3 + (1u64 << 40);
    let words = format!(
        "a backup that ends before entry 3; entries 3 to 7 are gone, too; what followed there is \
         gone, and the log goes on at {next}"
    );
    let told = || read(&said).contains(&words).then_some(());
    poll_until(SOON, told).unwrap_or_else(|| panic!("{}", read(&said)));
    poll_until(SOON, lines(8)).expect("the new entry");
}

#[test]
fn a_step_that_leaves_no_terms_is_refused_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, listen] = free();
    let url = format!("tenure://{listen}");
    let server = Server::start(&peer, &listen, &path("old"));
    let (backup, data) = (path("backup"), path("new"));
    done(&["backup", &backup, "--store", &url]);
    drop(server);
    let restore = ["restore", &backup, "--data", &data, "--id", "1"];
    for step in [1u64 << 62, (1 << 62) - 5, u64::MAX] {
        let step = step.to_string();
        let (restored, _, said) = tenure(&[&restore[..], &["--term-step", &step]].concat());
        assert!(!restored, "{step}");
        let words = format!("found {step} (--term-step, as often as --times says)");
        assert!(said.contains(&words), "{said}");
        assert!(!std::path::Path::new(&data).exists(), "{step}");
    }
    // No candidate would be elected for longer than any lease can be.
    let long = [&restore[..], &["--longest-lease", "604801s"]].concat();
    let (restored, _, said) = tenure(&long);
    assert!(!restored && said.contains("at most 7 days"), "{said}");
    assert!(!std::path::Path::new(&data).exists(), "{said}");
    let step = (1u64 << 60).to_string();
    done(&[&restore[..], &["--term-step", &step]].concat());
    let _server = Server::start(&peer, &listen, &data);
}
