//! Agents of one name on several machines. On one machine the second is
//! refused, by a lock (`trouble.rs`). On another there is no such lock, and
//! the second is a node of its own: the group tells the two apart by their
//! ids, and people are told to.

use super::common::poll_until;
use super::town::{PATIENCE, Town};

#[test]
fn two_agents_of_one_name_on_two_machines_are_two_nodes() {
    let here = Town::sqlite();
    let there = here.elsewhere();
    let mut first = here.node("one", &[]);
    here.deploy("a", &[]);
    let before = here.stamps.last("a").expect("it runs");
    let second = there.node("one", &[]);
    second.says("another node has this name: name nodes by their ids");
    first.says("another node of this name has joined");
    let ids = [first.id(), second.id()];
    assert_ne!(ids[0], ids[1]);
    // Nobody is asked whom a person may not have meant.
    for args in [
        &["deploy", "b", "--node", "one", "--", "true"][..],
        &["drain", "one"],
    ] {
        for town in [&here, &there] {
            let (code, said) = town.fails(args);
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
    first.perish();
    let moved = || here.stamps.last("a").filter(|run| run.pid != a.pid);
    let moved = poll_until(PATIENCE, moved).expect("it is taken over");
    assert!(moved.fence > a.fence, "{moved:?}");
    second.says(&format!("one has died ({})", ids[0]));
    // Now the name means one node again.
    there.deploy("c", &["--node", "one"]);
    here.all_run(&["a", "b", "c"], |_| true);
}
