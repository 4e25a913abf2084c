//! Watches that many ask for, and that nobody reads: others are answered, and
//! told everything.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

#![allow(clippy::print_stderr, reason = "it tells what it measured")]

#[path = "common/attacked.rs"]
mod attacked;
mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use attacked::{
    Alone, PROMPT, Probes, SOON, Whole, all, attacked, code, connect, growth, head, resident,
    runtime,
};
use common::servers::{Cluster, led};
use tenure_api::v1::registers_client::RegistersClient;
use tenure_api::v1::{self};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::body::Body as Content;
use tonic::codegen::{Bytes, http};
use tonic::transport::Channel;

const MIB: u64 = 1024 * 1024;
const REGISTERS: u64 = 4_000;
/// Without a session a server takes 512 writes at a time.
const WRITERS: usize = 250;

fn key(number: u64) -> String {
    format!("registers/{number:05}")
}

/// Writes a register that is as `expect` says, and gives its version.
async fn write(channel: Channel, number: u64, expect: Option<u64>) -> u64 {
    let swap = v1::Swap {
        key: key(number),
        value: vec![7; 64].into(),
        expect,
        ..v1::Swap::default()
    };
    let request = v1::CompareAndSwapRequest {
        swap: Some(swap),
        numbered: None,
    };
    let mut registers = RegistersClient::new(channel);
    let answer = registers.compare_and_swap(request).await.expect("done");
    let answer = answer.into_inner();
    assert!(answer.swapped);
    answer.version
}

/// Writes these registers, as the versions say that they are, many at a time;
/// their versions after it.
async fn write_all(
    channel: &Channel,
    numbers: Range<u64>,
    versions: &BTreeMap<u64, u64>,
) -> BTreeMap<u64, u64> {
    let mut begun = JoinSet::new();
    for from in 0..WRITERS {
        let own = numbers.clone().skip(from).step_by(WRITERS);
        let own: Vec<_> = own.map(|it| (it, versions.get(&it).copied())).collect();
        let channel = channel.clone();
        begun.spawn(async move {
            let mut written = Vec::new();
            for (number, expect) in own {
                written.push((number, write(channel.clone(), number, expect).await));
            }
            written
        });
    }
    all(begun).await.into_iter().flatten().collect()
}

/// Watches of everything on one connection, of which nothing but the heads are
/// read.
async fn unread(channel: &Channel, watches: usize) -> Vec<http::Response<Content>> {
    let mut begun = JoinSet::new();
    for _ in 0..watches {
        let channel = channel.clone();
        // All keys: an empty message.
        let body = Content::new(Whole(Some(Bytes::from_static(&[0; 5]))));
        begun.spawn(async move { head(channel, "/tenure.v1.Registers/Watch", body).await });
    }
    all(begun).await
}

/// A watch that is read, and the versions that it has told.
struct Watch {
    messages: tonic::Streaming<v1::WatchResponse>,
    told: BTreeMap<String, u64>,
    revision: u64,
}

impl Watch {
    async fn begin(channel: &Channel) -> Self {
        let mut registers = RegistersClient::new(channel.clone());
        let request = v1::WatchRequest {
            prefix: "registers/".into(),
            ..v1::WatchRequest::default()
        };
        let messages = registers.watch(request).await.expect("a watch");
        let mut watch = Self {
            messages: messages.into_inner(),
            told: BTreeMap::new(),
            revision: 0,
        };
        while !watch.next(true).await {}
        watch
    }

    /// Takes a message; whether it was the last of those with which a watch
    /// begins.
    async fn next(&mut self, initial: bool) -> bool {
        let message = timeout(SOON, self.messages.message()).await;
        let message = message.expect("in time").expect("no error");
        let message = message.expect("no end");
        assert_eq!(message.initial, initial);
        assert!(message.revision >= self.revision);
        self.revision = message.revision;
        for changed in message.changes {
            let Some(register) = changed.register else {
                self.told.remove(&changed.key);
                continue;
            };
            let before = self.told.insert(changed.key, register.version);
            assert!(before.is_none_or(|it| it < register.version));
        }
        message.began
    }
}

/// What is there now.
async fn list(channel: &Channel) -> BTreeMap<String, u64> {
    let mut registers = RegistersClient::new(channel.clone());
    let (mut all, mut more) = (BTreeMap::new(), true);
    while more {
        let request = v1::ListRequest {
            prefix: "registers/".into(),
            after: all
                .last_key_value()
                .map(|(key, _): (&String, _)| key.clone()),
            ..v1::ListRequest::default()
        };
        let page = registers.list(request).await.expect("a page").into_inner();
        more = page.more;
        let version = |it: v1::Named| (it.key, it.register.expect("it is there").version);
        all.extend(page.registers.into_iter().map(version));
    }
    all
}

