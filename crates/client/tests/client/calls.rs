//! Appending, reading, following, asking the servers how they are.

use std::net::TcpListener;
use std::time::Duration;

use tenure::clock;
use tenure::store::{Expect, Key, Stamp, Write};
use tenure_client::{Client, Config, Entry, Error};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use crate::servers::{SOON, Servers};

fn client(servers: &Servers) -> Client {
    let config = Config::default().timeout(SOON);
    Client::new(&servers.list(), &config).expect("a client")
}

fn write(key: &Key, expect: Expect, value: &[u8]) -> Write {
    Write {
        key: key.clone(),
        expect,
        value: value.into(),
        stamp: Stamp::Now,
    }
}

#[tokio::test]
async fn what_is_appended_is_read_and_tailed() {
    let servers = Servers::start(3);
    let client = client(&servers);
    assert_eq!(client.append("one").await, Ok(1));
    let mut news = client.tail(0);
    let mut tail = client.tail(1);
    let many: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    // Only what comes after the tail has begun is news, and when it has is
    // not for the caller to see: until it has heard something.
    let first = loop {
        client.append("try").await.expect("appended");
        if let Ok(entry) = tokio::time::timeout(Duration::from_millis(50), news.next()).await {
            break entry.expect("it goes on").expect("an entry");
        }
    };
    assert!(first.number > 1 && &*first.data == b"try", "{first:?}");
    let numbers = client.append_many(many.clone()).await.expect("appended");
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
    let (from, to) = (numbers[0], numbers[4_999]);
    let mut read = Vec::new();
    while read.len() < many.len() {
        let next = from + read.len() as u64;
        read.extend(client.read_log(next, 0).await.expect("a page"));
    }
    let expected: Vec<Entry> = numbers
        .iter()
        .zip(&many)
        .map(|(number, data)| Entry {
            number: *number,
            data: data.clone().into(),
        })
        .collect();
    assert_eq!(read, expected);
    for number in 1..=to {
        let entry = tokio::time::timeout(SOON, tail.next()).await;
        let entry = entry.expect("in time").expect("it goes on");
        assert_eq!(entry.expect("an entry").number, number);
    }
    assert_eq!(client.read_log(to + 1, 0).await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_tail_goes_on_while_servers_come_and_go() {
    let mut servers = Servers::start(3);
    let client = client(&servers);
    let mut tail = client.tail(1);
    let mut next = 1;
    for round in 1..=3 {
        for _ in 0..50 {
            client.append(vec![b'x'; 100]).await.expect("appended");
        }
        servers.stop(round).await;
        let last = client.append("last").await.expect("appended");
        while next <= last {
            let entry = tokio::time::timeout(SOON, tail.next()).await;
            let entry = entry.expect("in time").expect("it goes on");
            assert_eq!(entry.expect("an entry").number, next);
            next += 1;
        }
        servers.run(round);
    }
}

#[tokio::test]
async fn registers_are_written_by_comparison() {
    let servers = Servers::start(1);
    let client = client(&servers);
    let key = Key::new("a/key").expect("a key");
    let first = client
        .compare_and_swap(write(&key, Expect::Absent, b"1"))
        .await
        .expect("written");
    assert!(first.now.is_some());
    let again = client
        .compare_and_swap(write(&key, Expect::Absent, b"2"))
        .await;
    assert_eq!(again, Err(Error::Conflict));
    let read = client.read(&key).await.expect("a read");
    let held = read.register.expect("a register");
    assert_eq!((&*held.value, &held.version), (&b"1"[..], &first.version));
    assert_eq!(held.stamp, first.now);
    let listing = client.list("a/", None, 0).await.expect("a page");
    assert_eq!(listing.registers, [(key.clone(), held)]);
    assert!(!listing.more);
    let stranger = tenure::store::Version::from_u64(999);
    assert_eq!(client.delete(&key, &stranger).await, Err(Error::Conflict));
    assert_eq!(client.delete(&key, &first.version).await, Ok(()));
}

#[tokio::test]
async fn what_is_too_large_is_refused_and_harms_nothing() {
    let servers = Servers::start(1);
    let client = client(&servers);
    let most = tenure_alpo::MAX_ENTRY_BYTES;
    let beside = client.clone();
    let beside = tokio::spawn(async move { beside.append("beside").await });
    let over = client.append(vec![0; most + 1]).await;
    assert!(matches!(over, Err(Error::Refused { .. })), "{over:?}");
    // What the log needs beside it is not counted.
    let full = client.append(vec![0; most]).await;
    assert!(full.is_ok(), "{full:?}");
    assert!(beside.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn nobody_there_is_unavailable_in_time() {
    let config = Config::default().timeout(Duration::from_millis(300));
    let client = Client::new("127.0.0.1:1", &config).expect("a client");
    let asked = clock::boot();
    let answer = client.append("x").await;
    let took = clock::boot().since(asked);
    let Err(Error::Unavailable(why)) = answer else {
        panic!("{answer:?}");
    };
    assert!(why.contains("127.0.0.1:1"), "{why}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn one_server_leads_to_the_others() {
    let servers = Servers::start(3);
    let all = client(&servers);
    all.append("one").await.expect("appended");
    // A client that was told of one server only, whichever it is.
    for number in 1..=3 {
        let config = Config::default().timeout(SOON);
        let one = Client::new(servers.address(number), &config).expect("a client");
        one.append("more").await.expect("appended");
        let ids: Vec<_> = one.status().await.iter().map(|it| it.id).collect();
        assert_eq!(ids, [Some(1), Some(2), Some(3)]);
    }
}

#[tokio::test]
async fn servers_say_how_they_are_and_hand_over() {
    let mut servers = Servers::start(3);
    let client = client(&servers);
    client.append("one").await.expect("appended");
    let leader = client.leader_status().await.expect("a leader");
    let target = leader.id % 3 + 1;
    // A machine that stands still changes the leader too, but not each time.
    let mut tries = 0;
    loop {
        tries += 1;
        let moved = client.transfer(Some(target)).await;
        client.append("two").await.expect("appended");
        let leader = client.leader_status().await.expect("a leader");
        if moved.is_ok() && leader.id == target {
            break;
        }
        assert!(tries < 4, "{moved:?}; {} leads and not {target}", leader.id);
    }
    let other = target % 3 + 1;
    servers.stop(other).await;
    let status = client.status().await;
    let reached: Vec<_> = status.iter().map(|it| (it.id, it.status.is_ok())).collect();
    let expected: Vec<_> = (1..=3).map(|id| (Some(id), id != other)).collect();
    assert_eq!(reached, expected);
    let refused = client.promote_member(9).await;
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_backup_comes_whole() {
    let servers = Servers::start(1);
    let client = client(&servers);
    client.append(vec![7; 500_000]).await.expect("appended");
    client.append(vec![8; 900_000]).await.expect("appended");
    let mut backup = client.backup().await.expect("a backup");
    let mut bytes = 0;
    while let Some(part) = backup.next().await {
        bytes += part.expect("a part").len();
    }
    assert!(bytes > 1_400_000, "{bytes}");
}

#[tokio::test]
async fn a_session_outlives_idleness_and_a_new_one_follows_an_old() {
    let servers = Servers::start(1);
    let watcher = client(&servers);
    // Long enough for a busy machine to give the keep-alives in time.
    let ttl = Duration::from_secs(4);
    let config = Config::default().timeout(SOON).ttl(ttl);
    let client = Client::new(&servers.list(), &config).expect("a client");
    let first = client.append("one").await.expect("appended");
    let sessions = |it: &tenure_api::v1::StatusResponse| it.sessions;
    let status = client.leader_status().await.expect("a leader");
    assert_eq!(sessions(&status), 1);
    // Longer than it would live without a keep-alive.
    tokio::time::sleep(ttl * 3 / 2).await;
    let status = client.leader_status().await.expect("a leader");
    assert_eq!(sessions(&status), 1);
    assert_eq!(client.append("two").await, Ok(first + 1));
    drop(client);
    // Who goes says goodbye: this one would not expire for a long time.
    let other = Client::new(&servers.list(), &config.ttl(SOON * 2)).expect("a client");
    let gone = async || {
        while sessions(&watcher.leader_status().await.expect("a leader")) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let went = tokio::time::timeout(SOON, gone()).await;
    went.expect("the session is over");
    other.append("three").await.expect("appended");
    let status = other.leader_status().await.expect("a leader");
    assert_eq!(sessions(&status), 1);
    drop(other);
    let closed = tokio::time::timeout(SOON, gone()).await;
    closed.expect("the session was closed, and did not expire");
}

#[tokio::test]
async fn large_answers_asked_for_together_all_come() {
    let servers = Servers::start(1);
    let client = client(&servers);
    // As large as an entry may be.
    let entry = vec![7; 1024 * 1024];
    client.append(entry.clone()).await.expect("appended");
    // Together many times what one message may hold.
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..400 {
        let client = client.clone();
        asked.spawn(async move { client.read_log(1, 1).await });
    }
    for read in asked.join_all().await {
        assert_eq!(&read.expect("in time")[0].data[..], &entry[..]);
    }
}

/// A listener that hangs up on everybody, or keeps everybody waiting, and
/// tells of each who came.
fn door(who: &'static str, hangs_up: bool, came: &UnboundedSender<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let came = came.clone();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for guest in listener.incoming() {
            kept.extend(guest.ok().filter(|_| !hangs_up));
            if came.send(who).is_err() {
                return;
            }
        }
    });
    address
}

/// One that is silent may have led: who looks for the next leader must not
/// wait for its answer before the others are asked again.
#[tokio::test]
async fn a_silent_server_does_not_keep_the_others_from_being_asked() {
    let (tell, mut came) = unbounded_channel();
    let silent = door("silent", false, &tell);
    let busy = door("busy", true, &tell);
    let config = Config::default().timeout(SOON);
    let client = Client::new(&format!("{silent},{busy}"), &config).expect("a client");
    let asking = tokio::spawn(async move { client.append("x").await });
    // Until the silent one is asked a second time.
    let (mut silent, mut busy) = (0, 0);
    while silent < 2 {
        let next = tokio::time::timeout(SOON, came.recv()).await;
        match next.expect("they are asked").expect("the doors stay") {
            "silent" => silent += 1,
            _ => busy += 1,
        }
    }
    assert!(busy >= 4, "asked {busy} times while the other was silent");
    asking.abort();
}

/// Each question to a silent server is a new connection: a server that is busy would
/// be kept busy by them.
#[tokio::test]
async fn a_silent_server_is_asked_less_and_less_often() {
    let (tell, mut came) = unbounded_channel();
    let silent = door("silent", false, &tell);
    let config = Config::default().timeout(SOON);
    let client = Client::new(&silent, &config).expect("a client");
    let begun = clock::boot();
    let asking = tokio::spawn(async move { client.append("x").await });
    // With 200 ms for each the eighth comes after 1.4 s.
    for _ in 0..8 {
        let next = tokio::time::timeout(SOON, came.recv()).await;
        next.expect("it is asked").expect("the door stays");
    }
    let took = clock::boot().since(begun);
    assert!(took >= Duration::from_millis(2_500), "{took:?}");
    asking.abort();
}
