//! Bad input, each with the exit code of the contract and a message that says
//! what was expected, what was found and what to do; and stores that go away
//! under a running election.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::{Candidate, Ledger, Shared, TENURE, poll_until};
use rustix::process::Signal;
use tenure::StoreError;
use tenure::core::cas::{self, Expect, Stamp};
use tenure::core::ids::{Key, Name};
use tenure::store::open;

const SOON: Duration = Duration::from_secs(40);
const WITHIN: Duration = Duration::from_secs(20);

fn tenure(args: &[&str]) -> Output {
    Command::new(TENURE)
        .args(args)
        .output()
        .expect("tenure runs")
}

/// Runs and expects this exit code and these words on standard error, without
/// a backtrace.
fn refused(code: i32, args: &[&str], words: &[&str]) {
    let output = tenure(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for word in words {
        assert!(
            said.contains(word),
            "{args:?}: expected {word:?} in: {said}"
        );
    }
    assert!(
        !said.contains("panicked") && !said.contains("stack backtrace"),
        "{said}"
    );
}

/// Makes a store, in which the election x has been led once.
fn made(url: &str) {
    let once = ["run", "x", "--once", "--store", url, "--", "true"];
    assert_eq!(tenure(&once).status.code(), Some(0));
}

fn run<'a>(url: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["run", "payroll", "--store", url], rest].concat()
}

#[test]
fn stores_that_are_none() {
    refused(
        2,
        &[
            "list",
            "--store",
            "memory:",
            "--format",
            "leaderelection-go",
        ],
        &["--format leaderelection-go", "memory:"],
    );
    refused(
        2,
        &["leader", "x", "--store", "mongo://host/db"],
        &["unknown scheme \"mongo\""],
    );
    for url in [
        "consul://host/a",
        "kubernetes://host/a/b",
        "nats://host/a.b",
    ] {
        // Either there is no such place, or this build has no such store.
        refused(2, &["leader", "x", "--store", url], &["expected"]);
    }
    refused(
        2,
        &["leader", "x", "--store", "etcd://h?prefx=x"],
        // Either the option is unknown, or this build has no such store.
        &["expected", "etcd"],
    );
    refused(
        2,
        &["leader", "x", "--store", "nonsense"],
        &["expected a store URL", "sqlite:///path"],
    );
    refused(2, &run("mongo://h", &["--", "true"]), &["unknown scheme"]);
    refused(
        2,
        &["leader", "x", "--store", "postgres://h/db?expiry=never"],
        &["store-clock"],
    );
    refused(
        2,
        &["leader", "x", "--store", "postgres://h/db?table=a;b"],
        &["table=", "a;b"],
    );
    refused(
        2,
        &run("postgres://h/db?table=pg_temp.a", &["--", "true"]),
        &["table=", "pg_temp.a"],
    );
}

