//! The commands that speak to a cluster, against three real servers.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

use crate::common::servers::{Cluster, SOON, free, led, objects};
use crate::common::{TENURE, poll_until};
use serde_json::Value;

/// One `tenure serve`, killed when this is dropped.
struct Server(Child);

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut serve = Command::new(TENURE);
        serve.args(["serve", "--quiet"]).args(args);
        Self(serve.stdout(Stdio::null()).spawn().expect("a server"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tenure(args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["60", TENURE])
        .args(args)
        .output()
        .expect("tenure runs")
}

fn text(args: &[&str]) -> String {
    let output = tenure(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

/// How it fails: the exit code, and what it says.
fn fails(args: &[&str]) -> (Option<i32>, String) {
    let output = tenure(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

#[test]
fn the_log_is_appended_read_and_tailed() {
    let cluster = Cluster::start();
    let url = cluster.url();
    assert_eq!(
        text(&["log", "append", "--store", &url, "one", "two"]),
        "1\n2\n"
    );
    let appended = objects(&["log", "append", "--json", "--store", &url, "three"]);
    assert_eq!(appended, [serde_json::json!({ "number": 3 })]);
    let mut tail = Command::new(TENURE)
        .args(["log", "tail", "--from", "2", "--store", &url])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a tail");
    let mut lines = BufReader::new(tail.stdout.take().expect("its output")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!((next(), next()), ("two".into(), "three".into()));
    assert_eq!(text(&["log", "append", "--store", &url, "four"]), "4\n");
    assert_eq!(next(), "four");
    tail.kill().expect("killed");
    tail.wait().expect("it has ended");
    assert_eq!(
        text(&[
            "log", "read", "--from", "2", "--limit", "2", "--store", &url
        ]),
        "two\nthree\n"
    );
    let read = objects(&["log", "read", "--from", "4", "--json", "--store", &url]);
    assert_eq!(read, [serde_json::json!({ "number": 4, "data": "four" })]);
    assert_eq!(text(&["log", "read", "--from", "5", "--store", &url]), "");
}

#[test]
fn lines_are_appended_once_while_leaders_are_killed() {
    let mut cluster = Cluster::start();
    let url = cluster.url();
    let mut append = Command::new(TENURE)
        .args(["log", "append", "--timeout", "30s", "--store", &url, "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = append.stdin.take().expect("its input");
    let mut numbers = BufReader::new(append.stdout.take().expect("its output")).lines();
    let mut line: u64 = 0;
    for _ in 0..3 {
        let leader = cluster.leader();
        for _ in 0..500 {
            writeln!(input, "line {line}").expect("it reads");
            line += 1;
        }
        cluster.kill(leader);
        for _ in 0..500 {
            writeln!(input, "line {line}").expect("it reads");
            line += 1;
        }
        // All that was written is acknowledged before the next is killed.
        for _ in 0..1_000 {
            numbers.next().expect("a number").expect("text");
        }
        cluster.servers[leader - 1] = cluster.serve(leader);
    }
    drop(input);
    assert!(append.wait().expect("it ends").success());
    let log = text(&["log", "read", "--store", &url]);
    let expected: Vec<_> = (0..line).map(|line| format!("line {line}")).collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn load_is_put_on_the_log() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let load = ["--append", "50", "--value-bytes", "100", "--clients", "2"];
    let flags = ["--duration", "3s", "--warm-up", "100ms", "--json"];
    let seen = text(&[&["bench", &url][..], &load, &flags].concat());
    let seen: Value = serde_json::from_str(&seen).expect("one object");
    let appends = &seen["stores"][0]["appends"];
    let count = appends["count"].as_u64().expect("a number");
    assert!(count > 50 && count.is_multiple_of(50), "{seen}");
    assert!(appends["latency_us"]["p50"].as_f64() > Some(0.0), "{seen}");

    // A store without a log has nothing to append to.
    let (code, said) = fails(&["bench", "sqlite:///tmp/none.db", "--append", "5"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("expected tenure://"), "{said}");
}

#[test]
fn servers_are_shown_moved_and_backed_up() {
    let mut cluster = Cluster::start();
    let url = cluster.url();
    text(&["log", "append", "--store", &url, "something to keep"]);
    // Who leads is what this very table says: a moment ago it may have been
    // another.
    let (table, leader) = poll_until(SOON, || a_leader_stands_in(&url)).expect("a leader");
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("ID  ROLE"), "{table}");
    shows_where_it_stands(&lines, leader);
    let settled = |it: &(Vec<Value>, usize)| it.0[it.1 - 1]["lag"] == 0;
    let settled = poll_until(SOON, || leads(&url).filter(settled));
    let (seen, leader) = settled.expect("a leader that has applied all");
    let it = &seen[leader - 1];
    let [term, id] = ["last_log_term", "last_log_id"].map(|name| &it[name]);
    let rank = serde_json::json!({"last_log_term": term, "last_log_id": id, "server": leader});
    assert_eq!((&it["rank"], &it["lag"]), (&rank, &0.into()), "{it}");
    assert!(it["behind"].is_u64(), "{it}");
    let target = leader % 3 + 1;
    let target_text = target.to_string();
    let to = |id: &str| ["member", "transfer", "--to", id, "--store", &url].map(str::to_owned);
    // The second time it leads already.
    for _ in 0..2 {
        let moved = text(&to(&target_text).each_ref().map(String::as_str));
        assert!(
            moved.starts_with(&format!("server {target} leads")),
            "{moved}"
        );
    }
    let (_, stranger) = fails(&to("9").each_ref().map(String::as_str));
    assert!(
        stranger.contains("expected a member that counts (1, 2, 3), found server 9"),
        "{stranger}"
    );
    let members = objects(&["member", "list", "--json", "--store", &url]);
    let ids: BTreeSet<_> = members.iter().map(|it| it["id"].as_u64()).collect();
    assert_eq!(ids, [Some(1), Some(2), Some(3)].into());
    let file = cluster.directory.path().join("backup");
    let name = file.display().to_string();
    text(&["backup", &name, "--store", &url]);
    let bytes = std::fs::read(&file).expect("the backup");
    let kept = b"something to keep";
    assert!(bytes.windows(kept.len()).any(|window| window == kept));
    let beside = std::fs::read_dir(cluster.directory.path()).expect("a directory");
    let partial = |name: &str| name.contains("partial");
    let names = beside.map(|it| it.expect("an entry").file_name());
    assert!(!names.into_iter().any(|it| partial(&it.to_string_lossy())));
    let taken = objects(&["snapshot", "--json", "--store", &url]);
    let ids: BTreeSet<_> = taken.iter().map(|it| it["id"].as_u64()).collect();
    assert_eq!(ids, [Some(1), Some(2), Some(3)].into());
    assert!(
        taken.iter().all(|it| it["upto"].as_u64() > Some(0)),
        "{taken:?}"
    );
    let (code, unknown) = fails(&["snapshot", "--server", "9", "--store", &url]);
    assert_eq!(code, Some(2), "{unknown}");
    let gone = target % 3 + 1;
    cluster.kill(gone);
    let (code, partly) = fails(&["snapshot", "--store", &url]);
    assert_eq!(code, Some(1), "{partly}");
    assert!(
        partly.contains(&format!("2 took a snapshot; server {gone}: ")),
        "{partly}"
    );
    let (seen, leader) = poll_until(SOON, || leads(&url)).expect("a leader");
    let roles: Vec<_> = seen.iter().map(|it| (&it["id"], &it["role"])).collect();
    assert_eq!(roles.len(), 3, "{roles:?}");
    assert_eq!(seen[gone - 1]["role"], "unreachable", "{roles:?}");
    assert_ne!(leader, gone, "{roles:?}");
}

/// What `status` prints, and who leads by that, if somebody does.
fn a_leader_stands_in(url: &str) -> Option<(String, usize)> {
    let output = tenure(&["status", "--store", url]);
    let table = String::from_utf8(output.stdout).expect("text");
    let leader = table.lines().position(|it| it.contains(" leader "))?;
    Some((table, leader))
}

/// The same for programs.
fn leads(url: &str) -> Option<(Vec<Value>, usize)> {
    let seen = objects(&["status", "--json", "--store", url]);
    let leader = seen.iter().position(|it| it["role"] == "leader")?;
    Some((seen, leader + 1))
}

/// The row of the leader of a table: it leads in its term, has its own vote,
/// and its rank ends with its number.
fn shows_where_it_stands(lines: &[&str], leader: usize) {
    let cells = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (names, row) = (cells(lines[0]), cells(lines[leader]));
    let cell = |name: &str| {
        let place = names.iter().position(|it| it == name);
        row[place.expect(name)].clone()
    };
    assert_eq!(cell("REIGN"), cell("TERM"), "{lines:?}");
    assert_eq!(cell("VOTE"), leader.to_string(), "{lines:?}");
    let rank: Vec<u64> = cell("RANK")
        .split('/')
        .map_while(|it| it.parse().ok())
        .collect();
    let [term, id, server] = rank[..] else {
        panic!("expected term/id/server, found {lines:?}");
    };
    assert_eq!(
        (term.to_string(), server),
        (cell("TERM"), leader as u64),
        "{lines:?}"
    );
    assert!(id > 0 && cell("LAG").parse::<u64>().is_ok(), "{lines:?}");
}

#[test]
fn a_backup_of_a_running_cluster_is_restored_and_goes_on() {
    let cluster = Cluster::start();
    let old = cluster.url();
    text(&["log", "append", "--store", &old, "one", "two"]);
    let path = |name: &str| cluster.directory.path().join(name).display().to_string();
    let (file, data) = (path("backup"), path("restored"));
    text(&["backup", &file, "--store", &old]);

    let whole = std::fs::read(&file).expect("the backup");
    let cut = path("cut");
    std::fs::write(&cut, &whole[..whole.len() - 1]).expect("written");
    let long = path("long");
    std::fs::write(&long, [&whole[..], b"x"].concat()).expect("written");
    let directory = cluster.directory.path().display().to_string();
    for (code, file, id, said) in [
        (1, &cut, "1", "cut short"),
        (1, &long, "1", "1 bytes behind its end"),
        (1, &path("none"), "1", "No such file"),
        (2, &directory, "1", "no plain file"),
        (2, &file, "0", "from 1, found 0"),
    ] {
        let (found, text) = fails(&["restore", file, "--data", &data, "--id", id]);
        assert_eq!(found, Some(code), "{text}");
        assert!(text.contains(said), "{text}");
        // What cannot be restored leaves nothing behind.
        assert!(!std::path::Path::new(&data).exists(), "{text}");
    }

    let restore = ["restore", &file, "--data", &data, "--id", "1"];
    let said = text(&restore);
    assert!(
        said.contains("next: tenure serve --id 1 --peers 1="),
        "{said}"
    );
    let (code, used) = fails(&restore);
    assert_eq!(code, Some(2), "{used}");
    assert!(used.contains("found the log of server 1 in"), "{used}");

    let [peer, listen] = free();
    let peers = format!("1={peer}");
    let serve = [
        "--id", "1", "--peers", &peers, "--data", &data, "--listen", &listen,
    ];
    let _server = Server::start(&serve);
    let new = format!("tenure://{listen}");
    led(&new);
    let third = format!("{}\n", 3 + (1u64 << 40));
    assert_eq!(text(&["log", "append", "--store", &new, "three"]), third);
    assert_eq!(text(&["log", "read", "--store", &new]), "one\ntwo\nthree\n");
    // The old one knows nothing of it.
    assert_eq!(text(&["log", "read", "--store", &old]), "one\ntwo\n");
    let id = |url: &str| objects(&["status", "--json", "--store", url])[0]["cluster"].clone();
    assert_ne!(id(&old), id(&new));
}

#[test]
fn certificates_are_named_in_the_url() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (certs, others) = (path("certs"), path("others"));
    for dir in [&certs, &others] {
        text(&["certs", dir, "--name", "one", "--server", "1"]);
    }
    let file = |name: &str| format!("{certs}/{name}");
    let (ca, cert, key) = (file("ca.pem"), file("one.pem"), file("one.key"));
    let tls = ["--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key];
    let [peer, listen, peer_of_any, listen_of_any] = free();
    let start = |peer: &str, listen: &str, more: &[&str]| {
        let (peers, data) = (format!("1={peer}"), path(listen));
        let own = [
            "--id", "1", "--peers", &peers, "--listen", listen, "--data", &data,
        ];
        Server::start(&[&own[..], &tls[..], more].concat())
    };
    let _strict = start(&peer, &listen, &[]);
    let _lenient = start(&peer_of_any, &listen_of_any, &["--tls-any-client"]);

    let proven = format!("tenure://{listen}?ca={ca}&cert={cert}&key={key}");
    let unproven = format!("tenure://{listen_of_any}?ca={ca}");
    for url in [&proven, &unproven] {
        led(url);
        assert_eq!(text(&["log", "append", "--store", url, "an order"]), "1\n");
        assert_eq!(text(&["log", "read", "--store", url]), "an order\n");
    }
    // Long enough for a handshake on a busy machine; then they give up.
    let append = |url: &str| fails(&["log", "append", "x", "--timeout", "4s", "--store", url]);
    let (code, said) = append(&format!("tenure://{listen}?ca={others}/ca.pem"));
    assert_eq!(code, Some(1), "{said}");
    let expected = "expected a certificate for this host from an authority in";
    assert!(
        said.contains(expected) && said.contains("found one of another authority; name"),
        "{said}"
    );
    let (code, said) = append(&format!("tenure://{listen}?ca={ca}"));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the servers ask clients for one"), "{said}");
    let (code, said) = append(&format!("tenure://{listen}?ca={certs}/none.pem"));
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("none.pem: expected certificates in PEM"),
        "{said}"
    );
}

#[test]
fn what_makes_no_sense_is_refused_with_what_to_do() {
    let cluster = Cluster::start();
    let url = cluster.url();
    for (args, said) in [
        (&["log", "read", "--store", "sqlite:///x.db"][..], "sqlite:"),
        (&["status", "--store", "tenure://h1"], "h1:7400,h2:7400"),
        (&["status", "--store", "tenure://h:1?x=1"], "found \"x\""),
        (
            &["member", "add", "4", "--storage", "x", "--store", &url],
            "32 hexadecimal digits",
        ),
        (&["backup", "/", "--store", &url], "path of a file"),
    ] {
        let (code, found) = fails(args);
        assert_eq!(code, Some(2), "{args:?}: {found}");
        assert!(found.contains(said), "{args:?}: {found}");
    }
    let nobody = "tenure://127.0.0.1:1";
    for args in [
        &[
            "log",
            "append",
            "x",
            "--timeout",
            "300ms",
            "--store",
            nobody,
        ][..],
        &["status", "--store", nobody],
        &["member", "remove", "9", "--store", &url],
    ] {
        let (code, found) = fails(args);
        assert_eq!(code, Some(1), "{args:?}: {found}");
    }
    let nowhere = "/nowhere/at/all";
    let (code, found) = fails(&["backup", nowhere, "--store", &url]);
    assert_eq!(code, Some(1), "{found}");
    let said = "/nowhere/at/all: expected a directory, /nowhere/at, in which a file can be made";
    assert!(found.contains(said), "{found}");
    assert!(found.contains("make the directory first"), "{found}");
    // A member that votes is one, and there is nothing to promote.
    let (code, found) = fails(&["member", "promote", "1", "--store", &url]);
    assert_eq!(code, Some(1), "{found}");
    assert!(found.contains("this server is a voter already"), "{found}");
}

/// Makes two tokens in `directory`, for the server's file there.
fn make_tokens(directory: &std::path::Path) {
    let path = |name: &str| directory.join(name).display().to_string();
    let tokens = path("tokens.toml");
    for (name, right) in [
        ("boss", &["--admin"][..]),
        ("pay", &["--campaign", "payroll"]),
        ("clerk", &["--log-right", "append", "--log", "json"]),
        ("auditor", &["--log-right", "read"]),
    ] {
        let out = path(name);
        let made = tenure(&[&["token", name, "--tokens", &tokens, "--out", &out], right].concat());
        assert!(made.status.success(), "{made:?}");
        let secret = std::fs::read_to_string(&out).expect("the token");
        let file = std::fs::read_to_string(&tokens).expect("the tokens");
        assert!(file.contains(&format!("[tokens.{name}]")), "{file}");
        assert!(!file.contains(secret.trim()), "the secret is no part of it");
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&out).expect("there"));
        assert_eq!(mode & 0o777, 0o600);
    }
    // Twice the same name, and a name that is none.
    let known = "expected a name that is not in it yet, found [tokens.pay]";
    for (name, said) in [("pay", known), ("a b", "letters")] {
        let refused = tenure(&["token", name, "--tokens", &tokens]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_server_with_tokens_knows_its_clients_by_them() {
    let directory = tempfile::tempdir().expect("a directory");
    make_tokens(directory.path());
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (tokens, data) = (path("tokens.toml"), path("data"));
    let [peer, listen] = free::<2>();
    let peers = format!("1={peer}");
    let serve = [
        "--id", "1", "--peers", &peers, "--data", &data, "--listen", &listen,
    ];
    let _server = Server::start(&[&serve[..], &["--tokens", &tokens]].concat());
    let url = format!("tenure://{listen}");
    let boss = format!("{url}?token_file={}", path("boss"));
    led(&boss);
    assert_eq!(
        text(&["log", "append", "one", "--store", &boss]).trim(),
        "1"
    );
    let by_file = [
        "log",
        "read",
        "--store",
        &url,
        "--token-file",
        &path("boss"),
    ];
    assert_eq!(text(&by_file), "one\n");
    for (token, said) in [
        (None, "found none"),
        (Some(path("pay")), "the right to append to the log"),
    ] {
        let mut command = Command::new(TENURE);
        command.args(["log", "append", "two", "--store", &url]);
        let command = match &token {
            Some(token) => command.env("TENURE_TOKEN_FILE", token),
            None => command.env_remove("TENURE_TOKEN_FILE"),
        };
        let refused = command.output().expect("it ends");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let text = String::from_utf8_lossy(&refused.stderr);
        assert!(text.contains(said), "{text}");
    }
    let by = |token: &str| format!("{url}?token_file={}", path(token));
    let (clerk, auditor) = (by("clerk"), by("auditor"));
    assert_eq!(text(&["log", "append", "two", "--store", &clerk]), "2\n");
    assert_eq!(text(&["log", "read", "--store", &auditor]), "one\ntwo\n");
    let (code, said) = fails(&["log", "append", "three", "--store", &auditor]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("found auditor, which has it not"), "{said}");
    let stand = [
        "run",
        "payroll",
        "--once",
        "--store",
        &url,
        "--token-file",
        &path("pay"),
    ];
    let led = tenure(&[&stand[..], &["--", "true"]].concat());
    assert!(led.status.success(), "{led:?}");
}

#[test]
fn a_cluster_in_one_process_without_room_for_its_ports_leaves_nothing_behind() {
    let place = tempfile::tempdir().expect("a directory");
    let dev = Command::new(TENURE)
        .args(["dev", "--port", "65500"])
        .env("TMPDIR", place.path())
        .output()
        .expect("it ends");
    assert_eq!(dev.status.code(), Some(2), "{dev:?}");
    let said = String::from_utf8_lossy(&dev.stderr);
    assert!(said.contains("at most 65433"), "{said}");
    assert!(said.contains("found 65500"), "{said}");
    let left = std::fs::read_dir(place.path()).expect("it is there");
    assert_eq!(left.count(), 0);
}

#[test]
fn addresses_and_directories_of_a_server_that_will_not_do_are_named() {
    let [peer, listen] = free::<2>();
    let data = tempfile::tempdir().expect("a directory");
    let data = data.path().join("data").display().to_string();
    let serve = |peer: &str, listen: &str, data: &str| {
        let peers = format!("1={peer}");
        let own = ["serve", "--id", "1", "--peers", &peers];
        fails(&[&own[..], &["--listen", listen, "--data", data]].concat())
    };
    let nowhere = "nowhere.invalid:7500";
    for (peer, listen, said) in [
        (
            "127.0.0.1",
            &*listen,
            "--peers: expected HOST:PORT, found \"127.0.0.1\"",
        ),
        (
            nowhere,
            &*listen,
            "found nowhere.invalid:7500, which cannot be looked up",
        ),
        ("192.0.2.1:7500", &*listen, "expected a loopback address"),
        (&*peer, &*peer, "for both"),
    ] {
        let (code, found) = serve(peer, listen, &data);
        assert_eq!(code, Some(2), "{found}");
        assert!(found.contains(said), "{found}");
        assert!(!std::path::Path::new(&data).exists(), "{found}");
    }
    let (code, found) = serve(&peer, &listen, "/proc/tenure");
    assert_eq!(code, Some(1), "{found}");
    assert_eq!(found.matches("os error").count(), 1, "{found}");
}

#[test]
fn servers_that_are_set_otherwise_say_how() {
    let directory = tempfile::tempdir().expect("a directory");
    let [one, two, listen, other] = free::<4>();
    let peers = format!("1={one},2={two}");
    let start = |id: &str, listen: &str, timeout: &str| {
        let data = directory.path().join(id).display().to_string();
        let mut serve = Command::new(TENURE);
        serve.args(["serve", "--id", id, "--peers", &peers, "--data", &data]);
        serve.args(["--listen", listen, "--election-timeout", timeout]);
        let serve = serve.stdout(Stdio::null()).stderr(Stdio::piped());
        Server(serve.spawn().expect("a server"))
    };
    let mut slow = start("1", &listen, "1s");
    let _fast = start("2", &other, "250ms");
    let said = BufReader::new(slow.0.stderr.take().expect("its stderr")).lines();
    let mut said = said.map(|line| line.expect("text"));
    let line = said.find(|line| line.contains("not connected"));
    let line = line.expect("it goes on");
    assert!(line.contains("--election-timeout 1s"), "{line}");
    assert!(line.contains("--election-timeout 250ms"), "{line}");
    assert!(!line.contains("Settings"), "{line}");
}

#[test]
fn servers_in_one_process_say_which_of_them_speaks() {
    // A row of ports, of which it uses the first two and those 100 above.
    let port = |address: &String| address.rsplit_once(':')?.1.parse::<u16>().ok();
    let mut rows = std::iter::repeat_with(free::<102>).take(100);
    let row = rows.find(|row| port(&row[101]) == port(&row[0]).map(|first| first + 101));
    let port = port(&row.expect("a row")[0]).expect("a port").to_string();
    let place = tempfile::tempdir().expect("a directory");
    let dev = Command::new(TENURE)
        .args(["dev", "--nodes", "2", "--port", &port])
        .env("TMPDIR", place.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut dev = Server(dev.expect("it starts"));
    let said = BufReader::new(dev.0.stderr.take().expect("its stderr")).lines();
    let mut said = said.map(|line| line.expect("text"));
    for server in ["server{id=1}", "server{id=2}"] {
        assert!(said.any(|line| line.contains(server)), "{server}");
    }
}
