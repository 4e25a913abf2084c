//! `docs/reference/formats.md` is the law of what is on disk: the bytes shown there are
//! those that this code writes. `UPDATE_GOLDENFILES=1` writes them anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tenure_alpo::{
    Batch, ClusterVersion, Command, Entry, HardState, Limits, Member, Membership, Operation,
    Payload, Position, Rank, ServerId, SessionOpener, SessionOwner, Snapshot, State, Vote,
    VotingStatus,
};
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::ClockId;
use tenure_server::wal::{Options, Wal, verify_on};

use super::memory::Memory;
use super::model::{identity, term};

const BEGIN: &str = "<!-- golden: begin -->\n";
const END: &str = "<!-- golden: end -->";

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/formats.md")
}

fn owner() -> SessionOwner {
    SessionOwner {
        secret: Some([0x11; 16]),
        opener: SessionOpener::Token([0x22; 16]),
    }
}

/// Every kind of payload and of operation once.
fn entries() -> Vec<Entry> {
    let server = |number| ServerId::new(number).expect("a number");
    let storage = identity().storage;
    let learner = Member {
        voting_status: VotingStatus::Learner,
        storage,
    };
    let mut members = Membership::bootstrapped([(server(7), storage)]);
    members = members.iter().chain([(server(300), learner)]).collect();
    let key = Key::new("job/1").expect("a key");
    let version = Version::from_u64(5);
    let write = |expect, stamp| Write {
        key: key.clone(),
        expect,
        value: Arc::from(&b"value"[..]),
        stamp,
    };
    let command = |serial, operation| {
        Payload::Command(Command {
            session: 3,
            serial,
            outstanding: 1,
            operation,
        })
    };
    let payloads = [
        Payload::NoOp,
        Payload::Members(members),
        Payload::Open {
            ttl: 10_000_000_000,
        },
        command(1, Operation::Append(Arc::from(&b"hello"[..]))),
        command(2, Operation::swap(write(Expect::Absent, Stamp::Now))),
        command(
            3,
            Operation::swap(write(Expect::Version(version.clone()), Stamp::Keep)),
        ),
        command(4, Operation::delete(key.clone(), version)),
        command(
            5,
            Operation::bind(write(Expect::Absent, Stamp::Now), Arc::from(&b"last"[..])),
        ),
        command(6, Operation::KeepAlive),
        command(7, Operation::Close),
        Payload::Expire { session: 3 },
        Payload::Version(ClusterVersion::FIRST),
        Payload::OpenOwned {
            ttl: 10_000_000_000,
            owner: owner(),
        },
    ];
    payloads
        .into_iter()
        .zip(1..)
        .map(|(payload, id)| Entry {
            id,
            term: term(2),
            time: id * 1_000_000,
            payload,
        })
        .collect()
}

/// The state after the first eight of them: a session, an entry of the plain
/// log and a register that is bound are there.
fn state(version: ClusterVersion) -> Vec<u8> {
    let clock = ClockId {
        boot: 300,
        namespace: 2,
    };
    let mut state = State::new(Limits::default(), clock).with_version(version);
    for mut entry in entries().into_iter().take(8) {
        if let (Payload::Open { ttl }, ClusterVersion::SECOND) = (&entry.payload, version) {
            let (ttl, owner) = (*ttl, owner());
            entry.payload = Payload::OpenOwned { ttl, owner };
        }
        state.apply(&entry);
    }
    state.encode()
}

