//! What `tenure drain` says of nodes that die on the way, and of work that
//! has nowhere to go.

use serde_json::{Value, json};

use super::fixture::Fixture;

/// That a node has gone does not say that it left, nor that its work runs.
#[test]
fn a_drain_says_what_became_of_the_node_and_of_its_work() {
    let fixture = Fixture::sqlite();
    let (one, mut two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    fixture.deploy("a", &["--node", "one"]);
    one.stop();
    let (code, said) = fixture.fails(&["drain", "one", "--via", "two"]);
    assert!(code == 1 && said.contains("it died meanwhile"), "{said}");
    assert!(said.contains("failed over, not handed on: a"), "{said}");
    fixture.all_run(&["a"], |node| node == "two");
    fixture.deploy("own", &["--node", "two", "--no-ha", "--via", "two"]);
    two.wait_for_log("taking over 1 workload of ");
    one.wait_for_log("quorum attained: 1 HA node, none needed");
    let shown = fixture.done(&["ps"]);
    assert!(
        shown.starts_with("group town: 1 HA node, no quorum needed, "),
        "{shown}"
    );
    drop(one);
    let drained = fixture.run(&["drain", "--via", "two"]);
    let (out, err) = (drained.stdout, drained.stderr);
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&err));
    assert!(drained.status.success(), "{err}");
    for warning in [
        "warning: 1 workload will wait (a): no live HA node",
        "warning: not HA, and ends with it: own",
    ] {
        assert!(err.contains(warning), "{err}");
    }
    assert!(
        out.contains("1 workload waits (a): no live HA node"),
        "{out}"
    );
    assert_eq!(two.wait_for_exit(), 0);
    two.wait_for_log("left the group, with nothing running here");
}

#[test]
fn a_drain_says_that_the_group_needs_the_node() {
    let fixture = Fixture::sqlite();
    let quorum = ["--quorum", "2"];
    let (mut one, _two) = (fixture.node("one", &quorum), fixture.node("two", &quorum));
    fixture.deploy("a", &["--node", "one"]);
    fixture.deploy("b", &["--node", "two"]);
    let object = fixture.done(&["drain", "one", "--via", "two", "--json"]);
    let object: Value = serde_json::from_str(&object).expect("an object");
    let waits = |name: &str| json!({ "workload": name, "why": "1 of 2 HA nodes" });
    assert_eq!(object["waiting"], json!([waits("a"), waits("b")]));
    assert_eq!(
        (&object["quorum"], &object["attained"]),
        (&2.into(), &false.into())
    );
    assert_eq!(one.wait_for_exit(), 0);
}
