//! The formats of the replicated log (`docs/reference/formats.md`): what is written is
//! read, in one way only, and what was damaged is never read as something
//! else.

mod any;

use any::Any;
use tenure_alpo::codec::{
    Crc32c, DecodeError, FRAME_HEADER_BYTES, FRAME_VERSION, FrameError, MAX_FRAME_BYTES, Reader,
    crc32c, decode_entry, decode_envelope, decode_frame, decode_hard_state, encode_entry,
    encode_envelope, encode_frame, encode_hard_state, put_bytes, put_u64,
};
use tenure_alpo::{
    Body, Command, Entry, Envelope, HardState, Limits, MAX_NUMBER, Operation, Payload, Reply,
    Request, ServerId, SnapshotError, State,
};
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Term};
use tenure_core::rng::Rng;
use tenure_core::time::ClockId;

fn frame(envelope: &Envelope) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(&mut bytes, envelope);
    bytes
}

/// Bytes that `decode` takes give the same bytes when they are written again:
/// there is one way to write a thing.
fn canonical<T, E>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, E>,
    encode: impl Fn(&mut Vec<u8>, &T),
) -> bool {
    let Ok(read) = decode(bytes) else {
        return false;
    };
    let mut again = Vec::new();
    encode(&mut again, &read);
    assert_eq!(again, bytes);
    true
}

#[test]
fn the_checksum_is_crc_32c() {
    assert_eq!(crc32c(b""), 0);
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    // RFC 3720, appendix B.4.
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    let up: Vec<u8> = (0..32).collect();
    assert_eq!(crc32c(&up), 0x46dd_794e);
    let down: Vec<u8> = (0..32).rev().collect();
    assert_eq!(crc32c(&down), 0x113f_db5c);
}

#[test]
fn a_checksum_does_not_depend_on_where_it_was_interrupted() {
    let rng = &mut Rng::from_seed(1);
    for length in 0..100 {
        let bytes = rng.bytes(length);
        for cut in 0..=length {
            let (before, after) = bytes.split_at(cut);
            assert_eq!(Crc32c::new().and(before).and(after).value(), crc32c(&bytes));
        }
    }
}

#[test]
fn numbers_have_one_form() {
    let rng = &mut Rng::from_seed(2);
    for bits in 0..=64 {
        for _ in 0..20 {
            let number = rng.next_u64().checked_shr(64 - bits).unwrap_or(0);
            let mut bytes = Vec::new();
            put_u64(&mut bytes, number);
            assert_eq!(
                bytes.len(),
                (bits.max(1) as usize).div_ceil(7).min(bytes.len())
            );
            let mut from = Reader::new(&bytes);
            assert_eq!((from.u64(), from.end()), (Ok(number), Ok(())));
            // Cut off, and longer than needed.
            let cut = &bytes[..bytes.len() - 1];
            assert_eq!(Reader::new(cut).u64(), Err(DecodeError::Truncated));
            if let Some(last) = bytes.last_mut() {
                *last |= 0x80;
            }
            bytes.push(0);
            assert_eq!(Reader::new(&bytes).u64(), Err(DecodeError::Number));
        }
    }
    let most = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
    assert_eq!(Reader::new(&most).u64(), Ok(u64::MAX));
    let more = [255, 255, 255, 255, 255, 255, 255, 255, 255, 2];
    assert_eq!(Reader::new(&more).u64(), Err(DecodeError::Number));
    assert_eq!(Reader::new(&[255; 20]).u64(), Err(DecodeError::Number));
}

