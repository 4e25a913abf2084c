//! How things are written as bytes: on the wire, in the log files, in
//! snapshots.
//!
//! Numbers are written in groups of seven bits, low ones first (LEB128), and
//! byte strings with their length before them. There is exactly one way to
//! write a value: a longer form of a number, a length that goes past the end,
//! an unknown kind, bytes left over are all refused ([`DecodeError`]), never
//! guessed at. Reading allocates no more than the bytes that are there can
//! fill. The formats built from this are laid down in `docs/reference/formats.md`.

mod entries;
mod messages;

use alloc::vec::Vec;
use core::fmt;

use super::ids::MAX_NUMBER;

pub use entries::{decode_entry, decode_hard_state, encode_entry, encode_hard_state};
pub(super) use entries::{read_membership, read_owner, write_membership, write_owner};
pub use messages::{
    FRAME_HEADER_BYTES, FRAME_VERSION, FrameError, MAX_FRAME_BYTES, decode_envelope, decode_frame,
    decode_frame_with, encode_envelope, encode_frame, encode_frame_with,
};
pub use tenure_core::crc::{Checksum, Crc32c, crc32c, crc32c_append};

/// Why bytes make no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// They end too early.
    Truncated,
    /// There are bytes left over.
    Trailing,
    /// A number is out of range or written in a longer form than needed.
    Number,
    /// A kind that this version does not know.
    Kind(u8),
    /// A name or key that could not have been written.
    Name,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the bytes end too early"),
            Self::Trailing => f.write_str("there are bytes left over"),
            Self::Number => f.write_str("a number is out of range"),
            Self::Kind(kind) => write!(f, "kind {kind} is not known to this version"),
            Self::Name => f.write_str("a name is empty, too long or not text"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// Writes a number.
pub fn put_u64(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Writes bytes with their length before them.
pub fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(to, bytes.len() as u64);
    to.extend_from_slice(bytes);
}

/// Reads what was written, from the front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// The largest [`number`](Self::number).
    most: u64,
}

impl<'a> Reader<'a> {
    /// Over all of `bytes`, which this server has written, now or as an
    /// earlier release.
    pub const fn new(bytes: &'a [u8]) -> Self {
        let most = u64::MAX;
        Self { rest: bytes, most }
    }

    /// Over all of `bytes`, which somebody else has written: numbers above
    /// [`MAX_NUMBER`] are refused.
    pub const fn foreign(bytes: &'a [u8]) -> Self {
        let most = MAX_NUMBER;
        Self { rest: bytes, most }
    }

    /// What was not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// One byte.
    ///
    /// # Errors
    /// If there is none.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    /// A number.
    ///
    /// # Errors
    /// If it is cut off, too large, or written in a longer form than needed.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(DecodeError::Number);
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                let longer = shift > 0 && byte == 0;
                return if longer {
                    Err(DecodeError::Number)
                } else {
                    Ok(number)
                };
            }
        }
        Err(DecodeError::Number)
    }

    /// A number that will be compared, counted on and added to; not one whose
    /// bits alone mean something, as those of a hash do.
    ///
    /// # Errors
    /// As for [`u64`](Self::u64), or if it is more than is taken from its
    /// writer.
    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let number = self.u64()?;
        if number > self.most {
            return Err(DecodeError::Number);
        }
        Ok(number)
    }

    /// Yes or no.
    ///
    /// # Errors
    /// If it is neither.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Number),
        }
    }

    /// A fixed number of bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (first, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    /// Bytes with their length before them.
    ///
    /// # Errors
    /// If they are cut off.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = usize::try_from(self.u64()?).map_err(|_| DecodeError::Number)?;
        let (first, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(first)
    }

    /// How many things follow. Each takes at least one byte, so a count of
    /// more than there are bytes is refused before room is made for them.
    ///
    /// # Errors
    /// If it is more than can be there.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.u64()?).map_err(|_| DecodeError::Number)?;
        if count > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(count)
    }

    /// Nothing more.
    ///
    /// # Errors
    /// If there is.
    pub const fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Trailing)
        }
    }
}
