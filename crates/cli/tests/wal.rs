//! `tenure wal inspect` and `tenure wal verify`, on logs as they are found.

use std::path::Path;
use std::process::{Command, Output};

use tenure::core::ids::Term;
use tenure::core::time::ClockId;
use tenure_alpo::codec::crc32c;
use tenure_alpo::{
    Batch, ClusterId, Entry, HardState, Identity, Limits, Payload, Position, ServerId, Snapshot,
    State, StorageId,
};
use tenure_server::wal::{Options, Wal};

const SEGMENT: &str = "0000000000000001.wal";

fn tenure(arguments: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(arguments)
        .arg(dir)
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The state after two entries, as bytes.
fn image(last: Position) -> Vec<u8> {
    let mut state = State::new(Limits::default(), ClockId::default());
    for id in 1..=last.id {
        let (term, payload) = (last.term, Payload::NoOp);
        let time = id;
        state.apply(&Entry {
            id,
            term,
            time,
            payload,
        });
    }
    state.encode()
}

/// A log of three groups; locked while the value lives.
fn write_log(dir: &Path) -> Wal {
    write_log_with(dir, image)
}

/// The same with another snapshot.
fn write_log_with(dir: &Path, image: impl FnOnce(Position) -> Vec<u8>) -> Wal {
    let identity = Identity {
        cluster: ClusterId::from_u128(0xc1),
        server: ServerId::new(7).expect("a number"),
        storage: StorageId::from_u128(1),
    };
    let term = Term::new(3).expect("a term");
    let options = Options {
        segment_bytes: 64 * 1024,
    };
    let mut wal = Wal::create(dir, &identity, options).expect("a new log");
    let entry = |id| Entry {
        id,
        term,
        time: id,
        payload: Payload::NoOp,
    };
    let hard = HardState {
        term,
        ..HardState::default()
    };
    let last = Position::new(term, 2);
    let bytes = image(last).into();
    let snapshot = Snapshot { last, bytes };
    let batches = [
        Batch {
            number: 1,
            hard: Some(hard),
            entries: vec![entry(1), entry(2), entry(3)],
            ..Batch::default()
        },
        Batch {
            number: 2,
            snapshot: Some(snapshot),
            truncate: Some(3),
            ..Batch::default()
        },
        Batch {
            number: 3,
            entries: vec![entry(3)],
            ..Batch::default()
        },
    ];
    for batch in &batches {
        wal.append(std::slice::from_ref(batch)).expect("room");
    }
    wal
}

/// Changes bits of the byte at `offset` of the first segment.
fn damage(dir: &Path, offset: usize) {
    let path = dir.join(SEGMENT);
    let mut bytes = std::fs::read(&path).expect("a segment");
    bytes[offset] ^= 0x42;
    std::fs::write(&path, bytes).expect("a segment");
}

/// All files with their contents.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .expect("a directory")
        .map(|file| {
            let file = file.expect("a file");
            let bytes = std::fs::read(file.path()).expect("its bytes");
            (file.file_name().to_string_lossy().into_owned(), bytes)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_sound_log_is_printed_a_line_per_record_and_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(write_log(dir.path()));
    let before = contents(dir.path());
    let shown = tenure(&["wal", "inspect"], dir.path());
    let lines = text(&shown.stdout);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let expected = [
        "segment: 65536 bytes",
        "group 1: 512 bytes",
        "hard state: term 3, last reign 0, no vote",
        "entry 1@3 at 1 ns: no-op",
        "entry 2@3",
        "entry 3@3",
        "group 2",
        "snapshot at 2@3",
        "truncate: entries from 3 on are gone",
        "group 3",
        "entry 3@3",
    ];
    assert_eq!(lines.lines().count(), expected.len(), "{lines}");
    for (line, words) in lines.lines().zip(expected) {
        assert!(line.contains(words), "expected {words:?} in {line:?}");
    }
    let shown = tenure(&["--json", "wal", "inspect"], dir.path());
    let kinds: Vec<String> = text(&shown.stdout)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
        .map(|object| object["kind"].as_str().expect("a kind").to_owned())
        .collect();
    assert_eq!(kinds.len(), expected.len(), "{kinds:?}");
    assert_eq!(kinds[..3], ["segment", "group", "hard"]);

    let judged = tenure(&["wal", "verify"], dir.path());
    let line = text(&judged.stdout);
    assert_eq!(judged.status.code(), Some(0), "{line}");
    assert!(
        line.contains("sound") && line.contains("the snapshot at 2@3 and 1 entries"),
        "{line}"
    );
    assert_eq!(contents(dir.path()), before);
}

#[test]
fn a_log_in_use_is_said_to_be() {
    let dir = tempfile::tempdir().expect("a directory");
    let wal = write_log(dir.path());
    let judged = tenure(&["--json", "wal", "verify"], dir.path());
    let object: serde_json::Value = serde_json::from_slice(&judged.stdout).expect("JSON");
    assert_eq!(object["in_use_by"], std::process::id());
    assert_eq!(
        (&object["sound"], &object["last"]),
        (&true.into(), &3.into())
    );
    drop(wal);
}

#[test]
fn damage_is_said_with_file_and_place_and_fails() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(write_log(dir.path()));
    damage(dir.path(), 512 + 70);
    let before = contents(dir.path());
    for command in ["verify", "inspect"] {
        let judged = tenure(&["wal", command], dir.path());
        let said = text(&judged.stderr);
        assert_eq!(judged.status.code(), Some(1), "{said}");
        for words in [
            SEGMENT,
            "at byte 5",
            "had been acknowledged",
            "nothing was changed",
        ] {
            assert!(said.contains(words), "expected {words:?} in: {said}");
        }
    }
    assert_eq!(contents(dir.path()), before);
}

#[test]
fn a_damaged_snapshot_is_said_even_if_the_log_can_do_without() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(write_log(dir.path()));
    let name = format!("snapshot-{:016x}-{:016x}.snap", 2, 3);
    std::fs::write(dir.path().join(&name), "").expect("a snapshot");
    let judged = tenure(&["wal", "verify"], dir.path());
    let line = text(&judged.stdout);
    assert_eq!(judged.status.code(), Some(1), "{line}");
    assert!(
        line.contains("a server could start") && line.contains(&name),
        "{line}"
    );
}

