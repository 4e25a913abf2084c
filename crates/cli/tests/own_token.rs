//! The token that a user's servers share by themselves: who is let in by it,
//! who is not, what a listener that only pretends to be a server learns, and
//! which servers ask for it.

#![allow(clippy::print_stderr, reason = "what is left out is said")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::common::servers::{Heard, SOON, answer, call, call_with, free, ready, said};
use crate::common::stalls::{FOR_EVER, gone, held_up, traceable};
use crate::common::{TENURE, poll_until};
use serde_json::Value;
use tokio::sync::oneshot;

const STATUS: &str = "GET /v1/cluster/status";
const APPEND: &str = "POST /v1/log/append";
const ENTRY: &str = r#"{"entries": ["YQ=="]}"#;

/// A machine with one user, whose servers are the first one, two or three.
struct Home {
    dir: tempfile::TempDir,
    peers: Vec<String>,
    clients: Vec<String>,
}

impl Home {
    fn new<const N: usize>() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            peers: free::<N>().into(),
            clients: free::<N>().into(),
        }
    }

    fn token(&self) -> PathBuf {
        self.dir.path().join("state/tenure/token")
    }

    fn text(&self) -> String {
        let text = fs::read_to_string(self.token()).expect("a token");
        text.trim().to_owned()
    }

    fn mark(&self) -> PathBuf {
        self.dir.path().join("1/own-token")
    }

    fn command(&self, state: &str) -> Command {
        let mut command = Command::new("timeout");
        command
            .args(["90", TENURE])
            .env_remove("HOME")
            .env_remove("TENURE_NO_TOKEN")
            .env("XDG_STATE_HOME", self.dir.path().join(state));
        command
    }

    fn serve(&self, id: usize, more: &[&str]) -> Command {
        let peers = self.peers.iter().enumerate();
        let peers: Vec<_> = peers.map(|(at, it)| format!("{}={it}", at + 1)).collect();
        let mut command = Command::new(TENURE);
        command
            .args(["serve", "--id", &id.to_string(), "--peers"])
            .args([&peers.join(","), "--listen", &self.clients[id - 1]])
            .arg("--data")
            .arg(self.dir.path().join(id.to_string()))
            .args(more)
            .env_remove("HOME")
            .env_remove("TENURE_NO_TOKEN")
            .env("XDG_STATE_HOME", self.dir.path().join("state"));
        command
    }

    /// Until it answers.
    fn start(&self, more: &[&str]) -> Heard {
        let server = Heard::start(self.serve(1, more));
        self.listens(1);
        ready(&self.clients[0]);
        server
    }

    fn listens(&self, id: usize) {
        let listens = || TcpStream::connect(&self.clients[id - 1]).ok();
        poll_until(SOON, listens).expect("it listens");
    }

    fn url(&self) -> String {
        format!("tenure://{}", self.clients.join(","))
    }

    /// What a client says that was given nothing but the address.
    fn says(&self, args: &[&str]) -> Output {
        self.says_as("state", args)
    }

    /// The same of a user with another state directory.
    fn says_as(&self, state: &str, args: &[&str]) -> Output {
        let mut command = self.command(state);
        let output = command.args(args).env("TENURE_STORE", self.url()).output();
        output.expect("tenure runs")
    }

    fn done(&self, args: &[&str]) -> String {
        let output = self.says(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    fn protection(&self) -> Value {
        let text = self.done(&["status", "--json"]);
        let line = text.lines().next().expect("an object");
        let object: Value = serde_json::from_str(line).expect("an object");
        object["protection"].clone()
    }

    /// What a raw call is told, with this in place of a token.
    fn raw(&self, head: &str, token: Option<&str>, body: &str) -> String {
        let header = token.map_or(String::new(), |it| {
            format!("Authorization: Bearer {it}\r\n")
        });
        answer(call_with(&self.clients[0], head, &header, body))
    }
}

fn mode(path: &Path) -> u32 {
    let found = fs::metadata(path).expect("it is there");
    found.permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn clients_of_the_user_find_it_and_nobody_else_is_let_in() {
    let home = Home::new::<1>();
    let server = home.start(&[]);
    assert_eq!(server.count(&["no tokens"]), 0);
    assert_eq!(mode(&home.token()), 0o600);
    assert_eq!(mode(home.token().parent().expect("one")), 0o700);
    assert_eq!(mode(&home.mark()), 0o600);
    assert_eq!(home.done(&["log", "append", "hello"]), "1\n");
    assert_eq!(home.done(&["log", "read"]), "hello\n");
    let ran = home.done(&["run", "demo", "--once", "--", "echo", "leads"]);
    assert_eq!(ran, "leads\n");
    home.done(&["session", "list"]);
    assert_eq!(
        home.protection(),
        serde_json::json!({
            "tls": false, "tokens": true, "insecure": false, "own_token": true, "no_token": false,
        })
    );

    let token = home.text();
    let wrong = token.replace("tenure_", "tenurE_");
    for bad in [None, Some(&*wrong), Some("own."), Some("own.1.2")] {
        for (head, body) in [(STATUS, ""), (APPEND, ENTRY), ("GET /metrics", "")] {
            let refused = home.raw(head, bad, body);
            assert!(refused.starts_with("HTTP/1.1 401"), "{bad:?}: {refused}");
            assert!(!refused.contains(&token), "{refused}");
            for words in ["expected the token of the user", "tenure/token", "found"] {
                assert!(refused.contains(words), "{bad:?}: {refused}");
            }
        }
    }
    for (head, body) in [(STATUS, ""), (APPEND, ENTRY), ("GET /metrics", "")] {
        let told = home.raw(head, Some(&token), body);
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    }
    // Probes ask for none.
    for head in ["GET /healthz", "GET /readyz", "GET /leader"] {
        let told = answer(call(&home.clients[0], head, ""));
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    }

    // Of another user, who has another token, or none at all.
    let other = home.dir.path().join("other/tenure");
    fs::create_dir_all(&other).expect("a directory");
    set_mode(&other, 0o700);
    fs::write(other.join("token"), &wrong).expect("written");
    set_mode(&other.join("token"), 0o600);
    for state in ["other", "nobody"] {
        let refused = home.says_as(state, &["log", "append", "no"]);
        assert!(!refused.status.success(), "{state}");
        let why = said(&refused);
        assert!(why.contains("expected the token of the user"), "{why}");
    }
    // A token that was given is the one that is shown.
    let file = home.token().display().to_string();
    let given = home.says_as("other", &["log", "read", "--token-file", &file]);
    assert!(given.status.success(), "{}", said(&given));
    drop(server);

    // By its name this machine is found as well.
    let listen = home.clients[0].replace("127.0.0.1", "localhost");
    let _server = home.start(&["--advertise", &listen, "--sessions-each", "8"]);
    let mut named = home.command("state");
    let named = named.args(["log", "read", "--store", &format!("tenure://{listen}")]);
    let named = named.output().expect("tenure runs");
    assert!(named.status.success(), "{}", said(&named));
    // It is the token of all clients, so one of them does not take all room.
    // Clients of before may have left some sessions open.
    let opened = [(); 16].map(|()| {
        let open = r#"{"ttl_millis": 60000}"#;
        home.raw("POST /v1/sessions/open", Some(&token), open)
    });
    assert!(opened[0].starts_with("HTTP/1.1 200"), "{}", opened[0]);
    assert!(opened[15].starts_with("HTTP/1.1 429"), "{}", opened[15]);
}

#[test]
fn three_servers_of_a_user_share_one() {
    let home = Home::new::<3>();
    let _servers = [1, 2, 3].map(|id| Heard::start(home.serve(id, &[])));
    (1..=3).for_each(|id| home.listens(id));
    let leads = || home.says(&["status"]).status.success().then_some(());
    poll_until(SOON, leads).expect("a leader");
    let token = home.text();
    home.done(&["log", "append", "hello", "world"]);
    home.done(&["member", "list"]);
    // Each of them asks for it, and takes it.
    for address in &home.clients {
        let header = format!("Authorization: Bearer {token}\r\n");
        let told = answer(call_with(address, STATUS, &header, ""));
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
        let refused = answer(call(address, STATUS, ""));
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    }
    assert_eq!(home.text(), token);
}

/// Something that listens where a server is expected, and notes what it is
/// told. Until it is stopped.
struct Pretender {
    heard: Arc<Mutex<Vec<String>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Pretender {
    fn start(address: &str) -> Self {
        let listener = TcpListener::bind(address).expect("it is free");
        listener.set_nonblocking(true).expect("set");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = oneshot::channel();
        let notes = Arc::clone(&heard);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.expect("a runtime").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    () = listen(listener, notes) => {}
                    _ = stopped => {}
                }
            });
        });
        Self {
            heard,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Ends, and gives the values of all headers.
    fn stop(mut self) -> Vec<String> {
        drop(self.stop.take());
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("it ends");
        std::mem::take(&mut *self.heard.lock().expect("whole"))
    }
}

