//! Servers that do not believe each other's certificates, or prove no secret,
//! and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::certificates::{Authority, authority, certified};
use crate::common::servers::{Heard, SOON, answer, call, free, led, objects, risen};
use crate::common::{TENURE, poll_until};

/// Writes the certificate and the key of server `id`.
fn write(dir: &Path, id: usize, by: &Authority, expired: bool) {
    let [certificate, key] = certified(by, expired);
    std::fs::write(file(dir, id, "key"), key).expect("written");
    std::fs::write(file(dir, id, "pem"), certificate).expect("written");
}

fn file(dir: &Path, id: usize, end: &str) -> PathBuf {
    dir.join(format!("{id}.{end}"))
}

struct Place {
    dir: tempfile::TempDir,
    peers: String,
    clients: [String; 3],
}

impl Place {
    fn new() -> Self {
        let [one, two, three, clients @ ..] = free::<6>();
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            peers: format!("1={one},2={two},3={three}"),
            clients,
        }
    }

    fn start_with(&self, id: usize, more: &[&str]) -> Heard {
        self.start_as(id, true, more)
    }

    fn start(&self, id: usize, tls: bool) -> Heard {
        self.start_as(id, tls, &[])
    }

    fn start_as(&self, id: usize, tls: bool, more: &[&str]) -> Heard {
        let dir = self.dir.path();
        let mut command = Command::new(TENURE);
        command
            .args(["serve", "-v", "--id", &id.to_string()])
            .args(["--peers", &self.peers, "--listen", &self.clients[id - 1]])
            .arg("--data")
            .arg(dir.join(format!("data{id}")))
            .args(more);
        if tls {
            command.arg("--tls-cert").arg(file(dir, id, "pem"));
            command.arg("--tls-key").arg(file(dir, id, "key"));
            command.arg("--tls-ca").arg(dir.join("ca.pem"));
        }
        Heard::start(command)
    }
}

/// As `tenure certs` made them before they carried numbers.
fn write_old(dir: &Path, id: usize, by: &Authority) {
    let names = vec!["127.0.0.1".to_owned()];
    let params = rcgen::CertificateParams::new(names).expect("parameters");
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.signed_by(&key, by).expect("signed");
    std::fs::write(file(dir, id, "key"), key.serialize_pem()).expect("written");
    std::fs::write(file(dir, id, "pem"), certificate.pem()).expect("written");
}

#[test]
fn certificates_without_a_number_are_taken_only_where_that_is_said() {
    let place = Place::new();
    let dir = place.dir.path();
    let ours = authority();
    std::fs::write(dir.join("ca.pem"), ours.pem()).expect("written");
    for id in 1..=3 {
        write_old(dir, id, &ours);
    }
    let refuses = [
        "1.pem: expected a certificate that names server 1 (server-1.tenure.internal)",
        "tenure certs DIR --server 1",
        "--tls-any-server",
    ];
    place.start(1, true).says(1, &refuses);

    // One after the other is given a new one; the last keeps what it has.
    let old = [1, 2, 3].map(|id| place.start_with(id, &["--tls-any-server"]));
    for server in &old {
        server.says(1, &["WARN", "--tls-any-server: every certificate"]);
    }
    let [ca, cert, key] = ["ca.pem", "1.pem", "1.key"].map(|it| dir.join(it).display().to_string());
    let clients = place.clients.join(",");
    let url = format!("tenure://{clients}?ca={ca}&cert={cert}&key={key}");
    led(&url);
    let [first, second, third] = old;
    drop(first);
    write(dir, 1, &ours, false);
    let first = place.start(1, true);
    let wanted = "expected a certificate that names server 3";
    first.says(1, &["not connected", wanted, "found one for"]);
    first.says(1, &["not let in as a server", wanted]);
    third.says(1, &["not connected", wanted]);
    drop(second);
    write(dir, 2, &ours, false);
    let _second = place.start(2, true);
    led(&url);
}

const BELIEVED: &str = "expected a certificate of an authority in";

