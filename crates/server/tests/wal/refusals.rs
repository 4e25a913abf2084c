//! Directories that are refused, and what is said.

use tenure_alpo::codec::crc32c;
use tenure_alpo::{Batch, ClusterId, Identity, Position, ServerId, Snapshot, StorageId};
use tenure_server::wal::{Wal, WalError, verify_on};

use super::memory::Memory;
use super::model::{SMALL, entry, identity, term};

fn open(disk: &Memory) -> Result<(), WalError> {
    Wal::open_on(Box::new(disk.clone()), &identity(), SMALL).map(drop)
}

fn batch(number: u64, bytes: usize) -> Batch {
    Batch {
        number,
        entries: vec![entry(number, 1, &vec![7; bytes])],
        ..Batch::default()
    }
}

/// Four segments and more.
fn several_segments() -> (Memory, Vec<String>) {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    for number in 1..=8 {
        wal.append(&[batch(number, 1500)]).expect("a sound disk");
    }
    let segments: Vec<_> = disk
        .files()
        .into_iter()
        .filter(|name| name.ends_with(".wal"))
        .collect();
    assert!(segments.len() >= 4, "{segments:?}");
    (disk, segments)
}

fn says(result: Result<(), WalError>, words: &[&str]) -> WalError {
    let error = result.expect_err("a refusal");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "expected {word:?} in: {text}");
    }
    error
}

/// A segment that could not be closed, and of which each byte is right.
#[test]
fn no_segment_may_lack_room_for_its_seal() {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    // A header and a group, each of one sector.
    wal.append(&[batch(1, 100)]).expect("a sound disk");
    let name = "0000000000000001.wal";
    let whole = disk.bytes(name);
    let shortened = |bytes: usize| {
        let mut segment = whole[..bytes].to_vec();
        segment[64..72].copy_from_slice(&(bytes as u64).to_le_bytes());
        let sum = crc32c(&segment[16..512]);
        segment[12..16].copy_from_slice(&sum.to_le_bytes());
        let copy = disk.copy();
        copy.put(name, segment);
        open(&copy)
    };
    assert!(shortened(3 * 512).is_ok());
    says(
        shortened(2 * 512),
        &[name, "leaves room for a seal", "a length of"],
    );
    says(shortened(512), &[name, "room for a seal", "one of 512"]);
}

#[test]
fn no_segment_may_be_missing() {
    let (disk, segments) = several_segments();
    for name in &segments {
        let copy = disk.copy();
        copy.delete(name);
        let error = says(open(&copy), &["expected", "found", "nothing was changed"]);
        assert!(error.to_string().contains(name.as_str()), "{name}: {error}");
    }
    for name in &segments {
        disk.delete(name);
    }
    says(open(&disk), &["0000000000000001.wal", "no such file"]);
}

#[test]
fn segments_of_two_logs_do_not_mix() {
    let (disk, segments) = several_segments();
    let other = Memory::new();
    let mut wal = Wal::create_on(Box::new(other.clone()), &identity(), SMALL).expect("a new log");
    for number in 1..=8 {
        // Of the same length: only the bytes differ.
        let other = Batch {
            entries: vec![entry(number, 1, &[8; 1500])],
            ..batch(number, 0)
        };
        wal.append(&[other]).expect("a sound disk");
    }
    for name in &segments[1..] {
        let copy = disk.copy();
        copy.put(name, other.bytes(name));
        says(open(&copy), &["as the next segment says"]);
    }
    disk.put(&segments[1], disk.bytes(&segments[2]));
    says(
        open(&disk),
        &["expected segment 2, found segment 3 under this name"],
    );
}

#[test]
fn no_file_may_be_empty() {
    let (disk, segments) = several_segments();
    for name in segments.iter().map(String::as_str).chain(["identity"]) {
        let copy = disk.copy();
        copy.put(name, Vec::new());
        says(open(&copy), &[name, "an empty file"]);
    }
}

#[test]
fn a_newer_format_is_said_to_be_newer() {
    let (disk, segments) = several_segments();
    for name in segments.iter().map(String::as_str).chain(["identity"]) {
        let copy = disk.copy();
        let mut bytes = copy.bytes(name);
        bytes[8] = 3;
        copy.put(name, bytes);
        let error = says(
            open(&copy),
            &[name, "found version 3", "run the newer release"],
        );
        assert!(matches!(
            error,
            WalError::Newer {
                found: 3,
                known: 2,
                ..
            }
        ));
    }
}

