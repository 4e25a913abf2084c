//! What processes do on a SQLite file that goes by two names, that lost its
//! log, that an older release has open, that is not there, or that may only
//! be read.
//!
//! The older release is the binary that `TENURE_BEFORE` names, as in
//! `upgrade.rs`; without it that is not tried, and said.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::servers::{said, tenure};
use crate::common::{Candidate, Ledger, Shared, TENURE, memory_directory, poll_until, postgres};
use rustix::process::Signal;

const SOON: Duration = Duration::from_secs(40);
const FLAGS: [&str; 2] = ["--lease", "2s"];

fn url(path: &Path) -> String {
    format!("sqlite://{}", path.display())
}

/// Waits until a candidate that is refused has ended; what it said.
fn refused(mut candidate: Candidate, code: i32) -> String {
    let ended = || candidate.process.try_wait().expect("a child");
    let status = poll_until(SOON, ended).expect("it ends");
    let log = candidate.log();
    assert_eq!(status.code(), Some(code), "{log}");
    log
}

/// Two candidates on these stores, the second started by `words`: one leads,
/// and the other one after it, in the next term.
fn one_after_the_other(words: &[&str], urls: [&str; 2], between: impl FnOnce()) {
    let ledger = Ledger::new();
    let a = Candidate::start(urls[0], "a", &ledger, &FLAGS);
    let first = ledger.await_term_above(0, SOON);
    between();
    let b = Candidate::start_by(
        words,
        urls[1],
        "b",
        &ledger,
        &[&FLAGS[..], &["-v"]].concat(),
    );
    let stands = || b.log().contains("payroll: a leads in term 1").then_some(());
    let stands = poll_until(SOON, stands);
    assert!(stands.is_some(), "{}", b.log());
    a.signal(Signal::TERM);
    let next = ledger.await_term_above(first.term, SOON);
    assert_eq!((next.term, next.candidate.as_str()), (2, "b"));
    drop((a, b));
    ledger.runs();
}

/// Mounting takes the rights of root, or a name space where a user has them.
fn mounting(script: &str) -> Vec<String> {
    let user = ["--user", "--map-root-user"];
    let root = rustix::process::geteuid().is_root();
    let more: &[&str] = if root { &[] } else { &user };
    let script = format!("{script} && exec \"$@\"");
    let words = [
        &["unshare", "--mount"],
        more,
        &["sh", "-c", &script, "sh", TENURE],
    ]
    .concat();
    words.into_iter().map(str::to_owned).collect()
}

