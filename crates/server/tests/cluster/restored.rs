//! A cluster that is restored from a backup: nothing is given out again, and
//! who comes from the lost one is told.

#![allow(
    clippy::needless_update,
    reason = "messages of the interface may get fields"
)]

use tenure::core::cas::{Expect, Stamp, Write};
use tenure::core::ha::{Keys, View};
use tenure::core::ids::{Key, Name};
use tenure_alpo::{ClusterVersion, JUMP, TERM_STEP};
use tenure_api::v1::{self, Cause, sessions_client::SessionsClient};
use tenure_client::{Client, Config, Error};

use crate::servers::{PATIENCE, Servers, cause, error, id};

async fn put(servers: &Servers, key: &str) -> v1::CompareAndSwapResponse {
    let swap = v1::Swap {
        key: key.to_owned(),
        value: "x".into(),
        ..v1::Swap::default()
    };
    let request = v1::CompareAndSwapRequest {
        swap: Some(swap),
        numbered: None,
    };
    servers.leader().await;
    let written = servers.registers(1).await.compare_and_swap(request).await;
    let written = written.expect("written").into_inner();
    assert!(written.swapped, "{written:?}");
    written
}

async fn open(servers: &Servers) -> u64 {
    let mut sessions = SessionsClient::new(servers.channel(1).await);
    let request = v1::OpenSessionRequest {
        ttl_millis: 60_000,
        ..v1::OpenSessionRequest::default()
    };
    let opened = sessions.open(request).await.expect("a session");
    opened.into_inner().session
}

fn client(servers: &Servers) -> Client {
    let config = Config::default().timeout(PATIENCE);
    Client::new(&servers.configs[&1].listen, &config).expect("a client")
}

async fn backup(servers: &Servers) -> Vec<u8> {
    let mut copy = Vec::new();
    let mut parts = client(servers).backup().await.expect("a backup");
    while let Some(part) = parts.next().await {
        copy.extend_from_slice(&part.expect("a part"));
    }
    copy
}

/// The only server ends, and is made anew from the backup.
async fn restore(servers: &mut Servers, copy: &[u8], anew: &str) {
    servers.stop(1).await;
    let (_, state) = tenure_server::read_backup(copy).expect("a backup");
    let data = servers.dir.path().join(anew);
    tenure_server::restore(state, &data, id(1)).expect("restored");
    servers.configs.get_mut(&1).expect("a server").data = data;
    servers.start(1);
    servers.leader().await;
}