#[test]
fn other_magic_is_shown() {
    let (disk, segments) = several_segments();
    for name in segments.iter().map(String::as_str).chain(["identity"]) {
        let copy = disk.copy();
        let mut bytes = copy.bytes(name);
        bytes[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
        copy.put(name, bytes);
        says(open(&copy), &[name, "magic bytes TENURE", "\\x7fELF"]);
    }
}

#[test]
fn a_strangers_log_is_refused() {
    let (disk, _) = several_segments();
    let own = identity();
    let strangers = [
        (
            Identity {
                cluster: ClusterId::from_u128(0xc2),
                ..own
            },
            "cluster",
        ),
        (
            Identity {
                server: ServerId::new(8).expect("a number"),
                ..own
            },
            "server 8",
        ),
        (
            Identity {
                storage: StorageId::from_u128(1),
                ..own
            },
            "storage",
        ),
    ];
    for (stranger, word) in strangers {
        let opened = Wal::open_on(Box::new(disk.copy()), &stranger, SMALL).map(drop);
        let error = says(opened, &[word, "check which directory"]);
        assert!(matches!(error, WalError::Misplaced(_)));
        // The identity may fit and a segment not.
        let theirs = Memory::new();
        drop(Wal::create_on(Box::new(theirs.clone()), &stranger, SMALL).expect("a new log"));
        let mixed = disk.copy();
        let name = "0000000000000001.wal";
        mixed.put(name, theirs.bytes(name));
        says(
            open(&mixed),
            &[name, word.split(' ').next().expect("a word")],
        );
    }
}

#[test]
fn a_log_is_made_once_and_opened_only_if_made() {
    let disk = Memory::new();
    says(open(&disk), &["no identity file"]);
    let make = || Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).map(drop);
    make().expect("a new log");
    says(make(), &["a directory without a log", "server 7"]);
    let (disk, _) = several_segments();
    disk.delete("identity");
    says(open(&disk), &["identity", "no such file"]);
    let make = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).map(drop);
    says(make, &["the identity that goes with the log"]);
}

/// Lengths that no file can hold, under checksums that are right.
#[test]
fn absurd_lengths_are_refused() {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    wal.append(&[batch(1, 700)]).expect("a sound disk");
    let name = "0000000000000001.wal";
    // The header of the group, at 512: its frame is 9 bytes, its length is
    // the fourth number.
    for length in [0_u64, 57, 5_000, u64::MAX] {
        let copy = disk.copy();
        let mut bytes = copy.bytes(name);
        bytes[512 + 9 + 24..][..8].copy_from_slice(&length.to_le_bytes());
        let sum = tenure_alpo::codec::Crc32c::new()
            .and(&bytes[512..516])
            .and(&bytes[520..512 + 58])
            .value();
        bytes[516..520].copy_from_slice(&sum.to_le_bytes());
        copy.put(name, bytes);
        says(
            open(&copy),
            &[name, "at byte 512", "expected a group", &length.to_string()],
        );
    }
    for length in [u32::MAX, 1 << 20, 0] {
        let copy = disk.copy();
        let mut bytes = copy.bytes(name);
        bytes[512 + 58..][..4].copy_from_slice(&length.to_le_bytes());
        copy.put(name, bytes);
        says(open(&copy), &[name, "at byte 570", "expected a record"]);
    }
}

fn with_snapshots() -> Memory {
    let disk = Memory::new();
    let mut wal = Wal::create_on(Box::new(disk.clone()), &identity(), SMALL).expect("a new log");
    for number in 1..=20 {
        let snapshot = (number % 5 == 0).then(|| Snapshot {
            last: Position::new(term(1), number - 1),
            bytes: vec![number as u8; 900].into(),
        });
        let batch = Batch {
            snapshot,
            ..batch(number, 900)
        };
        wal.append(&[batch]).expect("a sound disk");
    }
    disk
}