#[test]
fn every_kind_of_entry_and_hard_state_is_read_as_it_was_written() {
    let rng = &mut Rng::from_seed(3);
    let mut kinds = [0; 7];
    for _ in 0..5_000 {
        let id = rng.number();
        let entry = rng.entry(id);
        kinds[match entry.payload {
            Payload::NoOp => 0,
            Payload::Members(_) => 1,
            Payload::Open { .. } => 2,
            Payload::Command(_) => 3,
            Payload::Expire { .. } => 4,
            Payload::Version(_) => 5,
            Payload::OpenOwned { .. } => 6,
            #[cfg(feature = "next-version")]
            Payload::Note(_) => unreachable!("none is made"),
        }] += 1;
        let mut bytes = Vec::new();
        encode_entry(&mut bytes, &entry);
        assert_eq!(decode_entry(&bytes), Ok(entry));
        for cut in 0..bytes.len() {
            assert_eq!(decode_entry(&bytes[..cut]), Err(DecodeError::Truncated));
        }
        bytes.push(0);
        assert_eq!(decode_entry(&bytes), Err(DecodeError::Trailing));

        let hard = rng.hard_state();
        let mut bytes = Vec::new();
        encode_hard_state(&mut bytes, &hard);
        assert_eq!(decode_hard_state(&bytes), Ok(hard));
        for cut in 0..bytes.len() {
            assert_eq!(
                decode_hard_state(&bytes[..cut]),
                Err(DecodeError::Truncated)
            );
        }
    }
    assert!(kinds.iter().all(|times| *times > 300), "{kinds:?}");
}

/// The number of a message's kind, so that none is forgotten here.
fn kind(body: &Body) -> usize {
    match body {
        Body::Request { request, .. } => match request {
            Request::PreVote { .. } => 0,
            Request::Vote { .. } => 1,
            Request::Defer { .. } => 2,
            Request::Append { .. } => 3,
            Request::Heartbeat { .. } => 4,
            Request::Install { .. } => 5,
            Request::TimeoutNow => 6,
        },
        Body::Reply { reply, .. } => match reply {
            Reply::StaleTerm => 7,
            Reply::PreVoteGranted => 8,
            Reply::LeaderKnown { .. } => 9,
            Reply::LogIncomplete { .. } => 10,
            Reply::NotAMember => 11,
            Reply::Granted => 12,
            Reply::AlreadyVoted { .. } => 13,
            Reply::Deferred => 14,
            Reply::AlreadyLeader => 15,
            Reply::NotOutranked { .. } => 16,
            Reply::Appended { .. } => 17,
            Reply::Mismatch { .. } => 18,
            Reply::Heard { .. } => 19,
            Reply::Installed { .. } => 20,
            Reply::Standing => 21,
        },
    }
}

#[test]
fn every_kind_of_message_is_read_as_it_was_written() {
    let rng = &mut Rng::from_seed(4);
    let mut kinds = [0; 22];
    for _ in 0..10_000 {
        let envelope = rng.envelope();
        kinds[kind(&envelope.body)] += 1;
        let mut bytes = frame(&envelope);
        let length = bytes.len();
        let read = decode_frame(&bytes);
        assert_eq!(read, Ok(Some((envelope.clone(), length))));
        // What follows a frame is the next one's.
        bytes.extend(rng.bytes(5));
        assert_eq!(decode_frame(&bytes), read);
        for cut in 0..length {
            assert_eq!(decode_frame(&bytes[..cut]), Ok(None));
        }
        // The body alone, without what tells where it ends.
        let body = &bytes[FRAME_HEADER_BYTES..length];
        assert!(canonical(body, decode_envelope, encode_envelope));
        for cut in 0..body.len() {
            assert_eq!(decode_envelope(&body[..cut]), Err(DecodeError::Truncated));
        }
    }
    assert!(kinds.iter().all(|times| *times > 100), "{kinds:?}");
}

