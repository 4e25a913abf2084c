//! Secrets of workloads: what lies in the store is warned of, and a file of the
//! node is read when its command starts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::common::poll_until;
use super::fixture::{Fixture, PATIENCE};

#[test]
fn secrets_of_a_workload_stay_in_a_file_of_its_node() {
    let fixture = Fixture::sqlite();
    let one = fixture.node("one", &["--metrics", "0.0.0.0:0"]);
    one.wait_for_log("other machines reach this address");
    let metrics = || {
        fixture.member("one")?["metrics"]
            .as_str()
            .map(str::to_owned)
    };
    let metrics = poll_until(PATIENCE, metrics).expect("it says where");
    assert!(metrics.starts_with("0.0.0.0:"), "{metrics}");

    let (file, out) = (
        fixture.directory.path().join("env"),
        fixture.directory.path().join("out"),
    );
    let path = file.display().to_string();
    let script = format!(
        "echo \"$API_KEY $PLACE\" > {}; exec sleep 1000",
        out.display()
    );
    let deploy = |name: &str, more: &[&str]| {
        let command = ["--", "sh", "-c", &script];
        fixture.run(&[&["deploy", name, "--no-ha"], more, &command].concat())
    };
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let warned = deploy("a", &["--env", "API_KEY=5ecre7", "--env", "PLACE=here"]);
    assert!(warned.status.success(), "{}", said(&warned));
    let words = said(&warned);
    assert!(
        words.contains("WARN") && words.contains("--env-file"),
        "{words}"
    );
    assert!(
        words.contains("API_KEY") && !words.contains("PLACE"),
        "{words}"
    );
    assert!(!words.contains("5ecre7"), "{words}");
    fixture.done(&["undeploy", "a"]);

    // Neither a file that is missing nor one that others may read is used.
    let missing = deploy("b", &["--env-file", &path]);
    assert_eq!(missing.status.code(), Some(1), "{}", said(&missing));
    assert!(said(&missing).contains("env-file"), "{}", said(&missing));
    assert!(
        said(&missing).contains("No such file"),
        "{}",
        said(&missing)
    );
    fixture.done(&["undeploy", "b"]);
    fs::write(&file, "API_KEY=5ecre7\nPLACE=there\n").expect("written");
    let mode = |mode| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
    };
    mode(0o644);
    let wide = deploy("c", &["--env-file", &path]);
    assert_eq!(wide.status.code(), Some(1), "{}", said(&wide));
    assert!(said(&wide).contains("found mode 644"), "{}", said(&wide));
    fixture.done(&["undeploy", "c"]);
    mode(0o600);
    fs::remove_file(&out).expect("written by the first one");
    let quiet = deploy("d", &["--env-file", &path, "--env", "PLACE=here"]);
    assert!(quiet.status.success(), "{}", said(&quiet));
    assert!(!said(&quiet).contains("WARN"), "{}", said(&quiet));
    let written = fs::read_to_string(&out).expect("it has run");
    assert_eq!(written, "5ecre7 here\n");
    // It is in no register.
    assert!(!fixture.done(&["ps", "--json"]).contains("5ecre7"));
    let (code, relative) = fixture.fails(&["deploy", "e", "--env-file", "env", "--", "true"]);
    assert_eq!(code, 2, "{relative}");
    assert!(relative.contains("the whole path of a file"), "{relative}");
}
