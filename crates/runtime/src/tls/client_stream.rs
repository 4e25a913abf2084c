//! The connection of a client with TLS, whose errors say what to mend.
//!
//! Most of what goes wrong between a client and a server with certificates is
//! heard late: by the time the server has looked at the client's, the client's
//! own part of the handshake is over, and the verdict is an alert in place of
//! the first answer. So what is read and written is watched, too, and the name
//! of an alert is replaced by what it means ([`explain_tls_error`](super::tls_error)).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::client_files::ClientTlsFiles;
use super::maybe_tls_stream::MaybeTlsStream;
use super::tls_error::explain_for_client;

/// A client's connection.
#[derive(Debug)]
pub struct ClientStream {
    stream: MaybeTlsStream,
    files: Arc<ClientTlsFiles>,
}

impl ClientStream {
    /// With the files that its errors are about.
    pub(super) fn new(stream: MaybeTlsStream, files: Arc<ClientTlsFiles>) -> Self {
        Self { stream, files }
    }

    fn explain_error<T>(&self, result: io::Result<T>) -> Poll<io::Result<T>> {
        Poll::Ready(
            result.map_err(|error| match explain_for_client(&error, &self.files) {
                Some(text) => io::Error::new(error.kind(), text),
                None => error,
            }),
        )
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.explain_error(read)
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.explain_error(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.explain_error(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = ready!(Pin::new(&mut self.stream).poll_shutdown(context));
        self.explain_error(ended)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts));
        self.explain_error(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
