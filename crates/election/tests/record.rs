//! The register's encoding (§1 of `docs/design/election.md`): what is written is read
//! back, and anything else is refused.

use std::time::Duration;

use tenure_core::cas::{Bytes, MAX_VALUE_BYTES};
use tenure_core::ids::{LeaderId, Name, Term};
use tenure_core::rng::Rng;
use tenure_core::time::WallTime;
use tenure_election::{Config, Holder, Occupancy, Record, RecordError, Request};

fn name(text: &str) -> Name {
    Name::new(text).expect("a good name")
}

fn sample() -> Record {
    Record {
        election: name("payroll"),
        term: Term::new(7).expect("a good term"),
        sequence: 93,
        renewal: 92,
        lease: Duration::from_secs(10),
        acquired_at: WallTime::from_millis(1_763_700_000_000),
        renewed_at: WallTime::from_millis(1_763_700_090_000),
        occupancy: Occupancy::Held(Holder {
            id: LeaderId::from_u128(0x00c0_ffee),
            name: name("web-1"),
            addresses: [name("10.0.0.7:8443"), name("[::1]:8443")].into(),
            params: Bytes::from(*b"{}"),
            request: Some(Request::Transfer(name("web-2"))),
        }),
    }
}

/// No candidate writes more, so one who does shows readers nothing.
#[test]
fn there_are_no_more_addresses_and_params_than_a_candidate_may_have() {
    let with = |addresses: usize, params: usize| {
        let mut record = sample();
        if let Occupancy::Held(holder) = &mut record.occupancy {
            holder.addresses = (0..addresses)
                .map(|it| name(&format!("host:{it}")))
                .collect();
            holder.params = vec![7; params].into();
        }
        (Record::decode(&record.encode()), record)
    };
    let (read, record) = with(Config::ADDRESSES_MAX, Config::PARAMS_MAX);
    assert_eq!(read, Ok(record));
    for (addresses, params, expected) in [
        (Config::ADDRESSES_MAX + 1, 0, "at most 16 addresses"),
        (900, 0, "at most 16 addresses"),
        (0, Config::PARAMS_MAX + 1, "at most 16384 bytes of params"),
    ] {
        let why = with(addresses, params).0.expect_err("too many").to_string();
        assert!(why.contains(expected), "{why}");
    }
}

/// Characters that have tripped encodings before: separators, look-alikes of
/// field names, many bytes, line separators that are no control characters.
const ALPHABET: &[char] = &[
    'a', 'Z', '0', ' ', '-', '.', ':', '/', '=', '"', '\\', '#', 'é', '漢', '🗳', '\u{2028}',
    '\u{feff}',
];

fn any_name(rng: &mut Rng) -> Name {
    if rng.chance(5) {
        return name("crc32c 00000000");
    }
    let most = rng.between(1, Name::MAX_BYTES as u64) as usize;
    let mut text = String::new();
    loop {
        let c = ALPHABET[rng.below(ALPHABET.len() as u64) as usize];
        if text.len() + c.len_utf8() > most && !text.is_empty() {
            return name(&text);
        }
        text.push(c);
    }
}

/// Zero, one, the largest, or anything.
fn any_number(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1,
        _ => rng.next_u64() >> rng.below(64),
    }
}

fn any_record(rng: &mut Rng) -> Record {
    let optional = |rng: &mut Rng| rng.chance(50).then(|| any_name(rng));
    let occupancy = if rng.chance(30) {
        Occupancy::Vacant {
            successor: optional(rng),
        }
    } else {
        let addresses: Vec<Name> = (0..rng.below(4)).map(|_| any_name(rng)).collect();
        let params: Vec<u8> = (0..rng.below(40)).map(|_| rng.next_u64() as u8).collect();
        let request = match rng.below(3) {
            0 => None,
            1 => Some(Request::Resign),
            _ => Some(Request::Transfer(any_name(rng))),
        };
        Occupancy::Held(Holder {
            id: LeaderId::from_u128(rng.next_u128() >> rng.below(128)),
            name: any_name(rng),
            addresses: addresses.into(),
            params: params.into(),
            request,
        })
    };
    Record {
        election: any_name(rng),
        term: Term::new(any_number(rng) >> 1).expect("63 bits"),
        sequence: any_number(rng) >> 2,
        renewal: any_number(rng) >> 2,
        lease: Duration::from_nanos(any_number(rng)).min(Config::LEASE_MAX),
        acquired_at: WallTime::from_millis(any_number(rng)),
        renewed_at: WallTime::from_millis(any_number(rng)),
        occupancy,
    }
}

