//! The file system that an agent keeps its own things on hangs.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use tenure::clock;

use super::common::poll_until;
use super::common::stalls::{Stall, gone, traceable};
use super::fixture::{Fixture, PATIENCE};
use super::print;

/// An agent whose lock file hangs keeps what it runs, hands it on, and ends.
#[test]
fn an_agent_goes_on_while_the_file_of_its_lock_hangs() {
    if !traceable() {
        return print("\n*** LEFT OUT: strace cannot trace a process here\n");
    }
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--quorum", "1"]);
    fixture.deploy("a", &[]);
    let begun = fixture.writes("a").pid;
    let _two = fixture.node("two", &["--quorum", "1"]);
    let lock = fixture.state().join("town/one/agent.lock");
    let stall = Stall::of_file(one.process_id(), &lock);
    one.wait_for_log("has not answered for 2s");
    // Longer than anything runs without a beat.
    let long = clock::boot().after(Duration::from_secs_f64(2.0 * fixture.lease()));
    poll_until(PATIENCE, || (clock::boot() >= long).then_some(()));
    assert_eq!(fixture.writes("a").pid, begun, "it was begun again");
    fixture.done(&["drain", "one", "--via", "two"]);
    fixture.all_run(&["a"], |node| node == "two");
    fixture.stamps.runs();
    one.signal(Signal::TERM);
    one.wait_for_log("left the group");
    gone(one.process_id());
    drop(stall);
}

/// An agent that cannot take its directory says so, and ends when it is asked.
#[test]
fn an_agent_whose_directory_hangs_at_its_start_can_be_stopped() {
    if !traceable() {
        return print("\n*** LEFT OUT: strace cannot trace a process here\n");
    }
    let fixture = Fixture::sqlite();
    let words = Stall::words(&fixture.state().join("town/one/agent.lock"));
    let mut prefix = vec!["strace", "-D"];
    prefix.extend(words.iter().map(String::as_str));
    let one = fixture.start_in(&prefix, "one", &["--quorum", "1"]);
    one.wait_for_log("has not answered");
    one.signal(Signal::TERM);
    one.wait_for_log("asked to stop before it had begun");
    gone(one.process_id());
}

/// A log that cannot be opened, here a named pipe that nobody reads, is a start
/// that fails, and holds up nothing else.
#[test]
fn a_log_that_hangs_holds_up_nothing_but_its_own_start() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--quorum", "1"]);
    fixture.deploy("a", &[]);
    let begun = (fixture.writes("a").pid, one.below("__steward"));
    let logs = fixture.state().join("town/one/logs/b");
    fs::create_dir(&logs).expect("a directory");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let log = logs.join("0.log");
    rustix::fs::mkfifoat(rustix::fs::CWD, &log, mode).expect("a pipe");
    let (code, said) = fixture.fails(&["deploy", "b", "--", "sleep", "1000"]);
    assert!(code == 1 && said.contains("found no answer"), "{said}");
    fixture.deploy("c", &[]);
    // The log answers again.
    fs::remove_file(log).expect("removed");
    fixture.shows("b", |it| it["state"] == "running");
    fixture.all_run(&["a", "c"], |node| node == "one");
    assert_eq!(begun, (fixture.writes("a").pid, one.below("__steward")));
}
