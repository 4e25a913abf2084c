//! Certificates that are revoked, or whose authority is taken away, while they
//! are in use.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::place::{Place, flags};
use crate::common::servers::{Heard, SOON, led, objects, said, tenure};
use crate::common::{TENURE, poll_until};

/// Prints what is appended to the log into this file, and what it says beside it.
fn tail(url: &str, out: &Path) -> std::process::Child {
    let file = |path: &Path| fs::File::create(path).expect("a file");
    Command::new(TENURE)
        .args(["log", "tail", "--from", "1", "-v", "--store", url])
        .stdout(file(out))
        .stderr(file(&out.with_extension("err")))
        .spawn()
        .expect("tenure runs")
}

/// A cluster with certificates, and two clients of it that tail the log.
struct Believed {
    place: Place,
    servers: Vec<Heard>,
    tails: Vec<std::process::Child>,
    outs: Vec<std::path::PathBuf>,
}

const CLIENTS: [&str; 2] = ["kept", "lost"];

impl Believed {
    fn start() -> Self {
        Self::start_with(|place, id| place.tls(id).to_vec())
    }

    fn start_with(tls: impl Fn(&Place, usize) -> Vec<String>) -> Self {
        let place = Place::new::<3>();
        for id in 1..=3 {
            let (number, name) = (id.to_string(), format!("server-{id}"));
            place.certs(&["--server", &number, "--name", &name]);
        }
        for name in CLIENTS {
            place.certs(&["--name", name]);
        }
        let start = |id| place.start(id, &flags(&tls(&place, id)));
        let servers = (1..=3).map(start).collect();
        led(&place.url("kept"));
        let out = |name: &&str| place.dir.path().join(format!("{name}.out"));
        let outs: Vec<_> = CLIENTS.iter().map(out).collect();
        let tails = CLIENTS.iter().zip(&outs);
        let tails = tails.map(|(name, out)| tail(&place.url(name), out));
        let tails = tails.collect();
        Self {
            place,
            servers,
            tails,
            outs,
        }
    }

    fn append(&self, what: &str) {
        let url = self.place.url("kept");
        let done = tenure(&["log", "append", what, "--store", &url]);
        assert!(done.status.success(), "{}", said(&done));
    }

    /// Waits until servers 1 and 2 have no connection with server 3.
    fn leaves_the_third_alone(&self) {
        let kept = self.place.url("kept");
        let alone = || {
            let all = objects(&["status", "--json", "--store", &kept]);
            let others = all.iter().filter(|it| it["id"] != 3);
            let members = others.filter_map(|it| it["members"].as_array()).flatten();
            let third = members.filter(|it| it["id"] == 3);
            let connected: Vec<_> = third.filter_map(|it| it["connected"].as_bool()).collect();
            (!connected.is_empty() && !connected.contains(&true)).then_some(())
        };
        poll_until(Duration::from_secs(60), alone).expect("server 3 is alone");
    }

    /// All believe a second authority, which has certificates for two servers
    /// and a client.
    fn adds_an_authority(&self) {
        for id in ["1", "2"] {
            let name = format!("server-{id}");
            let own = ["--server", id, "--name", &name];
            self.place.certs_in("next", &own);
        }
        self.place.certs_in("next", &["--name", "kept"]);
        for name in ["ca.crl", "ca.pem"] {
            let path = |dir| self.place.path(&format!("{dir}/{name}"));
            let text = |dir| fs::read_to_string(path(dir)).expect("text");
            fs::write(path("certs"), text("certs") + &text("next")).expect("written");
        }
    }

    /// A file of the second authority takes the place of that of the first.
    fn takes(&self, name: &str) {
        let path = |dir| self.place.path(&format!("{dir}/{name}"));
        fs::copy(path("next"), path("certs")).expect("copied");
    }

    /// What is appended now the second client does not hear.
    fn tells_the_first_client_alone(&self) {
        led(&self.place.url("kept"));
        self.append("after");
        self.hears(0, "out", "after");
        let lost = fs::read_to_string(&self.outs[1]).expect("text");
        assert_eq!(lost, "before\n");
    }