#[tokio::test]
async fn ids_are_not_given_out_again_and_all_times_have_one_clock() {
    let mut servers = Servers::found(1, 0);
    servers.append("one").await;
    let kept = put(&servers, "kept").await.version;
    let session = open(&servers).await;
    let copy = backup(&servers).await;
    let (mut versions, mut sessions, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..5 {
        versions.push(put(&servers, &format!("lost-{turn}")).await.version);
        sessions.push(open(&servers).await);
        numbers.push(servers.append(&format!("lost-{turn}")).await);
    }
    restore(&mut servers, &copy, "anew").await;

    // Everything that was in the backup is there.
    let found = servers.read("kept").await;
    let register = found.register.clone().expect("it is there");
    assert_eq!((&*register.value, register.version), (&b"x"[..], kept));
    assert_eq!(servers.entries(1, 1).await, ["one"]);
    assert!(servers.read("lost-1").await.register.is_none());

    let written = put(&servers, "new").await;
    let clock = |time: &Option<v1::Time>| {
        let time = time.as_ref().expect("a time");
        (time.clock_high, time.clock_low)
    };
    assert_eq!(clock(&written.now), clock(&found.now));
    assert_eq!(clock(&written.now), clock(&register.stamp));
    for turn in 0..5 {
        let version = put(&servers, &format!("new-{turn}")).await.version;
        assert!(!versions.contains(&version) && version > JUMP && version < 1 << 53);
        let opened = open(&servers).await;
        assert!(!sessions.contains(&opened) && opened > JUMP);
        let number = servers.append(&format!("new-{turn}")).await;
        assert!(!numbers.contains(&number) && number > JUMP);
    }
    // What was asked under a session of the lost cluster is not known.
    let mut calls = SessionsClient::new(servers.channel(1).await);
    let numbered = v1::Numbered {
        session,
        serial: 1,
        outstanding: 1,
        ..v1::Numbered::default()
    };
    let request = v1::KeepAliveRequest {
        numbered: Some(numbered),
        ..v1::KeepAliveRequest::default()
    };
    let over = calls.keep_alive(request).await.expect_err("it is over");
    assert_eq!(cause(&over), Cause::SessionExpired);
    let mut cluster = servers.cluster(1).await;
    let status = cluster.status(v1::StatusRequest::default()).await;
    let status = status.expect("a status").into_inner();
    assert!(status.cluster_version >= ClusterVersion::SECOND.get());
}

#[tokio::test]
async fn a_reader_from_the_gap_is_told_and_not_sent_past_it() {
    let mut servers = Servers::found(1, 0);
    for text in ["one", "two"] {
        servers.append(text).await;
    }
    put(&servers, "a").await;
    let copy = backup(&servers).await;
    let lost = servers.append("lost").await;
    let version = put(&servers, "b").await.version;
    restore(&mut servers, &copy, "anew").await;
    let next = 3 + JUMP;
    // It is on the disk as well.
    servers.stop(1).await;
    servers.start(1);
    assert_eq!(servers.append("new").await, next);

    for from in [lost, lost + 1, next - 1] {
        for stale in [false, true] {
            let request = v1::ReadLogRequest {
                from,
                limit: 0,
                stale,
            };
            let told = servers.log(1).await.read(request).await;
            let told = told.expect_err("it is of the lost one");
            assert_eq!(cause(&told), Cause::Restored, "{told}");
            assert_eq!(error(&told).expected, next);
        }
    }
    let mut tail = servers.log(1).await.tail(v1::TailRequest { from: 2 }).await;
    let tail = tail.as_mut().expect("a tail").get_mut();
    let two = tail.message().await.expect("a message").expect("no end");
    assert_eq!(two.entries.len(), 1);
    let told = tail.message().await.expect_err("there is a gap");
    assert_eq!(cause(&told), Cause::Restored, "{told}");
    let reader = client(&servers);
    assert!(matches!(
        reader.read_log(lost, 0).await,
        Err(Error::Restored { next: told }) if told == next
    ));
    let mut tail = reader.tail(2);
    let two = tail.next().await.expect("an entry").expect("an entry");
    assert_eq!(two.number, 2);
    assert!(matches!(
        tail.next().await,
        Some(Err(Error::Restored { next: told })) if told == next
    ));

    for (after_id, after_revision) in [(Some(version), None), (None, Some(2)), (None, Some(1))] {
        let request = v1::WatchRequest {
            after_id,
            after_revision,
            ..v1::WatchRequest::default()
        };
        let told = servers.registers(1).await.watch(request).await;
        let told = told.expect_err("it is of the lost one");
        assert_eq!(cause(&told), Cause::Restored, "{told}");
        assert!(error(&told).expected > JUMP);
    }
    // A place that the restored one has told is good.
    let version = put(&servers, "c").await.version;
    let request = v1::WatchRequest {
        after_id: Some(version),
        ..v1::WatchRequest::default()
    };
    let watch = servers.registers(1).await.watch(request).await;
    assert!(watch.is_ok(), "{watch:?}");
}

#[tokio::test]
async fn epochs_of_groups_are_raised_and_a_restored_backup_is_restored_again() {
    let mut servers = Servers::found(1, 0);
    servers.leader().await;
    let name = Name::new("web").expect("a name");
    let key = Keys::of(name.clone()).view();
    let mut view = View::empty(name, 1, false);
    view.epoch = 41;
    let write = Write {
        key: Key::new(key.as_str()).expect("a key"),
        expect: Expect::Absent,
        value: view.encode(),
        stamp: Stamp::Now,
    };
    let written = client(&servers).compare_and_swap(write).await;
    written.expect("written");
    for times in 1..=2 {
        let copy = backup(&servers).await;
        restore(&mut servers, &copy, &format!("anew-{times}")).await;
        let found = servers.read(key.as_str()).await.register;
        let found = View::decode(&found.expect("it is there").value).expect("a view");
        assert_eq!(found.epoch, 41 + times * TERM_STEP);
        assert!(put(&servers, &format!("k-{times}")).await.version > times * JUMP);
    }
}
