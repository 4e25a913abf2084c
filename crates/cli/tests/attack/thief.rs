//! A thief who knows the number of every session, beside a command that
//! `tenure run` keeps running by one: with a token of its own, and where there
//! are none. It cannot end the session, use it, or keep it alive.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::place::attacked;
use crate::common::servers::{SOON, answer, call_with, free, led, risen};
use crate::common::{TENURE, poll_until};

/// Killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::null()).spawn().expect("it starts"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One who asks over HTTP, with a token or without.
struct Caller<'a> {
    address: &'a str,
    token: Option<String>,
}

impl Caller<'_> {
    /// The status, and what was answered.
    fn post(&self, path: &str, body: &Value) -> (String, Value) {
        let header = |token| format!("Authorization: Bearer {token}\r\n");
        let header = self.token.as_deref().map(header).unwrap_or_default();
        let head = format!("POST /v1/{path}");
        let said = answer(call_with(self.address, &head, &header, &body.to_string()));
        let (head, body) = said.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).expect("a status");
        (status.to_owned(), serde_json::from_str(body).expect("JSON"))
    }

    /// The session that holds the election and the version of its register, and
    /// when the session was last heard of.
    fn bound_election(&self) -> Option<([u64; 2], u64)> {
        let (_, read) = self.post("registers/read", &json!({"key": "elections/payroll"}));
        let number = |path: &str| read.pointer(path)?.as_u64();
        let held = [number("/bound/session")?, number("/register/version")?];
        Some((held, number("/bound/heard/nanos")?))
    }
}

/// Makes a token with these rights.
fn token(directory: &Path, name: &str, rights: &[&str]) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    let mut made = Command::new(TENURE);
    made.args(["token", name, "--tokens", &path("tokens.toml")])
        .args(["--out", &path(name)])
        .args(rights);
    assert!(made.output().expect("it runs").status.success(), "{made:?}");
    let token = std::fs::read_to_string(path(name)).expect("the token");
    token.trim().to_owned()
}

/// All that a session can be asked for, under this number.
fn thefts(session: u64, serial: u64, secret: Option<&str>) -> [(&'static str, Value); 4] {
    let mut numbered = json!({"session": session, "serial": serial, "outstanding": 1});
    if let Some(secret) = secret {
        numbered["secret"] = secret.into();
    }
    let swap = json!({"key": "elections/thief", "value": "eA==", "at_end": {"value": "eA=="}});
    [
        ("sessions/keep_alive", json!({ "numbered": numbered })),
        ("sessions/close", json!({ "numbered": numbered })),
        (
            "log/append",
            json!({"entries": ["eA=="], "numbered": numbered}),
        ),
        (
            "registers/compare_and_swap",
            json!({"swap": swap, "numbered": numbered}),
        ),
    ]
}

/// Asks for everything under every number up to that of the session, which is
/// the only one that is open; whether each was refused for the right reason.
fn steal(thief: &Caller<'_>, session: u64) {
    for number in 1..=session {
        let guessed = Some("MDEyMzQ1Njc4OWFiY2RlZg==");
        // The release before knows no secrets.
        let guesses = if knows_owners() { 4 } else { 2 };
        let all = [(1, None), (1 << 40, None), (2, guessed), (1 << 40, guessed)];
        for (serial, secret) in all.into_iter().take(guesses) {
            for (path, body) in thefts(number, serial, secret) {
                let (status, said) = thief.post(path, &body);
                let cause = &said["error"]["cause"];
                let of_its_own = path.starts_with("registers/") && cause == "DENIED";
                assert!(
                    cause == "NOT_OWNER"
                        || number != session && cause == "SESSION_EXPIRED"
                        || of_its_own,
                    "{path} {body}: {status} {said}"
                );
            }
        }
    }
}

/// Whether sessions have owners, for the binary that is attacked.
fn knows_owners() -> bool {
    let help = Command::new(attacked()).args(["serve", "--help"]).output();
    let help = help.expect("it runs").stdout;
    String::from_utf8_lossy(&help).contains("--sessions-each")
}

fn attacked_with(tokens: bool) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let [peer, address] = free::<2>();
    let mut serve = Command::new(attacked());
    serve
        .args(["serve", "--quiet", "--id", "1", "--data", &path("data")])
        .args(["--peers", &format!("1={peer}"), "--listen", &address])
        // Calls are made by hand, and without a token.
        .env("TENURE_NO_TOKEN", "true");
    let mut made = [None, None];
    if tokens {
        made = [
            Some(token(
                directory.path(),
                "holder",
                &["--campaign", "payroll"],
            )),
            Some(token(
                directory.path(),
                "thief",
                &["--campaign", "thief", "--log-right", "append"],
            )),
        ];
        token(directory.path(), "boss", &["--admin"]);
        serve.args(["--tokens", &path("tokens.toml")]);
    }
    let _server = Process::start(&mut serve);
    let url = |name: &str| {
        let hold = format!("tenure://{address}?hold=session");
        match tokens {
            true => format!("{hold}&token_file={}", path(name)),
            false => hold,
        }
    };
    led(&url("boss"));
    if knows_owners() {
        risen(&url("boss"));
    }
    let [holder, thief] = made.map(|token| Caller {
        address: &address,
        token,
    });

    let mut run = Command::new(TENURE);
    run.args(["run", "payroll", "--lease", "2s", "--quiet", "--store"])
        .arg(url("holder"))
        .args(["--", "sh", "-c"])
        .arg(format!(
            "echo started >> {}; exec sleep 600",
            path("starts")
        ));
    let _run = Process::start(&mut run);
    let starts = || std::fs::read_to_string(path("starts")).unwrap_or_default();
    let started = || (starts() == "started\n").then_some(());
    poll_until(SOON, started).expect("the command runs");
    let (held, _) = holder.bound_election().expect("it is bound to a session");

    steal(&thief, held[0]);
    let (_, attacked) = holder.bound_election().expect("it is still bound");
    let renewed = || {
        holder
            .bound_election()
            .filter(|(_, heard)| *heard > attacked)
    };
    let (after, _) = poll_until(SOON, renewed).expect("it is kept alive");
    assert_eq!(after, held, "somebody else's");
    assert_eq!(starts(), "started\n", "the command was started again");
}

#[test]
fn a_thief_of_sessions_stops_no_command() {
    for tokens in [false, true] {
        attacked_with(tokens);
    }
}