#[test]
fn help_that_cannot_be_printed_fails() {
    let full = fs::File::options().write(true).open("/dev/full");
    let mut help = Command::new(TENURE);
    help.arg("--help").stdout(full.expect("a device"));
    let output = help.output().expect("tenure runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output: "), "{said}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = help.stdout(writer).output().expect("tenure runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn servers_that_are_not_there_or_say_no() {
    let nobody = "postgres://tenure@127.0.0.1:1/postgres";
    refused(
        1,
        &["leader", "x", "--store", nobody, "--timeout", "2s"],
        &["127.0.0.1:1", "refused"],
    );
    let server = crate::common::postgres::Postgres::start();
    let wrong = server.url_of("tenure", "wrong");
    let words = ["password authentication failed", "check the user, password"];
    refused(2, &["leader", "x", "--store", &wrong], &words);
    refused(2, &run(&wrong, &["--", "true"]), &words);
    let output = tenure(&["leader", "x", "--store", &wrong]);
    assert!(
        !String::from_utf8_lossy(&output.stderr).contains("wrong"),
        "the password is shown"
    );
    server.sql("CREATE TABLE tenure_register (id int)");
    refused(
        2,
        &["leader", "x", "--store", &server.url_to_type()],
        &["expected table", "id integer", "?table="],
    );
    server.sql("CREATE USER weak PASSWORD 'weak'; REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    let weak = server.url_of("weak", "weak") + "&table=other";
    refused(
        2,
        &run(&weak, &["--", "true"]),
        &["permission denied", "CREATE TABLE other"],
    );
}

#[test]
fn files_that_will_not_do() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
    refused(
        2,
        &run(&url("no/such/t.db"), &["--", "true"]),
        &["existing directory"],
    );
    fs::write(
        directory.path().join("text.db"),
        "not a database, but long enough to be read",
    )
    .expect("to write");
    refused(
        2,
        &["leader", "x", "--store", &url("text.db")],
        &["expected a SQLite database"],
    );
    let other = rusqlite::Connection::open(directory.path().join("other.db")).expect("a file");
    other
        .execute_batch("CREATE TABLE tenure_register (id INTEGER)")
        .expect("a table");
    refused(
        2,
        &["leader", "x", "--store", &url("other.db")],
        &["with columns version, key", "found id"],
    );
    read_only(directory.path());
}

/// A pipe never opens, and a device never ends.
#[test]
fn files_that_are_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    for file in [&*pipe.to_string_lossy(), "/dev/zero"] {
        let mut tried: Vec<(&str, Vec<&str>)> = vec![
            ("", vec!["deploy", "--file", file]),
            ("", vec!["deploy", "x", "--config", file, "--", "true"]),
            ("", vec!["wal", "inspect", file]),
        ];
        if cfg!(feature = "s3") {
            let leader = |store| vec!["leader", "x", "--store", store];
            tried.extend([
                ("AWS_WEB_IDENTITY_TOKEN_FILE", leader("s3://b")),
                ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", leader("s3://b")),
                ("AZURE_FEDERATED_TOKEN_FILE", leader("az://c?account=a")),
                ("GOOGLE_APPLICATION_CREDENTIALS", leader("gs://b")),
                ("GOOGLE_SERVICE_ACCOUNT", leader("gs://b")),
            ]);
        }
        let leader = |store| vec!["leader", "x", "--timeout", "2s", "--store", store];
        for (feature, store) in [
            (cfg!(feature = "s3"), "s3://b?endpoint=http://127.0.0.1:1"),
            (cfg!(feature = "azure"), "az://c?account=a"),
            (cfg!(feature = "gcs"), "gs://b"),
            (cfg!(feature = "etcd"), "etcd://127.0.0.1:1?tls=on"),
            (cfg!(feature = "mysql"), "mysql://u@127.0.0.1:1/d?tls=on"),
            (cfg!(feature = "nats"), "nats://127.0.0.1:1"),
            (cfg!(feature = "redis"), "rediss://127.0.0.1:1"),
            (cfg!(feature = "consul"), "consul://127.0.0.1:1?tls=on"),
            (cfg!(feature = "kubernetes"), "kubernetes://127.0.0.1:1"),
            (
                cfg!(feature = "postgres"),
                "postgres://u@127.0.0.1:1/d?sslmode=verify-full",
            ),
        ] {
            if feature {
                tried.push(("SSL_CERT_FILE", leader(store)));
            }
        }
        for (variable, args) in tried {
            let mut command = Command::new("timeout");
            command.args(["--kill-after=1", "20", TENURE]).args(&args);
            if !variable.is_empty() {
                command.env(variable, file);
            }
            let output = command.output().expect("timeout runs");
            let said = String::from_utf8_lossy(&output.stderr);
            let what = format!("{variable} {args:?}: {said}");
            assert!(matches!(output.status.code(), Some(1 | 2)), "{what}");
            assert!(said.contains(file), "{what}");
        }
    }
}