#[test]
fn the_last_two_snapshots_are_kept_and_the_log_from_the_older_on() {
    let disk = with_snapshots();
    let snapshots: Vec<_> = disk
        .files()
        .into_iter()
        .filter(|name| name.ends_with(".snap"))
        .collect();
    let names = [14, 19].map(|id| format!("snapshot-{id:016x}-{:016x}.snap", 1));
    assert_eq!(snapshots, names);
    assert!(
        !disk.files().contains(&"0000000000000001.wal".to_owned()),
        "{:?}",
        disk.files()
    );
    let (report, recovered) = verify_on(&disk).expect("a sound log");
    assert_eq!(report.snapshot, Some(Position::new(term(1), 19)));
    assert_eq!(recovered.entries.len(), 1);

    // Without the newest, the one before and the log after it will do.
    let copy = disk.copy();
    copy.flip(&names[1], 500, 1);
    let (report, recovered) = verify_on(&copy).expect("the older one");
    assert_eq!(report.snapshot, Some(Position::new(term(1), 14)));
    assert_eq!(recovered.entries.len(), 6);
    assert_eq!(
        recovered.committed, 19,
        "what the newest held was committed"
    );
    assert!(report.spare_used.is_some());
    let copy = disk.copy();
    copy.delete(&names[1]);
    let opened = Wal::open_on(Box::new(copy), &identity(), SMALL);
    let (_, recovered) = opened.expect("the older one");
    assert_eq!((recovered.entries[0].id, recovered.entries.len()), (15, 6));

    // The older one alone is only said.
    let copy = disk.copy();
    copy.flip(&names[0], 500, 1);
    let (report, recovered) = verify_on(&copy).expect("the newest");
    assert_eq!(recovered.entries.len(), 1);
    assert!(report.spare_used.is_some());

    // Without both there is no way to know the beginning.
    copy.flip(&names[1], 500, 1);
    says(open(&copy), &[&names[1], "checksum"]);
}

#[test]
fn an_older_snapshot_without_the_log_after_it_is_not_used() {
    let disk = with_snapshots();
    let newest = format!("snapshot-{:016x}-{:016x}.snap", 19, 1);
    let oldest = disk
        .files()
        .into_iter()
        .find(|name| name.ends_with(".wal"))
        .expect("one");
    let copy = disk.copy();
    copy.delete(&oldest);
    let (report, _) = verify_on(&copy).expect("the newest snapshot covers it");
    assert_eq!(report.snapshot, Some(Position::new(term(1), 19)));
    copy.flip(&newest, 500, 1);
    says(open(&copy), &[&newest, "checksum"]);
}

#[test]
fn a_reset_leaves_nothing_to_fall_back_on() {
    let disk = with_snapshots();
    let (mut wal, _) =
        Wal::open_on(Box::new(disk.clone()), &identity(), SMALL).expect("a sound log");
    let reset = Batch {
        number: 1,
        snapshot: Some(Snapshot {
            last: Position::new(term(3), 100),
            bytes: vec![1; 10].into(),
        }),
        reset: true,
        entries: vec![entry(101, 3, b"after")],
        ..Batch::default()
    };
    wal.append(&[reset]).expect("a sound disk");
    let (_, recovered) = verify_on(&disk).expect("a sound log");
    assert_eq!(recovered.entries.len(), 1);
    let name = format!("snapshot-{:016x}-{:016x}.snap", 100, 3);
    let snapshots = disk
        .files()
        .into_iter()
        .filter(|name| name.ends_with(".snap"));
    assert_eq!(snapshots.collect::<Vec<_>>(), std::slice::from_ref(&name));
    disk.delete(&name);
    says(open(&disk), &[&name]);
}

#[test]
fn what_does_not_follow_is_refused_and_harms_nothing() {
    let disk = with_snapshots();
    let (mut wal, before) =
        Wal::open_on(Box::new(disk.clone()), &identity(), SMALL).expect("a sound log");
    let at = |id| {
        Some(Snapshot {
            last: Position::new(term(1), id),
            bytes: vec![1; 10].into(),
        })
    };
    let bad = [
        Batch {
            entries: vec![entry(22, 1, b"a gap")],
            ..Batch::default()
        },
        Batch {
            entries: vec![entry(20, 1, b"again")],
            ..Batch::default()
        },
        Batch {
            truncate: Some(19),
            ..Batch::default()
        },
        Batch {
            truncate: Some(22),
            ..Batch::default()
        },
        Batch {
            snapshot: at(21),
            ..Batch::default()
        },
        Batch {
            snapshot: at(18),
            ..Batch::default()
        },
        Batch {
            snapshot: at(0),
            reset: true,
            ..Batch::default()
        },
    ];
    for batch in bad {
        let error = says(
            wal.append(std::slice::from_ref(&batch)),
            &["please report it"],
        );
        assert!(matches!(error, WalError::Misuse(_)), "{batch:?}");
    }
    assert_eq!(verify_on(&disk).expect("a sound log").1, before);
    wal.append(&[Batch {
        entries: vec![entry(21, 1, b"next")],
        ..Batch::default()
    }])
    .expect("the log goes on");
}
