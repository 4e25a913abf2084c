//! What a decoder is given and what must hold, for any bytes at all.
//!
//! Shared by the fuzzer (`examples/fuzz.rs`), which looks for bytes, and by
//! the test that replays those it once found worth keeping. A target panics
//! if a promise is broken, and says in a word or two what became of the
//! bytes, so that the fuzzer can tell what is new.

use tenure::wal::{Options, Wal, WalError, verify_on};
use tenure_core::alpo::codec::{
    Crc32c, FRAME_HEADER_BYTES, crc32c, decode_entry, decode_envelope, decode_frame,
    decode_hard_state, encode_entry, encode_frame, encode_hard_state,
};
use tenure_core::alpo::{Batch, HardState};

use super::memory::Memory;
use super::model::identity;

/// The name of the one segment that a `wal` input is.
pub(crate) const SEGMENT: &str = "0000000000000001.wal";
const SECTOR: usize = 512;
/// The header of a group with its frame.
const HEADER: usize = 58;

/// Gives `bytes` to a target.
pub(crate) fn run(target: &str, bytes: &[u8]) -> String {
    match target {
        "wal" => wal(bytes),
        "frame" => frame(bytes),
        other => panic!("expected the target wal or frame, found {other:?}"),
    }
}

/// `bytes` as a segment. What is accepted must go on: a server opens it,
/// writes to it, and finds everything again.
fn wal(bytes: &[u8]) -> String {
    let disk = Memory::new();
    drop(Wal::create_on(
        Box::new(disk.clone()),
        &identity(),
        Options {
            segment_bytes: 1024,
        },
    ));
    disk.put(SEGMENT, bytes.to_vec());
    let before = match verify_on(&disk) {
        Ok((_, recovered)) => recovered,
        Err(error) => return kind(&error),
    };
    let options = Options {
        segment_bytes: 1024,
    };
    let (mut wal, opened) = Wal::open_on(Box::new(disk.clone()), &identity(), options)
        .expect("what is verified can be opened");
    assert_eq!(opened, before, "verifying and opening agree");
    let hard = HardState {
        term: tenure_core::ids::Term::MAX,
        ..HardState::default()
    };
    let batch = Batch {
        number: 1,
        hard: Some(hard),
        ..Batch::default()
    };
    wal.append(&[batch]).expect("what is opened can be written");
    let (report, after) = verify_on(&disk).expect("what is written can be read");
    assert_eq!((after.hard, &after.entries), (hard, &before.entries));
    assert_eq!(report.torn, None, "opening has cut what was torn");
    format!("accepted with {} entries", before.entries.len().min(3))
}

/// What was missed, without numbers and without what stood in the file.
fn kind(error: &WalError) -> String {
    let text = match error {
        WalError::Damaged(fault) | WalError::Misplaced(fault) => {
            let late = fault.found.contains("acknowledged");
            format!("{}{}", fault.expected, if late { " behind" } else { "" })
        }
        other => other.to_string(),
    };
    let digits = |c: char| !c.is_ascii_digit() && !('a'..='f').contains(&c);
    text.chars().filter(|c| digits(*c)).take(100).collect()
}

/// `bytes` as a frame of the wire, as a message, an entry and a hard state.
/// There is one way to write each: what can be read is written the same.
fn frame(bytes: &[u8]) -> String {
    if let Ok(entry) = decode_entry(bytes) {
        let mut again = Vec::new();
        encode_entry(&mut again, &entry);
        assert_eq!(again, bytes, "an entry is written in one way");
    }
    if let Ok(hard) = decode_hard_state(bytes) {
        let mut again = Vec::new();
        encode_hard_state(&mut again, &hard);
        assert_eq!(again, bytes, "a hard state is written in one way");
    }
    let _ = decode_envelope(bytes);
    match decode_frame(bytes) {
        Ok(None) => "more bytes are needed".to_owned(),
        Ok(Some((envelope, length))) => {
            let mut again = Vec::new();
            encode_frame(&mut again, &envelope);
            assert_eq!(again, bytes[..length], "a frame is written in one way");
            let said = format!("{:?}", envelope.body);
            let word = |c: char| c.is_ascii_alphabetic();
            said.chars().filter(|c| word(*c)).take(60).collect()
        }
        Err(error) => format!("{error:?}")
            .chars()
            .filter(|c| !c.is_ascii_digit())
            .collect(),
    }
}

/// Makes the checksums and lengths right again, so that what is inside is
/// reached.
pub(crate) fn mend(target: &str, bytes: &mut Vec<u8>) {
    if target == "frame" {
        if bytes.len() >= FRAME_HEADER_BYTES {
            let length = (bytes.len() - FRAME_HEADER_BYTES) as u32;
            let sum = crc32c(&bytes[FRAME_HEADER_BYTES..]);
            bytes[..4].copy_from_slice(&[1, 0, 0, 0]);
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
            bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        }
        return;
    }
    bytes.resize(bytes.len().next_multiple_of(SECTOR).max(2 * SECTOR), 0);
    let length = bytes.len() as u64;
    bytes[64..72].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c(&bytes[16..SECTOR]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let mut group = SECTOR;
    while group + HEADER < bytes.len() {
        let Some(end) = word(bytes, group + 9 + 24).and_then(|n| group.checked_add(n)) else {
            return;
        };
        mend_record(bytes, group);
        let mut at = group + HEADER;
        while at + 9 < end.min(bytes.len()) {
            at = mend_record(bytes, at);
        }
        group = end.next_multiple_of(SECTOR).max(group + SECTOR);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let low = bytes.get(at..at + 4)?;
    Some(low.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b)))
}

/// Gives the record at `at` its checksum; where the next one begins.
fn mend_record(bytes: &mut [u8], at: usize) -> usize {
    let end = word(bytes, at).map_or(usize::MAX, |length| at + 9 + length);
    if end <= bytes.len() {
        let sum = Crc32c::new()
            .and(&bytes[at..at + 4])
            .and(&bytes[at + 8..end])
            .value();
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    }
    end
}