    /// Waits until a client has this in its output, or on stderr.
    fn hears(&self, client: usize, end: &str, words: &str) {
        let file = self.outs[client].with_extension(end);
        let there = || {
            fs::read_to_string(&file)
                .ok()?
                .contains(words)
                .then_some(())
        };
        poll_until(Duration::from_secs(60), there).unwrap_or_else(|| panic!("{words}: {file:?}"));
    }
}

impl Drop for Believed {
    fn drop(&mut self) {
        for tail in &mut self.tails {
            let _ = tail.kill();
            let _ = tail.wait();
        }
    }
}

#[test]
fn what_is_revoked_is_good_for_nothing_though_it_is_connected() {
    let it = Believed::start();
    it.append("before");
    (0..2).for_each(|client| it.hears(client, "out", "before"));
    for name in ["lost.pem", "server-3.pem"] {
        it.place
            .certs(&["--revoke", &it.place.path(&format!("certs/{name}"))]);
    }
    // A new connection is refused as soon as the file is read again, ...
    let refused = || {
        let url = it.place.url("lost");
        let asked = tenure(&["status", "--store", &url, "--timeout", "2s"]);
        let shown = String::from_utf8_lossy(&asked.stdout).into_owned();
        shown.contains("was revoked").then_some(())
    };
    poll_until(SOON, refused).expect("it is refused");
    // ... what is up ends within a minute, between servers as well, ...
    let ended = |id: usize| it.servers[id - 1].count(&["a connection ends", "was revoked"]);
    let ends = || (ended(1) + ended(2) > 0).then_some(());
    poll_until(Duration::from_secs(60), ends).expect("the connections of server 3 end");
    it.leaves_the_third_alone();
    it.servers[0].says(1, &["not connected", "found one that was revoked"]);
    // ... and the client hears no more.
    it.hears(1, "err", "revoked");
    it.tells_the_first_client_alone();
}

/// The authority is changed as the page on certificates says, but that server 3
/// and a client get no certificate of the new one. Server 1 has lists of what is
/// revoked. The third client believes both authorities to the end, so that the
/// servers have to end its connection.
#[test]
fn who_is_of_an_authority_that_is_taken_away_is_good_for_nothing_though_connected() {
    let mut it = Believed::start_with(|place, id| {
        let flags = place.tls(id);
        flags[..if id == 1 { 8 } else { 6 }].to_vec()
    });
    it.append("before");
    it.adds_an_authority();
    let believes = it.place.path("certs/ca.pem");
    let both = it.place.path("certs/both.pem");
    fs::copy(&believes, &both).expect("copied");
    let url = it.place.url("lost").replace(&believes, &both);
    it.outs.push(it.place.dir.path().join("both.out"));
    it.tails.push(tail(&url, &it.outs[2]));
    (0..3).for_each(|client| it.hears(client, "out", "before"));

    for name in ["server-1", "server-2", "kept"] {
        it.takes(&format!("{name}.key"));
        it.takes(&format!("{name}.pem"));
    }
    let kept = it.place.url("kept");
    let believed = || {
        let all = objects(&["status", "--json", "--store", &kept]);
        let up = all.iter().filter(|it| it["role"] != "unreachable");
        (up.count() == 3).then_some(())
    };
    poll_until(SOON, believed).expect("both authorities are in use");
    let ended = |id: usize| {
        let words = ["a connection ends", "one of another authority"];
        it.servers[id - 1].count(&words)
    };
    assert_eq!((ended(1), ended(2)), (0, 0));
    it.takes("ca.pem");
    it.takes("ca.crl");
    let ends = || (ended(1) > 0 && ended(2) > 0).then_some(());
    poll_until(Duration::from_secs(20), ends).expect("the connections of server 3 end");
    it.leaves_the_third_alone();
    // Their own connections, which may be with others, end as late.
    for client in [1, 2] {
        it.hears(client, "err", "of another authority than their --tls-ca");
    }
    it.tells_the_first_client_alone();
    let lost = fs::read_to_string(&it.outs[2]).expect("text");
    assert_eq!(lost, "before\n");
}

