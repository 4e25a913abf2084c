//! A cluster that is lost and restored from a backup, with real processes: who
//! led when it was lost is over before anybody else leads.

mod common;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::servers::{free, led, objects};
use common::{Candidate, Ledger, TENURE, poll_until};
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
    poll_until(SOON, vacant).expect("a vacant office");
    // In the backup nobody holds it, and whoever looks might race at once.
    done(&["backup", &path("backup"), "--store", &url]);

    let second = Candidate::start(&url, "second", &ledger, &flags);
    let lost = ledger.await_term_above(run.term, SOON);
    assert_eq!(lost.candidate, "second");
    // From now on it hears of nothing, and its guardian counts alone.
    second.signal(Signal::STOP);
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
