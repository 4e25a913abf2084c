//! What commands of agents take, and what they say when there is nothing to
//! show or more than one to ask.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc;

use rustix::process::Signal;

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE};

/// The settings of `tenure` are one thing, the config of a workload another.
#[test]
fn settings_and_the_config_of_a_workload_are_told_apart() {
    let fixture = Fixture::sqlite();
    let path = |name: &str| fixture.directory.path().join(name).display().to_string();
    let (settings, bad, config, out) = (path("t.toml"), path("b.toml"), path("c"), path("out"));
    fs::write(&settings, "timeout = \"4s\"\n").expect("a file");
    fs::write(&bad, "colour = 1\n").expect("a file");
    fs::write(&config, "{\"a\": 1}").expect("a file");
    let own = format!("TENURE_CONFIG={settings}");
    let prefix = ["env", &own, "TENURE_WORKLOAD_CONFIG=inherited"];
    let one = fixture.start_in(&prefix, "one", &[]);
    one.wait_for_log("joined as");
    let script = format!(
        "echo \"${{TENURE_CONFIG-none}} ${{TENURE_WORKLOAD_CONFIG-none}}\" > {out}; sleep 1000"
    );
    let command = ["--", "bash", "-c", &script];
    let deploy = |before: &[&str], name: &str, after: &[&str], settings: &str| {
        let args = [before, &["deploy", name], after, &command].concat();
        let mut it = fixture.command(&args);
        let done = it.env("TENURE_CONFIG", settings).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), said)
    };
    // It may count as ready before it has come to write.
    let sees = |wanted: &str| {
        let seen = || fs::read_to_string(&out).unwrap_or_default();
        let seen = poll_until(PATIENCE, || (seen() == wanted).then_some(()));
        assert!(seen.is_some(), "{:?}", fs::read_to_string(&out));
    };
    let (code, said) = deploy(&[], "a", &[], &settings);
    assert_eq!(code, Some(0), "{said}");
    sees("none none\n");
    let (code, said) = deploy(&["--config", &settings], "b", &["--config", &config], &bad);
    assert_eq!(code, Some(0), "{said}");
    sees("none {\"a\":1}\n");
    // Settings are read wherever they are named.
    let cases: [(&[&str], &[&str], &str); 3] = [
        (&[], &[], &bad),
        (&["--config", &bad], &[], &settings),
        (&[], &["--settings", &bad], &settings),
    ];
    for (before, after, inherited) in cases {
        let (code, said) = deploy(before, "c", after, inherited);
        assert!(code == Some(2) && said.contains("colour"), "{said}");
    }
    let (code, said) = deploy(&[], "c", &["--config", &settings], &settings);
    assert!(code == Some(2) && said.contains("expected JSON"), "{said}");
}

#[test]
fn a_group_that_is_not_there_is_told_of() {
    let fixture = Fixture::sqlite();
    fixture.make_store();
    // Without the group that all commands of a fixture name.
    let shown = fixture.command(&["ps"]).env_remove("TENURE_GROUP").output();
    let shown = shown.expect("it runs");
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && shown.stdout.is_empty(), "{said}");
    assert!(said.contains("no group in this store yet"), "{said}");
    let err = fixture.directory.path().join("err");
    let mut watch = fixture
        .command(&["watch", "--group", "nosuch"])
        .stderr(fs::File::create(&err).expect("a file"))
        .spawn()
        .expect("it runs");
    let said = || fs::read_to_string(&err).unwrap_or_default();
    let heard = || said().contains("no group nosuch").then_some(());
    let heard = poll_until(PATIENCE, heard);
    watch.kill().expect("it waits for it");
    watch.wait().expect("it ends");
    assert!(heard.is_some(), "{}", said());
}

/// Which one would be drained is for a person to say.
#[test]
fn a_drain_without_a_node_is_of_the_only_one() {
    let fixture = Fixture::sqlite();
    let (mut one, mut two) = (fixture.node("one", &[]), fixture.node("two", &[]));
    let (code, said) = fixture.fails(&["drain"]);
    assert!(code == 2 && said.contains("one, two"), "{said}");
    // As `ps` shows it.
    let id: String = two.id().chars().take(8).collect();
    assert!(fixture.done(&["ps"]).contains(&id), "it shows {id}");
    fixture.done(&["drain", &id, "--via", "one"]);
    assert_eq!(two.wait_for_exit(), 0);
    fixture.done(&["drain"]);
    assert_eq!(one.wait_for_exit(), 0);
}

#[test]
fn output_of_workloads_is_no_json() {
    let fixture = Fixture::sqlite();
    let (code, said) = fixture.fails(&["logs", "a", "--json"]);
    assert!(code == 2 && said.contains("--json"), "{said}");
}

/// A command that goes on until it is killed: when this is dropped.
struct Endless(Child);

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What comes while the rest is printed, which takes as long as its reader
/// likes, is neither lost nor told twice.
#[test]
fn output_is_followed_from_where_it_was_read_to() {
    // More than a pipe and a buffer hold, so that it waits in the middle for
    // its reader.
    const FIRST: usize = 20_000;
    const LAST: usize = 30_000;
    let fixture = Fixture::sqlite();
    let _one = fixture.node("one", &[]);
    let go = fixture.directory.path().join("go");
    let script = format!(
        "seq {FIRST}; until [ -e {} ]; do sleep 0.05; done; seq {} {LAST}; sleep 1000",
        go.display(),
        FIRST + 1
    );
    fixture.done(&["deploy", "a", "--no-wait", "--", "bash", "-c", &script]);
    let written = |number: usize| {
        let last = || fixture.run(&["logs", "a", "-n", "1"]).stdout;
        let wanted = format!("{number}\n").into_bytes();
        poll_until(PATIENCE, || (last() == wanted).then_some(())).expect("it writes");
    };
    written(FIRST);
    let mut follow = fixture.command(&["logs", "a", "-n", "100000", "--follow"]);
    let follow = follow.stdout(Stdio::piped()).spawn();
    let mut follow = Endless(follow.expect("it runs"));
    let out = BufReader::new(follow.0.stdout.take().expect("a pipe"));
    // Each line is handed over before the next is read, so that the pipe stays
    // full until we ask; and a line that never comes is not waited for.
    let (hand, handed) = mpsc::sync_channel(0);
    std::thread::spawn(move || {
        let mut lines = out.lines().map_while(Result::ok);
        lines.try_for_each(|line| hand.send(line))
    });
    let next = || handed.recv_timeout(PATIENCE).expect("a line");
    let header = next();
    assert!(header.starts_with("tenure: "), "{header}");
    fs::write(&go, "").expect("a file");
    written(LAST);
    for number in 1..=LAST {
        assert_eq!(next(), number.to_string());
    }
}

#[test]
fn two_signals_at_once_ask_once() {
    let fixture = Fixture::sqlite();
    let mut one = fixture.node("one", &[]);
    // As `timeout` does, which signals a process and its group. While it is
    // stopped both wait for it, however long this test takes between them.
    one.stop();
    one.signal(Signal::TERM);
    one.signal(Signal::INT);
    one.signal(Signal::CONT);
    assert_eq!(one.wait_for_exit(), 0, "{}", one.log_text());
    assert!(
        !one.log_text().contains("asked twice"),
        "{}",
        one.log_text()
    );
}
