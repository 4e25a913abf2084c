//! Deposed writers against each resource, by real processes: one is stopped in
//! mid work (SIGSTOP), the next leader writes, the first goes on and is refused.
//!
//! Each test prints what the processes said, in the order of time
//! (`--nocapture`). docs/evidence/fences.md has such a run.

#![allow(clippy::print_stdout, reason = "what was measured, and transcripts")]

#[path = "../../../crates/tenure/tests/common/installed.rs"]
mod installed;
#[path = "../../../crates/tenure/tests/common/mariadb.rs"]
mod mariadb;
#[path = "../../../crates/tenure/tests/common/ports.rs"]
mod ports;
#[path = "../../../crates/tenure/tests/common/postgres.rs"]
mod postgres;
#[path = "../../../crates/tenure/tests/object/servers.rs"]
mod servers;
#[path = "../../../crates/tenure/tests/common/stopped.rs"]
mod stopped;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;
use tenure::core::time::Instant;

/// What is refused by a fence.
const REFUSED: Option<i32> = Some(3);

/// What happened, line by line, with its time.
struct Transcript {
    name: &'static str,
    begun: Instant,
}

impl Transcript {
    fn new(name: &'static str) -> Self {
        let begun = clock::boot();
        Self { name, begun }
    }

    fn line(&self, who: &str, text: &str) {
        let at = clock::boot().since(self.begun).as_secs_f64();
        println!("{}: {at:6.2}s {who:>7}: {text}", self.name);
    }
}

/// A process of the example.
struct Writer<'a> {
    transcript: &'a Transcript,
    who: String,
    process: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl<'a> Writer<'a> {
    fn start(transcript: &'a Transcript, who: &str, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fences"));
        command.args(args);
        Self::spawn(transcript, who, command)
    }

    fn spawn(transcript: &'a Transcript, who: &str, mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it runs");
        Self {
            transcript,
            who: who.to_owned(),
            to: process.stdin.take(),
            from: BufReader::new(process.stdout.take().expect("its output")),
            process,
        }
    }

    /// The next line that it says; empty at its end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("text");
        let line = line.trim_end().to_owned();
        if !line.is_empty() {
            self.transcript.line(&self.who, &line);
        }
        line
    }

    fn pid(&self) -> Pid {
        let number = i32::try_from(self.process.id()).ok();
        number.and_then(Pid::from_raw).expect("a process id")
    }

    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).expect("it runs");
        stopped::await_stopped(self.pid());
        self.transcript.line(&self.who, "(SIGSTOP)");
    }

    /// Lets it go on, from its stop and from its pause.
    fn resume(&mut self) {
        self.transcript.line(&self.who, "(SIGCONT)");
        let mut to = self.to.take().expect("it was not told yet");
        writeln!(to, "go on").expect("its pipe is open");
        kill_process(self.pid(), Signal::CONT).expect("it runs");
    }

    /// All that it says until its end, and its exit code.
    fn finish(mut self) -> (Vec<String>, Option<i32>) {
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line.is_empty() => break,
                line => lines.push(line),
            }
        }
        let code = self.process.wait().expect("it ends").code();
        let told = code.map_or_else(
            || "ended by a signal".to_owned(),
            |it| format!("exit code {it}"),
        );
        self.transcript.line(&self.who, &format!("({told})"));
        (lines, code)
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A server in whose table `ledger` term 7 and term 8 write the same row.
fn on_a_server(transcript: &Transcript, url: &str, ledger: impl Fn() -> String) {
    let write = |who: &str, args: &[&str]| {
        // Long enough that no slow machine ends the transaction of the one that leads.
        let args = [&["sql", url, "--idle", "5", "--term"], args].concat();
        Writer::start(transcript, who, &args)
    };
    let mut old = write("term 7", &["7", "--pause"]);
    assert_eq!(old.line(), "term 7 recorded");
    assert_eq!(old.line(), "found 0, written, not committed");
    old.stop();
    // The row itself is locked by the transaction that is stopped: the new leader
    // has recorded its term by then, and waits until the server ends that session.
    let (said, code) = write("term 8", &["8"]).finish();
    assert_eq!(
        said.join(", "),
        "term 8 recorded, found 0, written, not committed, committed"
    );
    assert_eq!(code, Some(0));
    old.resume();
    let (said, code) = old.finish();
    assert_eq!(code, Some(1), "{said:?}");
    assert!(said[0].contains("nothing was committed"), "{said:?}");
    // It tries once more, as if it led still.
    let (said, code) = write("term 7", &["7"]).finish();
    assert_eq!(code, REFUSED, "{said:?}");
    assert_eq!(ledger(), "8");
}

