//! A stream that ends where its server breaks a bound of the protocol.
//!
//! The libraries of databases believe a length that a server announces, and read until
//! so much has come. A broken server would make them fill the memory. So what comes is
//! followed, message by message, before the library sees it: the bytes are looked at
//! where they lie, and not copied. What a message means is left to the library.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection of any kind.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// Where the messages of a protocol begin and end.
pub(super) trait Framing: Unpin {
    /// Follows what comes next, in pieces of any size.
    ///
    /// # Errors
    /// Which bound was broken, and by what.
    fn follow(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// Waits until more may come.
    fn poll_room(&self, _: &Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// A stream whose messages are followed. It gives nothing more once a bound was
/// broken.
pub(super) struct LimitedStream<F> {
    stream: Box<dyn ByteStream>,
    framing: F,
    broken: BrokenBound,
}

/// Which bound was broken, once one was. A library may tell of the end of the stream
/// alone.
#[derive(Clone, Default)]
pub(super) struct BrokenBound(Arc<OnceLock<String>>);

impl BrokenBound {
    pub(super) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

impl<F> LimitedStream<F> {
    pub(super) fn new(stream: impl ByteStream, framing: F) -> Self {
        Self {
            stream: Box::new(stream),
            framing,
            broken: BrokenBound::default(),
        }
    }

    /// The same stream, of which nothing has come yet.
    #[cfg(feature = "redis")]
    pub(super) fn with_framing(self, framing: F) -> Self {
        Self { framing, ..self }
    }

    /// Tells of it when the stream is with the library.
    #[cfg(feature = "redis")]
    pub(super) fn broken(&self) -> BrokenBound {
        self.broken.clone()
    }

    /// The stream itself, whose bytes are followed no more.
    #[cfg(feature = "postgres")]
    pub(super) fn into_inner(self) -> Box<dyn ByteStream> {
        self.stream
    }
}

impl<F: Framing> AsyncRead for LimitedStream<F> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.broken.get().is_none() {
            ready!(this.framing.poll_room(context));
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            let come = buffer.filled().get(before..).unwrap_or_default();
            if let Err(why) = this.framing.follow(come) {
                this.broken.0.get_or_init(|| why);
            }
        }
        Poll::Ready(match this.broken.get() {
            Some(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
            None => Ok(()),
        })
    }
}

impl<F: Unpin> AsyncWrite for LimitedStream<F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// For tests of a framing: the first bound that `bytes` break, which has to be the same
/// however they are cut in two.
#[cfg(test)]
pub(super) fn followed<F: Framing>(new: impl Fn() -> F, bytes: &[u8]) -> Result<(), String> {
    let whole = new().follow(bytes);
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        let mut framing = new();
        let parted = framing.follow(first).and_then(|()| framing.follow(second));
        assert_eq!(parted, whole, "cut at {at}");
    }
    let mut framing = new();
    let each = bytes.chunks(1).try_for_each(|byte| framing.follow(byte));
    assert_eq!(each, whole, "byte by byte");
    whole
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct NoZero;

    impl Framing for NoZero {
        fn follow(&mut self, bytes: &[u8]) -> Result<(), String> {
            match bytes.contains(&0) {
                true => Err("expected no zero".into()),
                false => Ok(()),
            }
        }
    }

    #[tokio::test]
    async fn nothing_comes_after_a_bound_was_broken() {
        let (mut server, ours) = tokio::io::duplex(64);
        server.write_all(b"ab\0cd").await.expect("to write");
        let mut stream = LimitedStream::new(ours, NoZero);
        let mut buffer = [0; 2];
        assert_eq!(stream.read(&mut buffer).await.expect("two"), 2);
        for _ in 0..2 {
            let error = stream.read(&mut buffer).await.expect_err("a bound");
            assert_eq!(error.to_string(), "expected no zero");
        }
    }
}