/// Says to each call that its caller is not known.
async fn listen(listener: tokio::net::TcpListener, notes: Arc<Mutex<Vec<String>>>) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        let notes = Arc::clone(&notes);
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(stream).await.ok()?;
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let values = request.headers().values();
                let values = values.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned());
                notes.lock().expect("whole").extend(values);
                let mut refused = tonic::Status::unauthenticated("no").into_http::<()>();
                refused.headers_mut().remove("content-length");
                let _ = respond.send_response(refused, true);
            }
            Some(())
        });
    }
}

#[test]
fn whoever_only_listens_learns_nothing_that_a_server_takes() {
    let home = Home::new::<1>();
    // So that there is a token.
    drop(home.start(&[]));
    let token = home.text();
    let elsewhere = Home::new::<1>();
    let state = elsewhere.token();
    let state = state.parent().expect("a directory");
    fs::create_dir_all(state).expect("made");
    set_mode(state, 0o700);
    fs::copy(home.token(), elsewhere.token()).expect("copied");
    let _elsewhere = elsewhere.start(&[]);

    let pretender = Pretender::start(&home.clients[0]);
    let refused = home.says(&["log", "append", "hello"]);
    assert!(!refused.status.success(), "nobody has appended it");
    let heard = pretender.stop();
    let proofs: Vec<_> = heard
        .iter()
        .filter_map(|it| it.strip_prefix("Bearer "))
        .collect();
    assert!(!proofs.is_empty(), "{heard:?}");
    let secret = token.trim_start_matches("tenure_");
    assert!(!heard.iter().any(|it| it.contains(secret)), "{heard:?}");

    // One that has been listening elsewhere all the time does not take it, nor
    // does one that begins to listen there after that.
    let _here = home.start(&[]);
    for proof in &proofs {
        let refused = elsewhere.raw(STATUS, Some(proof), "");
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
        assert!(refused.contains("for another address"), "{refused}");
        let stale = home.raw(STATUS, Some(proof), "");
        assert!(stale.starts_with("HTTP/1.1 503"), "{stale}");
        assert!(stale.contains("dialled before this server"), "{stale}");
    }
    // Both know their users.
    for home in [&home, &elsewhere] {
        assert_eq!(home.text(), token);
        home.done(&["log", "append", "hello"]);
    }
}

