//! `tenure run --format hpc`: a program of HPC Pack HA, in SQL by Python, and real
//! candidates in one table; a leader of either kind is killed.

#![allow(clippy::print_stdout, reason = "how long it took is of interest")]

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::{Candidate, Ledger, Shared, TENURE, poll_until};
use rustix::process::Signal;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
/// T is the default, 5 s, and so is the lease.
const FLAGS: [&str; 2] = ["--format", "hpc"];

/// `UpdateHeartBeat`, and `GetPrimary`, with T = 5 s; the times are of the calendar.
const PYTHON: &str = "\
import sqlite3, sys, time
call, path, uuid = sys.argv[1:4]
database = sqlite3.connect(path, timeout=20, isolation_level=None)
now = \"strftime('%Y-%m-%d %H:%M:%f', 'now')\"
age = \"(julianday('now') - julianday(timestamp)) * 86400.0\"
if call == 'primary':
    found = database.execute(
        f\"SELECT uuid FROM heartbeattable WHERE utype = 'payroll' AND {age} <= 5\").fetchone()
    print(found[0] if found else '')
else:
    old = database.execute(
        \"SELECT uuid, timestamp FROM heartbeattable WHERE utype = 'payroll'\").fetchone()
    done = database.execute(
        f\"UPDATE heartbeattable SET uuid = ?1, uname = 'their-host', timestamp = {now} WHERE \"
        f\"utype = 'payroll' AND uuid = ?2 AND timestamp = ?3 AND (uuid = ?1 OR {age} > 5)\",
        (uuid, *old)).rowcount
    print(time.time() if done else '')
";

/// What a program has been told; nothing if nothing was done, or found.
fn program(call: &str, file: &Path, uuid: &str) -> Option<String> {
    let ran = Command::new("python3")
        .args(["-c", PYTHON, call])
        .arg(file)
        .arg(uuid)
        .output()
        .expect("python3 runs");
    let why = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{why}");
    let said = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    (!said.is_empty()).then_some(said)
}

fn tenure(url: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["60", TENURE])
        .args(args)
        .env("TENURE_STORE", url)
        .env("TENURE_FORMAT", "hpc")
        .output()
        .expect("tenure runs")
}

fn leader(url: &str) -> Value {
    let output = tenure(url, &["leader", "payroll", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_default()
}

#[test]
fn a_candidate_and_a_program_take_over_from_each_other_when_one_is_killed() {
    const THEIRS: &str = "0a0b0c0d-1111-4222-8333-444455556666";
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let (url, file) = (shared.url(), shared.file());
    let mut a = Candidate::start(&url, "a", &ledger, &FLAGS);
    let first = ledger.await_term_above(0, SOON);
    assert_eq!(first.term, 1);
    let primary = program("primary", &file, THEIRS).expect("a primary");
    let led = leader(&url);
    assert_eq!((&led["name"], &led["term"]), (&"a".into(), &1.into()));
    assert_eq!(led["leader_id"], primary.replace('-', ""));
    assert_eq!(program("beat", &file, THEIRS), None, "a is alive");

    // Killed: the program leads after T, and the command of a has ended before.
    a.signal(Signal::KILL);
    a.process.wait().expect("it was killed");
    let taken = poll_until(SOON, || program("beat", &file, THEIRS)).expect("it takes over");
    let taken: f64 = taken.parse().expect("a time");
    let ended = ledger.runs().pop().expect("the run of a").last;
    println!("the command of a ended {:.1} s before", taken - ended);
    assert!(ended < taken, "{ended} {taken}");

    // While it beats b waits, says who leads, and asks nothing of it.
    let b = Candidate::start(&url, "b", &ledger, &FLAGS);
    let mut beats = 0;
    let follows = || {
        beats += 1;
        program("beat", &file, THEIRS).expect("it leads");
        let known = b.log().contains("their-host leads in term 2");
        (known && beats > 12).then_some(())
    };
    poll_until(SOON, follows).expect("b follows it");
    let led = leader(&url);
    assert_eq!(
        (&led["name"], &led["term"]),
        (&"their-host".into(), &2.into())
    );
    let id = led["leader_id"].as_str().expect("an id");
    let asked = tenure(&url, &["resign", "payroll", "--leader-id", id]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(!asked.status.success(), "{said}");
    assert!(said.contains("hears no requests"), "{said}");
    let last = program("beat", &file, THEIRS).expect("it leads");
    let last: f64 = last.parse().expect("a time");

    // Dead: b leads after T, in the next term.
    let second = ledger.await_term_above(1, SOON);
    assert_eq!((second.term, second.candidate.as_str()), (3, "b"));
    println!(
        "b began {:.1} s after the last heartbeat",
        second.first - last
    );
    assert!(second.first - last >= 5.0, "{second:?} {last}");
    drop((a, b));
    ledger.runs();
}

#[test]
fn what_needs_other_registers_says_that_there_are_none() {
    let shared = Shared::sqlite();
    let output = tenure(&shared.url(), &["ps", "--group", "web"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("no other registers"), "{said}");
}

#[test]
fn a_lease_that_is_longer_than_t_is_refused_at_the_start() {
    let shared = Shared::sqlite();
    let output = tenure(
        &shared.url(),
        &["run", "payroll", "--lease", "6s", "--", "true"],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("a lease of at most 5s"), "{said}");
}

#[test]
fn a_format_is_a_name() {
    let shared = Shared::sqlite();
    let refused = |format: &str, words: &str| {
        let output = Command::new(TENURE)
            .args(["leader", "payroll", "--store", &shared.url()])
            .args(["--format", format])
            .output()
            .expect("tenure runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{said}");
    };
    refused("a&b", "expected letters, digits");
    refused("k8s", "expected hpc");
}
