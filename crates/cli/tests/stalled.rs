//! A leader whose own disk stalls while those of the others are well: held up
//! for seconds it stays and answers, held up for good it hands over. Followers
//! whose disks stall go on answering, and the leader stays.
#![allow(clippy::print_stderr, reason = "what is left out is said")]

mod common;

use std::net::TcpStream;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::servers::{
    Cluster, Heard, SOON, answer, call, call_with, led, metric, ready, said, tenure,
};
use common::stalls::{FOR_EVER, Stall, gone, held_up, traceable};
use common::{TENURE, poll_until};
use tenure::clock;
use tenure_client::Client;

/// Far above what the machine itself may hold a server up for, and far below
/// how long the sync takes.
const TIMEOUT: &str = "1s";
const STALL: Duration = Duration::from_secs(5);

/// Whose disks have been quick for so long that a server that ever waits for
/// one itself would do so.
const QUICK: usize = 150;

/// Stops a server whose disk hangs, and gives how it ended.
fn stopped(server: &mut Heard) -> ExitStatus {
    server.stop();
    gone(server.id());
    server.ended()
}

#[tokio::test]
async fn a_leader_stays_while_its_disk_stalls_and_leaves_when_it_hangs() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let cluster = Cluster::start_with(&["--election-timeout", TIMEOUT]);
    let client = Client::open(&cluster.url())
        .expect("a client")
        .with_timeout(SOON);
    let mut last = 0;
    for _ in 0..QUICK {
        last = client.append(b"quick".to_vec()).await.expect("appended");
    }
    let (leader, term) = (cluster.leader(), cluster.term());
    let pid = cluster.servers[leader - 1].id();
    let stall = Stall::of(pid, STALL);
    let began = clock::boot();
    let (mut appended, mut slowest) = (0, Duration::ZERO);
    while clock::boot().since(began) < STALL + STALL / 5 {
        let asked = clock::boot();
        let number = client.append(b"stalled".to_vec()).await.expect("appended");
        let took = clock::boot().since(asked);
        slowest = slowest.max(took);
        assert_eq!(number, last + 1);
        (last, appended) = (number, appended + 1);
    }
    // Others wait for this machine, too, but none for the disk.
    assert!(slowest < STALL / 10, "{slowest:?}");
    assert!(
        appended > 20,
        "{appended} entries in {:?}",
        clock::boot().since(began)
    );
    assert_eq!((cluster.leader(), cluster.term()), (leader, term));
    drop(stall);

    // For good. Nobody waits for it: what is appended goes on.
    let address = &cluster.clients[leader - 1];
    assert_eq!(metric(address, "disk_handovers_total "), 0.0);
    let _stall = Stall::of(pid, FOR_EVER);
    let began = clock::boot();
    while cluster.leader() == leader {
        assert!(
            clock::boot().since(began) < 2 * SOON,
            "it does not hand over"
        );
        let number = client.append(b"hangs".to_vec()).await.expect("appended");
        assert_eq!(number, last + 1);
        last = number;
    }
    assert_eq!(metric(address, "disk_handovers_total "), 1.0);
    let waits = metric(address, "disk_waits_seconds ");
    assert!(waits >= 10.0, "for {waits} s");
    let number = client.append(b"after".to_vec()).await.expect("appended");
    assert_eq!(
        number,
        last + 1,
        "nothing is lost and nothing is done twice"
    );
    client.close().await;
}