#[test]
fn postgresql_refuses_a_deposed_writer() {
    let server = postgres::Postgres::start();
    server.sql("CREATE TABLE ledger (id int PRIMARY KEY, paid_in bigint NOT NULL)");
    server.sql("INSERT INTO ledger VALUES (1, 0)");
    let transcript = Transcript::new("PostgreSQL");
    let ledger = || server.sql("SELECT paid_in FROM ledger");
    on_a_server(&transcript, &server.url(), ledger);
}

#[test]
fn mariadb_refuses_a_deposed_writer() {
    let server = mariadb::MariaDb::start();
    server.sql("CREATE TABLE ledger (id INT PRIMARY KEY, paid_in BIGINT NOT NULL) ENGINE=InnoDB");
    server.sql("INSERT INTO ledger VALUES (1, 0)");
    let transcript = Transcript::new("MariaDB");
    let ledger = || server.sql("SELECT paid_in FROM ledger");
    on_a_server(&transcript, &server.url(), ledger);
}

/// A stop that is shorter than the server's limit: the transaction is there
/// still, and the guard refuses it at its commit.
#[test]
fn postgresql_refuses_a_transaction_that_lives() {
    let server = postgres::Postgres::start();
    server.sql("CREATE TABLE ledger (id int PRIMARY KEY, paid_in bigint NOT NULL)");
    server.sql("INSERT INTO ledger VALUES (1, 0)");
    let transcript = Transcript::new("PostgreSQL, soon");
    let url = server.url();
    // No limit of the server ends what a slow machine holds up.
    let args = ["sql", &url, "--term", "7", "--pause", "--idle", "60"];
    let mut old = Writer::start(&transcript, "term 7", &args);
    assert_eq!(old.line(), "term 7 recorded");
    assert_eq!(old.line(), "found 0, written, not committed");
    old.stop();
    let mut new = Writer::start(
        &transcript,
        "term 8",
        &["sql", &url, "--term", "8", "--idle", "60"],
    );
    assert_eq!(new.line(), "term 8 recorded");
    old.resume();
    let (said, code) = old.finish();
    assert_eq!(code, REFUSED, "{said:?}");
    let (said, code) = new.finish();
    assert_eq!((said.len(), code), (2, Some(0)), "{said:?}");
    assert_eq!(server.sql("SELECT paid_in FROM ledger"), "8");
}

/// SQLite ends no transaction of a process that is stopped: its successor waits
/// until it goes on (and then it was first), or is killed.
#[test]
fn sqlite_keeps_the_successor_waiting_and_then_refuses() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("ledger.db");
    let url = format!("sqlite://{}", path.display());
    let table = "CREATE TABLE ledger (id INTEGER PRIMARY KEY, paid_in INTEGER);
                 INSERT INTO ledger VALUES (1, 0)";
    let made = rusqlite::Connection::open(&path).and_then(|it| it.execute_batch(table));
    made.expect("a ledger");
    let transcript = Transcript::new("SQLite");
    let write = |who: &str, args: &[&str]| {
        Writer::start(&transcript, who, &[&["sql", &url, "--term"], args].concat())
    };
    let mut old = write("term 7", &["7", "--pause"]);
    assert_eq!(old.line(), "term 7 recorded");
    assert_eq!(old.line(), "found 0, written, not committed");
    old.stop();
    let (said, code) = write("term 8", &["8"]).finish();
    assert_eq!(code, Some(1), "{said:?}");
    assert!(said[0].contains("database is locked"), "{said:?}");
    old.resume();
    let (said, code) = old.finish();
    assert_eq!(
        (said.last().map(String::as_str), code),
        (Some("committed"), Some(0))
    );
    let (said, code) = write("term 8", &["8"]).finish();
    assert_eq!(code, Some(0));
    assert_eq!(
        said[1], "found 7, written, not committed",
        "it reads what was first"
    );
    let (said, code) = write("term 7", &["7"]).finish();
    assert_eq!(code, REFUSED, "{said:?}");
    // One that is killed instead keeps nobody waiting.
    let mut old = write("term 8", &["8", "--pause"]);
    assert_eq!(
        (old.line().is_empty(), old.line().is_empty()),
        (false, false)
    );
    old.stop();
    transcript.line("term 8", "(SIGKILL)");
    drop(old);
    let (said, code) = write("term 9", &["9"]).finish();
    assert_eq!(code, Some(0), "{said:?}");
    assert_eq!(said[1], "found 8, written, not committed");
}