#[test]
fn both_sides_say_why_they_do_not_believe_each_other_until_it_is_mended() {
    let place = Place::new();
    let dir = place.dir.path();
    let (ours, theirs) = (authority(), authority());
    std::fs::write(dir.join("ca.pem"), ours.pem()).expect("written");
    write(dir, 1, &ours, false);
    write(dir, 2, &ours, false);
    let servers = [1, 2].map(|id| place.start(id, true));
    servers[0].says(1, &["the certificate expires on"]);

    let plain = place.start(3, false);
    plain.says(1, &["not connected", "this server speaks TLS with others"]);
    plain.says(1, &["not let in as a server", "found TLS"]);
    for server in &servers {
        server.says(1, &["not connected", "found something else", "--tls-cert"]);
        server.says(1, &["not let in as a server", "speaks without"]);
    }
    drop(plain);

    write(dir, 3, &ours, true);
    let third = place.start(3, true);
    let expired = "one that has expired on 2002-01-01 00:00 UTC";
    third.says(1, &["3.pem: expected", expired, "renew it"]);
    third.says(1, &["not connected", "CertificateExpired"]);
    third.says(1, &["not let in as a server", "CertificateExpired"]);
    for server in &servers {
        server.says(1, &["not connected", BELIEVED, expired, "renew it"]);
        server.says(1, &["not let in as a server", expired]);
        // It comes again and again, which the log tells at its debug level.
        server.says(3, &["a connection is closed", expired]);
        assert_eq!(server.count(&["not let in as a server", expired]), 1);
        assert_eq!(server.count(&["not connected", expired]), 1);
    }

    let foreign = "found one of another authority";
    write(dir, 3, &theirs, false);
    third.says(1, &["3.pem: expected", foreign]);
    for server in &servers {
        server.says(1, &["not connected", BELIEVED, foreign]);
        server.says(1, &["not let in as a server", foreign]);
    }

    write(dir, 3, &ours, false);
    let [ca, cert, key] = ["ca.pem", "1.pem", "1.key"].map(|it| dir.join(it).display().to_string());
    let clients = place.clients.join(",");
    led(&format!("tenure://{clients}?ca={ca}&cert={cert}&key={key}"));
}

/// Servers whose addresses are all loopback ones share a secret by themselves,
/// and each directory keeps it. It is still proven when a server is moved to
/// another address, by a user who has no such secret: the others ask for it.
#[test]
fn a_secret_that_servers_made_by_themselves_goes_with_the_directory() {
    let place = Place::new();
    let state = |name: &str| place.dir.path().join(name);
    let serve = |id: usize, peers: &str, user: &str| {
        let mut command = Command::new(TENURE);
        command
            .args(["serve", "-v", "--insecure", "--id", &id.to_string()])
            .args(["--peers", peers, "--listen", &place.clients[id - 1]])
            .args(["--data".as_ref(), state(&format!("data{id}")).as_os_str()])
            .env("XDG_STATE_HOME", state(user));
        Heard::start(command)
    };
    let url = format!("tenure://{}", place.clients.join(","));
    // What a server says of itself.
    let third = |name: &str| {
        let status = objects(&["status", "--json", "--store", &url]);
        let mut third = status.into_iter().find(|it| it["id"] == 3)?;
        Some(third[name].take())
    };
    let [first, second, at_first] = [1, 2, 3].map(|id| serve(id, &place.peers, "user"));
    // From here on a secret is asked for.
    risen(&url);
    drop(at_first);
    let peers = place.peers.replace("3=127.0.0.1", "3=0.0.0.0");
    let moved = serve(3, &peers, "other");
    let ready = || third("ready")?.as_bool()?.then_some(());
    let ready = poll_until(SOON, ready);
    let said = "to prove that it knows the secret";
    for server in [&first, &second, &moved] {
        assert_eq!(server.count(&[said]), 0);
    }
    ready.expect("it follows");
    assert!(!state("other").exists(), "nothing was drawn");

    // With another one it is refused, and says so wherever it is asked.
    drop(moved);
    std::fs::write(state("data3/peer-secret"), "the secret of other servers\n").expect("written");
    let moved = serve(3, &peers, "other");
    let excluded = || third("excluded")?.as_bool()?.then_some(());
    poll_until(SOON, excluded).expect("it is out");
    let why = "not connected to servers 1, 2: expected server 3 to prove that it knows the secret \
               of this cluster's servers, found the proof of another secret";
    let waiting = third("waiting").expect("a text");
    assert!(
        waiting.as_str().is_some_and(|it| it.starts_with(why)),
        "{waiting}"
    );
    let ready = answer(call(&place.clients[2], "GET /readyz", ""));
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains(why),
        "{ready}"
    );
    let table = Command::new(TENURE)
        .args(["status", "--store", &url])
        .output();
    let table = String::from_utf8(table.expect("a table").stdout).expect("text");
    let row = table
        .lines()
        .find(|row| row.starts_with('3'))
        .unwrap_or_default();
    assert_eq!(row.split_whitespace().nth(1), Some("excluded"), "{table}");
    assert!(row.contains(why), "{table}");
    moved.says(1, &["not connected", "found the proof of another secret"]);
}
