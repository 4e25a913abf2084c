//! Passwords, which are on no command line.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use crate::common::TENURE;
use crate::common::postgres::Postgres;
use crate::common::servers::{said, tenure};

/// Asks who leads an election on PostgreSQL, with this in the environment.
fn run(url: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(TENURE);
    command.args(["leader", "x", "--timeout", "20s"]);
    for name in ["PGPASSWORD", "PGPASSFILE", "HOME"] {
        command.env_remove(name);
    }
    command.env("TENURE_STORE", url);
    command.envs(environment.iter().copied());
    command.output().expect("tenure runs")
}

#[test]
fn a_password_comes_by_the_environment_or_a_file_and_never_by_the_command_line() {
    let server = Postgres::start();
    let typed = tenure(&["leader", "x", "--store", &server.url()]);
    assert_eq!(typed.status.code(), Some(2), "{}", said(&typed));
    for words in [
        "on the command line",
        "$TENURE_STORE",
        "?password_file=FILE",
        "$PGPASSFILE",
    ] {
        assert!(said(&typed).contains(words), "{words}: {}", said(&typed));
    }
    assert!(!said(&typed).contains("sesame"), "{}", said(&typed));

    // Without a table: a call that has got that far has been let in.
    let inside = |output: &Output, why: &str| {
        let said = said(output);
        assert!(said.contains("no store there"), "{why}: {said}");
    };
    let outside = |output: &Output, why: &str| {
        let said = said(output);
        assert!(!said.contains("no store there"), "{why}: {said}");
        assert!(said.contains("password"), "{why}: {said}");
    };
    inside(&run(&server.url(), &[]), "the whole URL by the environment");
    inside(
        &tenure(&["leader", "x", "--store", &server.url_to_type()]),
        "password_file=",
    );
    let (port, bare) = (server.port(), "postgres://tenure@127.0.0.1");
    let bare = format!("{bare}:{port}/postgres");
    outside(&run(&bare, &[]), "no password");
    inside(&run(&bare, &[("PGPASSWORD", "open sesame")]), "PGPASSWORD");
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join(".pgpass");
    let lines =
        format!("# mine\n127.0.0.1:1:*:*:no\n127.0.0.1:{port}:postgres:tenure:open sesame\n");
    fs::write(&file, lines).expect("written");
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode));
    let path = file.display().to_string();
    mode(0o600).expect("a mode");
    inside(&run(&bare, &[("PGPASSFILE", &path)]), "PGPASSFILE");
    let directory = home.path().display().to_string();
    inside(&run(&bare, &[("HOME", &directory)]), "~/.pgpass");
    mode(0o640).expect("a mode");
    let wide = run(&bare, &[("PGPASSFILE", &path)]);
    outside(&wide, "a file that others may read");
    assert!(said(&wide).contains("found mode 0640"), "{}", said(&wide));
    // A file that the URL names is meant, and must be right.
    mode(0o644).expect("a mode");
    let wrong = run(&format!("{bare}?password_file={path}"), &[]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    assert!(said(&wrong).contains("found mode 644"), "{}", said(&wrong));
}
