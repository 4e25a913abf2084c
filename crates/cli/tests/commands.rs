//! The commands that look at an election and ask of its leader, against real
//! candidates on SQLite and PostgreSQL.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::{Candidate, Ledger, Shared, TENURE, poll_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

fn tenure(args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["60", TENURE])
        .args(args)
        .output()
        .expect("tenure runs")
}

fn json(args: &[&str]) -> Value {
    let output = tenure(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|_| {
        panic!(
            "{args:?}: {text} {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// Two candidates named `a` and `b`, of which the first leads.
fn stand(shared: &Shared, ledger: &Ledger) -> (Candidate, Candidate) {
    // So long that a busy machine does not end it: nobody here waits for that.
    let flags = ["--lease", "10s", "--advertise", "h:1"];
    let a = Candidate::start(&shared.url(), "a", ledger, &flags);
    ledger.await_term_above(0, SOON);
    let b = Candidate::start(&shared.url(), "b", ledger, &flags);
    let hears = || b.log().contains("the watch is up").then_some(());
    poll_until(SOON, hears).expect("b hears of changes");
    (a, b)
}

/// Asks `b`, which leads in term 2; first under the id of a leader that has
/// gone, so that the wrong one is not deposed by accident.
fn ask_b_to_resign(url: &str, stale: &str) {
    let refused = tenure(&["resign", "payroll", "--leader-id", stale, "--store", url]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("look again with `tenure leader`"), "{said}");
    let now = json(&["leader", "payroll", "--json", "--store", url]);
    let id = now["leader_id"].as_str().expect("an id");
    let gone = json(&[
        "resign",
        "payroll",
        "--leader-id",
        id,
        "--json",
        "--store",
        url,
    ]);
    assert_eq!(
        (&gone["name"], &gone["term"]),
        (&"b".into(), &2.into()),
        "{gone}"
    );
}

#[test]
fn leader_list_watch_resign_and_transfer() {
    for shared in [Shared::sqlite(), Shared::postgres()] {
        let url = shared.url();
        let ledger = Ledger::new();
        let (a, b) = stand(&shared, &ledger);

        let seen = json(&["leader", "payroll", "--json", "--confirm", "--store", &url]);
        assert_eq!(
            (&seen["name"], &seen["term"]),
            (&"a".into(), &1.into()),
            "{seen}"
        );
        assert_eq!(seen["addresses"], serde_json::json!(["h:1"]));
        assert_eq!(seen["certainty"], "proven");
        assert_eq!(
            json(&["list", "--json", "--store", &url])["election"],
            "payroll"
        );

        let mut watch = Command::new(TENURE)
            .args(["watch", "payroll", "--json", "--store", &url])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tenure runs");
        let mut lines = BufReader::new(watch.stdout.take().expect("its output")).lines();
        let mut next = || -> Value {
            let line = lines.next().expect("a line").expect("text");
            serde_json::from_str(&line).expect("an object")
        };
        let first = next();
        assert_eq!(first["name"], "a");
        let at = first["at"].as_str().unwrap_or_default();
        assert!(at.starts_with("20") && at.ends_with('Z'), "{first}");

        let handed = json(&[
            "transfer", "payroll", "--to", "b", "--json", "--store", &url,
        ]);
        assert_eq!(
            (&handed["name"], &handed["term"]),
            (&"b".into(), &2.into()),
            "{handed}"
        );
        let mut shown = next();
        while shown["led"] == false {
            shown = next();
        }
        assert_eq!(
            (&shown["name"], &shown["term"]),
            (&"b".into(), &2.into()),
            "{shown}"
        );

        let stale = seen["leader_id"].as_str().expect("an id");
        ask_b_to_resign(&url, stale);
        ledger.await_term_above(2, SOON);
        let runs = ledger.runs();
        assert_eq!(
            runs.last().map(|run| run.candidate.as_str()),
            Some("a"),
            "b holds back"
        );

        let nobody = tenure(&["transfer", "payroll", "--to", "nobody", "--store", &url]);
        assert_eq!(nobody.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&nobody.stderr).contains("expected nobody to take over"));

        a.signal(Signal::TERM);
        b.signal(Signal::TERM);
        let (mut a, mut b) = (a, b);
        assert_eq!(a.process.wait().expect("it ends").code(), Some(0));
        assert_eq!(b.process.wait().expect("it ends").code(), Some(0));
        let vacant = tenure(&["leader", "payroll", "--store", &url]);
        assert_eq!(vacant.status.code(), Some(3));
        watch.kill().expect("to end it");
        watch.wait().expect("it ends");
    }
}

#[test]
fn a_transfer_to_nobody_is_told_and_costs_one_and_a_half_intervals() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let flags = ["--lease", "8s", "--interval", "2s", "--grace", "500ms"];
    let alone = Candidate::start(&shared.url(), "alone", &ledger, &flags);
    ledger.await_term_above(0, SOON);
    let nobody = tenure(&[
        "transfer",
        "payroll",
        "--to",
        "zoe",
        "--store",
        &shared.url(),
    ]);
    assert_eq!(nobody.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(said.contains("leads again, in the new term 2"), "{said}");
    ledger.await_term_above(1, SOON);
    let runs = ledger.runs();
    let gap = runs[1].first - runs[0].last;
    // It waits for one and a half intervals, and would for two after resigning.
    assert!(gap > 2.9, "waited for {gap} s only");
    drop(alone);
}

#[test]
fn logs_are_for_people_or_for_programs() {
    let shared = Shared::sqlite();
    let url = shared.url();
    let run = ["run", "payroll", "--once", "--store", &url];
    let output = tenure(&[&run[..], &["--log", "json", "--", "true"]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object"))
        .collect();
    let elected = |line: &Value| line["message"] == "payroll: elected in term 1";
    assert!(lines.iter().any(elected), "{text}");
    let wrong = ["leader", "payroll", "--store", "nonsense", "--log", "json"];
    let output = tenure(&wrong);
    let fatal: Value = serde_json::from_slice(&output.stderr).expect("an object");
    assert_eq!(fatal["level"], "ERROR");
    let said = fatal["message"].as_str().expect("a text");
    assert!(said.contains("expected a store URL"), "{fatal}");
    let output = tenure(&[&run[..], &["--", "true"]].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("INFO payroll: elected in term 2"), "{text}");
    let output = tenure(&[&run[..], &["--quiet", "--", "true"]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// Runs with a standard error that nobody reads.
fn unheard(args: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let status = Command::new("timeout")
        .args(["60", TENURE])
        .args(args)
        .stderr(writer)
        .status();
    status.expect("tenure runs").code()
}

#[test]
fn a_closed_standard_error_changes_nothing() {
    let shared = Shared::sqlite();
    let url = shared.url();
    let run = [
        "run", "payroll", "--once", "--store", &url, "-v", "--", "sh", "-c",
    ];
    assert_eq!(unheard(&[&run[..], &["exit 7"]].concat()), Some(7));
    let vacant = tenure(&["leader", "payroll", "--store", &url]);
    assert_eq!(vacant.status.code(), Some(3), "it was not resigned");
    assert_eq!(
        unheard(&["leader", "payroll", "--store", "nonsense"]),
        Some(2)
    );
}

#[test]
fn a_stop_is_heeded_while_the_store_does_not_answer() {
    // It takes connections, and says nothing.
    let mute = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = mute.local_addr().expect("its address").port();
    let url = format!("postgres://tenure@127.0.0.1:{port}/postgres");
    let mut process = Command::new(TENURE)
        .args(["run", "payroll", "--store", &url, "--timeout", "60s", "-q"])
        .args(["--", "true"])
        .spawn()
        .expect("tenure runs");
    let _asked = mute.accept().expect("it asks");
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw);
    for signal in [Signal::WINCH, Signal::TERM] {
        kill_process(pid.expect("a process id"), signal).expect("it runs");
    }
    let mut ended = || process.try_wait().expect("its state");
    // Long before the store's time is up.
    let ended = poll_until(SOON, &mut ended);
    process.kill().expect("to end it");
    assert_eq!(ended.expect("it stops at once").code(), Some(0));
}

#[test]
fn completions_and_version() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = tenure(&["completions", shell]);
        assert!(
            output.status.success() && output.stdout.len() > 1_000,
            "{shell}"
        );
    }
    let output = tenure(&["--version"]);
    let version = format!("tenure {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
}

#[test]
fn a_sweep_from_a_fresh_seed_says_which_it_was() {
    for world in ["election", "cluster", "ha"] {
        let output = tenure(&["sim", world, "--runs", "1", "--seed", "random"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let seed: u64 = said
            .split_once("from seed ")
            .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("expected 'from seed N', found {said}"));
        assert!(output.status.success(), "seed {seed}: {said}");
        // Long past what a fixed sweep tries.
        assert!(seed > 1_000_000_000_000, "{seed}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains(&format!("from seed {seed}")), "{told}");
    }
    let output = tenure(&["sim", "--runs", "1", "--seed", "often"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_simulator_runs_and_says_how_fast() {
    let found = json(&["sim", "--runs", "50", "--seed", "7", "--json"]);
    assert_eq!(
        (&found["runs"], &found["report"]["failed"]),
        (&50.into(), &0.into()),
        "{found}"
    );
    assert!(found["runs_per_second"].as_f64().expect("a number") > 0.0);
    assert_eq!(
        tenure(&["sim", "--runs", "1", "--threads", "0"])
            .status
            .code(),
        Some(2)
    );
}
