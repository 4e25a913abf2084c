//! What a server says of how it was started.

mod common;

use std::process::Command;

use common::TENURE;
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
