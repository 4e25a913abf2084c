//! Files that an earlier release has made open under this one.
//!
//! `files.tar.gz` and `postgres.sql` were made by the release of commit
//! bd20d26f, by `make.sh` and `pg_dump --inserts`, and are never made again by
//! a newer one: what they show is what users have on their disks. They hold a
//! SQLite file with an election that was resigned in term 2 and one whose
//! leader was killed in term 1; a group on SQLite with what its agent has
//! logged; the data directory of a server with elections, a log and a snapshot
//! in the middle of it, and its backup; a table of PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::TENURE;
use crate::common::postgres::Postgres;
use crate::common::servers::{free, led, tenure};
use serde_json::Value;

fn kept(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compatibility");
    folder.join(name)
}

/// The files, in a directory of this test's own.
fn unpacked() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(kept("files.tar.gz"));
    let unpacked = tar.arg("-C").arg(directory.path()).status();
    assert!(unpacked.expect("tar runs").success());
    directory
}

fn text(args: &[&str]) -> String {
    let output = tenure(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// Who has led, as `tenure leader --json` tells it: nobody leads now.
fn term(election: &str, url: &str) -> u64 {
    let output = tenure(&["leader", election, "--json", "--store", url]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).expect("an object");
    told["term"].as_u64().expect("a term")
}

/// The next leader of this election; its term.
fn elected(election: &str, url: &str) -> u64 {
    text(&["run", election, "--once", "--store", url, "--", "true"]);
    term(election, url)
}

struct Server(Child);

impl Server {
    fn start(data: &Path) -> (Self, String) {
        let [peer, address] = free::<2>();
        let mut serve = Command::new(TENURE);
        serve.args(["serve", "--quiet", "--no-token", "--id", "1"]);
        serve.args(["--peers", &format!("1={peer}"), "--listen", &address]);
        serve.arg("--data").arg(data).stdout(Stdio::null());
        let server = Self(serve.spawn().expect("it starts"));
        let url = format!("tenure://{address}");
        led(&url);
        (server, url)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn elections_on_sqlite_go_on_where_they_were() {
    let files = unpacked();
    let url = format!("sqlite://{}", files.path().join("elections.db").display());
    assert_eq!(term("payroll", &url), 2);
    assert_eq!(elected("payroll", &url), 3);
    assert_eq!(elected("reports", &url), 2);
}

#[test]
fn elections_on_postgresql_go_on_where_they_were() {
    let postgres = Postgres::start();
    let table = std::fs::read_to_string(kept("postgres.sql")).expect("the table");
    postgres.sql(&table);
    let url = postgres.url_to_type();
    assert_eq!(term("payroll", &url), 2);
    assert_eq!(elected("payroll", &url), 3);
}

#[test]
fn a_group_and_the_log_of_its_agent_are_read() {
    let files = unpacked();
    let url = format!("sqlite://{}", files.path().join("group.db").display());
    let shown = text(&["ps", "--group", "web", "--store", &url]);
    assert!(shown.contains("epoch 6"), "{shown}");
    let mut logs = Command::new(TENURE);
    logs.args(["logs", "hello", "--group", "web"]);
    let logs = logs.env("XDG_STATE_HOME", files.path().join("state"));
    let told = logs.output().expect("it runs");
    let told = String::from_utf8(told.stdout).expect("text");
    assert!(told.ends_with("starts with fence 2\nhello\n"), "{told}");
}

#[test]
fn a_server_goes_on_with_its_log_and_its_registers() {
    let files = unpacked();
    let (_server, url) = Server::start(&files.path().join("data"));
    let log = || text(&["log", "read", "--store", &url]);
    assert_eq!(log(), "one\ntwo\nthree\nfour\n");
    assert_eq!(term("payroll", &url), 2);
    assert_eq!(elected("payroll", &url), 3);
    text(&["log", "append", "five", "--store", &url]);
    assert_eq!(log(), "one\ntwo\nthree\nfour\nfive\n");
}

#[test]
fn a_backup_is_restored() {
    let files = unpacked();
    let (data, backup) = (files.path().join("new"), files.path().join("backup"));
    let data_text = data.display().to_string();
    let restore = ["restore", "--id", "1", "--data", &data_text];
    text(&[&restore[..], &[&backup.display().to_string()]].concat());
    let (_server, url) = Server::start(&data);
    assert_eq!(
        text(&["log", "read", "--store", &url]),
        "one\ntwo\nthree\nfour\n"
    );
    assert!(elected("payroll", &url) > 2);
}
