//! Who leads, shown as it is now; and members that are changed by their disks.

use std::process::{Command, Output};

use crate::common::servers::{Cluster, SOON, objects};
use crate::common::{TENURE, poll_until};

fn tenure(args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", TENURE]).args(args);
    command.output().expect("tenure runs")
}

/// How it ends: the exit code, and what it says on both.
fn ends(args: &[&str]) -> (Option<i32>, String, String) {
    let output = tenure(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn a_leader_is_shown_as_one_only_if_a_majority_confirms_it() {
    let mut cluster = Cluster::start();
    let url = cluster.url();
    let well = || {
        let seen = objects(&["status", "--json", "--store", &url]);
        let leader = seen.iter().find(|it| it["role"] == "leader")?.clone();
        (leader["confirmed"] == true).then_some((leader, seen))
    };
    let (leader, seen) = poll_until(SOON, well).expect("a leader that is confirmed");
    assert_eq!(
        leader["confirmed_age_millis"].as_u64().map(|_| ()),
        Some(())
    );
    let other = seen.iter().find(|it| it["role"] == "passive");
    assert!(other.expect("a follower")["confirmed"].is_null());

    // The two others have just gone.
    let leader = usize::try_from(leader["id"].as_u64().expect("a number")).expect("a few");
    for id in (1..=3).filter(|id| *id != leader) {
        cluster.kill(id);
    }
    let (code, table, said) = ends(&["status", "--store", &url]);
    assert_eq!(code, Some(1), "{table}{said}");
    assert!(said.contains("expected a server that leads"), "{said}");
    let row = table
        .lines()
        .find(|it| it.starts_with(&leader.to_string()))
        .expect("its row");
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_ne!(cells[1], "leader", "{row}");
    assert_eq!(cells[7], "?", "how far others went it cannot know: {row}");
}

#[test]
fn members_are_changed_by_their_number_and_their_disk() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let leader = cluster.leader();
    let [gone, other] = [leader % 3 + 1, (leader + 1) % 3 + 1].map(|it| it.to_string());
    let disk_of = |id: &str| {
        let members = objects(&["member", "list", "--json", "--store", &url]);
        let member = members
            .iter()
            .find(|it| it["id"].as_u64() == id.parse().ok());
        member.map(|it| it["storage"].as_str().expect("text").to_owned())
    };
    let (mine, others) = (
        disk_of(&gone).expect("a member"),
        disk_of(&other).expect("a member"),
    );
    let remove = |storage: &str| {
        ends(&[
            "member",
            "remove",
            &gone,
            "--storage",
            storage,
            "--store",
            &url,
        ])
    };
    let (code, _, said) = remove(&others);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("storage {mine}")), "{said}");
    let (code, _, said) = remove("no disk");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("32 hexadecimal digits"), "{said}");
    assert_eq!(disk_of(&gone).as_ref(), Some(&mine), "it is left alone");
    // Greetings of a leader that took this would be too long for anybody.
    let long = format!("{}:1", "a".repeat(70_000));
    let add = [
        "member",
        "add",
        "9",
        "--storage",
        &mine,
        "--peer",
        &long,
        "--store",
        &url,
    ];
    let (code, _, said) = ends(&add);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("of at most 300 bytes, found 70002"), "{said}");
    assert!(said.len() < 1_000, "{said}");
    let removed = poll_until(SOON, || (remove(&mine).0 == Some(0)).then_some(()));
    assert!(removed.is_some(), "{:?}", remove(&mine));
    assert_eq!(disk_of(&gone), None);
    let (code, _, said) = ends(&["member", "promote", &gone, "--store", &url]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("expected the number of a member"), "{said}");
}
