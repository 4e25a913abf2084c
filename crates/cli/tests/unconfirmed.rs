//! `tenure run --exit-unconfirmed`: it ends when its leadership is lost.

use std::process::Command;
use std::time::Duration;

use crate::common::{Candidate, Ledger, Shared, TENURE, poll_until};

const SOON: Duration = Duration::from_secs(40);
const FLAGS: [&str; 3] = ["--lease", "3s", "--exit-unconfirmed"];

fn connection(shared: &Shared) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(shared.file()).expect("the file");
    connection.busy_timeout(SOON).expect("to wait for locks");
    connection
}

/// Waits until it has ended; what it said.
fn ended(mut candidate: Candidate, code: i32) -> String {
    let ended = || candidate.process.try_wait().expect("a child");
    let status = poll_until(SOON, ended).expect("it ends");
    let log = candidate.log();
    assert_eq!(status.code(), Some(code), "{log}");
    log
}

#[test]
fn a_leader_that_cannot_renew_ends() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let candidate = Candidate::start(&shared.url(), "a", &ledger, &FLAGS);
    ledger.await_term_above(0, SOON);
    let renewed = || candidate.log().contains("renewed term 1").then_some(());
    poll_until(SOON, renewed).expect("a renewal");
    // No other process can write while this lock is held.
    let locks = connection(&shared);
    locks.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    let log = ended(candidate, 5);
    assert!(log.contains("no renewal was confirmed in time"), "{log}");
    assert!(log.contains(" heartbeats took "), "{log}");
}

#[test]
fn a_leader_whose_register_shows_another_state_ends() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let candidate = Candidate::start(&shared.url(), "a", &ledger, &FLAGS);
    ledger.await_term_above(0, SOON);
    let deleted = connection(&shared).execute("DELETE FROM tenure_register", []);
    assert_eq!(deleted.expect("it is deleted"), 1);
    let log = ended(candidate, 5);
    assert!(log.contains("the register shows another state"), "{log}");
}

#[test]
fn a_leader_that_is_asked_to_go_stands_again() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let url = shared.url();
    let mut candidate = Candidate::start(&url, "a", &ledger, &FLAGS);
    ledger.await_term_above(0, SOON);
    let asked = Command::new("timeout")
        .args([
            "60", TENURE, "transfer", "payroll", "--to", "b", "--store", &url,
        ])
        .output()
        .expect("tenure runs");
    assert!(!asked.status.success(), "there is no b");
    let again = ledger.await_term_above(1, SOON);
    assert_eq!(again.candidate, "a");
    let running = candidate.process.try_wait().expect("a child");
    assert_eq!(running, None, "{}", candidate.log());
}