#[test]
fn a_directory_of_before_goes_on_without_until_it_is_told() {
    let home = Home::new::<1>();
    let loud = home.start(&["--no-token"]);
    for words in ["--no-token: ", "no tokens: "] {
        assert_eq!(loud.count(&["WARN", words]), 1, "{words}");
    }
    assert_eq!(home.protection()["no_token"], true);
    assert_eq!(home.protection()["tokens"], false);
    let told = home.raw(APPEND, None, ENTRY);
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(!home.token().exists() && !home.mark().exists());
    drop(loud);
    let before = ["WARN", "was founded before", "own-token"];
    for _ in 0..2 {
        let server = home.start(&[]);
        assert_eq!(server.count(&before), 1);
        assert_eq!(server.count(&["WARN", "no tokens: "]), 1);
        let told = home.raw(APPEND, None, ENTRY);
        assert!(told.starts_with("HTTP/1.1 200"), "{told}");
        assert_eq!(home.protection()["own_token"], false);
    }
    fs::write(home.mark(), "").expect("made");
    let server = home.start(&[]);
    assert_eq!(server.count(&before), 0);
    let refused = home.raw(APPEND, None, ENTRY);
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    home.done(&["log", "append", "hello"]);
    drop(server);
    // The variable is the same, and what was asked for before is not any more.
    let mut serve = home.serve(1, &[]);
    serve.env("TENURE_NO_TOKEN", "true");
    let server = Heard::start(serve);
    home.listens(1);
    ready(&home.clients[0]);
    assert_eq!(server.count(&["WARN", "--no-token: "]), 1);
    let told = home.raw(APPEND, None, ENTRY);
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
}

