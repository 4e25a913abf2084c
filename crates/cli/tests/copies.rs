//! Data directories of real servers: killed, started again, set back.

use std::path::Path;
use std::process::Command;

use crate::common::poll_until;
use crate::common::servers::{Cluster, Heard, SOON, answer, call, free, objects};

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(copied.expect("cp runs").success());
}

fn append(url: &str, line: &str) {
    let appended = Command::new(crate::common::TENURE)
        .args(["log", "append", line, "--store", url])
        .output()
        .expect("tenure runs");
    assert!(appended.status.success(), "{appended:?}");
}

/// What a server says of itself.
fn shows(cluster: &Cluster, id: usize) -> Option<serde_json::Value> {
    let objects = objects(&["status", "--json", "--store", &cluster.url()]);
    objects.into_iter().find(|it| it["id"] == id)
}

fn is_ready(cluster: &Cluster, id: usize) {
    let ready = || shows(cluster, id)?["ready"].as_bool()?.then_some(());
    poll_until(SOON, ready).expect("it is ready");
}

#[test]
fn servers_that_are_killed_come_back_and_one_that_was_set_back_does_not() {
    let mut cluster = Cluster::start();
    let url = cluster.url();
    append(&url, "one");
    // Killed at once after they have acknowledged, one by one and all. The
    // others do not take the next start for a second process beside the first.
    let refused = |cluster: &Cluster| {
        let metrics = |address: &String| answer(call(address, "GET /metrics", ""));
        let mut all = cluster.clients.iter().map(metrics);
        // A reason is listed when it was met.
        all.any(|text| text.contains("closed_total{reason=\"Copy\"}"))
    };
    for id in 1..=3 {
        cluster.kill(id);
        cluster.servers[id - 1] = cluster.serve(id);
        append(&url, &format!("after {id}"));
        is_ready(&cluster, id);
        assert!(
            !refused(&cluster),
            "server {id} was refused as a second one"
        );
    }
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.servers[id - 1] = cluster.serve(id);
    }
    for id in 1..=3 {
        is_ready(&cluster, id);
    }

    // A copy of one that runs, taken like a backup, and put back later.
    let old = cluster.leader() % 3 + 1;
    let data = cluster.directory.path().join(old.to_string());
    let copied = cluster.directory.path().join("copied");
    copy(&data, &copied);
    append(&url, "later");
    let is_there = || {
        let seen = shows(&cluster, old)?;
        (seen["lag"] == 0 && seen["log_next"] == 6).then_some(())
    };
    poll_until(SOON, is_there).expect("it has everything");
    cluster.kill(old);
    std::fs::remove_dir_all(&data).expect("removed");
    copy(&copied, &data);
    cluster.servers[old - 1] = cluster.serve(old);
    let says = || {
        let seen = shows(&cluster, old)?;
        let waiting = seen["waiting"].as_str()?.to_owned();
        (waiting.contains("set back") && seen["ready"] == false).then_some(waiting)
    };
    let waiting = poll_until(SOON, says).expect("it is refused");
    let remove = format!("tenure member remove {old}");
    assert!(waiting.contains(&remove), "{waiting}");
    assert!(refused(&cluster), "it was refused as an earlier copy");
    append(&url, "undisturbed");
}

/// Within the directory above, a relative path finds the old one for ever; the next start
/// goes there by the path of the new one.
#[test]
fn a_server_ends_whose_directory_was_replaced_from_above() {
    let directory = tempfile::tempdir().expect("a directory");
    let [peer, listen] = free();
    let [above, moved, copied] = ["above", "moved", "copied"].map(|it| directory.path().join(it));
    std::fs::create_dir(&above).expect("made");
    let mut command = Command::new(crate::common::TENURE);
    let peers = format!("1={peer}");
    command.args(["serve", "--id", "1", "--peers", &peers, "--listen", &listen]);
    command.args(["--data", "data"]).current_dir(&above);
    let mut server = Heard::start(command);
    let url = format!("tenure://{listen}");
    append(&url, "one");
    copy(&above, &copied);
    std::fs::rename(&above, &moved).expect("moved");
    std::fs::rename(&copied, &above).expect("moved");
    let late = ["log", "append", "two", "--timeout", "5s", "--store", &url];
    let late = Command::new(crate::common::TENURE).args(late).output();
    let late = late.expect("tenure runs");
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    server.says(1, &["was removed or replaced while it ran"]);
    assert!(!server.ended().success());
}