/// Each of these made a panic, a file that cannot be used, or a time that never passes.
#[cfg(feature = "tenure")]
#[test]
fn values_that_are_out_of_all_bounds() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let certs = path("certs");
    for valid in ["101y", "8000y", "18446744073709551615s"] {
        refused(2, &["certs", &certs, "--valid", valid], &["at most 100y"]);
    }
    for host in ["", "a\nb", "a b"] {
        let host = ["certs", &certs, "--server", "1", "--host", host];
        refused(2, &host, &["--host: expected names or addresses"]);
    }
    let long = "x".repeat(65);
    for name in ["", "ca", "a/b", "a.pem", "a\nb", "a\u{1b}[2Jb", &long] {
        let name = ["certs", &certs, "--name", name];
        refused(
            2,
            &name,
            &["--name: expected up to 64 printable characters"],
        );
    }
    assert!(!Path::new(&certs).exists(), "nothing is made");
    for threads in ["0", "1025", "4294967296", "18446744073709551615"] {
        let sim = ["sim", "election", "--runs", "1", "--threads", threads];
        refused(2, &sim, &["expected 1 to 1024"]);
    }
    // The library names no file that it cannot read.
    if cfg!(feature = "azure") {
        let missing = path("missing");
        let mut command = Command::new(TENURE);
        command.args([
            "leader",
            "x",
            "--timeout",
            "1s",
            "--store",
            "az://c?account=a",
        ]);
        command.env("AZURE_FEDERATED_TOKEN_FILE", &missing);
        let said = command.output().expect("tenure runs").stderr;
        let said = String::from_utf8_lossy(&said);
        let named = format!("AZURE_FEDERATED_TOKEN_FILE={missing}");
        assert!(said.contains(&named), "{said}");
    }
    // A file that is another secret.
    if cfg!(feature = "gcs") {
        let secret = path("secret");
        for text in ["\"hunter2\"", "81726354", "{\"type\":\"hunter2\"}"] {
            fs::write(&secret, text).expect("written");
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(&secret, mode).expect("its owner's alone");
            let store = format!("gs://b?credentials_file={secret}");
            let output = tenure(&["leader", "x", "--timeout", "2s", "--store", &store]);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{text}: {said}");
            assert!(said.contains("service account"), "{said}");
            assert!(
                !said.contains("hunter2") && !said.contains("81726354"),
                "{said}"
            );
        }
    }
}

/// A read-only file; as root by a mount, since root may write anything else.
fn read_only(directory: &Path) {
    let place = directory.join("sealed");
    fs::create_dir(&place).expect("a directory");
    let file = place.join("t.db");
    let url = format!("sqlite://{}", file.display());
    made(&url);
    let mounted = rustix::process::geteuid().is_root() && {
        let bind = ["--bind".as_ref(), place.as_os_str(), place.as_os_str()];
        let bound = Command::new("mount")
            .args(bind)
            .status()
            .is_ok_and(|status| status.success());
        bound
            && Command::new("mount")
                .args(["-o", "remount,ro,bind"])
                .arg(&place)
                .status()
                .is_ok_and(|status| status.success())
    };
    if !mounted {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).expect("to seal");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o555)).expect("to seal");
    }
    refused(
        2,
        &run(&url, &["--", "true"]),
        &["t.db", "this user may write"],
    );
    if mounted {
        Command::new("umount")
            .arg(&place)
            .status()
            .expect("to unmount");
    }
}

#[test]
fn times_that_do_not_fit() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("t.db").display());
    let with = |flags: &[&'static str]| [&run(&url, flags)[..], &["--", "true"]].concat();
    refused(
        2,
        &with(&["--lease", "-5s"]),
        &["--lease", "-5s", "backwards"],
    );
    refused(
        2,
        &with(&["--lease", "0s"]),
        &["--lease", "more than nothing"],
    );
    refused(
        2,
        &with(&["--lease", "soon"]),
        &["expected a duration like 10s", "soon"],
    );
    refused(
        2,
        &with(&["--lease", "10s", "--interval", "5s"]),
        &["lease > 2 x interval", "10s <= 2 x 5s"],
    );
    refused(
        2,
        &with(&["--lease", "10s", "--grace", "9s"]),
        &["room for two renewals", "grace 9s"],
    );
    refused(
        2,
        &with(&["--lease", "10s", "--max-clock-skew", "6s"]),
        &["2 x max clock skew"],
    );
    refused(
        2,
        &with(&["--lease", "10s", "--kill-margin", "199ms"]),
        &[
            "kill margin >= 200ms",
            "100ms until a hung guardian is killed",
            "found 199ms",
        ],
    );
    refused(
        2,
        &with(&["--drift", "11%"]),
        &["--drift", "at most 10%", "11%"],
    );
    refused(2, &with(&["--priority", "11"]), &["expected 0 to 10", "11"]);
}

