//! The file system that an agent keeps its own things on hangs.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

use super::common::poll_until;
use super::common::stalls::{FOR_EVER, Stall, status, traceable};
use super::print;
use super::town::{Agent, PATIENCE, Town};

/// An agent whose lock file hangs keeps what it runs, hands it on, and ends.
#[test]
fn an_agent_goes_on_while_the_file_of_its_lock_hangs() {
    if !traceable() {
        return print("\n*** LEFT OUT: strace cannot trace a process here\n");
    }
    let town = Town::sqlite();
    let one = town.node("one", &["--quorum", "1"]);
    town.deploy("a", &[]);
    let begun = town.writes("a").pid;
    let _two = town.node("two", &["--quorum", "1"]);
    let lock = town.state().join("town/one/agent.lock");
    let stall = Stall::of_file(one.number(), FOR_EVER, &lock);
    one.says("has not answered for 2s");
    // Longer than anything runs without a beat.
    let long = clock::boot().after(Duration::from_secs_f64(2.0 * town.lease()));
    poll_until(PATIENCE, || (clock::boot() >= long).then_some(()));
    assert_eq!(town.writes("a").pid, begun, "it was begun again");
    town.done(&["drain", "one", "--via", "two"]);
    town.all_run(&["a"], |node| node == "two");
    town.stamps.runs();
    one.signal(Signal::TERM);
    one.says("left the group");
    gone(&one);
    drop(stall);
}

/// Waits until a traced process has ended: its end is known to its parent only
/// when strace is gone, which sleeps as long as the file hangs.
fn gone(agent: &Agent) {
    let process = PathBuf::from(format!("/proc/{}", agent.number()));
    let tracer = status(&process, "TracerPid:").expect("it runs");
    let ended = || status(&process, "State:").filter(|it| it.starts_with('Z'));
    poll_until(PATIENCE, ended).expect("it ends");
    let tracer = tracer.parse().ok().and_then(Pid::from_raw).expect("strace");
    kill_process(tracer, Signal::KILL).expect("strace");
}

/// A log that cannot be opened, here a named pipe that nobody reads, is a start
/// that fails, and holds up nothing else.
#[test]
fn a_log_that_hangs_holds_up_nothing_but_its_own_start() {
    let town = Town::sqlite();
    let one = town.node("one", &["--quorum", "1"]);
    town.deploy("a", &[]);
    let begun = (town.writes("a").pid, one.below("__steward"));
    let logs = town.state().join("town/one/logs/b");
    fs::create_dir(&logs).expect("a directory");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let log = logs.join("0.log");
    rustix::fs::mkfifoat(rustix::fs::CWD, &log, mode).expect("a pipe");
    let (code, said) = town.fails(&["deploy", "b", "--", "sleep", "1000"]);
    assert!(code == 1 && said.contains("found no answer"), "{said}");
    town.deploy("c", &[]);
    // The log answers again.
    fs::remove_file(log).expect("removed");
    town.shows("b", |it| it["state"] == "running");
    town.all_run(&["a", "c"], |node| node == "one");
    assert_eq!(begun, (town.writes("a").pid, one.below("__steward")));
}
