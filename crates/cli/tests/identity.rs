//! Which disk is it? Two disks under one number, with real servers.
//!
//! A machine is replaced and its old process lives on; a member comes back
//! when the others' disks have been replaced meanwhile. By commands that are
//! documented alone, and with what people see.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use crate::common::servers::{SOON, free, led};
use crate::common::{TENURE, poll_until};

/// A server, its directory and what it has said.
struct Server {
    child: Child,
    log: std::path::PathBuf,
}

impl Server {
    /// The disk that it says it has.
    fn storage(&self) -> String {
        let found = || {
            let said = std::fs::read_to_string(&self.log).ok()?;
            let at = said.find("storage=")? + "storage=".len();
            Some(said.get(at..at + 32)?.to_owned())
        };
        poll_until(SOON, found).expect("it says its storage")
    }

    fn says(&self, words: &str) {
        let said = || std::fs::read_to_string(&self.log).is_ok_and(|it| it.contains(words));
        let heard = poll_until(SOON, || said().then_some(()));
        heard.unwrap_or_else(|| panic!("expected {words:?} in {}", self.log.display()));
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Room {
    directory: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { directory }
    }

    fn serve(&self, id: u64, peers: &str, data: &str, listen: &str, more: &[&str]) -> Server {
        let log = self.directory.path().join(format!("{data}.log"));
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log);
        let child = Command::new(TENURE)
            .args(["serve", "--insecure", "--id", &id.to_string()])
            .args(["--peers", peers, "--listen", listen])
            .arg("--data")
            .arg(self.directory.path().join(data))
            .args(more)
            .env("NO_COLOR", "1")
            .stdout(Stdio::null())
            .stderr(file.expect("a log"))
            .spawn();
        let child = child.expect("a server");
        Server { child, log }
    }
}

fn tenure(url: &str, args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command
        .args(["20", TENURE])
        .args(args)
        .args(["--store", url]);
    command.output().expect("tenure runs")
}

/// Types a command until it is done: a leader may be away, or it may be early.
fn done(url: &str, args: &[&str]) {
    let mut last = None;
    let done = poll_until(SOON, || {
        let output = tenure(url, args);
        let success = output.status.success();
        last = Some(output);
        success.then_some(())
    });
    done.unwrap_or_else(|| panic!("{args:?}: {last:?}"));
}

/// Until the newest word of the leader on its members is this.
fn leads(url: &str, server: u64) {
    let leads = || {
        let status = crate::common::servers::objects(&["status", "--json", "--store", url]);
        let leader = status.iter().find(|it| it["role"] == "leader")?;
        (leader["id"] == server).then_some(())
    };
    poll_until(SOON, || {
        if leads().is_none() {
            tenure(url, &["member", "transfer", "--to", &server.to_string()]);
        }
        leads()
    })
    .unwrap_or_else(|| panic!("server {server} does not lead"));
}

/// Passes connections on to whatever address it is told.
struct Proxy {
    address: String,
    target: Arc<Mutex<String>>,
}

impl Proxy {
    fn start(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound").to_string();
        let target = Arc::new(Mutex::new(target.to_owned()));
        let told = Arc::clone(&target);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let target = told.lock().expect("whole").clone();
                if let Ok(there) = TcpStream::connect(target) {
                    pipe(&stream, &there);
                    pipe(&there, &stream);
                }
            }
        });
        Self { address, target }
    }

    /// From here on connections that are made go there.
    fn lead_to(&self, target: &str) {
        target.clone_into(&mut self.target.lock().expect("whole"));
    }
}

