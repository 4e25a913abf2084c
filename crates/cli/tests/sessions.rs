//! `tenure session` and `--sessions-each`, against real servers.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};

use crate::common::TENURE;
use crate::common::servers::{Cluster, answer, call_with, free, led, objects, risen};
use serde_json::Value;

fn tenure(args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", TENURE]).args(args);
    command.output().expect("tenure runs")
}

/// What a command prints; it must succeed.
fn text(args: &[&str]) -> String {
    let output = tenure(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// How a command fails: the exit code, and what it says.
fn fails(args: &[&str]) -> (Option<i32>, String) {
    let output = tenure(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// Sends a call with a token, if there is one, and gives the answer.
fn post(address: &str, path: &str, body: &str, token: Option<&str>) -> String {
    let headers = token.map(|it| format!("Authorization: Bearer {it}\r\n"));
    let head = format!("POST {path}");
    answer(call_with(
        address,
        &head,
        &headers.unwrap_or_default(),
        body,
    ))
}

/// Opens a session: its number, or what the refusal says.
fn open(address: &str, token: Option<&str>) -> Result<u64, String> {
    let body = r#"{"ttl_millis": 600000}"#;
    let said = post(address, "/v1/sessions/open", body, token);
    let opened: Option<u64> = said.split_once("\r\n\r\n").and_then(|(_, body)| {
        let value: Value = serde_json::from_str(body).ok()?;
        value["session"].as_u64()
    });
    opened.ok_or(said)
}

#[test]
fn sessions_are_listed_closed_and_bounded() {
    let cluster = Cluster::start_with(&["--sessions-each", "2"]);
    let url = cluster.url();
    risen(&url);
    let address = &cluster.clients[cluster.leader() - 1];
    let [first, second] = [1, 2].map(|_| open(address, None).expect("a session"));
    let refused = open(address, None).expect_err("one too many");
    for part in [
        "429",
        "TOO_MANY_SESSIONS",
        "at most 2 sessions",
        "the address 127.0.0.1 has 2",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }

    let list = objects(&["session", "list", "--json", "--store", &url]);
    let ids: Vec<_> = list.iter().map(|it| it["session"].as_u64()).collect();
    assert_eq!(ids, [Some(first), Some(second)]);
    for it in &list {
        let (address, secret) = (&it["address"], &it["secret"]);
        assert!(
            address == "127.0.0.1" && secret == false && it["token"] == "",
            "{it}"
        );
        assert_eq!(
            (&it["ttl_millis"], &it["bound"]),
            (&600_000.into(), &0.into())
        );
    }
    let table = text(&["session", "list", "--store", &url]);
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[0].starts_with("SESSION") && rows.len() == 3, "{table}");
    let row: Vec<_> = rows[1].split_whitespace().collect();
    assert_eq!(row[..3], [&first.to_string(), "127.0.0.1", "no"], "{table}");

    let id = first.to_string();
    let close = ["session", "close", &id, "--store", &url];
    assert_eq!(text(&close), format!("session {id} was closed\n"));
    let numbered = format!(r#"{{"numbered": {{"session": {id}, "serial": 1, "outstanding": 1}}}}"#);
    let said = post(address, "/v1/sessions/keep_alive", &numbered, None);
    assert!(said.contains("SESSION_EXPIRED"), "{said}");
    let (code, said) = fails(&close);
    assert!(
        code == Some(1) && said.contains("a session that is open"),
        "{said}"
    );
    // There is room for one more again.
    let third = open(address, None).expect("a session");
    let list = objects(&["session", "list", "--json", "--store", &url]);
    let ids: Vec<_> = list.iter().map(|it| it["session"].as_u64()).collect();
    assert_eq!(ids, [Some(second), Some(third)]);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How far a server's log has come.
fn last_log_id(address: &str) -> u64 {
    let said = post(address, "/v1/cluster/status", "{}", None);
    let body = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let status: Value = serde_json::from_str(body).expect("a status");
    status["last_log_id"].as_u64().expect("an id")
}

/// The files of a server that knows its callers by tokens.
struct TokenFiles(tempfile::TempDir);

impl TokenFiles {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn tokens(&self) -> String {
        self.path("tokens.toml")
    }

    fn token(&self, name: &str, right: &[&str]) -> String {
        let (tokens, out) = (self.tokens(), self.path(name));
        let made = ["token", name, "--tokens", &tokens, "--out", &out];
        text(&[&made[..], right].concat());
        let made = std::fs::read_to_string(&out).expect("the token");
        made.trim().to_owned()
    }

    fn serve(&self, peer: &str, address: &str, more: &[&str]) -> Killed {
        let (data, peers) = (self.path("data"), format!("1={peer}"));
        let mut serve = Command::new(TENURE);
        serve
            .args(["serve", "--quiet", "--id", "1", "--peers", &peers])
            .args(["--listen", address, "--data", &data])
            .args(["--tokens", &self.tokens()])
            .args(more)
            .stdout(Stdio::null());
        Killed(serve.spawn().expect("a server"))
    }

    fn url(&self, address: &str, name: &str) -> String {
        format!("tenure://{address}?token_file={}", self.path(name))
    }
}

const SECRET: &str = r#""MDEyMzQ1Njc4OWFiY2RlZg==""#;
const PAYROLL: &str = r#"{"key": "elections/payroll"}"#;

/// What an answer has after its headers.
fn body(said: &str) -> Value {
    let (_, body) = said.split_once("\r\n\r\n").expect("an answer");
    serde_json::from_str(body).expect("JSON")
}

/// Opens a session that lives for a day without a word of its owner.
fn open_for_a_day(address: &str, token: Option<&str>) -> u64 {
    let asked = format!(r#"{{"ttl_millis": 86400000, "secret": {SECRET}}}"#);
    let opened = body(&post(address, "/v1/sessions/open", &asked, token));
    opened["session"].as_u64().expect("a session")
}

/// Binds the register of `payroll` to a session, as it is.
fn bind_payroll(address: &str, token: Option<&str>, session: u64) {
    let shown = body(&post(address, "/v1/registers/read", PAYROLL, token));
    let (value, version) = (&shown["register"]["value"], &shown["register"]["version"]);
    let bind = format!(
        r#"{{"swap": {{"key": "elections/payroll", "value": {value}, "expect": {version},
        "at_end": {{"value": {value}}}}},
        "numbered": {{"session": {session}, "serial": 1, "outstanding": 1, "secret": {SECRET}}}}}"#
    );
    let said = post(address, "/v1/registers/compare_and_swap", &bind, token);
    assert!(said.contains("swapped"), "{said}");
}

/// An election that is vacant, and bound to a session of somebody else: nobody
/// can take it until that ends. A candidate says so, and does not fill the log.
#[test]
fn an_election_bound_to_another_session_is_told_and_does_not_fill_the_log() {
    let cluster = Cluster::start();
    let url = cluster.url();
    risen(&url);
    text(&["run", "payroll", "--once", "--store", &url, "--", "true"]);
    let address = &cluster.clients[cluster.leader() - 1];
    let session = open_for_a_day(address, None);
    bind_payroll(address, None, session);

    let before = last_log_id(address);
    let mut run = Command::new("timeout");
    run.args(["4", TENURE, "run", "payroll", "--once", "--lease", "10s"]);
    run.args(["--store", &url, "--", "true"]);
    let ran = run.output().expect("it runs");
    let grew = last_log_id(address) - before;
    let told = format!("tenure session close {session}");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(
        said.contains("elections/payroll") && said.contains(&told),
        "{said}"
    );
    assert!(grew < 50, "{grew} entries in four seconds");
    let (code, said) = fails(&["forget", "payroll", "--store", &url]);
    assert!(code == Some(2) && said.contains(&told), "{said}");

    let session = session.to_string();
    let close = ["session", "close", &session, "--store", &url];
    let (code, said) = fails(&close);
    assert!(
        code == Some(1) && said.contains("--holder-is-gone"),
        "{said}"
    );
    text(&[&close[..], &["--holder-is-gone"]].concat());
    text(&["run", "payroll", "--once", "--store", &url, "--", "true"]);
}

#[test]
fn where_there_are_tokens_they_count_and_operators_alone_see_sessions() {
    let files = TokenFiles::new();
    let boss = files.token("boss", &["--admin"]);
    let clerk = files.token("clerk", &["--log-right", "append"]);
    let [peer, address] = free::<2>();
    let _server = files.serve(&peer, &address, &["--sessions-each", "1"]);
    let url = |name: &str| files.url(&address, name);
    led(&url("boss"));
    risen(&url("boss"));

    let held = open(&address, Some(&clerk)).expect("a session");
    let refused = open(&address, Some(&clerk)).expect_err("one too many");
    let named = refused.contains("at most 1 sessions") && refused.contains("the token");
    assert!(named && refused.contains("has 1;"), "{refused}");
    // Operators have no bound.
    let own = [1, 2].map(|_| open(&address, Some(&boss)).expect("a session"));

    for args in [&["session", "list"][..], &["session", "close", "7"]] {
        let (code, said) = fails(&[args, &["--store", &url("clerk")]].concat());
        assert!(code == Some(2) && said.contains("admin"), "{said}");
    }
    let list = objects(&["session", "list", "--json", "--store", &url("boss")]);
    let of = |it: &Value| {
        (
            it["session"].as_u64(),
            it["token"].as_str().map(str::to_owned),
        )
    };
    let list: Vec<_> = list.iter().map(of).collect();
    let [one, two] = own.map(|id| (Some(id), Some("boss".to_owned())));
    assert_eq!(list, [(Some(held), Some("clerk".to_owned())), one, two]);
    text(&[
        "session",
        "close",
        &held.to_string(),
        "--store",
        &url("boss"),
    ]);
    open(&address, Some(&clerk)).expect("there is room again");

    // What has no session of its own is done by one of the server's.
    let append = r#"{"entries": ["QQ=="]}"#;
    body(&post(&address, "/v1/log/append", append, Some(&boss)));
    let list = objects(&["session", "list", "--json", "--store", &url("boss")]);
    let is_servers = |it: &&Value| it["token"] == "" && it["address"] == "";
    let servers = list.iter().find(is_servers).expect("it is open");
    assert_eq!(servers["secret"], true);
    let id = servers["session"].to_string();
    let close = ["session", "close", &id, "--store", &url("boss")];
    let (code, said) = fails(&close);
    assert!(
        code == Some(2) && said.contains("for itself"),
        "{code:?}: {said}"
    );
}

/// A token was stolen: the file knows it no more, and what it holds by a
/// session of a day is freed by the steps of `docs/how-to/tokens.md`.
#[test]
fn what_a_removed_token_holds_is_told_and_freed() {
    let files = TokenFiles::new();
    files.token("boss", &["--admin"]);
    let operators = std::fs::read_to_string(files.tokens()).expect("the file");
    let thief = files.token("thief", &["--campaign", "payroll"]);
    let thief = Some(&*thief);
    let [peer, address] = free::<2>();
    let _server = files.serve(&peer, &address, &[]);
    let boss = files.url(&address, "boss");
    led(&boss);
    risen(&boss);
    text(&[
        "run",
        "payroll",
        "--once",
        "--store",
        &files.url(&address, "thief"),
        "--",
        "true",
    ]);

    let idle = open_for_a_day(&address, thief);
    let holder = open_for_a_day(&address, thief);
    bind_payroll(&address, thief, holder);

    std::fs::write(files.tokens(), operators).expect("the token is taken out");
    while !post(&address, "/v1/registers/read", PAYROLL, thief).contains("UNAUTHENTICATED") {
        std::thread::yield_now();
    }
    let mut repair = Command::new("timeout");
    repair
        .args(["60", TENURE, "repair", "payroll", "--term-above", "7"])
        .args(["--store", &boss])
        .stderr(Stdio::piped())
        .stdout(Stdio::null());
    let mut repair = Killed(repair.spawn().expect("it starts"));
    let close = format!("tenure session close {holder} --holder-is-gone");
    let mut lines = BufReader::new(repair.0.stderr.take().expect("piped")).lines();
    let told = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(&close)));
    assert!(told.is_some(), "nothing is said of the session");

    let list = objects(&["session", "list", "--json", "--store", &boss]);
    let theirs = list
        .iter()
        .find(|it| it["session"].as_u64() == Some(holder));
    let digits = theirs
        .and_then(|it| it["token"].as_str())
        .expect("its digits");
    let close = ["session", "close", "--opened-by", digits, "--store", &boss];
    let output = tenure(&close);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("--holder-is-gone"),
        "{said}"
    );
    // The one of `tenure run` may have been among them.
    let closed = String::from_utf8(output.stdout).expect("text");
    let idle = format!("session {idle} was closed\n");
    assert!(closed.ends_with(&idle), "{closed}");
    let closed = text(&[&close[..], &["--holder-is-gone"]].concat());
    assert_eq!(closed, format!("session {holder} was closed\n"));
    let ended = repair.0.wait().expect("it ends");
    let said: Vec<_> = lines.map_while(Result::ok).collect();
    assert!(ended.success(), "{ended}: {said:?}");
    let (code, said) = fails(&close);
    assert!(code == Some(1) && said.contains("found none"), "{said}");
}

/// A store that is named after the command gets the token as one of `--store` does.
#[test]
fn the_token_of_an_option_is_for_a_store_that_is_named_alone_too() {
    let files = TokenFiles::new();
    files.token("boss", &["--admin"]);
    let [peer, address] = free::<2>();
    let _server = files.serve(&peer, &address, &[]);
    led(&files.url(&address, "boss"));
    let (url, token) = (format!("tenure://{address}"), files.path("boss"));
    let short = ["--clients", "1", "--duration", "100ms", "--warm-up", "1ms"];
    text(&[&["bench", &url, "--token-file", &token][..], &short].concat());
    let both = ["bench", "--token-file", &token, "--compare", &url, &url];
    text(&[&both[..], &short, &["--slices", "1"]].concat());
    // So few requests that it cannot try much.
    let check = ["check", &url, "--token-file", &token, "--budget", "500"];
    let checked = tenure(&check);
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(!said.contains("token"), "{said}");
    assert_ne!(checked.status.code(), Some(2), "{said}");
}