/// The files are whole, but a server that starts refuses the state.
#[test]
fn a_snapshot_that_no_server_starts_from_is_not_sound() {
    let later = |last| {
        let mut bytes = image(last);
        bytes[0] = 200;
        let at = bytes.len() - 4;
        let sum = crc32c(&bytes[..at]);
        bytes[at..].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let no_state: fn(Position) -> Vec<u8> = |_| b"state".to_vec();
    for (image, words) in [
        (no_state, "its checksum is wrong; nothing was changed"),
        (
            later,
            "found version 200; nothing was changed; a later release",
        ),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        drop(write_log_with(dir.path(), image));
        let judged = tenure(&["wal", "verify"], dir.path());
        let said = text(&judged.stderr);
        assert_eq!(judged.status.code(), Some(1), "{said}");
        assert!(judged.stdout.is_empty(), "{}", text(&judged.stdout));
        let name = format!("snapshot-{:016x}-{:016x}.snap", 2, 3);
        assert!(said.contains(&name) && said.contains(words), "{said}");
        assert!(said.contains("the state at 2@3"), "{said}");
        // What is in the log can still be looked at.
        let shown = tenure(&["wal", "inspect"], dir.path());
        assert!(shown.status.success(), "{}", text(&shown.stderr));
    }
}

#[test]
fn a_torn_write_is_no_damage() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(write_log(dir.path()));
    let path = dir.path().join(SEGMENT);
    let mut bytes = std::fs::read(&path).expect("a segment");
    // The third group, but for its first bytes.
    bytes[1536 + 20..2048].fill(0);
    std::fs::write(&path, bytes).expect("a segment");
    let judged = tenure(&["wal", "verify"], dir.path());
    let line = text(&judged.stdout);
    assert_eq!(judged.status.code(), Some(0), "{line}");
    assert!(
        line.contains("never finished") && line.contains("byte 1536"),
        "{line}"
    );
    let shown = tenure(&["wal", "inspect"], dir.path());
    assert!(
        text(&shown.stdout).contains("torn: "),
        "{}",
        text(&shown.stdout)
    );
}

#[test]
fn what_is_no_data_directory_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for (path, words) in [
        (dir.path().to_owned(), "no identity file"),
        (
            dir.path().join("nowhere"),
            "check that the directory is the right one",
        ),
    ] {
        let judged = tenure(&["wal", "verify"], &path);
        let said = text(&judged.stderr);
        assert_eq!(judged.status.code(), Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    }
}