#[test]
fn a_leader_with_a_thousand_watches_that_are_not_read_answers_and_leads_on() {
    let mut cluster = Cluster::apart();
    // So long that nobody stands because the machine is busy.
    cluster.args = ["--election-timeout", "8s"].map(str::to_owned).into();
    let start = |id| {
        let mut command = cluster.command(&attacked(), id);
        command.stdout(Stdio::null()).spawn()
    };
    cluster.servers = (1..=3).map(|id| start(id).expect("a server")).collect();
    led(&cluster.url());
    let leader = cluster.leader() - 1;
    let address = cluster.clients[leader].clone();
    let process = cluster.servers[leader].id();
    let runtime = runtime();
    let rightful = runtime.block_on(connect(&address, 2));
    let none = BTreeMap::new();
    let mut versions = runtime.block_on(write_all(&rightful, 0..REGISTERS, &none));
    let (term, before) = (cluster.term(), resident(process));

    let probes = Probes::start(&address, process);
    let held = runtime.block_on(async {
        let channel = connect(&address, 1).await;
        let heads = unread(&channel, 1_000).await;
        let refused = heads.iter().find(|it| code(it).is_some());
        assert!(
            refused.is_none(),
            "{:?}",
            refused.map(http::Response::headers)
        );
        (channel, heads)
    });
    let begins = probes.end();

    let probes = Probes::start(&address, process);
    runtime.block_on(async {
        let mut watch = Watch::begin(&rightful).await;
        assert_eq!(watch.told.len() as u64, REGISTERS);
        let written = write_all(&rightful, 0..3_000, &versions).await;
        versions.extend(written);
        let wanted: BTreeMap<_, _> = versions.iter().map(|(it, at)| (key(*it), *at)).collect();
        while watch.told != wanted {
            watch.next(false).await;
        }
        // Each of the changes was told, and has its revision.
        assert_eq!(watch.revision, REGISTERS + 3_000);
    });
    let tells = probes.end();
    eprintln!("for how long a probe waited: {begins:?} while they began, then {tells:?}");
    assert!(begins.max(tells) < PROMPT / 2, "{begins:?}, {tells:?}");
    let grew = growth(process, before);
    assert!(grew < 128 * MIB, "{} MiB", grew / MIB);
    assert_eq!(cluster.leader() - 1, leader);
    assert_eq!(cluster.term(), term);
    drop(held);
}

/// Each began with a page of 80 kB, which has been read.
#[test]
fn watches_that_wait_hold_nothing_of_what_they_were_told() {
    let alone = Alone::start(None);
    let runtime = runtime();
    runtime.block_on(async {
        let channel = connect(&alone.address, 1).await;
        for number in 0..4 {
            let swap = v1::Swap {
                key: key(number),
                value: vec![7; 20_000].into(),
                ..v1::Swap::default()
            };
            let request = v1::CompareAndSwapRequest {
                swap: Some(swap),
                numbered: None,
            };
            let mut registers = RegistersClient::new(channel.clone());
            registers.compare_and_swap(request).await.expect("done");
        }
        let before = resident(alone.server.id());
        let mut held = Vec::new();
        for _ in 0..4 {
            let channel = connect(&alone.address, 1).await;
            for _ in 0..10 {
                let mut begun = JoinSet::new();
                for _ in 0..50 {
                    let channel = channel.clone();
                    begun.spawn(async move { Watch::begin(&channel).await });
                }
                held.extend(all(begun).await);
            }
        }
        let grew = growth(alone.server.id(), before);
        assert!(grew < 128 * MIB, "{} MiB", grew / MIB);
        drop(held);
    });
}

#[test]
fn watches_that_begin_while_registers_change_come_to_what_is_there() {
    let alone = Alone::start(None);
    let runtime = runtime();
    let channel = runtime.block_on(connect(&alone.address, 1));
    let none = BTreeMap::new();
    let mut versions = runtime.block_on(write_all(&channel, 0..2_000, &none));
    let over = Arc::new(AtomicBool::new(false));
    let (changing, ended) = (channel.clone(), Arc::clone(&over));
    let changes = runtime.spawn(async move {
        let mut registers = RegistersClient::new(changing.clone());
        let (mut number, mut gone) = (0, 0);
        while !ended.load(Ordering::Relaxed) || gone < 20 {
            number = (number + 7) % 2_000;
            if let Some(expect) = versions.remove(&number)
                && number % 3 == 0
            {
                let request = v1::DeleteRequest {
                    key: key(number),
                    expect,
                    numbered: None,
                };
                let deleted = registers.delete(request).await.expect("done");
                assert!(deleted.into_inner().deleted);
                gone += 1;
            } else {
                let read = v1::ReadRequest {
                    key: key(number),
                    stale: true,
                };
                let read = registers.read(read).await.expect("read").into_inner();
                let expect = read.register.map(|it| it.version);
                versions.insert(number, write(changing.clone(), number, expect).await);
            }
        }
    });
    runtime.block_on(async {
        let mut begun = JoinSet::new();
        for from in 2..=11 {
            let channel = connect(&alone.address, from).await;
            begun.spawn(async move { Watch::begin(&channel).await });
        }
        let watches = all(begun).await;
        over.store(true, Ordering::Relaxed);
        changes.await.expect("no panic");
        let wanted = list(&channel).await;
        assert!(wanted.len() < 2_000, "twenty were deleted");
        for mut watch in watches {
            while watch.told != wanted {
                watch.next(false).await;
            }
        }
    });
}
