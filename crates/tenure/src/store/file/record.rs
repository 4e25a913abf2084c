//! The bytes of a file: a few lines of text, an empty one, and a value.
//!
//! ```text
//! tenure register 1
//! key elections/payroll
//! version 42 00c0ffee00c0ffee
//! stamp 17aa… 03bb… 1234567890
//! bytes 137
//! sha256 9f86d0…
//!
//! (137 bytes)
//! ```
//!
//! The first line has the version of the format. The checksum is that of the lines
//! before it and of the value, so that a file that was torn, edited or mixed up is
//! noticed. A version is a count and a *mark*, 64 random bits: the count grows, and
//! the mark sees to it that no version comes again although the count may, as after
//! an older copy of the directory was put back.

use sha2::{Digest as _, Sha256};
use tenure_core::time::{ClockId, StoreTime};

use crate::error::{StoreError, cut, quoted};
use crate::store::{Bytes, Key, MAX_VALUE_BYTES, Register, Version};

/// The version of the formats.
const FORMAT: &str = "1";
const REGISTER: &str = "register";
const STORE: &str = "store";
/// What stands for a stamp that there is not.
const NO_STAMP: &str = "none";
/// No file is longer: the lines take less than 2 KiB.
pub(super) const FILE_MAX: usize = MAX_VALUE_BYTES + 2_048;

/// A register as its file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) count: u64,
    mark: u64,
    pub(super) stamp: Option<StoreTime>,
    pub(super) value: Bytes,
}

impl Record {
    /// A state of a register that there never was before.
    pub(super) fn new(
        key: Key,
        count: u64,
        stamp: Option<StoreTime>,
        value: Bytes,
    ) -> Result<Self, StoreError> {
        let mut mark = [0; 8];
        getrandom::fill(&mut mark).map_err(StoreError::unavailable)?;
        Ok(Self {
            key,
            count,
            mark: u64::from_be_bytes(mark),
            stamp,
            value,
        })
    }

    pub(super) fn version(&self) -> Version {
        Version::from_bytes(&[self.count.to_be_bytes(), self.mark.to_be_bytes()].concat())
    }

    pub(super) fn register(&self) -> Register {
        Register {
            value: self.value.clone(),
            version: self.version(),
            stamp: self.stamp,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let stamp = self.stamp.map_or_else(
            || NO_STAMP.to_owned(),
            |stamp| {
                let ClockId { boot, namespace } = stamp.clock;
                format!("{boot:016x} {namespace:016x} {}", stamp.nanos)
            },
        );
        let lines = format!(
            "key {}\nversion {} {:016x}\nstamp {stamp}\nbytes {}\n",
            self.key,
            self.count,
            self.mark,
            self.value.len()
        );
        seal(REGISTER, &lines, &self.value)
    }

    /// # Errors
    /// What was found in place of a register.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (lines, value) = unseal(REGISTER, bytes)?;
        let parsed = parse(&lines, value);
        parsed.ok_or_else(|| "a checksum that holds, and lines that are none of ours".to_owned())
    }
}

fn parse(lines: &str, value: &[u8]) -> Option<Record> {
    let mut lines = lines.lines();
    let mut next = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let key = Key::new(next("key")?).ok()?;
    let (count, mark) = next("version")?.split_once(' ')?;
    let stamp = match next("stamp")? {
        NO_STAMP => None,
        text => {
            let mut parts = text.split(' ');
            let mut hex = || u64::from_str_radix(parts.next()?, 16).ok();
            let clock = ClockId {
                boot: hex()?,
                namespace: hex()?,
            };
            let nanos = parts.next()?.parse().ok()?;
            Some(StoreTime { clock, nanos })
        }
    };
    let length: usize = next("bytes")?.parse().ok()?;
    (length == value.len() && length <= MAX_VALUE_BYTES).then_some(())?;
    Some(Record {
        key,
        count: count.parse().ok()?,
        mark: u64::from_str_radix(mark, 16).ok()?,
        stamp,
        value: value.into(),
    })
}

/// The file of the directory itself: the highest count of a register that was
/// deleted. A register that is made anew counts on from there.
pub(super) fn encode_floor(floor: u64) -> Vec<u8> {
    seal(STORE, &format!("floor {floor}\n"), b"")
}

