//! Who changed what (`--audit`).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::place::Place;
use crate::common::servers::{Heard, SOON, answer, call_with, led, said, tenure};
use crate::common::{TENURE, poll_until};

/// Draws a token; its file.
fn token(place: &Place, name: &str, rights: &[&str]) -> String {
    let (tokens, file) = (place.path("tokens.toml"), place.path(name));
    let own = ["token", name, "--tokens", &tokens, "--out", &file];
    let drawn = tenure(&[&own[..], rights].concat());
    assert!(drawn.status.success(), "{}", said(&drawn));
    file
}

/// A server with tokens that notes who changed what.
struct Noting {
    place: Place,
    boss: String,
    clerk: String,
    audit: String,
    _server: Heard,
}

impl Noting {
    fn start() -> Self {
        let place = Place::new::<1>();
        let boss = token(&place, "boss", &["--admin"]);
        let (tokens, audit) = (place.path("tokens.toml"), place.path("audit"));
        let server = place.start(1, &["--tokens", &tokens, "--audit", &audit]);
        led(&format!("tenure://{}?token_file={boss}", place.clients[0]));
        let clerk = token(&place, "clerk", &["--campaign", "pay"]);
        Self {
            place,
            boss,
            clerk,
            audit,
            _server: server,
        }
    }

    fn url(&self, token: &str) -> String {
        format!("tenure://{}?token_file={token}", self.place.clients[0])
    }

    /// The exit code of a command with this token, and what it says.
    fn run(&self, args: &[&str], token: &str) -> (Option<i32>, String) {
        let asked = tenure(&[args, &["--store", &self.url(token)]].concat());
        (asked.status.code(), said(&asked))
    }

    fn noted(&self, event: &str) -> Vec<Value> {
        let text = fs::read_to_string(&self.audit).expect("text");
        let parse = |line| serde_json::from_str::<Value>(line).expect("JSON");
        let all = text.lines().map(parse);
        all.filter(|line| line["event"] == event).collect()
    }

    /// Waits until so many of these are noted; gives the last.
    fn soon(&self, event: &str, count: usize) -> Value {
        let there = || Some(self.noted(event)).filter(|all| all.len() >= count);
        let all = poll_until(SOON, there);
        let mut all = all.unwrap_or_else(|| panic!("{event}: {:?}", self.noted(event)));
        all.remove(count - 1)
    }
}

