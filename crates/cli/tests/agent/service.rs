//! What a service manager does to an agent: `docs/how-to/workloads.md` says how it is
//! to be told.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::common::{descendants, poll_until};
use super::fixture::{Agent, Fixture, PATIENCE};

/// Every process of a service: the agent, and all it has started.
fn processes(agent: &Agent) -> Vec<i32> {
    let below = descendants(agent.process.id()).into_iter();
    let own = i32::try_from(agent.process.id()).expect("a process id");
    below.map(|(pid, _)| pid).chain([own]).collect()
}

/// Whether it lives: one that has ended may wait for somebody to take note.
fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// A service of two workloads is stopped by TERM to some of its processes.
fn is_stopped(fixture: &Fixture, tell: impl Fn(&Agent, &[i32])) {
    let (mut one, _two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    fixture.deploy("a", &["--node", "one"]);
    fixture.deploy_as("b", &["--node", "one"], &fixture.stamps.stubborn());
    let all = processes(&one);
    // The agent, its shim, and a guardian and a command for each.
    assert!(
        all.len() >= 6 && all.iter().all(|pid| lives(*pid)),
        "{all:?}"
    );
    tell(&one, &all);
    assert_eq!(one.wait_for_exit(), 0);
    let left = || all.iter().all(|pid| !lives(*pid)).then_some(());
    poll_until(PATIENCE, left).unwrap_or_else(|| panic!("something is left of {all:?}"));
    fixture.all_run(&["a", "b"], |node| node == "two");
    let shown = fixture.shows("a", |it| it["state"] == "running");
    assert_eq!(shown["from_how"], "moved", "it was handed on");
}

/// `KillMode=mixed` and `KillMode=process`: TERM comes to the agent alone,
/// which ends what it runs, so that nothing is left to be killed.
#[test]
fn an_agent_that_is_told_to_stop_leaves_nothing_behind() {
    is_stopped(&Fixture::sqlite(), |one, _| one.signal(Signal::TERM));
}

/// `KillMode=control-group`, the default: TERM comes to everything at once.
#[test]
fn a_service_that_is_told_to_stop_as_a_whole_hands_its_work_on() {
    is_stopped(&Fixture::sqlite(), |_, all| {
        for pid in all {
            let pid = Pid::from_raw(*pid).expect("a process id");
            // Those below may have ended by the time their turn comes.
            let _ = kill_process(pid, Signal::TERM);
        }
    });
}