#[test]
fn a_single_damaged_bit_is_always_noticed() {
    let rng = &mut Rng::from_seed(5);
    let mut longer = 0;
    for _ in 0..1_000 {
        let mut bytes = frame(&rng.envelope());
        let length = bytes.len();
        // With and without more frames behind it.
        if rng.chance(50) {
            encode_frame(&mut bytes, &rng.envelope());
        }
        for bit in 0..8 * length {
            bytes[bit / 8] ^= 1 << (bit % 8);
            match decode_frame(&bytes) {
                Err(FrameError::Version(_)) => assert!(bit < 8),
                Err(FrameError::Header) => assert!((8..32).contains(&bit)),
                Err(FrameError::TooLong(_)) => assert!((32..64).contains(&bit)),
                Err(FrameError::Checksum) => assert!(bit >= 32),
                // A frame that seems longer than it is waits for its end,
                // where its checksum will be wrong.
                Ok(None) => {
                    assert!((32..64).contains(&bit));
                    longer += 1;
                }
                other => panic!("bit {bit}: {other:?}"),
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    assert!(longer > 1_000);
}

#[test]
fn damaged_bodies_are_refused_or_are_another_way_to_write_nothing() {
    // Below the checksum: whatever is accepted is what it would be written
    // as, so no two byte strings mean the same.
    let rng = &mut Rng::from_seed(6);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        let envelope = rng.envelope();
        encode_envelope(&mut bytes, &envelope);
        rng.damage(&mut bytes);
        match canonical(&bytes, decode_envelope, encode_envelope) {
            true => accepted += 1,
            false => refused += 1,
        }
        let mut bytes = Vec::new();
        let entry = rng.entry(1);
        encode_entry(&mut bytes, &entry);
        rng.damage(&mut bytes);
        canonical(&bytes, decode_entry, encode_entry);
        let mut bytes = Vec::new();
        encode_hard_state(&mut bytes, &rng.hard_state());
        rng.damage(&mut bytes);
        canonical(&bytes, decode_hard_state, encode_hard_state);
    }
    assert!(refused > 1_000 && accepted > 1_000, "{refused} {accepted}");
}

#[test]
fn noise_is_no_message() {
    let rng = &mut Rng::from_seed(7);
    for _ in 0..20_000 {
        let length = rng.below(64) as usize;
        let bytes = rng.bytes(length);
        canonical(&bytes, decode_envelope, encode_envelope);
        canonical(&bytes, decode_entry, encode_entry);
        canonical(&bytes, decode_hard_state, encode_hard_state);
        assert!(State::decode(&bytes).is_err());
        if length >= FRAME_HEADER_BYTES {
            assert!(decode_frame(&bytes).is_err(), "{bytes:?}");
        }
    }
}

/// A request to append up to where the number of entries stands.
fn append_of(count: u64) -> Vec<u8> {
    let mut bytes = vec![1, 2, 3, 4, 3];
    // prev (term, id), commit, round.
    for number in [0, 0, 0, 0, count] {
        put_u64(&mut bytes, number);
    }
    bytes
}

#[test]
fn absurd_lengths_are_refused_before_room_is_made_for_them() {
    assert!(decode_envelope(&append_of(0)).is_ok());
    for count in [1, 100, 1 << 20, 1 << 40, u64::MAX] {
        let read = decode_envelope(&append_of(count));
        assert_eq!(read, Err(DecodeError::Truncated), "{count} entries");
    }
    // An entry (id, term, time) that claims many members, a long payload.
    for length in [1, 1 << 20, 1 << 40, u64::MAX] {
        for head in [&[1, 1, 1, 1][..], &[1, 1, 1, 3, 1, 1, 1, 0]] {
            let mut bytes = head.to_vec();
            put_u64(&mut bytes, length);
            assert_eq!(decode_entry(&bytes), Err(DecodeError::Truncated));
        }
    }
    // More members than a cluster can have.
    let mut bytes = vec![1, 1, 1, 1, 32];
    bytes.extend([0; 32 * 18]);
    assert_eq!(decode_entry(&bytes), Err(DecodeError::Number));
    // A frame beyond the limit is refused by its header alone.
    let most = u32::try_from(MAX_FRAME_BYTES).expect("32 bits");
    let mut header = vec![FRAME_VERSION, 0, 0, 0];
    header.extend((most + 1).to_le_bytes());
    header.extend([0; 4]);
    assert_eq!(decode_frame(&header), Err(FrameError::TooLong(most + 1)));
    header[4..8].copy_from_slice(&most.to_le_bytes());
    assert_eq!(decode_frame(&header), Ok(None));
}

#[test]
fn numbers_out_of_range_are_refused() {
    let envelope = Envelope {
        from: ServerId::new(1).expect("a server"),
        to: ServerId::new(2).expect("a server"),
        term: Term::new(MAX_NUMBER).expect("a term"),
        body: Body::Request {
            number: MAX_NUMBER,
            request: Request::TimeoutNow,
        },
    };
    let mut bytes = Vec::new();
    encode_envelope(&mut bytes, &envelope);
    assert_eq!(decode_envelope(&bytes), Ok(envelope));
    let with = |from: u64, to: u64, term: u64, kind: u8| {
        let mut bytes = Vec::new();
        for number in [from, to, term, 1] {
            put_u64(&mut bytes, number);
        }
        bytes.push(kind);
        decode_envelope(&bytes).map(drop)
    };
    assert_eq!(with(1, 2, 3, 6), Ok(()));
    assert_eq!(with(0, 2, 3, 6), Err(DecodeError::Number));
    assert_eq!(with(1, 0, 3, 6), Err(DecodeError::Number));
    assert_eq!(with(1, 2, 1 << 63, 6), Err(DecodeError::Number));
    assert_eq!(with(1, 2, MAX_NUMBER + 1, 6), Err(DecodeError::Number));
    assert_eq!(with(1, 2, Term::MAX.get(), 6), Err(DecodeError::Number));
    assert_eq!(with(1, 2, 3, 7), Err(DecodeError::Kind(7)));
    assert_eq!(with(1, 2, 3, 64 + 15), Err(DecodeError::Kind(64 + 15)));
    assert_eq!(with(1, 2, 3, 255), Err(DecodeError::Kind(255)));
}

/// What an earlier release may have written to this server's own disk.
#[test]
fn an_own_disk_is_read_whatever_its_numbers() {
    let entry = Entry {
        id: u64::MAX,
        term: Term::MAX,
        time: u64::MAX,
        payload: Payload::NoOp,
    };
    let mut bytes = Vec::new();
    encode_entry(&mut bytes, &entry);
    assert_eq!(decode_entry(&bytes), Ok(entry));
    let hard = HardState {
        term: Term::MAX,
        last_reign: Term::MAX,
        vote: None,
    };
    let mut bytes = Vec::new();
    encode_hard_state(&mut bytes, &hard);
    assert_eq!(decode_hard_state(&bytes), Ok(hard));
}

#[test]
fn entries_of_a_message_follow_one_another() {
    let two = |ids: [u8; 2], terms: [u8; 2]| {
        let mut bytes = append_of(2);
        for (id, term) in ids.into_iter().zip(terms) {
            bytes.extend([id, term, 0, 0]);
        }
        decode_envelope(&bytes).map(drop)
    };
    assert_eq!(two([7, 8], [3, 3]), Ok(()));
    assert_eq!(two([7, 8], [3, 4]), Ok(()));
    assert_eq!(two([7, 8], [4, 3]), Err(DecodeError::Number));
    assert_eq!(two([7, 9], [3, 3]), Err(DecodeError::Number));
    assert_eq!(two([7, 7], [3, 3]), Err(DecodeError::Number));
}

#[test]
fn a_state_is_read_as_it_was_written() {
    let rng = &mut Rng::from_seed(8);
    for _ in 0..300 {
        let length = rng.below(120);
        let state = rng.state(length);
        let bytes = state.encode();
        let read = State::decode(&bytes).expect("a state");
        assert_eq!(read.encode(), bytes);
        assert_eq!(read.applied(), state.applied());
        assert_eq!(read.store_time(), state.store_time());
        assert_eq!(read.members(), state.members());
        assert_eq!(read.sessions(), state.sessions());
        assert_eq!(read.user_log(), state.user_log());
        assert_eq!(read.registers().revision(), state.registers().revision());
        let all = |state: &State| {
            let list = state.registers().list("");
            list.map(|(key, held)| (key.clone(), held.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(&read), all(&state));
    }
}

#[test]
fn a_state_that_was_read_goes_on_as_the_one_that_was_written() {
    let rng = &mut Rng::from_seed(9);
    for _ in 0..100 {
        let length = rng.below(80);
        let mut state = rng.state(length);
        let mut read = State::decode(&state.encode()).expect("a state");
        for _ in 0..40 {
            let entry = rng.next_entry(&state);
            assert_eq!(state.apply(&entry), read.apply(&entry), "{entry:?}");
            assert_eq!(state.encode(), read.encode());
        }
    }
}

#[test]
fn a_damaged_state_is_refused() {
    let rng = &mut Rng::from_seed(10);
    for _ in 0..20 {
        let mut bytes = rng.state(30).encode();
        for cut in 0..bytes.len() {
            assert!(State::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(State::decode(&bytes).err(), Some(SnapshotError::Checksum));
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
    let mut newer = vec![5];
    newer.extend(crc32c(&newer).to_le_bytes());
    assert_eq!(State::decode(&newer).err(), Some(SnapshotError::Version(5)));
}

#[test]
fn a_state_whose_registers_do_not_add_up_is_refused() {
    let mut state = State::new(Limits::default(), ClockId::default());
    let write = Write {
        key: Key::new("job").expect("a key"),
        expect: Expect::Absent,
        value: b"before".as_slice().into(),
        stamp: Stamp::Now,
    };
    let open = Payload::Open { ttl: u64::MAX };
    let swap = Payload::Command(Command {
        session: 1,
        serial: 1,
        outstanding: 1,
        operation: Operation::swap(write),
    });
    for (payload, id) in [open, swap].into_iter().zip(1..) {
        let term = Term::new(1).expect("a term");
        state.apply(&Entry {
            id,
            term,
            time: id,
            payload,
        });
    }
    let mut bytes = state.encode();
    assert!(State::decode(&bytes).is_ok());
    // As if memory had rotted before the snapshot was taken.
    bytes.truncate(bytes.len() - 4);
    let at = bytes
        .windows(6)
        .position(|found| found == b"before")
        .expect("it is in there");
    bytes[at] ^= 1;
    bytes.extend(crc32c(&bytes).to_le_bytes());
    assert_eq!(State::decode(&bytes).err(), Some(SnapshotError::Hash));
}

#[test]
fn a_state_has_one_form() {
    // Below the checksum again: damage it, and then make that right.
    let rng = &mut Rng::from_seed(11);
    let (mut refused, mut accepted) = (0, 0);
    for _ in 0..10_000 {
        let length = rng.below(25);
        let mut bytes = rng.state(length).encode();
        bytes.truncate(bytes.len() - 4);
        rng.damage(&mut bytes);
        let checksum = crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        match State::decode(&bytes) {
            Ok(state) => {
                assert_eq!(state.encode(), bytes);
                accepted += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 1_000 && accepted > 1_000, "{refused} {accepted}");
}

#[test]
fn byte_strings_are_read_with_their_length() {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, b"abc");
    put_bytes(&mut bytes, b"");
    let mut from = Reader::new(&bytes);
    assert_eq!(from.bytes(), Ok(&b"abc"[..]));
    assert_eq!(from.bytes(), Ok(&b""[..]));
    assert_eq!(from.bytes(), Err(DecodeError::Truncated));
    assert_eq!(from.end(), Ok(()));
}
