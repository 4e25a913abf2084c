//! The connection of a client with TLS, whose errors say what to mend.
//!
//! Most of what goes wrong between a client and a server with certificates is
//! heard late: by the time the server has looked at the client's, the client's
//! own part of the handshake is over, and the verdict is an alert in place of
//! the first answer. So what is read and written is watched, too, and the name
//! of an alert is replaced by what it means ([`distrust`](super::distrust)).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connect::ClientTlsFiles;
use super::distrust::for_client;
use super::line::Line;

/// A client's connection.
#[derive(Debug)]
pub struct ClientLine {
    line: Line,
    files: Arc<ClientTlsFiles>,
}

impl ClientLine {
    /// With the files that its errors are about.
    pub(super) fn new(line: Line, files: Arc<ClientTlsFiles>) -> Self {
        Self { line, files }
    }

    fn told<T>(&self, result: io::Result<T>) -> Poll<io::Result<T>> {
        Poll::Ready(
            result.map_err(|error| match for_client(&error, &self.files) {
                Some(text) => io::Error::new(error.kind(), text),
                None => error,
            }),
        )
    }
}

impl AsyncRead for ClientLine {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.line).poll_read(context, buffer));
        self.told(read)
    }
}

impl AsyncWrite for ClientLine {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.line).poll_write(context, bytes));
        self.told(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.line).poll_flush(context));
        self.told(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = ready!(Pin::new(&mut self.line).poll_shutdown(context));
        self.told(ended)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.line).poll_write_vectored(context, parts));
        self.told(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.line.is_write_vectored()
    }
}