/// # Errors
/// What was found in its place.
pub(super) fn decode_floor(bytes: &[u8]) -> Result<u64, String> {
    let (lines, _) = unseal(STORE, bytes)?;
    let number = lines.strip_prefix("floor ").map(str::trim_end);
    let number = number.and_then(|it| it.parse().ok());
    number.ok_or_else(|| "a checksum that holds, and no floor".to_owned())
}

fn checksum(lines: &str, value: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(lines);
    digest.update(value);
    let bytes = digest.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seal(kind: &str, lines: &str, value: &[u8]) -> Vec<u8> {
    let lines = format!("tenure {kind} {FORMAT}\n{lines}");
    let sum = checksum(&lines, value);
    [
        lines.as_bytes(),
        format!("sha256 {sum}\n\n").as_bytes(),
        value,
    ]
    .concat()
}

/// The lines between the first and the checksum, and the value.
fn unseal<'a>(kind: &str, bytes: &'a [u8]) -> Result<(String, &'a [u8]), String> {
    if bytes.is_empty() {
        return Err("an empty file".to_owned());
    }
    if bytes.len() > FILE_MAX {
        return Err(format!("a file of more than {FILE_MAX} bytes"));
    }
    let first = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    match first.strip_prefix(&format!("tenure {kind} ")) {
        Some(FORMAT) => {}
        Some(other) => {
            let other = quoted(other);
            return Err(format!("format {other}, which this release does not know"));
        }
        None => return Err(format!("a file that begins with {:?}", cut(&first))),
    }
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let split = end.map(|end| (&bytes[..=end], &bytes[end + 2..]));
    let (head, value) = split.ok_or("a file that was cut off")?;
    let head = std::str::from_utf8(head).map_err(|_| "lines that are no text")?;
    let at = head.find("\nsha256 ").ok_or("no checksum")?;
    let (lines, sum) = head.split_at(at + 1);
    if sum.trim_end() != format!("sha256 {}", checksum(lines, value)) {
        return Err("a checksum that does not hold (damaged, cut off or edited)".to_owned());
    }
    let lines = lines.split_once('\n').map_or("", |(_, lines)| lines);
    Ok((lines.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: &[u8], stamp: Option<StoreTime>) -> Record {
        let key = Key::new("elections/sha256 ä").expect("a key");
        Record::new(key, 42, stamp, value.into()).expect("random bytes")
    }

    const STAMP: StoreTime = StoreTime {
        clock: ClockId {
            boot: 7,
            namespace: u64::MAX,
        },
        nanos: 1_234,
    };

    #[test]
    fn what_is_written_comes_back() {
        let large = vec![b'\n'; MAX_VALUE_BYTES];
        for value in [&b""[..], b"\n\n", b"text", b"\nsha256 1\n\n", &large] {
            for stamp in [None, Some(STAMP)] {
                let written = record(value, stamp);
                let bytes = written.encode();
                assert!(bytes.len() <= FILE_MAX);
                assert_eq!(Record::decode(&bytes), Ok(written));
            }
        }
        assert_eq!(decode_floor(&encode_floor(17)), Ok(17));
        let (one, other) = (record(b"", None), record(b"", None));
        assert_ne!(
            one.version(),
            other.version(),
            "the same count, another mark"
        );
    }

    #[test]
    fn a_file_that_was_changed_anywhere_or_cut_off_is_none() {
        let bytes = record(b"a value", Some(STAMP)).encode();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            Record::decode(&changed).expect_err("a changed byte");
            Record::decode(&bytes[..at]).expect_err("a file that was cut off");
        }
        let longer = [&bytes[..], b"x"].concat();
        Record::decode(&longer).expect_err("a byte too many");
        let floor = encode_floor(9);
        for at in 0..floor.len() {
            decode_floor(&floor[..at]).expect_err("a file that was cut off");
        }
    }

    #[test]
    fn what_was_found_is_told() {
        let newer = [b"tenure register 2\n".as_slice(), b"key x\n"].concat();
        for (bytes, told) in [
            (&b""[..], "an empty file"),
            (b"garbage", "begins with \"garbage\""),
            (&newer, "format 2"),
            (b"tenure register 1\nkey x\n", "cut off"),
        ] {
            let found = Record::decode(bytes).expect_err("no register");
            assert!(found.contains(told), "{found}");
        }
    }
}