/// The thread that syncs is relieved: a follower is heard and answers while its
/// disk stalls, again and again.
#[tokio::test]
async fn followers_answer_while_their_disks_stall() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let cluster = Cluster::start_with(&["--election-timeout", TIMEOUT]);
    let client = Client::open(&cluster.url())
        .expect("a client")
        .with_timeout(SOON);
    for round in 0..2 {
        for _ in 0..QUICK {
            client.append(b"quick".to_vec()).await.expect("appended");
        }
        let (leader, term) = (cluster.leader(), cluster.term());
        let followers: Vec<usize> = (1..=3).filter(|id| *id != leader).collect();
        let stalls: Vec<Stall> = followers
            .iter()
            .map(|id| Stall::of(cluster.servers[id - 1].id(), STALL))
            .collect();
        let began = clock::boot();
        let appending = client.append(b"stalled".to_vec());
        let looking = async {
            while clock::boot().since(began) < STALL * 4 / 5 {
                for id in &followers {
                    let asked = clock::boot();
                    metric(&cluster.clients[id - 1], "disk_waits_seconds ");
                    let took = clock::boot().since(asked);
                    assert!(
                        took < STALL / 5,
                        "round {round}: {id} answered after {took:?}"
                    );
                }
                tokio::task::yield_now().await;
            }
        };
        let (appended, ()) = tokio::join!(appending, looking);
        appended.expect("appended");
        assert!(
            clock::boot().since(began) >= STALL * 4 / 5,
            "nothing stalled"
        );
        assert_eq!((cluster.leader(), cluster.term()), (leader, term));
        drop(stalls);
    }
    client.close().await;
}

/// A large snapshot takes long on slow disks, and nothing waits for it: not
/// even where both servers that are left write theirs at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn small_writes_do_not_wait_for_snapshots() {
    /// How much state there is, and how long the disk takes for each part.
    const PARTS: u32 = 32;
    const PART: usize = 1024 * 1024;
    const SLOW: Duration = Duration::from_millis(40);
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let mut cluster = Cluster::start_with(&["--election-timeout", TIMEOUT]);
    let url = cluster.url();
    let client = Client::open(&url).expect("a client").with_timeout(SOON);
    for _ in 0..PARTS {
        client.append(vec![7; PART]).await.expect("appended");
    }
    let (leader, term) = (cluster.leader(), cluster.term());
    cluster.kill(leader % 3 + 1);
    let alive = [leader, (leader + 1) % 3 + 1];
    let stalls = alive.map(|id| Stall::of(cluster.servers[id - 1].id(), SLOW));
    let snapshots = tokio::task::spawn_blocking(move || {
        let began = clock::boot();
        tenure(&["snapshot", "--store", &url]);
        clock::boot().since(began)
    });
    let mut slowest = Duration::ZERO;
    while !snapshots.is_finished() {
        let asked = clock::boot();
        client.append(b"small".to_vec()).await.expect("appended");
        slowest = slowest.max(clock::boot().since(asked));
    }
    let took = snapshots.await.expect("it ends");
    assert!(took > SLOW * PARTS, "no snapshot was slow: {took:?}");
    assert!(slowest < SLOW * PARTS / 2, "{slowest:?} of {took:?}");
    drop(stalls);
    assert_eq!((cluster.leader(), cluster.term()), (leader, term));
    client.close().await;
}

/// The disk takes nothing of the file that a thread writes: the log writes the
/// snapshot, or it would grow for as long as that lasts.
#[test]
fn a_snapshot_whose_thread_hangs_is_written_by_the_log() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let cluster = Cluster::start_with(&["--election-timeout", TIMEOUT]);
    let leader = cluster.leader();
    let data = cluster.directory.path().join(leader.to_string());
    let files: Vec<_> = (1..8)
        .map(|it| data.join(format!("prepared-{it}")))
        .collect();
    let stall = Stall::of_syncs_of(cluster.servers[leader - 1].id(), &files);
    let (url, id) = (cluster.url(), leader.to_string());
    let began = clock::boot();
    let taken = tenure(&["snapshot", "--store", &url, "--server", &id]);
    let took = clock::boot().since(began);
    assert!(taken.status.success(), "{}", said(&taken));
    assert!(took > STALL, "nothing hung: {took:?}");
    assert_eq!(cluster.leader(), leader);
    drop(stall);
}