#[test]
fn what_is_written_is_read_back() {
    let mut rng = Rng::from_seed(7);
    for _ in 0..5_000 {
        let record = any_record(&mut rng);
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
}

#[test]
fn two_records_that_differ_have_different_bytes() {
    let mut rng = Rng::from_seed(8);
    for _ in 0..2_000 {
        let (one, other) = (any_record(&mut rng), any_record(&mut rng));
        assert_eq!(one == other, one.encode() == other.encode());
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = sample().encode();
    for length in 0..bytes.len() {
        assert!(Record::decode(&bytes[..length]).is_err(), "at {length}");
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let bytes = sample().encode().to_vec();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            let decoded = Record::decode(&bytes);
            assert!(decoded.is_err(), "bit {bit} of byte {at}: {decoded:?}");
        }
    }
}

#[test]
fn bytes_behind_the_end_are_refused() {
    let bytes = sample().encode().to_vec();
    for tail in [&b"\n"[..], b" ", b"\0", b"crc32c 00000000\n", &bytes] {
        let bytes = [&bytes, tail].concat();
        assert!(Record::decode(&bytes).is_err(), "{tail:?}");
    }
}

#[test]
fn random_bytes_are_refused_and_never_panic() {
    let mut rng = Rng::from_seed(9);
    let good = sample().encode().to_vec();
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..rng.between(1, 6) {
            let at = rng.below(bytes.len() as u64) as usize;
            match rng.below(3) {
                0 => bytes[at] = rng.next_u64() as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, rng.next_u64() as u8),
            }
        }
        match Record::decode(&bytes) {
            Ok(record) => assert_eq!(record, sample(), "{bytes:?}"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A sequence that could not grow would make a living leader look silent.
#[test]
fn numbers_that_no_candidate_writes_are_refused() {
    let with = |change: &dyn Fn(&mut Record)| {
        let mut record = sample();
        change(&mut record);
        Record::decode(&record.encode()).map(|read| assert_eq!(read, record))
    };
    let refused = |result: Result<(), RecordError>, line: &str| match result {
        Err(RecordError::Field { expected, .. }) => {
            assert!(expected.starts_with(line), "{expected}");
        }
        other => panic!("expected {line} to be refused, found {other:?}"),
    };
    assert_eq!(with(&|it| it.sequence = 1 << 62), Ok(()));
    for sequence in [(1 << 62) + 1, u64::MAX] {
        refused(with(&|it| it.sequence = sequence), "sequence");
        refused(with(&|it| it.renewal = sequence), "renewal");
    }
    assert_eq!(with(&|it| it.lease = Config::LEASE_MAX), Ok(()));
    let longer = Config::LEASE_MAX + Duration::from_nanos(1);
    refused(with(&|it| it.lease = longer), "lease_ns");
    refused(
        with(&|it| it.lease = Duration::from_nanos(u64::MAX)),
        "lease_ns",
    );
}

#[test]
fn another_format_is_refused_whatever_follows() {
    for format in [0, 2, 10, u64::MAX] {
        let text = format!("tenure-election {format}\nanything at all");
        let expected = Err(RecordError::Newer { format });
        assert_eq!(Record::decode(text.as_bytes()), expected);
    }
    for text in [
        "tenure-election",
        "tenure-election -1\n",
        "tenure-election 1e3\n",
        "x",
    ] {
        let decoded = Record::decode(text.as_bytes());
        assert_eq!(decoded, Err(RecordError::NotARecord), "{text}");
    }
    assert_eq!(Record::decode(&[0xff, 0xfe]), Err(RecordError::NotARecord));
}

#[test]
fn the_longest_record_fits_every_store() {
    let longest = name(&"n".repeat(Name::MAX_BYTES));
    let mut record = sample();
    record.election = longest.clone();
    record.occupancy = Occupancy::Held(Holder {
        id: LeaderId::from_u128(u128::MAX),
        name: longest.clone(),
        addresses: vec![longest.clone(); Config::ADDRESSES_MAX].into(),
        params: vec![0xff; Config::PARAMS_MAX].into(),
        request: Some(Request::Transfer(longest)),
    });
    let bytes = record.encode();
    assert!(bytes.len() < MAX_VALUE_BYTES, "{} bytes", bytes.len());
    assert_eq!(Record::decode(&bytes), Ok(record));
}

#[test]
fn the_checksum_is_the_castagnoli_one() {
    // The check value of CRC-32C, as the register's last line carries it.
    let text = String::from_utf8(sample().encode().to_vec()).expect("text");
    let (body, sum) = text.split_at(text.rfind("crc32c").expect("a checksum"));
    let bit = |crc: u32| crc >> 1 ^ (0x82f6_3b78 * (crc & 1));
    let slow = |bytes: &[u8]| {
        !bytes.iter().fold(!0u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| bit(crc))
        })
    };
    assert_eq!(slow(b"123456789"), 0xe306_9283);
    assert_eq!(sum, format!("crc32c {:08x}\n", slow(body.as_bytes())));
}
