//! `tenure serve --quota-registers` and `--quota-bytes`, and what is shown of
//! them.

mod common;

use common::servers::{Cluster, SOON, answer, call, objects, risen, tenure};

/// What is answered to a write of this register.
fn write(address: &str, key: &str) -> String {
    let body = format!(r#"{{"swap": {{"key": "{key}", "value": "eA=="}}}}"#);
    let head = "POST /v1/registers/compare_and_swap";
    answer(call(address, head, &body))
}

#[test]
fn a_quota_that_is_taken_is_shown_by_each_server() {
    let cluster = Cluster::start_with(&["--quota-registers", "2", "--quota-bytes", "1000"]);
    let url = cluster.url();
    risen(&url);
    let address = &cluster.clients[cluster.leader() - 1];
    for key in ["a", "b"] {
        let said = write(address, key);
        assert!(said.contains("\"swapped\":true"), "{said}");
    }
    let said = write(address, "c");
    for part in ["507", "TOO_LARGE", "take 2 of 2", "--quota-registers"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The others hear of it with the next entry, or heartbeat.
    let shown = || {
        let all = objects(&["status", "--json", "--store", &url]);
        let full = |it: &serde_json::Value| {
            let full = it["full"].as_str().is_some_and(|it| it.contains("2 of 2"));
            full && it["quota_registers"] == 2 && it["register_bytes"] == 4
        };
        let all = (all.len() == 3 && all.iter().all(full)).then_some(all)?;
        Some((all, tenure(&["status", "--store", &url])))
    };
    let (_, table) = common::poll_until(SOON, shown).expect("it is shown");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let note = "registers take 2 of 2 in number (--quota-registers)";
    assert_eq!(table.matches(note).count(), 3, "{table}");

    let made = ["token", "x", "--write", "a/", "--quota-bytes", "5"];
    let made = tenure(&[&made[..], &["--quota-registers", "7"]].concat());
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    let lines = ["quota_bytes = 5", "quota_registers = 7"];
    assert!(lines.iter().all(|line| said.contains(line)), "{said}");
}