/// With fewer files some commands panicked, and others blamed the store.
#[test]
fn too_few_files_that_may_be_open() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("t.db").display());
    let limited = |files: u32| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "ulimit -n $0; exec \"$@\"",
            &files.to_string(),
            TENURE,
        ]);
        command.args(["run", "x", "--once", "--store", &url, "--", "true"]);
        let output = command.output().expect("tenure runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    for files in [4, 6, 10, 20, 63] {
        let (code, said) = limited(files);
        assert_eq!(code, Some(2), "{files}: {said}");
        let found = format!("at least 64 files may be open, found {files}");
        assert!(said.contains(&found), "{files}: {said}");
    }
    assert!(!directory.path().join("t.db").exists(), "nothing is made");
    let (code, said) = limited(64);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn names_that_do_not_fit() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("t.db").display());
    let long = "x".repeat(10_000);
    refused(
        2,
        &["leader", "pay\nroll", "--store", &url],
        &["control characters"],
    );
    refused(
        2,
        &["leader", &long, "--store", &url],
        &["at most 255 bytes", "10000"],
    );
    refused(2, &["leader", "", "--store", &url], &["empty"]);
    refused(
        2,
        &["run", &long, "--store", &url, "--", "true"],
        &["at most 255 bytes"],
    );
    refused(
        2,
        &["resign", "x", "--leader-id", "me", "--store", &url],
        &["32 hexadecimal digits"],
    );
    made(&url);
    let id = "0".repeat(32);
    refused(
        1,
        &["resign", "x", "--leader-id", &id, "--store", &url],
        &["vacant"],
    );
    assert_eq!(
        tenure(&["leader", "x", "--store", &url]).status.code(),
        Some(3)
    );
}

#[test]
fn commands_that_will_not_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", directory.path().join("t.db").display());
    refused(
        2,
        &run(&url, &["--", "no-such-command"]),
        &["found none called \"no-such-command\""],
    );
    refused(
        2,
        &run(&url, &["--", "/no/such/command"]),
        &["/no/such/command"],
    );
    let plain = directory.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("to write");
    let plain = plain.display().to_string();
    refused(2, &run(&url, &["--", &plain]), &["chmod +x"]);
    refused(2, &run(&url, &["--", "/"]), &["a directory"]);
    refused(2, &run(&url, &["--", "--", "true"]), &["found two"]);
    refused(2, &run(&url, &[]), &["CMD"]);
    // Its code is passed on.
    let output = tenure(&run(&url, &["--once", "--", "sh", "-c", "exit 7"]));
    assert_eq!(
        output.status.code(),
        Some(7),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = tenure(&run(
        &url,
        &["--restart", "never", "--", "sh", "-c", "kill -9 $$"],
    ));
    assert_eq!(
        output.status.code(),
        Some(137),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn every_setting_has_its_variable() {
    for (variable, value, words) in [
        ("TENURE_TIMEOUT", "soon", "--timeout"),
        ("TENURE_KILL_MARGIN", "1ms", "found 1ms"),
        ("TENURE_MAX_CLOCK_SKEW", "6s", "2 x max clock skew"),
        ("TENURE_DRIFT", "much", "--drift"),
        ("TENURE_WITH", "payroll", "an affinity to another election"),
    ] {
        let shared = Shared::sqlite();
        let output = Command::new(TENURE)
            .args(run(&shared.url(), &["--once", "--", "true"]))
            .env(variable, value)
            .output()
            .expect("tenure runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{variable}: {said}");
        assert!(said.contains(words), "{variable}: {said}");
    }
}

#[test]
fn settings_come_from_file_environment_and_flags_in_this_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tenure.toml");
    let url = format!("sqlite://{}", directory.path().join("t.db").display());
    let text = format!(
        "store = \"{url}\"\n[run]\nlease = \"20s\"\nname = \"filed\"\n\
         [elections.payroll]\nlease = \"30s\"\nadvertise = [\"h:1\", \"h:2\"]\n"
    );
    fs::write(&file, text).expect("to write");
    let config = file.display().to_string();
    let said = |env: &[(&str, &str)], flags: &[&str]| {
        // The command asks who leads, while it is the one who does.
        let query = format!("{TENURE} leader payroll --json --store \"$TENURE_STORE\"");
        let mut args = vec!["run", "payroll", "--once", "--config", &config];
        args.extend(flags);
        args.extend(["--", "sh", "-c", &query]);
        let output = Command::new(TENURE)
            .args(args)
            .envs(env.iter().copied())
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        serde_json::from_str::<serde_json::Value>(&text)
            .unwrap_or_else(|_| panic!("{text} {}", String::from_utf8_lossy(&output.stderr)))
    };
    let filed = said(&[], &[]);
    assert_eq!(
        (&filed["name"], &filed["lease_ms"]),
        (&"filed".into(), &30_000.into()),
        "{filed}"
    );
    assert_eq!(filed["addresses"], serde_json::json!(["h:1", "h:2"]));
    let env = [("TENURE_NAME", "env"), ("TENURE_LEASE", "40s")];
    let from_env = said(&env, &[]);
    assert_eq!(
        (&from_env["name"], &from_env["lease_ms"]),
        (&"env".into(), &40_000.into())
    );
    let flagged = said(&env, &["--name", "flag", "--lease", "50s"]);
    assert_eq!(
        (&flagged["name"], &flagged["lease_ms"]),
        (&"flag".into(), &50_000.into())
    );
    fs::write(&file, "laese = \"1s\"").expect("to write");
    refused(2, &["list", "--config", &config], &["tenure.toml", "laese"]);
    fs::write(&file, "timeout = \"hunter2\"").expect("to write");
    let place = ["tenure.toml: line 1, column 11: expected a duration"];
    refused(2, &["list", "--config", &config], &place);
    let said = tenure(&["list", "--config", &config]).stderr;
    assert!(
        !String::from_utf8_lossy(&said).contains("hunter2"),
        "it is shown"
    );
}

/// Writes bytes into an election's register, whatever is there.
fn scribble(url: &str, bytes: &[u8]) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = open(url).await.expect("a store");
        let key = Key::of_election(&Name::new("payroll").expect("a name"));
        loop {
            let held = store.read(&key, WITHIN).await.expect("a read").register;
            let write = cas::Write {
                key: key.clone(),
                expect: held.map_or(Expect::Absent, |held| Expect::Version(held.version)),
                value: bytes.into(),
                stamp: Stamp::Now,
            };
            match store.compare_and_swap(write, WITHIN).await {
                // The leader has renewed its grant meanwhile.
                Err(StoreError::Conflict) => {}
                written => return drop(written.expect("a write")),
            }
        }
    });
}

