//! Reading frames from a connection.

use std::io;

use tenure_core::alpo::Envelope;
use tenure_core::alpo::codec::{FrameError, decode_frame_with};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much is read at once.
const CHUNK_BYTES: usize = 256 * 1024;

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

    /// Waits for bytes and hands every whole frame among them to `take`.
    ///
    /// # Errors
    /// If the connection ends or something else than a frame comes; frames
    /// before that have been handed over.
    pub async fn next(&mut self, mut take: impl FnMut(Envelope)) -> Result<(), ReadError> {
        self.buffer.reserve(CHUNK_BYTES);
        if self.from.read_buf(&mut self.buffer).await? == 0 {
            return Err(ReadError::Closed);
        }
        while let Some((envelope, bytes)) =
            decode_frame_with(crc32c::crc32c_append, &self.buffer[self.taken..])
                .map_err(ReadError::Frame)?
        {
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
        Ok(())
    }
}