/// A service behind the layer, over both protocols.
fn over(protocol: &str, transcript: &Transcript) {
    let directory = tempfile::tempdir().expect("a directory");
    let mark = directory.path().join("mark");
    let mark = mark.to_str().expect("a path");
    let mut server = Writer::start(transcript, "service", &["serve", "--mark", mark]);
    let address = server.line();
    let write = |who: &str, address: &str, args: &[&str]| {
        Writer::start(
            transcript,
            who,
            &[&[protocol, address, "--term"], args].concat(),
        )
    };
    let mut old = write("term 7", &address, &["7", "--pause"]);
    assert_eq!(old.line(), "found 0 lines in term 7");
    old.stop();
    let (said, code) = write("term 8", &address, &["8"]).finish();
    assert_eq!(
        (said.join(", "), code),
        ("found 0 lines in term 8, written".into(), Some(0))
    );
    old.resume();
    let (said, code) = old.finish();
    assert_eq!(code, REFUSED, "{said:?}");
    assert!(
        said[0].contains("a leader of term 8 has been here"),
        "{said:?}"
    );
    // What it has seen outlives the service.
    transcript.line("service", "(SIGKILL, and again)");
    drop(server);
    let mut server = Writer::start(transcript, "service", &["serve", "--mark", mark]);
    let address = server.line();
    let (said, code) = write("term 7", &address, &["7"]).finish();
    assert_eq!(code, REFUSED, "{said:?}");
    let (_, code) = write("term 8", &address, &["8"]).finish();
    assert_eq!(code, Some(0));
}

#[test]
fn http_refuses_a_deposed_writer() {
    over("http", &Transcript::new("HTTP"));
}

#[test]
fn grpc_refuses_a_deposed_writer() {
    over("grpc", &Transcript::new("gRPC"));
}

/// An object on a server of the S3 protocol that keeps it on disk.
#[test]
fn an_object_store_refuses_a_deposed_writer() {
    let server = servers::Server::seaweed();
    let transcript = Transcript::new("objects");
    let url = server.endpoint();
    let write = |who: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fences"));
        command.args(["objects", &url, "--term"]).args(args);
        command.env("AWS_ACCESS_KEY_ID", "tenure");
        command.env("AWS_SECRET_ACCESS_KEY", "tenure-secret");
        Writer::spawn(&transcript, who, command)
    };
    let mut old = write("term 7", &["7", "--pause"]);
    assert_eq!(old.line(), "claimed in term 7, found 0 lines");
    old.stop();
    let (said, code) = write("term 8", &["8"]).finish();
    assert_eq!(
        (said.join(", "), code),
        ("claimed in term 8, found 0 lines, written".into(), Some(0))
    );
    old.resume();
    let (said, code) = old.finish();
    assert_eq!(code, REFUSED, "{said:?}");
    let (said, code) = write("term 7", &["7"]).finish();
    assert_eq!(code, REFUSED, "{said:?}");
    let (said, code) = write("term 9", &["9"]).finish();
    assert_eq!(
        (said.join(", "), code),
        ("claimed in term 9, found 1 lines, written".into(), Some(0))
    );
}