fn scribbled(url: &str) -> Vec<u8> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = open(url).await.expect("a store");
        let key = Key::of_election(&Name::new("payroll").expect("a name"));
        let held = store.read(&key, WITHIN).await.expect("a read").register;
        held.expect("a register").value.to_vec()
    })
}

#[test]
fn a_register_that_is_not_ours_is_never_overwritten() {
    let cases: [(&[u8], &str); 3] = [
        (b"{\"json\": true}", "expected an election's register"),
        (b"tenure-election 2\nnovelty 1\n", "upgrade this one"),
        (
            b"tenure-election 1\nelection payroll\ncrc32c 00000000\n",
            "checksum",
        ),
    ];
    for shared in [Shared::sqlite(), Shared::postgres()] {
        let url = shared.url();
        let ledger = Ledger::new();
        let candidate = Candidate::start_plain(&url, "reader", &ledger, &["--lease", "2s"]);
        ledger.await_term_above(0, SOON);
        for (bytes, word) in cases {
            scribble(&url, bytes);
            let complains = || candidate.log().contains(word).then_some(());
            poll_until(SOON, complains).expect("it says what is wrong");
            for look in ["leader", "watch"] {
                refused(2, &[look, "payroll", "--store", &url], &[word]);
            }
            refused(2, &run(&url, &["--", "true"]), &[word]);
            assert_eq!(scribbled(&url), bytes);
        }
        assert_eq!(ledger.runs().len(), 1, "it leads all the same");
    }
}

#[test]
fn a_register_scribbled_over_under_a_leader_ends_its_reign() {
    let shared = Shared::sqlite();
    let ledger = Ledger::new();
    let candidate = Candidate::start(&shared.url(), "leader", &ledger, &["--lease", "2s"]);
    ledger.await_term_above(0, SOON);
    scribble(&shared.url(), b"nonsense");
    let over = || candidate.log().contains("is over for us").then_some(());
    poll_until(SOON, over).expect("it stops in time");
    assert_eq!(scribbled(&shared.url()), b"nonsense");
}

/// Where the small file system is mounted, in the process that sees it.
const FULL_DISK: &str = "TENURE_TEST_FULL_DISK";

