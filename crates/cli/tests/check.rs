//! `tenure check` of real stores that are fit: it says so, says which lease would do,
//! and leaves nothing behind. One is unfit; more are planted in
//! `examples/http-registers`.

use std::process::Command;

use crate::common::{Shared, TENURE};
use serde_json::Value;

/// What a check of this store says, an object a line.
fn check(url: &str, more: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    let mut command = Command::new("timeout");
    command.args(["170", TENURE, "check", url, "--json"]);
    let output = command.args(more).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8(output.stdout).expect("text");
    let object = |line: &str| serde_json::from_str(line).expect("an object a line");
    (
        output.status.code(),
        text.lines().map(object).collect(),
        said,
    )
}

/// The trial of this name.
fn trial<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    let found = lines.iter().find(|it| it["trial"] == name);
    found.unwrap_or_else(|| panic!("expected the trial {name} in {lines:?}"))
}

/// The store is fit, and what is said of it is plausible.
fn is_fit(url: &str) -> Vec<Value> {
    let (code, lines, said) = check(url, &[]);
    assert_eq!(code, Some(0), "{lines:?} {said}");
    let last = lines.last().expect("a verdict");
    assert_eq!(last["verdict"], "fit", "{last}");
    assert_eq!(last["left_behind"], Value::Null, "{last}");
    for name in ["preconditions", "versions", "reads", "race", "latency"] {
        assert_eq!(trial(&lines, name)["outcome"], "passed", "{lines:?}");
    }
    let lease = last["advice"]["lease_ms"].as_f64().expect("a lease");
    let slowest = last["latencies"]["write_p99_us"].as_f64().expect("a time");
    assert!(
        lease >= 1_000.0 && lease >= 8.0 * slowest / 1_000.0,
        "{last}"
    );
    let written = last["writes"].as_u64().expect("a number");
    assert!(written > 600, "{last}");
    lines
}

#[test]
fn sqlite_is_fit() {
    let store = Shared::sqlite();
    let lines = is_fit(&store.url());
    assert_eq!(trial(&lines, "clock")["outcome"], "passed", "{lines:?}");
    assert_eq!(
        lines.last().expect("a verdict")["clock"]["is_of_this_machine"],
        true
    );
    let database = rusqlite::Connection::open(store.file()).expect("the file");
    let count = database.query_row("SELECT count(*) FROM tenure_register", (), |row| row.get(0));
    assert_eq!(count, Ok(0), "registers are left behind");
}

#[cfg(feature = "file")]
#[test]
fn a_directory_of_files_is_fit() {
    let above = tempfile::tempdir().expect("a directory");
    let path = above.path().join("registers");
    let lines = is_fit(&format!("file://{}", path.display()));
    assert_eq!(trial(&lines, "clock")["outcome"], "passed", "{lines:?}");
    let left = std::fs::read_dir(path).expect("the directory");
    let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["=store"], "registers are left behind");
}

#[cfg(feature = "postgres")]
#[test]
fn postgres_is_fit() {
    let store = Shared::postgres();
    let lines = is_fit(&store.url());
    assert_eq!(trial(&lines, "cuts")["outcome"], "passed", "{lines:?}");
    // The server has this machine's calendar.
    let clock = &lines.last().expect("a verdict")["clock"];
    let ahead = clock["ahead_ms"].as_i64().expect("an offset");
    assert!(ahead.abs() < 1_000, "{clock}");
    assert_eq!(clock["jumped_forward_ms"], 0.0, "{clock}");
}

#[cfg(feature = "tenure")]
#[test]
fn a_cluster_is_fit() {
    let store = Shared::cluster();
    let lines = is_fit(&store.url());
    // The client goes to the servers that it has learnt of.
    assert_eq!(trial(&lines, "cuts")["outcome"], "left_out", "{lines:?}");
}

#[cfg(feature = "etcd")]
#[test]
fn etcd_is_fit() {
    let store = Shared::etcd(1);
    let lines = is_fit(&store.url());
    assert_eq!(trial(&lines, "clock")["outcome"], "left_out", "{lines:?}");
    assert_eq!(trial(&lines, "cuts")["outcome"], "passed", "{lines:?}");
}

/// A server that is ended when it is dropped.
#[cfg(feature = "s3")]
struct Ended(std::process::Child);

#[cfg(feature = "s3")]
impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// s3rver, an emulator of Amazon's S3, ignores the conditions of a PUT.
#[cfg(feature = "s3")]
#[test]
fn a_server_that_ignores_conditions_is_unfit() {
    use std::io::{BufRead as _, BufReader};

    use crate::common::installed::installed;

    let above = tempfile::tempdir().expect("a directory");
    let secrets = above.path().join("credentials");
    let text = "[default]\naws_access_key_id = S3RVER\naws_secret_access_key = S3RVER\n";
    crate::common::secrets::secret_file(&secrets, text);
    let port = crate::common::ports::free();
    let mut server = Command::new(installed("node"));
    server
        .arg(installed("npm/node_modules/s3rver/bin/s3rver.js"))
        .args(["--address", "127.0.0.1", "--port", &port.to_string()])
        .args(["--configure-bucket", "bucket", "--directory"])
        .arg(above.path().join("data"))
        .stdout(std::process::Stdio::piped());
    std::fs::create_dir(above.path().join("data")).expect("a directory");
    let mut server = Ended(server.spawn().expect("node"));
    let out = server.0.stdout.take().expect("its output");
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("listening")), "it ended");
    let secrets = secrets.display();
    let url = format!("s3://bucket/a?endpoint=http://127.0.0.1:{port}&credentials_file={secrets}");
    let (code, lines, said) = check(&url, &[]);
    assert_eq!(code, Some(4), "{lines:?} {said}");
    let last = lines.last().expect("a verdict");
    assert_eq!(last["verdict"], "unfit", "{last}");
    let found = trial(&lines, "preconditions");
    assert_eq!(found["outcome"], "found", "{found}");
    assert!(found.to_string().contains("If-None-Match"), "{found}");
}

#[test]
fn what_was_typed_wrongly_is_told() {
    for (args, said) in [
        (&["memory:"][..], "several processes"),
        (&["none://x"], "unknown scheme"),
        (&["sqlite:///tmp/x.db", "--budget", "5"], "--budget"),
    ] {
        let (code, _, found) = check(args[0], &args[1..]);
        assert_eq!(code, Some(2), "{found}");
        assert!(found.contains(said), "{found}");
    }
}
