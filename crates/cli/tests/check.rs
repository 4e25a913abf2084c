//! `tenure check` of real stores that are fit: it says so, says which lease would do,
//! and leaves nothing behind. Unfit ones are planted in `examples/http-registers`.

mod common;

use std::process::Command;

use common::{Shared, TENURE};
use serde_json::Value;

/// What a check of this store says, an object a line.
fn check(url: &str, more: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let mut command = Command::new("timeout");
    command.args(["170", TENURE, "check", url, "--json"]);
    let output = command.args(more).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8(output.stdout).expect("text");
    let object = |line: &str| serde_json::from_str(line).expect("an object a line");
    (
        output.status.code(),
        text.lines().map(object).collect(),
        said,
    )
}

/// The trial of this name.
fn trial<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    let found = lines.iter().find(|it| it["trial"] == name);
    found.unwrap_or_else(|| panic!("expected the trial {name} in {lines:?}"))
}

/// The store is fit, and what is said of it is plausible.
fn is_fit(url: &str) -> Vec<Value> {
    let (code, lines, said) = check(url, &[]);
    assert_eq!(code, Some(0), "{lines:?} {said}");
    let last = lines.last().expect("a verdict");
    assert_eq!(last["verdict"], "fit", "{last}");
    assert_eq!(last["left_behind"], Value::Null, "{last}");
    for name in ["preconditions", "versions", "reads", "race", "latency"] {
        assert_eq!(trial(&lines, name)["outcome"], "passed", "{lines:?}");
    }
    let lease = last["advice"]["lease_ms"].as_f64().expect("a lease");
    let slowest = last["latencies"]["write_p99_us"].as_f64().expect("a time");
    assert!(
        lease >= 1_000.0 && lease >= 8.0 * slowest / 1_000.0,
        "{last}"
    );
    let written = last["writes"].as_u64().expect("a number");
    assert!(written > 600, "{last}");
    lines
}

#[test]
fn sqlite_is_fit() {
    let store = Shared::sqlite();
    let lines = is_fit(&store.url());
    assert_eq!(trial(&lines, "clock")["outcome"], "passed", "{lines:?}");
    assert_eq!(
        lines.last().expect("a verdict")["clock"]["is_of_this_machine"],
        true
    );
    let database = rusqlite::Connection::open(store.file()).expect("the file");
    let count = database.query_row("SELECT count(*) FROM tenure_register", (), |row| row.get(0));
    assert_eq!(count, Ok(0), "registers are left behind");
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_is_fit() {
    let store = Shared::postgres();
    let lines = is_fit(&store.url());
    assert_eq!(trial(&lines, "cuts")["outcome"], "passed", "{lines:?}");
    // The server has this machine's calendar.
    let clock = &lines.last().expect("a verdict")["clock"];
    let ahead = clock["ahead_ms"].as_i64().expect("an offset");
    assert!(ahead.abs() < 1_000, "{clock}");
    assert_eq!(clock["jumped_forward_ms"], 0.0, "{clock}");
}

#[cfg(feature = "tenure")]
#[test]
fn a_cluster_is_fit() {
    let store = Shared::cluster();
    let lines = is_fit(&store.url());
    // The client goes to the servers that it has learnt of.
    assert_eq!(trial(&lines, "cuts")["outcome"], "left_out", "{lines:?}");
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_is_fit() {
    let store = Shared::etcd(1);
    let lines = is_fit(&store.url());
    assert_eq!(trial(&lines, "clock")["outcome"], "left_out", "{lines:?}");
    assert_eq!(trial(&lines, "cuts")["outcome"], "passed", "{lines:?}");
}

#[test]
fn what_was_typed_wrongly_is_told() {
    for (args, said) in [
        (&["memory:"][..], "several processes"),
        (&["none://x"], "unknown scheme"),
        (&["sqlite:///tmp/x.db", "--budget", "5"], "--budget"),
    ] {
        let (code, _, found) = check(args[0], &args[1..]);
        assert_eq!(code, Some(2), "{found}");
        assert!(found.contains(said), "{found}");
    }
}
