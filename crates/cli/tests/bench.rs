//! `tenure bench` as people run it: against real stores, one and two, and
//! with arguments that do not fit.

#![allow(clippy::float_cmp, reason = "what was asked for comes back as it was")]

use std::process::{Command, Output};

use serde_json::Value;

use crate::common::TENURE;
#[cfg(feature = "etcd")]
use crate::common::etcd;

fn bench(args: &[&str]) -> Output {
    let run = Command::new("timeout")
        .args(["60", TENURE, "bench", "--warm-up", "100ms"])
        .args(args)
        .output();
    run.expect("tenure runs")
}

fn text(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(args: &[&str]) -> Value {
    let output = bench(&[args, &["--json"]].concat());
    serde_json::from_str(&text(&output)).expect("one object")
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("a number, found {value}"))
}

/// A directory in memory, where there is one: on a slow disk nothing might be
/// done in so short a time.
fn memory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a directory")
}

fn database(directory: &tempfile::TempDir, name: &str) -> String {
    format!("sqlite://{}", directory.path().join(name).display())
}

#[test]
fn a_closed_loop_says_how_fast_how_even_and_at_what_cost() {
    let (directory, place) = (memory(), tempfile::tempdir().expect("a directory"));
    let (url, disk) = (database(&directory, "a.db"), place.path());
    let disk = disk.display().to_string();
    let me = std::process::id().to_string();
    let flags = [
        "--clients",
        "4",
        "--keys",
        "10",
        "--value-bytes",
        "100",
        "--reads",
        "0.5",
        "--duration",
        "2s",
        "--disk",
        &disk,
        "--server-pid",
        &me,
    ];
    let seen = json(&[&[url.as_str()][..], &flags].concat());
    let store = &seen["stores"][0];
    for kind in ["reads", "writes"] {
        let found = &store[kind];
        assert!(number(&found["count"]) > 10.0, "{seen}");
        let at = |name: &str| number(&found["latency_us"][name]);
        let order = [at("p50"), at("p90"), at("p99"), at("p99.9"), at("max")];
        assert!(order.is_sorted() && at("p50") > 0.0, "{found}");
    }
    for class in ["conflict", "unavailable", "unknown", "broken"] {
        assert_eq!(number(&store["failures"][class]), 0.0, "{store}");
    }
    assert!(number(&store["cpu_us_per_operation"]["client"]) > 0.0);
    assert!(store["cpu_us_per_operation"]["servers"].is_number());
    assert!(number(&seen["fdatasync_p50_us"]) > 0.0);
    assert!(store["points"].as_array().expect("points").len() >= 5);
    // Nothing is left behind: not in the store, not on the disk.
    let database = rusqlite::Connection::open(directory.path().join("a.db")).expect("it opens");
    let rows = database.query_row("SELECT count(*) FROM tenure_register", [], |row| row.get(0));
    assert_eq!(rows, Ok(0_i64));
    let both = [directory.path(), disk.as_ref()].map(|it| std::fs::read_dir(it).expect("files"));
    let files = both.into_iter().flatten().flatten();
    let strays = files.filter(|file| file.file_name().to_string_lossy().contains("bench"));
    assert_eq!(strays.count(), 0);
}

#[test]
fn an_open_loop_keeps_to_its_rate_and_draws_a_picture() {
    let directory = tempfile::tempdir().expect("a directory");
    let picture = directory.path().join("a.svg");
    let said = text(&bench(&[
        "memory:",
        "--rate",
        "500",
        "--duration",
        "1s",
        "--plot",
        picture.to_str().expect("a path"),
    ]));
    assert!(said.contains("open loop at 500/s"), "{said}");
    assert!(said.contains("failures none"), "{said}");
    let svg = std::fs::read_to_string(&picture).expect("a picture");
    assert!(
        svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
        "{svg}"
    );
    for part in [
        "latency by percentile",
        "operations a second",
        "p99",
        "memory:",
    ] {
        assert!(svg.contains(part), "{part}");
    }
    let seen = json(&["memory:", "--rate", "500", "--duration", "1s"]);
    let store = &seen["stores"][0];
    let (count, missed) = (&store["writes"]["count"], &store["missed"]);
    assert_eq!(number(count) + number(missed), 500.0, "{seen}");
}

