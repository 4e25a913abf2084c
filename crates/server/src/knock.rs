//! What a client's connection begins with.
//!
//! HTTP/2 begins with 24 bytes that nothing else begins with, so a server that
//! speaks both has to read that far before it knows. Whoever sends fewer and
//! then nothing would be waited for, for ever; so the beginning is read here,
//! where there is a clock, and then read again by whoever serves it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::Request;
use hyper::service::Service;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::account::Connection;
use super::gate::Pass;
use super::given_up::GivenUp;
use crate::transport::{Arrival, Line};

const HTTP_2: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of which the beginning has been read, and is read again.
pub(super) struct Begun {
    first: [u8; HTTP_2.len()],
    from: usize,
    to: usize,
    line: Line,
    /// How much more is read before others have their turn.
    left: usize,
}

/// Reads until it is clear which of the two is spoken.
pub(super) async fn begin(mut line: Line) -> io::Result<Begun> {
    let mut first = [0; HTTP_2.len()];
    let mut to = 0;
    loop {
        let read = line.read(&mut first[to..]).await?;
        to += read;
        let clear = to == first.len() || first[..to] != HTTP_2[..to];
        if clear || read == 0 {
            return Ok(Begun {
                first,
                from: 0,
                to,
                line,
                left: TURN_BYTES,
            });
        }
    }
}

/// How much of one connection is read in a row. The calls in it are let in or
/// refused before more is read, and those of other connections as well.
const TURN_BYTES: usize = 64 * 1024;

impl Begun {
    fn poll_rest(
        &mut self,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            self.left = TURN_BYTES;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.line).poll_read(context, into);
        self.left = match read {
            Poll::Ready(_) => self.left.saturating_sub(into.filled().len() - before),
            Poll::Pending => TURN_BYTES,
        };
        read
    }
}

impl AsyncRead for Begun {
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

impl AsyncWrite for Begun {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.line).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.line).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.line).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.line.is_write_vectored()
    }
}

/// A service whose requests carry what is known of the connection that they
/// came by.
#[derive(Clone)]
pub(super) struct Noting<S> {
    pub(super) service: S,
    pub(super) pass: Arc<Pass>,
    pub(super) connection: Arc<Connection>,
    pub(super) arrival: Arrival,
    pub(super) given_up: Arc<GivenUp>,
}

impl<S, B> Service<Request<B>> for Noting<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<B>) -> S::Future {
        let extensions = request.extensions_mut();
        extensions.insert(Arc::clone(&self.pass));
        extensions.insert(Arc::clone(&self.given_up));
        extensions.insert(Arc::clone(&self.connection));
        extensions.insert(self.arrival);
        self.service.call(request)
    }
}
