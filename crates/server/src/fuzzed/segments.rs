//! The file of a segment, as a disk may give it back.

use crc32c::{crc32c, crc32c_append};
use tenure_alpo::{
    Batch, ClusterId, Entry, HardState, Identity, Payload, Recovered, ServerId, StorageId,
};
use tenure_core::ids::Term;

use super::disk::Memory;
use crate::wal::{Options, Wal, verify_on};

const SEGMENT: &str = "0000000000000001.wal";
const SECTOR: usize = 512;
/// A record before its payload.
const FRAME: usize = 9;
/// The header of a group with its frame.
const HEADER: usize = 58;
/// No log counts beyond this.
const NUMBER_MAX: u64 = i64::MAX as u64;
const SHORT: Options = Options {
    segment_bytes: 1024,
};

/// `bytes` as the only segment of a log: as they are, with the checksums put
/// right, and with everything else that says where a group stands.
pub(super) fn segments(bytes: &[u8]) {
    segment(bytes);
    for places in [false, true] {
        let mut reset = bytes.to_vec();
        mend(&mut reset, places);
        segment(&reset);
    }
}

fn identity() -> Identity {
    Identity {
        cluster: ClusterId::from_u128(0xc1),
        server: ServerId::new(7).expect("a number"),
        storage: StorageId::from_u128(0x5702_a6e0_0000_0000_dead_beef_0000_0001),
    }
}

/// What is accepted must go on: a server opens it, writes to it, and finds
/// everything again.
fn segment(bytes: &[u8]) {
    let disk = Memory::default();
    let made = Wal::create_on(Box::new(disk.clone()), &identity(), SHORT);
    made.expect("a new log");
    disk.put(SEGMENT, bytes.to_vec());
    let Ok((_, before)) = verify_on(&disk) else {
        let opened = Wal::open_on(Box::new(disk), &identity(), SHORT);
        assert!(opened.is_err(), "verifying and opening agree");
        return;
    };
    let opened = Wal::open_on(Box::new(disk.clone()), &identity(), SHORT);
    let (mut wal, opened) = opened.expect("what is verified can be opened");
    assert_eq!(opened, before, "verifying and opening agree");
    let mut wanted = before;
    // Enough for the segment to be closed, and the one after it.
    for number in 1..=4 {
        let batch = next(&wanted, number);
        wal.append(std::slice::from_ref(&batch))
            .expect("what is opened can be written");
        wanted.hard = batch.hard.unwrap_or(wanted.hard);
        wanted.entries.extend(batch.entries);
        let (report, found) = verify_on(&disk).expect("what is written can be read");
        assert_eq!(report.torn, None, "opening has cut what was torn");
        assert_eq!((found.hard, &found.entries), (wanted.hard, &wanted.entries));
    }
    drop(wal);
    let again = Wal::open_on(Box::new(disk), &identity(), SHORT);
    let (_, again) = again.expect("what was written can be opened");
    assert_eq!((again.hard, again.entries), (wanted.hard, wanted.entries));
}

/// A batch that may follow.
fn next(recovered: &Recovered, number: u64) -> Batch {
    let snapshot = recovered.snapshot.as_ref().map_or(0, |it| it.last.id);
    let last = recovered.entries.last().map_or(snapshot, |it| it.id);
    let entry = Entry {
        id: last.saturating_add(1),
        term: Term::MAX,
        time: u64::MAX,
        payload: Payload::NoOp,
    };
    Batch {
        number,
        hard: Some(HardState {
            term: Term::MAX,
            ..HardState::default()
        }),
        entries: if last < NUMBER_MAX {
            vec![entry]
        } else {
            Vec::new()
        },
        ..Batch::default()
    }
}

/// Makes lengths and checksums right, and if `places` is set also where each
/// group says that it stands, so that what is inside is reached.
fn mend(bytes: &mut Vec<u8>, places: bool) {
    bytes.resize(bytes.len().next_multiple_of(SECTOR).max(2 * SECTOR), 0);
    let length = bytes.len() as u64;
    bytes[64..72].copy_from_slice(&length.to_le_bytes());
    let sum = crc32c(&bytes[16..SECTOR]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    let mut number = u64::from_le_bytes(bytes[72..80].try_into().expect("eight"));
    let mut chained = word(bytes, 88);
    let mut group = SECTOR;
    while group + HEADER < bytes.len() {
        let inside = word(bytes, group + FRAME + 24) as usize;
        let Some(end) = group.checked_add(inside) else {
            return;
        };
        if places && bytes[group + FRAME - 1] == 1 {
            let fields = &mut bytes[group + FRAME..group + HEADER];
            fields[..8].copy_from_slice(&number.to_le_bytes());
            fields[8..16].copy_from_slice(&1_u64.to_le_bytes());
            fields[16..24].copy_from_slice(&(group as u64).to_le_bytes());
            let salt = identity().storage.to_u128().to_le_bytes();
            fields[32..40].copy_from_slice(&salt[..8]);
            fields[44..48].copy_from_slice(&chained.to_le_bytes());
        }
        let mut sums = Vec::new();
        mend_record(bytes, group, &mut sums);
        let mut at = group + HEADER;
        while at + FRAME < end.min(bytes.len()) {
            at = mend_record(bytes, at, &mut sums);
        }
        if places && (group..bytes.len()).contains(&end.saturating_sub(1)) {
            bytes[end - 1] = 0xa5;
        }
        number = number.wrapping_add(1);
        chained = sums.iter().fold(0, |so_far, sum: &u32| {
            crc32c_append(so_far, &sum.to_le_bytes())
        });
        group = end.next_multiple_of(SECTOR).max(group + SECTOR);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let four = bytes[at..].first_chunk().copied();
    u32::from_le_bytes(four.unwrap_or_default())
}

/// Gives the record at `at` its checksum; where the next one begins.
fn mend_record(bytes: &mut [u8], at: usize, sums: &mut Vec<u32>) -> usize {
    let end = (at + FRAME).saturating_add(word(bytes, at) as usize);
    if end <= bytes.len() {
        let sum = crc32c(&bytes[at..at + 4]);
        let sum = crc32c_append(sum, &bytes[at + 8..end]);
        bytes[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
        sums.push(sum);
    }
    end
}