#[test]
fn two_stores_take_turns_and_are_compared() {
    let directory = memory();
    let (a, b) = (database(&directory, "a.db"), database(&directory, "b.db"));
    let flags = ["--duration", "1800ms", "--slices", "3", "--clients", "2"];
    let args = [&["--compare", &a, &b][..], &flags].concat();
    let seen = json(&args);
    for (store, url) in [(0, &a), (1, &b)] {
        let store = &seen["stores"][store];
        assert_eq!(store["slices"].as_array().map(Vec::len), Some(3), "{seen}");
        assert_eq!(store["store"], **url);
    }
    let ratio = &seen["a_to_b"]["throughput"];
    let order = ["least", "median", "most"].map(|name| number(&ratio[name]));
    assert!(order.is_sorted() && order[0] > 0.0, "{ratio}");
    let said = text(&bench(&args));
    assert!(said.contains("A to B, median of 3 rounds"), "{said}");
}

#[test]
fn arguments_that_do_not_fit() {
    for (args, expected) in [
        (&["memory:", "--reads", "1.5"][..], "0 to 1"),
        (&["memory:", "--reads", "nan"], "0 to 1"),
        (&["memory:", "--rate", "0"], "--rate"),
        (&["memory:", "--rate", "inf"], "--rate"),
        (&["memory:", "--clients", "0"], "--clients"),
        (&["memory:", "--clients", "4", "--keys", "3"], "--keys"),
        (
            &["memory:", "--clients", "4", "--connections", "5"],
            "--connections",
        ),
        (&["memory:", "--value-bytes", "300000"], "262144"),
        (&["memory:", "--duration", "0s"], "more than nothing"),
        (
            &["memory:", "--server-pid", "4294967295"],
            "running process",
        ),
        (&["memory:", "--server-pid-b", "1"], "--compare"),
        (&["memory:", "--disk", "/does/not/exist"], "--disk"),
        (&["--compare", "memory:"], "--compare"),
        (&["memory:", "--compare", "memory:", "memory:"], "--compare"),
        (&["mongo://h"], "unknown scheme"),
    ] {
        let refused = bench(args);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    // A server that is not there is no wrong usage.
    let url = "postgres://u@127.0.0.1:1/db";
    let away = bench(&[url, "--timeout", "500ms"]);
    assert_eq!(away.status.code(), Some(1));
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn a_server_that_is_killed_under_load_is_seen_in_the_figures() {
    use tenure::store::{Selector, Sighting};

    let mut cluster = etcd::Etcd::start(3);
    let url = cluster.url();
    let mut run = Command::new("timeout");
    run.args(["60", TENURE, "bench", &url, "--duration", "10s", "--json"])
        .args(["--clients", "8", "--timeout", "1s", "--warm-up", "1ms"])
        .stdout(std::process::Stdio::piped());
    let run = run.spawn().expect("tenure runs");
    // Once its registers change it is under way; they must have done so long
    // before its time is up, however slow the disks are.
    let store = tenure::store::open(&url).await.expect("a store");
    let mut watch = store.watch(Selector::Prefix("bench/".into()));
    let mut changes = 0;
    while changes < 20 {
        changes += usize::from(matches!(watch.next().await, Sighting::State(_, Some(_))));
    }
    // It has been talking to this one.
    cluster.kill(0);
    let output = run.wait_with_output().expect("it ends");
    let seen: Value = serde_json::from_str(&text(&output)).expect("one object");
    let found = &seen["stores"][0];
    let failed = number(&found["failures"]["unknown"]) + number(&found["failures"]["unavailable"]);
    assert!(failed > 0.0, "{found}");
    assert!(number(&found["longest_gap_us"]) > 0.0);
    // It went on with the other two.
    let points = found["points"].as_array().expect("points");
    let last = points.iter().rev().take(5);
    assert!(
        last.map(|point| number(&point["per_second"])).sum::<f64>() > 0.0,
        "{found}"
    );
}
