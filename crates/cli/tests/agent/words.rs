//! What commands of agents take, and what they say when there is nothing to
//! show or more than one to ask.

use std::fs;

use rustix::process::Signal;

use super::common::poll_until;
use super::town::{PATIENCE, Town};

/// The settings of `tenure` are one thing, the config of a workload another.
#[test]
fn settings_and_the_config_of_a_workload_are_told_apart() {
    let town = Town::sqlite();
    let path = |name: &str| town.directory.path().join(name).display().to_string();
    let (settings, bad, config, out) = (path("t.toml"), path("b.toml"), path("c"), path("out"));
    fs::write(&settings, "timeout = \"4s\"\n").expect("a file");
    fs::write(&bad, "colour = 1\n").expect("a file");
    fs::write(&config, "{\"a\": 1}").expect("a file");
    let own = format!("TENURE_CONFIG={settings}");
    let prefix = ["env", &own, "TENURE_WORKLOAD_CONFIG=inherited"];
    let one = town.start_in(&prefix, "one", &[]);
    one.says("joined as");
    let script = format!(
        "echo \"${{TENURE_CONFIG-none}} ${{TENURE_WORKLOAD_CONFIG-none}}\" > {out}; sleep 1000"
    );
    let command = ["--", "bash", "-c", &script];
    let deploy = |before: &[&str], name: &str, after: &[&str], settings: &str| {
        let args = [before, &["deploy", name], after, &command].concat();
        let mut it = town.command(&args);
        let done = it.env("TENURE_CONFIG", settings).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        (done.status.code(), said)
    };
    let seen = || fs::read_to_string(&out).expect("it wrote");
    let (code, said) = deploy(&[], "a", &[], &settings);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(seen(), "none none\n");
    let (code, said) = deploy(&["--config", &settings], "b", &["--config", &config], &bad);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(seen(), "none {\"a\":1}\n");
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
    let town = Town::sqlite();
    // Without the group that all of a town's commands name.
    let shown = town.command(&["ps"]).env_remove("TENURE_GROUP").output();
    let shown = shown.expect("it runs");
    let said = String::from_utf8_lossy(&shown.stderr);
    assert!(shown.status.success() && shown.stdout.is_empty(), "{said}");
    assert!(said.contains("no group in this store yet"), "{said}");
    let err = town.directory.path().join("err");
    let mut watch = town
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
    let town = Town::sqlite();
    let (mut one, mut two) = (town.node("one", &[]), town.node("two", &[]));
    let (code, said) = town.fails(&["drain"]);
    assert!(code == 2 && said.contains("one, two"), "{said}");
    town.done(&["drain", "--via", "two"]);
    assert_eq!(two.ends(), 0);
    town.done(&["drain"]);
    assert_eq!(one.ends(), 0);
}

#[test]
fn output_of_workloads_is_no_json() {
    let town = Town::sqlite();
    let (code, said) = town.fails(&["logs", "a", "--json"]);
    assert!(code == 2 && said.contains("--json"), "{said}");
}

#[test]
fn two_signals_at_once_ask_once() {
    let town = Town::sqlite();
    let mut one = town.node("one", &[]);
    // As `timeout` does, which signals a process and its group.
    one.signal(Signal::TERM);
    one.signal(Signal::INT);
    assert_eq!(one.ends(), 0, "{}", one.said());
    assert!(!one.said().contains("asked twice"), "{}", one.said());
}
