//! What a client's connection begins with.
//!
//! HTTP/2 begins with 24 bytes that nothing else begins with, so a server that
//! speaks both has to read that far before it knows. A client that sends fewer
//! and then nothing would be waited for, for ever; so the beginning is read
//! here, where there is a clock, and then read again by what serves it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Request;
use hyper::service::Service;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, Take};

use super::account::Connection;
use super::connection_calls::Waiting;
use super::connection_limit::ConnectionPermit;
use super::given_up::GivenUp;
use super::unsent_answers::WriteTally;
use super::unsent_count::UnsentCount;
use crate::transport::{Arrival, MaybeTlsStream};

const HTTP_2: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of which the beginning has been read, and is read again.
pub(super) struct PeekedConnection {
    first: [u8; HTTP_2.len()],
    from: usize,
    to: usize,
    line: Take<MaybeTlsStream>,
    /// How much more is read before others have their turn.
    left: usize,
    /// Its calls that wait for their first turn.
    waiting: Waiting,
    tally: WriteTally,
}

/// Reads until it is clear which of the two is spoken.
pub(super) async fn begin(
    mut line: MaybeTlsStream,
    waiting: Waiting,
    unsent: Arc<UnsentCount>,
) -> io::Result<PeekedConnection> {
    let mut first = [0; HTTP_2.len()];
    let mut to = 0;
    loop {
        let read = line.read(&mut first[to..]).await?;
        to += read;
        let clear = to == first.len() || first[..to] != HTTP_2[..to];
        if clear || read == 0 {
            let is_http_2 = first[..to] == HTTP_2[..];
            return Ok(PeekedConnection {
                first,
                from: 0,
                to,
                line: line.take(0),
                left: TURN_BYTES,
                waiting,
                tally: WriteTally::new(unsent, is_http_2),
            });
        }
    }
}

/// How much of one connection is read in a row. The calls in it are let in or
/// refused before more is read, and those of other connections as well.
const TURN_BYTES: usize = 32 * 1024;
/// The same while very many calls of all connections wait for their first
/// turn. A call that is begun and reset takes 25 bytes of a connection, and the
/// memory of a whole call.
const TURN_BYTES_LEAST: usize = 1024;

impl PeekedConnection {
    fn poll_rest(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 || self.waiting.is_full() {
            self.left = TURN_BYTES;
            // Calls that wait have their turn in this task, so it comes back.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.waiting.is_full_of_all() {
            self.left = self.left.min(TURN_BYTES_LEAST);
        }
        let before = into.filled().len();
        self.line.set_limit(self.left as u64);
        let read = Pin::new(&mut self.line).poll_read(context, into);
        self.left = match read {
            Poll::Ready(_) => self.left.saturating_sub(into.filled().len() - before),
            Poll::Pending => TURN_BYTES,
        };
        read
    }
}

impl AsyncRead for PeekedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let first = &self.first[self.from..self.to];
        if first.is_empty() {
            return self.poll_rest(context, into);
        }
        let taken = first.len().min(into.remaining());
        into.put_slice(&first[..taken]);
        self.from += taken;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PeekedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.line.get_mut()).poll_write(context, bytes);
        self.tally.wrote(&written, &[IoSlice::new(bytes)]);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(self.line.get_mut()).poll_flush(context);
        if flushed.is_pending() {
            self.tally.is_blocked();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.line.get_mut()).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(self.line.get_mut()).poll_write_vectored(context, bytes);
        self.tally.wrote(&written, bytes);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.line.get_ref().is_write_vectored()
    }
}

/// A service whose requests carry what is known of the connection that they
/// came by.
#[derive(Clone)]
pub(super) struct ConnectionInfoService<S> {
    pub(super) service: S,
    pub(super) permit: Arc<ConnectionPermit>,
    pub(super) connection: Arc<Connection>,
    pub(super) arrival: Arrival,
    pub(super) given_up: Arc<GivenUp>,
}

impl<S, B> Service<Request<B>> for ConnectionInfoService<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> S::Future {
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(&self.permit));
        extensions.insert(Arc::clone(&self.given_up));
        extensions.insert(Arc::clone(&self.connection));
        extensions.insert(self.arrival);
        self.service.call(request)
    }
}
