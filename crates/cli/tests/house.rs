//! What a server says of how it was started, passwords that are on no command
//! line, certificates that are revoked or whose authority is taken away while
//! they are in use, and who changed what.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::postgres::Postgres;
use common::servers::{Heard, SOON, answer, call_with, free, led, objects, said, tenure};
use common::{TENURE, poll_until};
use serde_json::Value;

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
        self.certs_in("certs", more);
    }

    fn certs_in(&self, dir: &str, more: &[&str]) {
        let made = tenure(&[&["certs", &self.path(dir)], more].concat());
        assert!(made.status.success(), "{}", said(&made));
    }

    /// The flags of a server with certificates.
    fn tls(&self, id: usize) -> [String; 8] {
        let path = |name: &str| self.path(&format!("certs/{name}"));
        let own = |end: &str| path(&format!("server-{id}.{end}"));
        [
            "--tls-cert".into(),
            own("pem"),
            "--tls-key".into(),
            own("key"),
            "--tls-ca".into(),
            path("ca.pem"),
            "--tls-crl".into(),
            path("ca.crl"),
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
    it.hears(2, "err", "of another authority than their --tls-ca");
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

/// Draws a token; its file.
fn token(place: &Place, name: &str, rights: &[&str]) -> String {
    let (tokens, file) = (place.path("tokens.toml"), place.path(name));
    let own = ["token", name, "--tokens", &tokens, "--out", &file];
    let drawn = tenure(&[&own[..], rights].concat());
    assert!(drawn.status.success(), "{}", said(&drawn));
    file
}

/// A server with tokens that notes who changed what.
struct Noting {
    place: Place,
    boss: String,
    clerk: String,
    audit: String,
    _server: Heard,
}

impl Noting {
    fn start() -> Self {
        let place = Place::new::<1>();
        let boss = token(&place, "boss", &["--admin"]);
        let (tokens, audit) = (place.path("tokens.toml"), place.path("audit"));
        let server = place.start(1, &["--tokens", &tokens, "--audit", &audit]);
        led(&format!("tenure://{}?token_file={boss}", place.clients[0]));
        let clerk = token(&place, "clerk", &["--campaign", "pay"]);
        Self {
            place,
            boss,
            clerk,
            audit,
            _server: server,
        }
    }

    fn url(&self, token: &str) -> String {
        format!("tenure://{}?token_file={token}", self.place.clients[0])
    }

    /// The exit code of a command with this token, and what it says.
    fn ask(&self, args: &[&str], token: &str) -> (Option<i32>, String) {
        let asked = tenure(&[args, &["--store", &self.url(token)]].concat());
        (asked.status.code(), said(&asked))
    }

    fn noted(&self, event: &str) -> Vec<Value> {
        let text = fs::read_to_string(&self.audit).expect("text");
        let parse = |line| serde_json::from_str::<Value>(line).expect("JSON");
        let all = text.lines().map(parse);
        all.filter(|line| line["event"] == event).collect()
    }

    /// Waits until so many of these are noted; gives the last.
    fn soon(&self, event: &str, count: usize) -> Value {
        let there = || Some(self.noted(event)).filter(|all| all.len() >= count);
        let all = poll_until(SOON, there);
        let mut all = all.unwrap_or_else(|| panic!("{event}: {:?}", self.noted(event)));
        all.remove(count - 1)
    }
}

#[test]
fn who_changed_what_is_noted_with_what_came_of_it() {
    let noting = Noting::start();
    assert_eq!(noting.soon("leads", 1)["by"], Value::Null);
    let first = noting.soon("tokens", 1);
    assert_eq!(first["about"]["added"][0]["name"], "boss");

    let storage = "00112233445566778899aabbccddeeff";
    let add = ["member", "add", "9", "--storage", storage];
    // The file of tokens is read again within a second.
    let known = || {
        let (_, why) = noting.ask(&add, &noting.clerk);
        why.contains("the right admin").then_some(())
    };
    poll_until(SOON, known).expect("the clerk is known, and denied");
    let added = noting.soon("tokens", 2);
    assert_eq!(added["about"]["added"][0]["name"], "clerk");
    assert_eq!(added["about"]["added"][0]["campaign"][0], "pay");
    let denied = noting.soon("member_added", 1);
    assert_eq!(denied["by"]["token"], "clerk");
    assert_eq!(denied["by"]["address"], "127.0.0.1");
    assert_eq!(denied["result"], "refused");
    assert_eq!(denied["cause"], "DENIED");
    assert_eq!(denied["about"]["id"], 9);
    assert_eq!(denied["server"], 1);

    for (args, event) in [
        (&["member", "transfer", "--to", "9"][..], "transferred"),
        (&["session", "close", "1"], "session_ended"),
    ] {
        let (code, why) = noting.ask(args, &noting.boss);
        assert_ne!(code, Some(0), "{why}");
        let line = noting.soon(event, 1);
        assert_eq!(line["by"]["token"], "boss", "{line}");
        assert_eq!(line["result"], "refused", "{line}");
    }
    let (code, why) = noting.ask(&add, &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    let calls = noting.noted("member_added").len();
    let done = noting.soon("member_added", calls);
    assert_eq!(done["by"]["token"], "boss", "{done}");
    assert_eq!(done["result"], "done", "{done}");
    let (code, why) = noting.ask(&["member", "remove", "9"], &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    let removed = noting.soon("member_removed", 1);
    assert_eq!(removed["result"], "done", "{removed}");
    assert_eq!(removed["about"]["storage"], storage, "{removed}");
    assert_eq!(noting.noted("lost").len(), 0);
}

#[test]
fn who_leads_asks_and_resigns_is_noted_and_renewals_are_not() {
    let noting = Noting::start();
    let known = || {
        let (code, _) = noting.ask(&["leader", "payroll"], &noting.clerk);
        // Vacant, and the clerk may see that.
        (code == Some(3)).then_some(())
    };
    poll_until(SOON, known).expect("the clerk is known");
    let ran = noting.place.path("ran");
    let mut run = Command::new(TENURE);
    run.args(["run", "payroll", "--name", "web", "--lease", "6s", "-q"])
        .args(["--store", &noting.url(&noting.clerk), "--", "sh", "-c"])
        .arg(format!("sleep 7; touch {ran}; sleep 1000"));
    // Killed at the end, however this ends.
    let _run = Heard::start(run);
    let taken = noting.soon("election_taken", 1);
    assert_eq!(taken["by"]["token"], "clerk");
    assert_eq!(taken["about"]["election"], "payroll");
    assert_eq!(taken["about"]["leader"], "web");
    // It has renewed by then, or its command would be gone.
    let renewed = || Path::new(&ran).exists().then_some(());
    poll_until(SOON, renewed).expect("longer than a lease");
    assert_eq!(noting.noted("election_taken").len(), 1);
    assert_eq!(noting.noted("election_asked").len(), 0);
    let id = taken["about"]["leader_id"].as_str().expect("its id");
    let resign = ["resign", "payroll", "--leader-id", id];
    let (code, why) = noting.ask(&resign, &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    // A renewal may come between; then the question is asked again.
    let done = || {
        let asked = noting.noted("election_asked");
        asked.into_iter().find(|it| it["result"] == "done")
    };
    let asked = poll_until(SOON, done).expect("it was asked");
    assert_eq!(asked["by"]["token"], "boss");
    let resigned = noting.soon("election_resigned", 1);
    assert_eq!(resigned["by"]["token"], "clerk");
}

#[test]
fn who_writes_over_an_election_or_deletes_it_is_noted() {
    let noting = Noting::start();
    // A stream of requests, as commands have.
    let ran = Command::new(TENURE)
        .args(["run", "pay", "--once", "-q", "--store"])
        .args([&noting.url(&noting.boss), "--", "true"])
        .status();
    assert!(ran.expect("it runs").success());
    let (code, why) = noting.ask(&["forget", "pay"], &noting.boss);
    assert_eq!(code, Some(0), "{why}");
    let deleted = noting.soon("election_deleted", 1);
    assert_eq!(deleted["about"]["election"], "pay", "{deleted}");
    assert_eq!(deleted["result"], "done", "{deleted}");
    // Calls of HTTP.
    let token = fs::read_to_string(&noting.boss).expect("a token");
    let bearer = format!("Authorization: Bearer {}\r\n", token.trim());
    let asks = |call: &str, body: &str| {
        let head = format!("POST /v1/registers/{call}");
        let address = &noting.place.clients[0];
        answer(call_with(address, &head, &bearer, body))
    };
    let junk = r#"{"swap": {"key": "elections/pay", "value": "eA=="}}"#;
    let told = asks("compare_and_swap", junk);
    assert!(told.contains(r#""swapped":true"#), "{told}");
    let over = noting.soon("election_overwritten", 1);
    assert_eq!(over["about"]["election"], "pay", "{over}");
    assert_eq!(
        (&over["by"]["token"], &over["result"]),
        (&"boss".into(), &"done".into())
    );
    let told = asks("delete", r#"{"key": "elections/pay", "expect": 1}"#);
    assert!(told.contains(r#""deleted":false"#), "{told}");
    assert_eq!(noting.soon("election_deleted", 2)["result"], "conflict");
}

#[test]
fn a_token_that_cannot_be_printed_has_no_rights() {
    let place = Place::new::<1>();
    let tokens = place.path("tokens.toml");
    let draw = |out: Stdio| {
        let mut command = Command::new(TENURE);
        command.args(["token", "boss", "--admin", "--tokens", &tokens]);
        command.stdout(out).output().expect("tenure runs")
    };
    let full = fs::File::options().write(true).open("/dev/full");
    let failed = draw(full.expect("it is there").into());
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(!Path::new(&tokens).exists(), "it has rights");
    let drawn = draw(Stdio::piped());
    assert!(drawn.status.success(), "{drawn:?}");
}

#[test]
fn a_file_of_changes_that_cannot_be_written_is_refused_at_the_start() {
    let place = Place::new::<1>();
    let server = place.start(1, &["--audit", &place.path("none/audit")]);
    let words = ["--audit", "expected a file that can be written", "No such"];
    server.says(1, &words);
    // A slip that would cost everybody's rights.
    token(&place, "boss", &["--admin"]);
    let tokens = place.path("tokens.toml");
    let before = fs::read(&tokens).expect("rights");
    let mut server = place.start(1, &["--tokens", &tokens, "--audit", &tokens]);
    server.says(1, &["--audit", "expected a new file", "name another one"]);
    assert_eq!(server.ended().code(), Some(2));
    assert_eq!(fs::read(&tokens).expect("rights"), before);
}