#[test]
fn a_file_that_is_mounted_alone_is_refused_and_its_directory_is_not() {
    let directory = memory_directory();
    let (here, there) = (
        directory.path().join("here"),
        directory.path().join("there"),
    );
    for place in [&here, &there] {
        fs::create_dir(place).expect("a directory");
    }
    let (one, other) = (url(&here.join("t.db")), url(&there.join("t.db")));
    let paths = format!("{} {}", here.display(), there.display());
    let words = mounting(&format!("mount --bind {paths}"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    one_after_the_other(&words, [&one, &other], || {});

    // The same with the file alone, as `docker run -v t.db:/t.db` has it.
    fs::write(there.join("t.db"), "").expect("something to mount on");
    let paths = format!("{0}/t.db {1}/t.db", here.display(), there.display());
    let words = mounting(&format!("mount --bind {paths}"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ledger = Ledger::new();
    let b = Candidate::start_by(&words, &other, "b", &ledger, &FLAGS);
    let log = refused(b, 2);
    assert!(log.contains("mount the directory"), "{log}");
    assert!(ledger.runs().is_empty());
}

#[test]
fn a_file_with_two_names_is_refused_by_both() {
    let directory = memory_directory();
    let names = ["a.db", "b.db"].map(|name| directory.path().join(name));
    fs::write(&names[0], "").expect("a file");
    fs::hard_link(&names[0], &names[1]).expect("a link");
    let ledger = Ledger::new();
    for name in &names {
        let candidate = Candidate::start(&url(name), "a", &ledger, &FLAGS);
        let log = refused(candidate, 2);
        assert!(log.contains("2 hard links"), "{log}");
    }
    assert!(ledger.runs().is_empty());
}

#[test]
fn who_finds_no_log_beside_the_file_finds_what_was_acknowledged() {
    let directory = memory_directory();
    let path = directory.path().join("t.db");
    let remove = || {
        for end in ["-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(directory.path().join(format!("t.db{end}")));
        }
    };
    one_after_the_other(&[TENURE], [&url(&path), &url(&path)], remove);
}

#[test]
fn a_database_that_goes_missing_is_not_made_again_and_is_used_when_it_is_back() {
    let shared = Shared::sqlite();
    let ledger = Ledger::new();
    let candidate = Candidate::start(&shared.url(), "leader", &ledger, &["--lease", "2s"]);
    let first = ledger.await_term_above(0, SOON);
    let path = shared.url().replace("sqlite://", "");
    fs::rename(&path, format!("{path}.old")).expect("to move it away");
    let said = |word: &str| candidate.log().contains(word).then_some(());
    for word in [
        "found it deleted or replaced",
        // With what this process remembers.
        "`tenure repair payroll --create --term-above 1`",
        "is over for us",
    ] {
        poll_until(SOON, || said(word)).unwrap_or_else(|| panic!("it never said {word}"));
    }
    assert!(!Path::new(&path).exists(), "it was made again");
    fs::rename(format!("{path}.old"), &path).expect("to move it back");
    ledger.await_term_above(first.term, SOON);
}

/// The release before this one, if there is one here.
fn before() -> Option<String> {
    let found = std::env::var("TENURE_BEFORE").ok();
    if found.is_none() {
        // Not `eprintln!`: of a test that passes the harness shows none of it.
        let said =
            b"NOT TRIED: a SQLite file that an older release has open, since $TENURE_BEFORE \
                     names no binary of it; ./test.sh builds one\n";
        std::io::stderr().write_all(said).expect("a stderr");
    }
    found
}

#[test]
fn a_file_of_an_older_release_is_taken_over_when_that_has_ended() {
    let Some(before) = before() else { return };
    let shared = Shared::sqlite();
    let ledger = Ledger::new();
    let old = Candidate::start_by(&[&before], &shared.url(), "old", &ledger, &FLAGS);
    let first = ledger.await_term_above(0, SOON);
    let log = refused(Candidate::start(&shared.url(), "new", &ledger, &FLAGS), 1);
    assert!(log.contains("end that process"), "{log}");
    old.signal(Signal::TERM);
    let mut old = old;
    old.process.wait().expect("it ends");
    let new = Candidate::start(&shared.url(), "new", &ledger, &FLAGS);
    let second = ledger.await_term_above(first.term, SOON);
    assert_eq!((second.term, second.candidate.as_str()), (2, "new"));
    // The other way round: what is there already gives way.
    let old = Candidate::start_by(&[&before], &shared.url(), "old", &ledger, &FLAGS);
    let third = ledger.await_term_above(second.term, SOON);
    assert_eq!((third.term, third.candidate.as_str()), (3, "old"));
    assert!(new.log().contains("end that process"), "{}", new.log());
    drop(old);
    let fourth = ledger.await_term_above(third.term, SOON);
    assert_eq!(fourth.candidate, "new");
}

#[test]
fn looking_at_what_is_not_there_makes_nothing() {
    let directory = memory_directory();
    let path = directory.path().join("t.db");
    let server = postgres::Postgres::start();
    let home = directory.path().display().to_string();
    for url in [url(&path), server.url_to_type()] {
        let looks: [&[&str]; 4] = [
            &["leader", "x"],
            &["list"],
            &["ps"],
            &["transfer", "x", "--to", "y"],
        ];
        for look in looks {
            let output = tenure(&[look, &["--store", &url]].concat());
            let said = said(&output);
            assert_eq!(output.status.code(), Some(1), "{look:?}: {said}");
            assert!(
                said.contains("no store there; `tenure run` makes it"),
                "{said}"
            );
            assert!(output.stdout.is_empty());
        }
    }
    // Without --store neither the file nor its directory.
    let look = Command::new(TENURE)
        .arg("list")
        .env("XDG_STATE_HOME", &home)
        .env_remove("TENURE_STORE")
        .output();
    let look = look.expect("tenure runs");
    assert_eq!(look.status.code(), Some(1), "{}", said(&look));
    let made = fs::read_dir(directory.path()).expect("a directory").count();
    assert_eq!(made, 0, "something was made");
    let tables = server.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'tenure%'");
    assert_eq!(tables.trim(), "0");
}

#[test]
fn a_watch_waits_for_what_is_not_there() {
    let server = postgres::Postgres::start();
    let directory = memory_directory();
    for url in [url(&directory.path().join("t.db")), server.url_to_type()] {
        let mut watch = Command::new(TENURE)
            .args(["watch", "payroll", "--json", "--store", &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tenure runs");
        let mut heard = BufReader::new(watch.stderr.take().expect("its errors")).lines();
        let first = heard.next().expect("a line").expect("text");
        assert!(first.contains("no store there"), "{first}");
        let ledger = Ledger::new();
        let leader = Candidate::start(&url, "a", &ledger, &FLAGS);
        let mut lines = BufReader::new(watch.stdout.take().expect("its output")).lines();
        let led = |line: std::io::Result<String>| line.expect("text").contains("\"name\":\"a\"");
        assert!(lines.any(led), "it ended");
        drop(leader);
        watch.kill().expect("to end it");
        watch.wait().expect("it ends");
    }
}

#[test]
fn the_default_store_is_told() {
    let directory = memory_directory();
    let run = Command::new(TENURE)
        .args(["run", "x", "--once", "--", "true"])
        .env("XDG_STATE_HOME", directory.path())
        .env_remove("TENURE_STORE")
        .output();
    let run = run.expect("tenure runs");
    let (path, said) = (directory.path().join("tenure/tenure.db"), said(&run));
    assert!(path.exists() && said.contains(&url(&path)), "{said}");
    assert!(said.contains("this user's"), "{said}");
}

/// As root by becoming nobody, since root may read and write anything.
#[test]
fn who_may_only_read_a_file_may_look() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t.db");
    let once = ["run", "x", "--once", "--store", &url(&path), "--", "true"];
    assert_eq!(tenure(&once).status.code(), Some(0));
    let binary = directory.path().join("tenure");
    fs::copy(TENURE, &binary).expect("a copy that anybody may run");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("to set it");
    };
    mode(&path, 0o444);
    mode(&directory.path().join("t.db-journal"), 0o444);
    mode(directory.path(), 0o555);
    let look = |args: &[&str]| {
        let nobody = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ];
        let root = rustix::process::geteuid().is_root();
        let words: &[&str] = if root { &nobody } else { &["env"] };
        let output = Command::new(words[0])
            .args(&words[1..])
            .arg(&binary)
            .args(args)
            .args(["--store", &url(&path)])
            .output();
        output.expect("it runs")
    };
    let seen = look(&["leader", "x", "--json"]);
    let shown = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert_eq!(seen.status.code(), Some(3), "{}", said(&seen));
    assert!(shown.contains("\"term\":1"), "{shown}");
    let listed = look(&["list"]);
    assert_eq!(listed.status.code(), Some(0), "{}", said(&listed));
    mode(directory.path(), 0o755);
}
