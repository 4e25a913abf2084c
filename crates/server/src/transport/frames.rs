//! Reading frames from a connection.
//!
//! Beside the frames of messages there is one that only says that the sender
//! is alive, and how far its disk has come ([`PeerKeepAlive`]). A server that only
//! answers would be silent for hours on the connections to those who do not
//! lead, and could not be told from one that is gone. It is sent on
//! connections that began with a greeting of the second form.

use std::io;

use tenure_alpo::codec::{
    FRAME_HEADER_BYTES, FRAME_VERSION, FrameError, Reader, decode_frame_with, put_u64,
};
use tenure_alpo::{DiskProgress, Envelope, Position};
use tenure_core::ids::Term;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much is read at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// What the header of a keep-alive begins with: that of a message has zeros
/// behind the version.
pub(super) const KEEP_ALIVE: [u8; 4] = [FRAME_VERSION, 1, 0, 0];
/// The longest keep-alive; a later release may say more.
const MAX_KEEP_ALIVE_BYTES: u32 = 1_024;

/// A keep-alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerKeepAlive {
    /// How far the sender's disk has come.
    pub disk_progress: DiskProgress,
}

impl PeerKeepAlive {
    /// Appends a frame with it to `to`.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let mut body = Vec::with_capacity(40);
        let DiskProgress {
            term,
            last,
            settled,
        } = self.disk_progress;
        for number in [term.get(), last.term.get(), last.id, settled] {
            put_u64(&mut body, number);
        }
        to.extend_from_slice(&KEEP_ALIVE);
        to.extend_from_slice(&(body.len() as u32).to_le_bytes());
        to.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        to.extend_from_slice(&body);
    }

    /// The keep-alive that `bytes` begin with and how long it is; `None` if
    /// more bytes are needed.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some((header, rest)) = bytes.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let [_, _, _, _, l0, l1, l2, l3, c0, c1, c2, c3] = *header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if length > MAX_KEEP_ALIVE_BYTES {
            return Err(FrameError::TooLong(length));
        }
        let Some(body) = rest.get(..length as usize) else {
            return Ok(None);
        };
        if crc32c::crc32c(body) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(FrameError::Checksum);
        }
        let mut reader = Reader::foreign(body);
        let term = take_term(&mut reader)?;
        let last = Position::new(take_term(&mut reader)?, reader.number()?);
        let settled = reader.number()?;
        let disk_progress = DiskProgress {
            term,
            last,
            settled,
        };
        Ok(Some((
            Self { disk_progress },
            FRAME_HEADER_BYTES + body.len(),
        )))
    }
}

fn take_term(reader: &mut Reader<'_>) -> Result<Term, FrameError> {
    let term = Term::new(reader.number()?);
    Ok(term.ok_or(tenure_alpo::codec::DecodeError::Number)?)
}

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side closed it.
    #[error("the other side closed the connection")]
    Closed,
    /// What came is no frame.
    #[error("{0}")]
    Frame(FrameError),
}

/// Frames from a connection, with what has been read of the next one.
#[derive(Debug)]
pub struct FrameReader<R> {
    from: R,
    buffer: Vec<u8>,
    /// What of the buffer has been taken.
    taken: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `from`.
    pub fn new(from: R) -> Self {
        Self {
            from,
            buffer: Vec::with_capacity(CHUNK_BYTES),
            taken: 0,
        }
    }

    /// Waits for bytes and hands every whole message among them to `take`.
    /// Gives the newest keep-alive among them.
    ///
    /// # Errors
    /// If the connection ends or something else than a frame comes; frames
    /// before that have been handed over.
    pub async fn next(
        &mut self,
        mut take: impl FnMut(Envelope),
    ) -> Result<Option<PeerKeepAlive>, ReadError> {
        self.buffer.reserve(CHUNK_BYTES);
        if self.from.read_buf(&mut self.buffer).await? == 0 {
            return Err(ReadError::Closed);
        }
        let mut keep_alive = None;
        loop {
            let rest = &self.buffer[self.taken..];
            if rest.starts_with(&KEEP_ALIVE) {
                let Some((found, bytes)) = PeerKeepAlive::decode(rest).map_err(ReadError::Frame)?
                else {
                    break;
                };
                self.taken += bytes;
                keep_alive = Some(found);
                continue;
            }
            let decoded = decode_frame_with(crc32c::crc32c_append, rest);
            let Some((envelope, bytes)) = decoded.map_err(ReadError::Frame)? else {
                break;
            };
            self.taken += bytes;
            take(envelope);
        }
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            // A large frame must not keep its room for ever.
            self.buffer.shrink_to(4 * CHUNK_BYTES);
        } else {
            self.buffer.drain(..self.taken);
        }
        self.taken = 0;
        Ok(keep_alive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sign_of_life_is_told_from_messages_and_from_damage() {
        let term = Term::new(5).expect("a term");
        let disk_progress = DiskProgress {
            term,
            last: Position::new(term, 300),
            settled: 290,
        };
        let mut bytes = Vec::new();
        PeerKeepAlive { disk_progress }.encode(&mut bytes);
        // In two pieces, as it may come.
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        let mut reader = FrameReader::new(tokio::io::AsyncReadExt::chain(first, rest));
        let none = |_: Envelope| panic!("it is no message");
        assert!(matches!(reader.next(none).await, Ok(None)));
        let keep_alive = reader.next(none).await.expect("read");
        assert_eq!(keep_alive, Some(PeerKeepAlive { disk_progress }));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let read = FrameReader::new(&bad[..]).next(none).await;
            assert!(!matches!(read, Ok(Some(_))), "bit {bit}");
        }
    }
}