/// A mount needs rights that a user has only in a name space of their own. So
/// this test runs itself once more in one, where the disk is small.
#[test]
fn a_full_disk_loses_nothing_and_is_said() {
    if let Some(disk) = std::env::var_os(FULL_DISK) {
        return fill_the_disk(Path::new(&disk));
    }
    let user = ["--user", "--map-root-user", "--mount"];
    let allowed = Command::new("unshare").args(user).arg("true").output();
    let allowed = allowed.expect("unshare, of util-linux").status.success();
    let root = rustix::process::geteuid().is_root();
    assert!(
        allowed || root,
        "expected to mount a small file system, found that users may have no name spaces \
         here: run the tests as root, or allow them (sysctl kernel.unprivileged_userns_clone=1, \
         kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces=10000)"
    );
    let directory = tempfile::tempdir().expect("a directory");
    let mount = format!("mount -t tmpfs -o size=1m tmpfs \"${FULL_DISK}\" && exec \"$@\"");
    let again = Command::new("unshare")
        .args(if allowed { &user[..] } else { &user[2..] })
        .args(["sh", "-c", &mount, "sh"])
        .arg(std::env::current_exe().expect("this binary"))
        .args([
            "bad_input::a_full_disk_loses_nothing_and_is_said",
            "--exact",
        ])
        .arg("--nocapture")
        .env(FULL_DISK, directory.path())
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&again.stdout);
    let complained = String::from_utf8_lossy(&again.stderr);
    assert!(
        again.status.success() && said.contains("1 passed"),
        "{said}{complained}"
    );
}

fn fill_the_disk(disk: &Path) {
    let url = format!("sqlite://{}", disk.join("t.db").display());
    let ledger = Ledger::new();
    let candidate = Candidate::start(&url, "leader", &ledger, &["--lease", "2s"]);
    let first = ledger.await_term_above(0, SOON);
    let filler = disk.join("filler");
    // The journal is kept and overwritten, and needs no room: only without it
    // a renewal does.
    let fill = || {
        let _ = fs::remove_file(disk.join("t.db-journal"));
        let mut filler = fs::OpenOptions::new();
        let filler = filler.append(true).create(true).open(disk.join("filler"));
        // Filled to the last byte; the write that fails is the point.
        let _ = filler.expect("a file").write_all(&vec![0; 2 << 20]);
    };
    for word in ["the disk full", "is over for us"] {
        let said = || {
            fill();
            candidate.log().contains(word).then_some(())
        };
        poll_until(SOON, said).unwrap_or_else(|| panic!("it never said {word}"));
    }
    fs::remove_file(&filler).expect("to make room");
    ledger.await_term_above(first.term, SOON);
}

/// What is done to the server under two candidates, and what they say of it.
fn outage(reason: &str, strike: impl FnOnce(&mut crate::common::postgres::Postgres)) {
    let mut server = crate::common::postgres::Postgres::start();
    let ledger = Ledger::new();
    let url = server.url_to_type();
    let one = Candidate::start(&url, "one", &ledger, &["--lease", "2s"]);
    let two = Candidate::start(&url, "two", &ledger, &["--lease", "2s"]);
    let before = ledger.await_term_above(0, SOON);
    strike(&mut server);
    let struck = ledger.runs().last().map_or(0.0, |run| run.last);
    // One candidate leads afterwards, no matter which, and never two at once.
    let leads = || {
        let last = ledger.runs().pop()?;
        (last.last > struck + 3.0).then_some(last.term)
    };
    let after = poll_until(Duration::from_secs(30), leads).expect("somebody leads again");
    assert!(after >= before.term);
    let logs = one.log() + &two.log();
    assert!(logs.contains(reason), "expected {reason:?} in: {logs}");
    for candidate in [&one, &two] {
        candidate.signal(Signal::TERM);
    }
    let (mut one, mut two) = (one, two);
    assert_eq!(one.process.wait().expect("it ends").code(), Some(0));
    assert_eq!(two.process.wait().expect("it ends").code(), Some(0));
    ledger.runs();
}

#[test]
fn a_database_that_is_restarted() {
    outage(
        "terminating connection due to administrator command",
        crate::common::postgres::Postgres::restart,
    );
}

#[test]
fn a_database_that_crashes() {
    outage(
        "due to immediate shutdown command",
        crate::common::postgres::Postgres::crash,
    );
}

/// Six seconds are three leases; `TENURE_PAUSE_SECONDS=60` is the long form
/// (CONTRIBUTING.md).
#[test]
fn a_database_that_is_paused() {
    let seconds = std::env::var("TENURE_PAUSE_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok());
    outage(" did not answer within ", |server| {
        server.pause();
        // Time itself is under test: the pause outlives the lease.
        std::thread::park_timeout(Duration::from_secs(seconds.unwrap_or(6)));
        server.resume();
    });
}