/// TLS has one alert for an authority that is not believed and for one without a
/// list, so a client is told of both.
#[test]
fn a_client_of_an_authority_without_a_list_is_told_of_the_list() {
    let place = Place::new::<1>();
    place.certs(&["--server", "1", "--name", "server-1"]);
    place.certs_in("next", &["--name", "client"]);
    let read = |file: &str| fs::read_to_string(place.path(file)).expect("text");
    fs::write(
        place.path("certs/ca.pem"),
        read("certs/ca.pem") + &read("next/ca.pem"),
    )
    .expect("written");
    for name in ["client.pem", "client.key"] {
        let path = |dir| place.path(&format!("{dir}/{name}"));
        fs::copy(path("next"), path("certs")).expect("copied");
    }
    let _server = place.start(1, &flags(&place.tls(1)));
    let url = place.url("client");
    let told = || {
        let asked = tenure(&["status", "--store", &url, "--timeout", "2s"]);
        let all = String::from_utf8_lossy(&asked.stdout).into_owned();
        all.contains("one that has no list in their --tls-crl")
            .then_some(())
    };
    poll_until(SOON, told).expect("it is told");
    // Then it is let in.
    let lists = read("certs/ca.crl") + &read("next/ca.crl");
    fs::write(place.path("certs/ca.crl"), lists).expect("written");
    led(&url);
}

#[test]
fn an_authority_revokes_its_own_certificates_alone() {
    let place = Place::new::<1>();
    let path = |file: &str| place.path(file);
    for dir in ["certs", "other"] {
        place.certs_in(dir, &["--name", "client"]);
    }
    let before = fs::read(path("certs/ca.crl")).expect("a list");
    // While the authority is changed both may be here.
    let text = |file: &str| fs::read_to_string(path(file)).expect("text");
    let both = text("certs/ca.pem") + &text("other/ca.pem");
    fs::write(path("certs/ca.pem"), both).expect("written");
    for (file, words) in [
        (
            "other/client.pem",
            "found one of another, \"Tenure authority ",
        ),
        ("other/ca.pem", "\"Tenure authority "),
        ("certs/ca.pem", "for a server or a client"),
        ("certs/ca.key", "expected a certificate in PEM"),
    ] {
        let good = path("certs/client.pem");
        let refused = tenure(&[
            "certs",
            &path("certs"),
            "--revoke",
            &good,
            "--revoke",
            &path(file),
        ]);
        assert_eq!(refused.status.code(), Some(2), "{file}: {}", said(&refused));
        assert!(said(&refused).contains(words), "{file}: {}", said(&refused));
        assert_eq!(fs::read(path("certs/ca.crl")).expect("a list"), before);
    }
    assert!(!fs::exists(path("certs/ca.revoked")).expect("a look"));
}

/// The key was stolen, so its certificate is made anew, and then that of before
/// is revoked.
#[test]
fn a_certificate_that_was_renewed_can_still_be_revoked() {
    let place = Place::new::<1>();
    place.certs(&["--server", "1", "--name", "server-1"]);
    place.certs(&["--name", "client"]);
    let path = |file: &str| place.path(&format!("certs/{file}"));
    for end in ["pem", "key"] {
        let [own, stolen] = ["client", "stolen"].map(|name| path(&format!("{name}.{end}")));
        fs::copy(own, stolen).expect("copied");
    }
    let _server = place.start(1, &flags(&place.tls(1)));
    led(&place.url("stolen"));
    place.certs(&["--name", "client"]);
    place.certs(&["--name", "client"]);
    let revoke = |file: &str| {
        let done = tenure(&["certs", &place.path("certs"), "--revoke", &path(file)]);
        assert!(done.status.success(), "{}", said(&done));
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let shown = revoke("client.before-2.pem");
    for (words, file) in [
        ("revoked", "client.before-2.pem"),
        ("not revoked:", "client.before-1.pem"),
        ("not revoked:", "client.pem"),
    ] {
        let line = format!("{words} {}", path(file));
        assert!(shown.contains(&line), "{line}: {shown}");
    }
    assert!(!shown.contains("stolen"), "{shown}");
    let shown = revoke("client.before-1.pem");
    assert_eq!(shown.matches("not revoked: ").count(), 1, "{shown}");
    let refused = || {
        let url = place.url("stolen");
        let asked = tenure(&["status", "--store", &url, "--timeout", "2s"]);
        let shown = String::from_utf8_lossy(&asked.stdout).into_owned();
        shown.contains("was revoked").then_some(())
    };
    poll_until(SOON, refused).expect("it is refused");
    led(&place.url("client"));
}
