//! `tenure check` finds what is planted, finds nothing where nothing is, and leaves
//! nothing behind.

mod documents;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Output, Stdio};

use documents::{Fault, server};

/// A check of a store by the binary with planted faults, to its end.
async fn check(url: String, more: &[&str]) -> Output {
    let more: Vec<String> = more.iter().map(|it| (*it).to_owned()).collect();
    let ran = tokio::task::spawn_blocking(move || {
        let mut command = Command::new("timeout");
        command.args([
            "400",
            env!("CARGO_BIN_EXE_planted"),
            "check",
            &url,
            "--json",
        ]);
        command.args(more).output().expect("it runs")
    });
    ran.await.expect("it ends")
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// The store is unfit for this reason, and perhaps for others that follow from it.
async fn is_found(url: String, fault: &str) -> String {
    let output = check(url, &[]).await;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    let last = said.lines().find(|it| it.contains("\"verdict\":\"unfit\""));
    let last = last.unwrap_or_else(|| panic!("expected a verdict in {said}"));
    assert!(last.contains(&format!("\"{fault}\"")), "{last}");
    said
}

/// Nothing else is wrong.
fn is_alone(said: &str, fault: &str) {
    let wanted = format!("\"faults\":[\"{fault}\"]");
    assert!(said.contains(&wanted), "expected {wanted} in {said}");
}

/// What came of a trial.
fn of_trial<'a>(said: &'a str, name: &str) -> &'a str {
    let wanted = format!("\"trial\":\"{name}\"");
    let found = said.lines().find(|line| line.contains(&wanted));
    found.unwrap_or_else(|| panic!("expected {name} in {said}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fit_store_is_found_fit_and_left_as_it_was() {
    let server = server(Fault::None).await;
    for scheme in ["etags", "steady"] {
        let output = check(server.as_scheme(scheme), &[]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("\"verdict\":\"fit\""), "{said}");
        assert!(
            said.contains("connections were cut while they wrote"),
            "{said}"
        );
        assert_eq!(server.count(), 0, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_ignores_preconditions_is_found() {
    let server = server(Fault::IgnoresPreconditions).await;
    let said = is_found(server.url.clone(), "ignores_preconditions").await;
    assert!(said.contains("creating a register that is there"), "{said}");
    assert_eq!(server.count(), 0, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_loses_updates_only_in_a_race_is_found() {
    let server = server(Fault::ForgetsToLock).await;
    let said = is_found(server.url.clone(), "loses_updates").await;
    let alone = of_trial(&said, "preconditions");
    assert!(alone.contains("\"outcome\":\"passed\""), "{alone}");
    assert_eq!(server.count(), 0, "{said}");
}

/// The gap is as long as a value takes to arrive: writers with small ones do not meet in
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_looks_before_the_value_has_arrived_is_found() {
    let server = server(Fault::LooksTooEarly).await;
    let said = is_found(server.url.clone(), "loses_updates").await;
    let found = of_trial(&said, "collisions");
    assert!(found.contains("\"outcome\":\"found\""), "{found}");
    assert_eq!(server.count(), 0, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_loses_one_update_in_a_hundred_is_found() {
    let server = server(Fault::LosesOneInAHundred).await;
    is_found(server.url.clone(), "loses_updates").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_answers_from_a_stale_replica_is_found() {
    let server = server(Fault::ReadsReplica).await;
    let said = is_found(server.url.clone(), "stale_reads").await;
    assert!(!said.contains("loses_updates"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_is_found() {
    let server = server(Fault::None).await;
    let said = is_found(server.as_scheme("jumpy"), "clock_jumps").await;
    is_alone(&said, "clock_jumps");
    assert_eq!(server.count(), 0, "{said}");
}

/// Its connections are cut in the middle of a write, and of one that was done it says
/// that it was not.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_denies_what_it_has_done_is_found() {
    let server = server(Fault::None).await;
    let said = is_found(server.as_scheme("denying"), "wrong_answers").await;
    is_alone(&said, "wrong_answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_forgets_on_restart_is_found() {
    let directory = std::env::temp_dir().join(format!("tenure-check-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    for (forgets, code) in [(true, Some(4)), (false, Some(0))] {
        let file = directory.join(format!("restart-{forgets}"));
        let touch = format!("touch {}", file.display());
        let fault = if forgets {
            Fault::Forgets(file)
        } else {
            Fault::None
        };
        let server = server(fault).await;
        let output = check(server.url.clone(), &["--restart-command", &touch]).await;
        let said = said(&output);
        assert_eq!(output.status.code(), code, "{said}");
        assert_eq!(said.contains("\"faults\":[\"forgets\""), forgets, "{said}");
        assert_eq!(server.count(), 0, "{said}");
    }
    // A command that fails leaves it undecided.
    let server = server(Fault::None).await;
    let output = check(server.url.clone(), &["--restart-command", "exit 3"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    std::fs::remove_dir_all(&directory).expect("to remove it");
}

/// As the stores on object stores do, which try conditions before their first write.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_finds_its_server_unfit_is_told_as_such() {
    let server = server(Fault::None).await;
    let said = is_found(server.as_scheme("refusing"), "refused").await;
    is_alone(&said, "refused");
    assert!(said.contains("the server ignores conditions"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_too_small_leaves_it_undecided() {
    let server = server(Fault::None).await;
    let output = check(server.url.clone(), &["--budget", "600"]).await;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("\"verdict\":\"incomplete\""), "{said}");
    assert!(said.contains("the budget"), "{said}");
    assert_eq!(server.count(), 0, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_not_there_and_one_that_is_none_are_no_verdicts() {
    let away = check("etags://127.0.0.1:1".to_owned(), &[]).await;
    assert_eq!(away.status.code(), Some(1), "{}", said(&away));
    let none = check("memory:".to_owned(), &[]).await;
    assert_eq!(none.status.code(), Some(2), "{}", said(&none));
    assert!(said(&none).contains("several processes"), "{}", said(&none));
}

/// What was made goes also when a signal ends the check.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_that_is_stopped_leaves_nothing_behind() {
    let server = server(Fault::None).await;
    let url = server.url.clone();
    let ended = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_planted"));
        command.args(["check", &url, "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        while !line.contains("\"reads\"") {
            line.clear();
            assert_ne!(lines.read_line(&mut line).expect("a line"), 0, "it ended");
        }
        // The race is on.
        let id = child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status();
        assert!(sent.expect("kill runs").success());
        let mut rest = String::new();
        lines.read_to_string(&mut rest).expect("text");
        (child.wait().expect("it ends"), rest)
    });
    let (status, rest) = ended.await.expect("it ends");
    assert_eq!(status.code(), Some(1), "{rest}");
    assert!(rest.contains("\"verdict\":\"incomplete\""), "{rest}");
    assert_eq!(server.count(), 0, "{rest}");
}
