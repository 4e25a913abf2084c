//! What a server says of how it was started, and passwords that are on no
//! command line.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use common::TENURE;
use common::postgres::Postgres;
use common::servers::{Heard, free, led, objects, said, tenure};

/// The servers of a cluster, each of which is heard.
struct Place {
    dir: tempfile::TempDir,
    peers: Vec<String>,
    clients: Vec<String>,
}

impl Place {
    fn new<const N: usize>() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            peers: free::<N>().into(),
            clients: free::<N>().into(),
        }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn start(&self, id: usize, more: &[&str]) -> Heard {
        let peers = self.peers.iter().enumerate();
        let peers: Vec<_> = peers.map(|(at, it)| format!("{}={it}", at + 1)).collect();
        let data = self.path(&format!("data{id}"));
        let mut command = Command::new(TENURE);
        command
            .args([
                "serve",
                "--id",
                &id.to_string(),
                "--peers",
                &peers.join(","),
            ])
            .args(["--data", &data, "--listen", &self.clients[id - 1]])
            .args(more);
        Heard::start(command)
    }

    fn certs(&self, more: &[&str]) {
        let made = tenure(&[&["certs", &self.path("certs")], more].concat());
        assert!(made.status.success(), "{}", said(&made));
    }

    /// The flags of a server with certificates.
    fn tls(&self, id: usize) -> [String; 6] {
        let path = |name: &str| self.path(&format!("certs/{name}"));
        let own = |end: &str| path(&format!("server-{id}.{end}"));
        [
            "--tls-cert".into(),
            own("pem"),
            "--tls-key".into(),
            own("key"),
            "--tls-ca".into(),
            path("ca.pem"),
        ]
    }

    /// The URL of a client with this certificate.
    fn url(&self, name: &str) -> String {
        let path = |name: &str| self.path(&format!("certs/{name}"));
        format!(
            "tenure://{}?ca={}&cert={}&key={}",
            self.clients.join(","),
            path("ca.pem"),
            path(&format!("{name}.pem")),
            path(&format!("{name}.key")),
        )
    }
}

fn flags(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}

#[test]
fn what_leaves_a_server_open_is_said_once_at_each_start_and_in_its_status() {
    const OPEN: [&str; 3] = ["--insecure: ", "no TLS: ", "no tokens: "];
    let place = Place::new::<1>();
    let plain = format!("tenure://{}", place.clients[0]);
    let protection = |url: &str| {
        let all = objects(&["status", "--json", "--store", url]);
        let it = &all[0]["protection"];
        ["tls", "tokens", "insecure"].map(|name| it[name].as_bool().expect("said"))
    };
    for _ in 0..2 {
        let server = place.start(1, &["--insecure"]);
        led(&plain);
        for words in OPEN {
            assert_eq!(server.count(&["WARN", words]), 1, "{words}");
        }
        assert_eq!(protection(&plain), [false, false, true]);
    }
    let server = place.start(1, &[]);
    led(&plain);
    assert_eq!(OPEN.map(|words| server.count(&["WARN", words])), [0, 1, 1]);
    assert_eq!(protection(&plain), [false, false, false]);
    drop(server);

    place.certs(&["--server", "1", "--name", "server-1"]);
    place.certs(&["--name", "client"]);
    let (tokens, token) = (place.path("tokens.toml"), place.path("token"));
    let drawn = tenure(&[
        "token", "boss", "--admin", "--tokens", &tokens, "--out", &token,
    ]);
    assert!(drawn.status.success(), "{}", said(&drawn));
    let tls = place.tls(1);
    let server = place.start(1, &[&flags(&tls)[..], &["--tokens", &tokens]].concat());
    let url = format!("{}&token_file={token}", place.url("client"));
    led(&url);
    assert_eq!(OPEN.map(|words| server.count(&["WARN", words])), [0, 0, 0]);
    assert_eq!(protection(&url), [true, true, false]);
}

/// Asks who leads an election on PostgreSQL, with this in the environment.
fn ask(url: &str, environment: &[(&str, &str)]) -> Output {
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

    // Without a table: whoever has got that far has been let in.
    let inside = |output: &Output, why: &str| {
        let said = said(output);
        assert!(said.contains("no store there"), "{why}: {said}");
    };
    let outside = |output: &Output, why: &str| {
        let said = said(output);
        assert!(!said.contains("no store there"), "{why}: {said}");
        assert!(said.contains("password"), "{why}: {said}");
    };
    inside(&ask(&server.url(), &[]), "the whole URL by the environment");
    inside(
        &tenure(&["leader", "x", "--store", &server.url_to_type()]),
        "password_file=",
    );
    let (port, bare) = (server.port(), "postgres://tenure@127.0.0.1");
    let bare = format!("{bare}:{port}/postgres");
    outside(&ask(&bare, &[]), "no password");
    inside(&ask(&bare, &[("PGPASSWORD", "open sesame")]), "PGPASSWORD");
    let home = tempfile::tempdir().expect("a directory");
    let file = home.path().join(".pgpass");
    let lines =
        format!("# mine\n127.0.0.1:1:*:*:no\n127.0.0.1:{port}:postgres:tenure:open sesame\n");
    fs::write(&file, lines).expect("written");
    let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode));
    let path = file.display().to_string();
    mode(0o600).expect("a mode");
    inside(&ask(&bare, &[("PGPASSFILE", &path)]), "PGPASSFILE");
    let directory = home.path().display().to_string();
    inside(&ask(&bare, &[("HOME", &directory)]), "~/.pgpass");
    mode(0o640).expect("a mode");
    let wide = ask(&bare, &[("PGPASSFILE", &path)]);
    outside(&wide, "a file that others may read");
    assert!(said(&wide).contains("found mode 0640"), "{}", said(&wide));
    // A file that the URL names is meant, and must be right.
    mode(0o644).expect("a mode");
    let wrong = ask(&format!("{bare}?password_file={path}"), &[]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));
    assert!(said(&wrong).contains("found mode 644"), "{}", said(&wrong));
}