#[test]
fn a_token_that_is_not_its_users_alone_or_is_gone_is_said() {
    let home = Home::new::<1>();
    let server = home.start(&[]);
    let first = home.text();
    set_mode(&home.token(), 0o644);
    let unread = home.says(&["log", "append", "no"]);
    assert!(!unread.status.success(), "{unread:?}");
    for words in ["with mode 644", "expected the token of the user"] {
        assert!(said(&unread).contains(words), "{}", said(&unread));
    }
    drop(server);
    let refused = home.serve(1, &[]).output().expect("it ends");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    for words in ["with mode 644", "mend it", "--no-token"] {
        assert!(said(&refused).contains(words), "{}", said(&refused));
    }
    assert!(!said(&refused).contains(&first), "{}", said(&refused));

    set_mode(&home.token(), 0o600);
    let server = home.start(&[]);
    fs::remove_file(home.token()).expect("it goes");
    let gone = home.says(&["log", "append", "no"]);
    assert!(!gone.status.success(), "{gone:?}");
    let words = "expected the token of the user";
    assert!(said(&gone).contains(words), "{}", said(&gone));
    drop(server);
    let server = home.start(&[]);
    assert_eq!(server.count(&["WARN", "drawn anew"]), 1);
    assert_ne!(home.text(), first);
    home.done(&["log", "append", "hello"]);
    drop(server);

    // Without a place for it, one that was founded with it does not go on
    // without; a new one does, and says so.
    let mut serve = home.serve(1, &[]);
    let refused = serve.env_remove("XDG_STATE_HOME").output();
    let refused = refused.expect("it ends");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    let words = "expected a place for the token";
    assert!(said(&refused).contains(words), "{}", said(&refused));
    let new = Home::new::<1>();
    let mut serve = new.serve(1, &[]);
    let server = Heard::start({
        serve.env_remove("XDG_STATE_HOME");
        serve
    });
    server.says(1, &["WARN", "no token of its own", "no home"]);
    // Where there is a place that cannot be written, it would go on without for good.
    let other = Home::new::<1>();
    let refused = other
        .serve(1, &[])
        .env("XDG_STATE_HOME", "/dev/null")
        .output();
    let refused = refused.expect("it ends");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains(words), "{}", said(&refused));
}

#[test]
fn a_server_with_a_file_of_tokens_asks_for_those() {
    let home = Home::new::<1>();
    // So that there is a token of the user.
    drop(home.start(&[]));
    let path = |name: &str| home.dir.path().join(name).display().to_string();
    let (tokens, boss) = (path("tokens.toml"), path("boss"));
    home.done(&[
        "token", "boss", "--admin", "--tokens", &tokens, "--out", &boss,
    ]);
    let _server = home.start(&["--tokens", &tokens, "--no-token"]);
    let refused = home.says(&["log", "append", "no"]);
    assert!(!refused.status.success(), "{refused:?}");
    let words = "expected a token (authorization: Bearer …), found none but that of a user";
    assert!(said(&refused).contains(words), "{}", said(&refused));
    let known = home.raw(STATUS, Some(&home.text()), "");
    assert!(known.starts_with("HTTP/1.1 401"), "{known}");
    home.done(&["log", "append", "yes", "--token-file", &boss]);
}

/// Nothing waits for a disk to have the token, or the mark in the directory: a
/// server whose disk hangs from its start on comes as far as its log, and ends
/// when it is told to.
#[test]
fn a_new_server_does_not_wait_for_the_disk_to_have_its_token() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let home = Home::new::<1>();
    let secret = home.dir.path().join("secret");
    fs::write(&secret, "of the servers, 16 bytes and more").expect("written");
    set_mode(&secret, 0o600);
    let secret = secret.display().to_string();
    let serve = home.serve(1, &["--peer-secret-file", &secret]);
    let mut hung = held_up(FOR_EVER, "1+");
    // With -D it is the server that is waited for.
    hung.arg("-D")
        .arg(serve.get_program())
        .args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => hung.env(name, value),
            None => hung.env_remove(name),
        };
    }
    let mut hung = Heard::start(hung);
    // It is the log that it waits for.
    hung.says(
        1,
        &["WARN", "has not begun", "the disk of the data directory"],
    );
    assert!(home.token().exists() && home.mark().exists());
    hung.stop();
    gone(hung.id());
    assert_eq!(hung.ended().code(), Some(0));
}
