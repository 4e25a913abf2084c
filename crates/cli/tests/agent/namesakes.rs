//! Agents of one name on several machines. On one machine the second is
//! refused, by a lock (`trouble.rs`). On another there is no such lock, and
//! the second is a node of its own: the group tells the two apart by their
//! ids, and people are told to.

use std::fs;

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE};

#[test]
fn two_agents_of_one_name_on_two_machines_are_two_nodes() {
    let here = Fixture::sqlite();
    let there = here.elsewhere();
    let mut first = here.node("one", &[]);
    here.deploy("a", &[]);
    let before = here.stamps.last("a").expect("it runs");
    let second = there.node("one", &[]);
    second.wait_for_log("another node has this name: name nodes by their ids");
    first.wait_for_log("another node of this name has joined");
    let ids = [first.id(), second.id()];
    assert_ne!(ids[0], ids[1]);
    // Nobody is asked whom a person may not have meant.
    for args in [
        &["deploy", "b", "--node", "one", "--", "true"][..],
        &["drain", "one"],
    ] {
        for fixture in [&here, &there] {
            let (code, said) = fixture.fails(args);
            let both = ids.iter().all(|id| said.contains(id));
            assert!(
                code == 1 && both && said.contains("name one by its id"),
                "{args:?}: {said}"
            );
        }
    }
    here.deploy("b", &["--node", &ids[1]]);
    here.all_run(&["a", "b"], |_| true);
    let a = here.stamps.last("a").expect("it runs");
    assert_eq!(a.pid, before.pid, "what the first one has is left to it");
    let (_, said) = there.fails(&["logs", "a"]);
    assert!(said.contains("expected output of a"), "{said}");
    let (_, said) = here.fails(&["logs", "b"]);
    assert!(said.contains("expected output of b"), "{said}");
    // The second one is no successor before the first one is dead.
    first.kill_all();
    let moved = || here.stamps.last("a").filter(|run| run.pid != a.pid);
    let moved = poll_until(PATIENCE, moved).expect("it is taken over");
    assert!(moved.fence > a.fence, "{moved:?}");
    second.wait_for_log(&format!("one has died ({})", ids[0]));
    // Now the name means one node again.
    there.deploy("c", &["--node", "one"]);
    here.all_run(&["a", "b", "c"], |_| true);
}

/// A second agent would find the shim of the first one, and kill it as one
/// that does not answer.
#[test]
fn an_agent_whose_lock_was_removed_keeps_its_directory() {
    let fixture = Fixture::sqlite();
    let long = ["--lease", "8s"];
    let mut one = fixture.node("one", &long);
    let (id, shim) = (one.id(), one.below("__steward"));
    fixture.deploy("a", &[]);
    let before = fixture.writes("a");
    let lock = fixture.state().join("town/one/agent.lock");
    fs::remove_file(&lock).expect("it is there");
    let mut second = fixture.start("one", &long);
    assert_eq!(second.wait_for_exit(), 1, "{}", second.log_text());
    second.wait_for_log("though its agent.lock was removed");
    assert_eq!(one.below("__steward"), shim);
    assert_eq!(fixture.writes("a").pid, before.pid, "it is not disturbed");
    fixture.deploy("b", &[]);
    // The rightful case: one that is restarted has the directory again.
    one.kill();
    let again = fixture.start("one", &long);
    again.wait_for_log(&format!("going on as {id}"));
    assert_eq!(fixture.writes("a").pid, before.pid, "it is not disturbed");
    let holder = || fs::read_to_string(&lock).ok()?.trim().parse().ok();
    assert_eq!(holder(), Some(again.process.id()));
}

/// In a new directory the second agent is a node of its own, as on another
/// machine, and reaches nothing that the first one holds.
#[test]
fn an_agent_whose_directory_was_replaced_keeps_what_it_holds() {
    let fixture = Fixture::sqlite();
    let mut one = fixture.node("one", &[]);
    // Both write to one log.
    let (id, shim) = (one.id(), one.below("__steward"));
    fixture.deploy("a", &[]);
    let before = fixture.writes("a");
    let home = fixture.state().join("town");
    fs::rename(home.join("one"), home.join("aside")).expect("moved");
    one.wait_for_log("to be the file that this agent has locked");
    let second = fixture.node("one", &[]);
    second.wait_for_log("another node has this name");
    assert_ne!(id, second.id());
    fixture.deploy("b", &["--node", &second.id()]);
    assert_eq!(one.below("__steward"), shim);
    assert_eq!(fixture.writes("a").pid, before.pid, "it is not disturbed");
    one.signal(rustix::process::Signal::TERM);
    assert_eq!(one.wait_for_exit(), 0, "{}", one.log_text());
    let moved = || fixture.stamps.last("a").filter(|run| run.pid != before.pid);
    poll_until(PATIENCE, moved).expect("it is handed on");
    fixture.all_run(&["a", "b"], |_| true);
}