/// Threads relieve each other all the time, on all servers, while one after the
/// other is killed: nothing is lost, done twice, or written in another order.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_where_threads_relieve_each_other_often() {
    const CLIENTS: u64 = 4;
    const ROUNDS: usize = 3;
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let mut cluster = Cluster::start_with(&["--election-timeout", TIMEOUT]);
    let url = cluster.url();
    let over = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (url, over) = (url.clone(), Arc::clone(&over));
            tokio::spawn(async move { write_until(&url, client, &over).await })
        })
        .collect();
    let restart = |cluster: &mut Cluster, id| tokio::task::block_in_place(|| cluster.restart(id));
    for round in 0..ROUNDS {
        // After this many quick ones a server writes on its own thread again.
        let stall = |server: &Child| Stall::of_some(server.id(), STALL / 100, "70+70");
        let stalls: Vec<Stall> = cluster.servers.iter().map(stall).collect();
        tokio::time::sleep(STALL / 2).await;
        drop(stalls);
        restart(&mut cluster, round + 1);
    }
    over.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await.expect("it writes"));
    }
    assert!(written.iter().all(|count| *count > 200), "{written:?}");
    // What was written is read back from the disks.
    tokio::task::block_in_place(|| cluster.restart_all());
    let client = Client::open(&url).expect("a client").with_timeout(SOON);
    let (mut found, mut from) = (vec![0; written.len()], 1);
    loop {
        let entries = client.read_log(from, 1_000).await.expect("the log");
        let Some(last) = entries.last() else { break };
        from = last.number + 1;
        for entry in &entries {
            let text = String::from_utf8_lossy(&entry.data);
            let (client, count) = text.split_once(' ').expect("two numbers");
            let found = &mut found[client.parse::<usize>().expect("a client")];
            assert_eq!(count.parse(), Ok(*found), "of client {client}");
            *found += 1;
        }
    }
    assert_eq!(found, written);
}

/// Its disk hangs while a cluster is founded: a server is heard, says what it
/// waits for, and stops when it is told to. Nothing is lost by that.
#[test]
fn a_blank_server_answers_and_stops_while_its_disk_hangs() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let mut cluster = Cluster::apart();
    let mut first = Heard::start(cluster.loud(TENURE, 1));
    let listens = || TcpStream::connect(&cluster.clients[0]).ok();
    poll_until(SOON, listens).expect("it listens");
    // It listens before it has started, and answers after that.
    let healthy = || answer(call(&cluster.clients[0], "GET /healthz", ""));
    assert!(healthy().starts_with("HTTP/1.1 200"));
    let stall = Stall::of(first.id(), FOR_EVER);
    cluster.servers.extend([2, 3].map(|id| cluster.serve(id)));
    first.says(1, &["WARN", "has not written the files of a new cluster"]);
    let asked = clock::boot();
    assert!(healthy().starts_with("HTTP/1.1 200"));
    let took = clock::boot().since(asked);
    assert!(took < STALL / 5, "{took:?}");
    assert_eq!(stopped(&mut first).code(), Some(0));
    drop(stall);

    // While it starts.
    let mut hung = held_up(FOR_EVER, "1+");
    let command = cluster.loud(TENURE, 1);
    // With -D it is the server that is waited for.
    hung.arg("-D")
        .arg(command.get_program())
        .args(command.get_args());
    let mut hung = Heard::start(hung);
    let begun = cluster.directory.path().join("1/starts.tmp");
    poll_until(SOON, || begun.exists().then_some(())).expect("it starts");
    assert_eq!(stopped(&mut hung).code(), Some(0));

    cluster.servers.insert(0, cluster.serve(1));
    led(&cluster.url());
}