fn pipe(from: &TcpStream, to: &TcpStream) {
    let (mut from, mut to) = (from.try_clone().expect("one"), to.try_clone().expect("two"));
    std::thread::spawn(move || {
        let mut room = [0; 65_536];
        while let Ok(count @ 1..) = from.read(&mut room) {
            if to.write_all(&room[..count]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    });
}

/// The leader's connection to server 3 ends at a disk that was removed. What
/// that accepts counts for nothing: what is acknowledged is on the disks of
/// members, and survives the loss of the leader.
#[test]
fn a_removed_disk_that_lives_on_does_not_count() {
    let room = Room::new();
    let [one, two, old, new] = free::<4>();
    let [c1, c2, c3, c4] = free::<4>();
    let proxy = Proxy::start(&old);
    let peers = format!("1={one},2={two},3={}", proxy.address);
    let mut s1 = room.serve(1, &peers, "d1", &c1, &[]);
    let mut s2 = room.serve(2, &peers, "d2", &c2, &[]);
    let removed = room.serve(3, &peers, "d3", &c3, &["--listen-peers", &old]);
    let url = format!("tenure://{c1},{c2}");
    let own = format!("tenure://{c3}");
    led(&url);
    done(&url, &["log", "append", "first"]);
    leads(&url, 1);
    done(&url, &["member", "remove", "3"]);
    // Its address leads to another machine; the connections that there are
    // stay where they are.
    proxy.lead_to(&new);
    let added = room.serve(3, &peers, "d3new", &c4, &["--listen-peers", &new]);
    let storage = added.storage();
    done(&url, &["member", "add", "3", "--storage", &storage]);
    done(&url, &["member", "promote", "3"]);
    leads(&url, 1);
    s2.kill();
    let acknowledged = tenure(
        &format!("tenure://{c1}"),
        &["log", "append", "ACKNOWLEDGED"],
    );
    // The rightful case: the leader and the new disk are a majority.
    assert!(acknowledged.status.success(), "{acknowledged:?}");
    s1.kill();
    let s2 = room.serve(2, &peers, "d2", &c2, &[]);
    let rest = format!("tenure://{c2},{c4}");
    led(&rest);
    let read = tenure(&rest, &["log", "read"]);
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(text.contains("ACKNOWLEDGED"), "{text}");
    // The old one is told, also to which disk its number went, and says so to
    // its operator wherever it is asked.
    let went = format!("found that it was removed and that its number went to {storage}");
    removed.says(&went);
    let shown = || {
        let status = crate::common::servers::objects(&["status", "--json", "--store", &own]);
        let shown = status.into_iter().find(|it| it["address"] == c3.as_str())?;
        let waiting = shown["waiting"].as_str()?.contains(&went);
        (shown["excluded"] == true && shown["removed"] == true && waiting).then_some(())
    };
    poll_until(SOON, shown).expect("its status says so");
    drop(s2);
}

/// Server 3 was away while the disk of server 2 was replaced. With server 1
/// gone the two are a majority, one of which has everything; the other must
/// hear it, though by its own log the number belongs to another disk.
#[test]
fn a_majority_elects_a_leader_whatever_one_of_them_knows_of_the_members() {
    let room = Room::new();
    let [p1, p2, p3, p4] = free::<4>();
    let [c1, c2, c3, c4] = free::<4>();
    let peers = format!("1={p1},2={p2},3={p3}");
    let mut s1 = room.serve(1, &peers, "d1", &c1, &[]);
    let mut s2 = room.serve(2, &peers, "d2", &c2, &[]);
    let mut s3 = room.serve(3, &peers, "d3", &c3, &[]);
    let url = format!("tenure://{c1},{c2},{c3}");
    led(&url);
    leads(&url, 1);
    done(&url, &["log", "append", "one"]);
    s3.kill();
    let mut s4 = room.serve(4, &format!("{peers},4={p4}"), "d4", &c4, &[]);
    done(&url, &["member", "add", "4", "--storage", &s4.storage()]);
    done(&url, &["member", "promote", "4"]);
    done(&url, &["member", "remove", "2"]);
    s2.kill();
    // It waits, and says what to do, until it is added.
    let blank = room.serve(2, &peers, "d2new", &c2, &[]);
    let storage = blank.storage();
    blank.says(&format!("tenure member add 2 --storage {storage}"));
    done(&url, &["member", "add", "2", "--storage", &storage]);
    done(&url, &["member", "promote", "2"]);
    done(&url, &["member", "remove", "4"]);
    s4.kill();
    done(&url, &["log", "append", "two"]);
    s1.kill();
    let s3 = room.serve(3, &peers, "d3", &c3, &[]);
    let rest = format!("tenure://{c2},{c3}");
    done(&rest, &["log", "append", "three"]);
    let read = tenure(&rest, &["log", "read"]);
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(text.contains("one") && text.contains("three"), "{text}");
    drop((s3, blank));
}

/// Where the servers have server 3, by their own status: for servers and for
/// clients.
fn has_third(url: &str) -> Vec<(u64, String, String)> {
    let status = crate::common::servers::objects(&["status", "--json", "--store", url]);
    let of = |it: &serde_json::Value| {
        let members = it["members"].as_array()?;
        let third = members.iter().find(|member| member["id"] == 3)?;
        let text = |name: &str| Some(third[name].as_str()?.to_owned());
        Some((
            it["id"].as_u64()?,
            text("peer_address")?,
            text("client_address")?,
        ))
    };
    status.iter().filter_map(of).collect()
}

/// The removed disk of server 3 lives on elsewhere, and says so to a blank
/// server 2 before that is a member. Its word is the newest of all; but it is
/// no member's, and the address of server 3 stays what the member says.
#[test]
fn a_removed_disk_leads_nobody_to_its_own_address() {
    let room = Room::new();
    let [p1, p2, p3, elsewhere] = free::<4>();
    let [c1, c2, c3, c4] = free::<4>();
    let peers = format!("1={p1},2={p2},3={p3}");
    let _s1 = room.serve(1, &peers, "d1", &c1, &[]);
    let mut s2 = room.serve(2, &peers, "d2", &c2, &[]);
    let mut removed = room.serve(3, &peers, "d3", &c3, &[]);
    let url = format!("tenure://{c1},{c2},{c3}");
    led(&url);
    leads(&url, 1);
    done(&url, &["member", "remove", "3"]);
    removed.kill();
    let third = room.serve(3, &peers, "d3new", &c3, &[]);
    done(&url, &["member", "add", "3", "--storage", &third.storage()]);
    done(&url, &["member", "promote", "3"]);
    leads(&url, 1);
    done(&url, &["member", "remove", "2"]);
    s2.kill();

    let second = room.serve(2, &peers, "d2new", &c2, &["-v"]);
    let moved = format!("1={p1},2={p2},3={elsewhere}");
    let removed = room.serve(3, &moved, "d3", &c4, &["-v"]);
    removed.says("connected server=2");
    done(
        &url,
        &["member", "add", "2", "--storage", &second.storage()],
    );
    done(&url, &["member", "promote", "2"]);
    let wanted = [1, 2, 3].map(|id| (id, p3.clone(), c3.clone()));
    let mut last = Vec::new();
    let same = poll_until(SOON, || {
        last = has_third(&url);
        (last == wanted).then_some(())
    });
    same.unwrap_or_else(|| panic!("expected {wanted:?}, found {last:?}"));
}

/// The role and term of a server, by its own word.
fn role(listen: &str) -> Option<(String, u64)> {
    let url = format!("tenure://{listen}");
    let status = crate::common::servers::objects(&["status", "--json", "--store", &url]);
    let own = status.iter().find(|it| it["address"] == *listen)?;
    Some((own["role"].as_str()?.to_owned(), own["term"].as_u64()?))
}

/// Three removed servers live on with their disks, by whose logs they are
/// members, and ask for votes all the while: they reach a majority and are refused by
/// everybody who hears a leader. The same server leads in the same term, and
/// what it is asked for is done.
#[test]
fn three_removed_servers_that_keep_asking_disturb_nobody() {
    const WHILE: std::time::Duration = std::time::Duration::from_secs(10);
    let room = Room::new();
    let (at, listen) = (free::<6>(), free::<6>());
    let peers = (1..).zip(&at).map(|(id, at)| format!("{id}={at}"));
    let peers = peers.collect::<Vec<_>>().join(",");
    let serve = |id: usize| {
        let data = format!("d{id}");
        // Long enough for a machine that has much else to do.
        let timeout = ["--election-timeout", "2s"];
        room.serve(id as u64, &peers, &data, &listen[id - 1], &timeout)
    };
    let mut servers: Vec<_> = (1..=6).map(serve).collect();
    let url = format!("tenure://{}", listen[..3].join(","));
    led(&url);
    leads(&url, 1);
    for id in [6, 5, 4] {
        servers[id - 1].kill();
        done(&url, &["member", "remove", &id.to_string()]);
    }
    for id in 4..=6 {
        servers[id - 1] = serve(id);
    }
    let removed = &listen[3..];
    let stands = |it: &String| role(it).is_some_and(|(role, _)| role == "candidate");
    for server in removed {
        let asks = poll_until(SOON, || stands(server).then_some(()));
        asks.unwrap_or_else(|| panic!("{server} does not ask: {:?}", role(server)));
    }
    let before = role(&listen[0]).expect("it runs");
    assert_eq!(before.0, "leader");
    let began = std::time::Instant::now();
    let mut asked = 0;
    while began.elapsed() < WHILE {
        let appended = tenure(&url, &["log", "append", "on"]);
        assert!(appended.status.success(), "{appended:?}");
        assert_eq!(role(&listen[0]).as_ref(), Some(&before));
        for server in removed {
            let (role, term) = role(server).expect("it runs");
            asked += usize::from(role == "candidate");
            assert_eq!(term, before.1, "of {server}");
        }
    }
    assert!(asked > 0, "they went on asking");
}

/// One of three lost its disk, and is started with itself alone in `--peers`:
/// it founds a cluster of its own at an address that all clients know.
#[test]
fn a_cluster_of_its_own_at_a_known_address_leads_nobody_away() {
    let room = Room::new();
    let [p1, p2, p3, c1, c2, c3] = free();
    let peers = format!("1={p1},2={p2},3={p3}");
    let url = format!("tenure://{c1},{c2},{c3}");
    let listen = [&c1, &c2, &c3];
    let serve = |id: usize| {
        let data = format!("d{id}");
        room.serve(id as u64, &peers, &data, listen[id - 1], &[])
    };
    let mut servers: Vec<Server> = (1..=3).map(serve).collect();
    led(&url);
    leads(&url, 1);
    let candidate = Command::new(TENURE)
        .args(["run", "el", "--name", "b", "--lease", "2s", "--store", &url])
        .args(["--", "sleep", "1000"])
        .stderr(Stdio::null())
        .spawn();
    let log = room.directory.path().join("candidate");
    let mut candidate = Server {
        child: candidate.expect("a candidate"),
        log,
    };
    let led_by_b = |url: &str| {
        let leader = tenure(url, &["leader", "el", "--timeout", "2s"]);
        String::from_utf8_lossy(&leader.stdout).contains("b leads")
    };
    poll_until(SOON, || led_by_b(&url).then_some(())).expect("b is elected");

    servers[2].kill();
    let alone = format!("3={p3}");
    let _other = room.serve(3, &alone, "other", &c3, &[]);
    let others = format!("tenure://{c3}");
    led(&others);
    // Who is new is told that there are two, and by whom.
    let status = tenure(&url, &["status"]);
    let said = String::from_utf8_lossy(&status.stderr).into_owned();
    assert_eq!(status.status.code(), Some(1), "{said}");
    assert!(said.contains("expected servers of one cluster"), "{said}");
    let leader = tenure(&url, &["leader", "el", "--timeout", "2s"]);
    let said = String::from_utf8_lossy(&leader.stderr).into_owned();
    assert!(!leader.status.success(), "{leader:?}");
    assert!(said.contains("expected servers of one cluster"), "{said}");

    // Who is old stays, though its cluster has no leader for some leases.
    servers[0].kill();
    let mine = format!("tenure://{c1},{c2}");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(8);
    while std::time::Instant::now() < until {
        let leader = tenure(&others, &["leader", "el", "--timeout", "2s"]);
        let said = String::from_utf8_lossy(&leader.stdout).into_owned();
        assert!(said.contains("nobody leads"), "{said}");
    }
    servers[0] = serve(1);
    let back = poll_until(SOON, || led_by_b(&mine).then_some(()));
    back.expect("b leads again where it led");
    candidate.kill();
}