#[test]
fn who_changed_what_is_noted_with_what_came_of_it() {
    let noting = Noting::start();
    assert_eq!(noting.soon("leads", 1)["by"], Value::Null);
    let first = noting.soon("tokens", 1);
    assert_eq!(first["about"]["added"][0]["name"], "boss");

    let storage = "00112233445566778899aabbccddeeff";
    let add = ["member", "add", "9", "--storage", storage];
    // The file of tokens is read again within a second.
    let known = || {
        let (_, why) = noting.run(&add, &noting.clerk);
        why.contains("the right admin").then_some(())
    };
    poll_until(SOON, known).expect("the clerk is known, and denied");
    let added = noting.soon("tokens", 2);
    assert_eq!(added["about"]["added"][0]["name"], "clerk");
    assert_eq!(added["about"]["added"][0]["campaign"][0], "pay");
    let denied = noting.soon("member_added", 1);
    assert_eq!(denied["by"]["token"], "clerk");
    assert_eq!(denied["by"]["address"], "127.0.0.1");
    assert_eq!(denied["result"], "refused");
    assert_eq!(denied["cause"], "DENIED");
    assert_eq!(denied["about"]["id"], 9);
    assert_eq!(denied["server"], 1);

    for (args, event) in [
        (&["member", "transfer", "--to", "9"][..], "transferred"),
        (&["session", "close", "1"], "session_ended"),
    ] {
        let (code, why) = noting.run(args, &noting.boss);
        assert_ne!(code, Some(0), "{why}");
        let line = noting.soon(event, 1);
        assert_eq!(line["by"]["token"], "boss", "{line}");
        assert_eq!(line["result"], "refused", "{line}");
    }
    let (code, why) = noting.run(&add, &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    let calls = noting.noted("member_added").len();
    let done = noting.soon("member_added", calls);
    assert_eq!(done["by"]["token"], "boss", "{done}");
    assert_eq!(done["result"], "done", "{done}");
    let (code, why) = noting.run(&["member", "remove", "9"], &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    let removed = noting.soon("member_removed", 1);
    assert_eq!(removed["result"], "done", "{removed}");
    assert_eq!(removed["about"]["storage"], storage, "{removed}");
    assert_eq!(noting.noted("lost").len(), 0);
}

#[test]
fn who_leads_asks_and_resigns_is_noted_and_renewals_are_not() {
    let noting = Noting::start();
    let known = || {
        let (code, _) = noting.run(&["leader", "payroll"], &noting.clerk);
        // Vacant, and the clerk may see that.
        (code == Some(3)).then_some(())
    };
    poll_until(SOON, known).expect("the clerk is known");
    let mut run = Command::new(TENURE);
    // A lease that outlasts the stalls of a busy machine, renewed often.
    run.args(["run", "payroll", "--name", "web", "-v"])
        .args(["--lease", "30s", "--interval", "500ms"])
        .args(["--store", &noting.url(&noting.clerk), "--", "sleep", "1000"]);
    // Killed at the end, however this ends.
    let run = Heard::start(run);
    let taken = noting.soon("election_taken", 1);
    assert_eq!(taken["by"]["token"], "clerk");
    assert_eq!(taken["about"]["election"], "payroll");
    assert_eq!(taken["about"]["leader"], "web");
    let renewed = || (run.count(&["renewed term 1"]) >= 3).then_some(());
    poll_until(SOON, renewed).unwrap_or_else(|| panic!("no renewal: {:?}", run.all()));
    assert_eq!(noting.noted("election_taken").len(), 1);
    assert_eq!(noting.noted("election_asked").len(), 0);
    let id = taken["about"]["leader_id"].as_str().expect("its id");
    let resign = ["resign", "payroll", "--leader-id", id];
    let (code, why) = noting.run(&resign, &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    // A renewal may come between; then the question is asked again.
    let done = || {
        let asked = noting.noted("election_asked");
        asked.into_iter().find(|it| it["result"] == "done")
    };
    let asked = poll_until(SOON, done).expect("it was asked");
    assert_eq!(asked["by"]["token"], "boss");
    let resigned = noting.soon("election_resigned", 1);
    assert_eq!(resigned["by"]["token"], "clerk");
}

#[test]
fn who_writes_over_an_election_or_deletes_it_is_noted() {
    let noting = Noting::start();
    // A stream of requests, as commands have.
    let ran = Command::new(TENURE)
        .args(["run", "pay", "--once", "-q", "--store"])
        .args([&noting.url(&noting.boss), "--", "true"])
        .status();
    assert!(ran.expect("it runs").success());
    let (code, why) = noting.run(&["forget", "pay"], &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    let deleted = noting.soon("election_deleted", 1);
    assert_eq!(deleted["about"]["election"], "pay", "{deleted}");
    assert_eq!(deleted["result"], "done", "{deleted}");
    // Calls of HTTP.
    let token = fs::read_to_string(&noting.boss).expect("a token");
    let bearer = format!("Authorization: Bearer {}\r\n", token.trim());
    let asks = |call: &str, body: &str| {
        let head = format!("POST /v1/registers/{call}");
        let address = &noting.place.clients[0];
        answer(call_with(address, &head, &bearer, body))
    };
    let junk = r#"{"swap": {"key": "elections/pay", "value": "eA=="}}"#;
    let told = asks("compare_and_swap", junk);
    assert!(told.contains(r#""swapped":true"#), "{told}");
    let over = noting.soon("election_overwritten", 1);
    assert_eq!(over["about"]["election"], "pay", "{over}");
    assert_eq!(
        (&over["by"]["token"], &over["result"]),
        (&"boss".into(), &"done".into())
    );
    let told = asks("delete", r#"{"key": "elections/pay", "expect": 1}"#);
    assert!(told.contains(r#""deleted":false"#), "{told}");
    assert_eq!(noting.soon("election_deleted", 2)["result"], "conflict");
}

#[test]
fn a_token_that_cannot_be_printed_has_no_rights() {
    let place = Place::new::<1>();
    let tokens = place.path("tokens.toml");
    let draw = |out: Stdio| {
        let mut command = Command::new(TENURE);
        command.args(["token", "boss", "--admin", "--tokens", &tokens]);
        command.stdout(out).output().expect("tenure runs")
    };
    let full = fs::File::options().write(true).open("/dev/full");
    let failed = draw(full.expect("it is there").into());
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(!Path::new(&tokens).exists(), "it has rights");
    let drawn = draw(Stdio::piped());
    assert!(drawn.status.success(), "{drawn:?}");
}

#[test]
fn a_file_of_changes_that_cannot_be_written_is_refused_at_the_start() {
    let place = Place::new::<1>();
    let server = place.start(1, &["--audit", &place.path("none/audit")]);
    let words = ["--audit", "expected a file that can be written", "No such"];
    server.says(1, &words);
    // A slip that would cost everybody's rights.
    token(&place, "boss", &["--admin"]);
    let tokens = place.path("tokens.toml");
    let before = fs::read(&tokens).expect("rights");
    let mut server = place.start(1, &["--tokens", &tokens, "--audit", &tokens]);
    server.says(1, &["--audit", "expected a new file", "name another one"]);
    assert_eq!(server.ended().code(), Some(2));
    assert_eq!(fs::read(&tokens).expect("rights"), before);
}