/// A server ends when it is told to, though its disk hangs for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_though_its_disk_hangs() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let mut cluster = Cluster::start();
    let client = Client::open(&cluster.url())
        .expect("a client")
        .with_timeout(SOON);
    cluster.kill(1);
    let mut server = Heard::start(cluster.loud(TENURE, 1));
    tokio::task::block_in_place(|| ready(&cluster.clients[0]));
    let stall = Stall::of(server.id(), FOR_EVER);
    let waits =
        || tokio::task::block_in_place(|| metric(&cluster.clients[0], "disk_waits_seconds ")) > 0.0;
    while !waits() {
        client.append(b"hangs".to_vec()).await.expect("appended");
    }
    let ended = tokio::task::block_in_place(|| {
        let ended = stopped(&mut server);
        server.says(1, &["WARN", "the disk has not written", "ends without"]);
        ended
    });
    assert_eq!(ended.code(), Some(0));
    drop(stall);
    cluster.servers[0] = cluster.serve(1);
    tokio::task::block_in_place(|| ready(&cluster.clients[0]));
    client.close().await;
}

/// Appends one entry after the other, and gives how many.
async fn write_until(url: &str, client: u64, over: &AtomicBool) -> u64 {
    let log = Client::open(url).expect("a client").with_timeout(SOON);
    let mut count = 0;
    while !over.load(Ordering::Relaxed) {
        let text = format!("{client} {count}");
        log.append(text.into_bytes()).await.expect("appended");
        count += 1;
    }
    log.close().await;
    count
}

/// The file system of a server's tokens hangs: what was read stays in use, and
/// nothing waits for it.
#[test]
fn a_server_goes_on_while_the_file_of_its_tokens_hangs() {
    const TOKEN: &str = "of-the-test";
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let mut cluster = Cluster::apart();
    let tokens = cluster.directory.path().join("tokens.toml");
    let sha256 = tenure_server::fingerprint(TOKEN);
    let text = format!("[tokens.test]\nsha256 = \"{sha256}\"\nadmin = true\n");
    std::fs::write(&tokens, text).expect("written");
    let mut command = cluster.loud(TENURE, 1);
    command.arg("--tokens").arg(&tokens);
    let mut server = Heard::start(command);
    cluster.servers.extend([2, 3].map(|id| cluster.serve(id)));
    let address = &cluster.clients[0];
    poll_until(SOON, || TcpStream::connect(address).ok()).expect("it listens");
    ready(address);
    let header = format!("Authorization: Bearer {TOKEN}\r\n");
    let known = || answer(call_with(address, "GET /v1/cluster/status", &header, ""));
    assert!(known().starts_with("HTTP/1.1 200"));

    let stall = Stall::of_file(server.id(), &tokens);
    let said = || (server.count(&["WARN", "the tokens could not be looked at"]) > 0).then_some(());
    let slowest = std::cell::Cell::new(Duration::ZERO);
    let calls = || {
        let asked = clock::boot();
        assert!(known().starts_with("HTTP/1.1 200"));
        slowest.set(slowest.get().max(clock::boot().since(asked)));
        said()
    };
    poll_until(SOON, calls).expect("it says that the file hangs");
    assert!(slowest.get() < STALL / 5, "{slowest:?}");
    assert_eq!(stopped(&mut server).code(), Some(0));
    drop(stall);
}

/// Files that do not answer at a start end it, in time and with a code that has
/// it tried again: the file system may be back then.
#[test]
fn a_server_whose_files_hang_at_its_start_ends_and_is_to_be_tried_again() {
    if !traceable() {
        eprintln!("\n*** LEFT OUT: strace cannot trace a process here\n");
        return;
    }
    let cluster = Cluster::apart();
    let starting = ["--tokens", "--peer-secret-file"].into_iter().zip(1..);
    let servers: Vec<_> = starting
        .map(|(flag, id)| {
            let file = cluster.directory.path().join(format!("file-{id}"));
            std::fs::write(&file, "").expect("written");
            let mut command = cluster.loud(TENURE, id);
            command.arg(flag).arg(&file);
            Heard::start(Stall::from_the_start(&file, &command))
        })
        .collect();
    for mut server in servers {
        let said = || (server.count(&["within 10s, found no answer"]) > 0).then_some(());
        poll_until(SOON, said).expect("it says that the file hangs");
        gone(server.id());
        assert_eq!(server.ended().code(), Some(1));
    }
}