/// A small log with a record of each kind and two segments.
fn golden() -> Memory {
    let disk = Memory::new();
    let options = Options {
        segment_bytes: 2048,
    };
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), options).expect("a new log");
    let voted = HardState {
        term: term(2),
        last_reign: term(2),
        vote: Some(Vote {
            rank: Rank {
                last: Position::ZERO,
                server: identity().server,
            },
            storage: None,
        }),
    };
    let first = Batch {
        number: 1,
        hard: Some(voted),
        entries: entries(),
        ..Batch::default()
    };
    let snapshot = Snapshot {
        last: Position::new(term(2), 9),
        bytes: Arc::new(b"state".to_vec()),
    };
    let second = Batch {
        number: 2,
        snapshot: Some(snapshot),
        ..Batch::default()
    };
    let third = Batch {
        number: 3,
        truncate: Some(10),
        ..Batch::default()
    };
    let fourth = Batch {
        number: 4,
        hard: Some(HardState {
            term: term(200),
            ..HardState::default()
        }),
        ..Batch::default()
    };
    wal.append(&[first]).expect("a sound disk");
    wal.append(&[second, third]).expect("a sound disk");
    wal.append(&[fourth]).expect("a sound disk");
    // The one record that cluster version 1 does not know.
    let fifth = Batch {
        number: 5,
        hard: Some(with_disk(voted)),
        ..Batch::default()
    };
    wal.append(&[fifth]).expect("a sound disk");
    drop(wal);
    let (report, _) = verify_on(&disk).expect("a sound log");
    assert_eq!((report.segments, report.groups), (2, 4));
    disk
}

/// The same in the form of cluster version 2.
fn with_disk(hard: HardState) -> HardState {
    let storage = Some(identity().storage);
    let vote = hard.vote.map(|vote| Vote { storage, ..vote });
    HardState { vote, ..hard }
}

/// As `hexdump -C` shows it.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut before = None;
    let mut skipped = false;
    for (row, line) in bytes.chunks(16).enumerate() {
        if before == Some(line) {
            if !skipped {
                text.push_str("*\n");
            }
            skipped = true;
            continue;
        }
        (before, skipped) = (Some(line), false);
        let _ = write!(text, "{:08x} ", row * 16);
        for (column, byte) in line.iter().enumerate() {
            let gap = if column == 8 { " " } else { "" };
            let _ = write!(text, "{gap} {byte:02x}");
        }
        let width = 10 + 16 * 3 + 2;
        let so_far = 9 + line.len() * 3 + usize::from(line.len() > 8);
        let _ = write!(text, "{:1$}|", "", width - so_far);
        for byte in line {
            text.push(if (b' '..0x7f).contains(byte) {
                char::from(*byte)
            } else {
                '.'
            });
        }
        text.push_str("|\n");
    }
    let _ = writeln!(text, "{:08x}", bytes.len());
    text
}

#[test]
fn the_document_shows_what_is_written() {
    let disk = golden();
    let mut shown = String::new();
    for name in disk.files() {
        let _ = write!(
            shown,
            "`{name}`\n\n```text\n{}```\n\n",
            dump(&disk.bytes(&name))
        );
    }
    let (before, newer) = (state(ClusterVersion::FIRST), state(ClusterVersion::SECOND));
    let _ = write!(
        shown,
        "The state after entry 8:\n\n```text\n{}```\n\n\
         The same in a cluster of version 2, where the session has an owner:\n\n\
         ```text\n{}```\n\n",
        dump(&before),
        dump(&newer)
    );
    let text = std::fs::read_to_string(document()).expect("docs/reference/formats.md");
    let (head, rest) = text
        .split_once(BEGIN)
        .expect("the begin of the golden bytes");
    let (found, foot) = rest.split_once(END).expect("the end of the golden bytes");
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        let text = format!("{head}{BEGIN}\n{shown}{END}{foot}");
        std::fs::write(document(), text).expect("docs/reference/formats.md is written");
        return;
    }
    assert_eq!(
        found.trim(),
        shown.trim(),
        "what is written to disk is not what docs/reference/formats.md says; if the change is meant, give \
         the format a new version, say in the document what changed, and run this test with \
         UPDATE_GOLDENFILES=1"
    );
    let version = format!("version {}", tenure_server::wal::FORMAT_VERSION);
    assert!(
        head.contains(&version),
        "expected {version:?} in docs/reference/formats.md"
    );
    for state in [before, newer] {
        let version = format!("state version {}", state[0]);
        assert!(
            head.contains(&version),
            "expected {version:?} in docs/reference/formats.md"
        );
    }
}
