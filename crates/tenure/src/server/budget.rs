//! How many bytes of messages the server holds that have not come in whole.
//!
//! A message is collected until its last byte is there. Whoever sends all of
//! it but that would make the server keep it, in each of a thousand calls of
//! a connection, and in as many connections as it likes. So the bytes of
//! messages that are not whole yet are counted, for each connection and for
//! all; what goes beyond is refused, and so is a message that takes too long.
//! What is small is not counted ([`FREE_BYTES`]): small calls get through
//! while large ones fill the budget, and the number of calls bounds them.
//!
//! A body of HTTP is one message, and one of gRPC a row of them, each behind
//! five bytes that say how long it is; a stream that stays open holds nothing
//! between two of them.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::http::{HeaderMap, header};
use bytes::{Buf as _, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// Of one connection: two of the largest messages.
const CONNECTION_BYTES: usize = 16 * 1024 * 1024;
/// Of all connections of a server.
const SERVER_BYTES: usize = 256 * 1024 * 1024;
/// The beginning of a message that is not counted.
const FREE_BYTES: usize = 16 * 1024;

/// What one connection holds, and all of them together.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    connection: Arc<AtomicUsize>,
    server: Arc<AtomicUsize>,
    /// How long a message may take from its first byte to its last.
    within: Duration,
}

impl Budget {
    /// That of a server, with no connections, whose messages may take so long
    /// from the first byte to the last.
    pub(super) fn new(within: Duration) -> Self {
        Self {
            connection: Arc::default(),
            server: Arc::default(),
            within,
        }
    }

    /// That of one more connection.
    pub(super) fn connection(&self) -> Self {
        Self {
            connection: Arc::default(),
            server: Arc::clone(&self.server),
            within: self.within,
        }
    }

    /// Takes so many bytes more; `false` if that is too many. They are taken
    /// all the same, until they are given back.
    fn take(&self, bytes: usize) -> bool {
        let connection = self.connection.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let server = self.server.fetch_add(bytes, Ordering::Relaxed) + bytes;
        connection <= CONNECTION_BYTES && server <= SERVER_BYTES
    }

    fn give(&self, bytes: usize) {
        self.connection.fetch_sub(bytes, Ordering::Relaxed);
        self.server.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// How far the message has come that is being sent.
#[derive(Debug)]
enum Message {
    /// The body is one.
    Whole { read: usize },
    /// One of gRPC's: of its five bytes so many are there, and then so many
    /// bytes of it, of this length.
    Framed {
        head: [u8; 5],
        begun: usize,
        read: usize,
    },
}

impl Message {
    fn new(headers: &HeaderMap) -> Self {
        let kind = headers.get(header::CONTENT_TYPE);
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
            let head = [0; 5];
            return Self::Framed {
                head,
                begun: 0,
                read: 0,
            };
        }
        Self::Whole { read: 0 }
    }

    /// Goes on by these bytes, and says how many are held then of a message
    /// that is not whole.
    fn goes_on(&mut self, mut bytes: &[u8]) -> usize {
        match self {
            Self::Whole { read } => {
                *read += bytes.len();
                *read
            }
            Self::Framed { head, begun, read } => loop {
                let wanted = (head.len() - *begun).min(bytes.len());
                head[*begun..*begun + wanted].copy_from_slice(&bytes[..wanted]);
                *begun += wanted;
                bytes.advance(wanted);
                if *begun < head.len() {
                    return *begun;
                }
                let [_, length @ ..] = *head;
                let length = u32::from_be_bytes(length) as usize;
                let more = (length - *read).min(bytes.len());
                *read += more;
                bytes.advance(more);
                if *read < length {
                    return *begun + *read;
                }
                (*begun, *read) = (0, 0);
            },
        }
    }
}

/// A body whose bytes are counted until they make a message.
#[derive(Debug)]
pub(super) struct Metered<B> {
    body: B,
    budget: Budget,
    message: Message,
    /// What is counted at the moment.
    held: usize,
    /// When the message under way is too late, if one is.
    late: Option<Pin<Box<Sleep>>>,
}

impl<B> Metered<B> {
    pub(super) fn new(body: B, headers: &HeaderMap, budget: Budget) -> Self {
        Self {
            body,
            budget,
            message: Message::new(headers),
            held: 0,
            late: None,
        }
    }

    fn takes(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let held = self.message.goes_on(bytes);
        if held == 0 {
            self.late = None;
        } else if self.late.is_none() {
            self.late = Some(Box::pin(sleep(self.budget.within)));
        }
        let counted = held.saturating_sub(FREE_BYTES);
        let before = std::mem::replace(&mut self.held, counted);
        if counted <= before {
            if counted < before {
                self.budget.give(before - counted);
            }
            return Ok(());
        }
        if self.budget.take(counted - before) {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "expected at most {CONNECTION_BYTES} bytes of messages under way on one connection, \
             and {SERVER_BYTES} on all; send fewer large messages at a time"
        )))
    }
}

impl<B> Drop for Metered<B> {
    fn drop(&mut self) {
        self.budget.give(self.held);
    }
}

impl<B> Body for Metered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            if let Some(late) = &mut self.late {
                ready!(late.as_mut().poll(context));
                self.late = None;
                let why = format!("expected a whole message within {:?}", self.budget.within);
                return Poll::Ready(Some(Err(Status::deadline_exceeded(why).into())));
            }
            return Poll::Pending;
        };
        let frame = match frame.transpose().map_err(Into::into) {
            Ok(Some(frame)) => frame,
            ended => return Poll::Ready(ended.transpose()),
        };
        if let Some(data) = frame.data_ref()
            && let Err(refused) = self.takes(data)
        {
            return Poll::Ready(Some(Err(refused.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grpc() -> HeaderMap {
        let kind = (header::CONTENT_TYPE, "application/grpc+proto");
        HeaderMap::from_iter([(kind.0, kind.1.parse().expect("a value"))])
    }

    fn metered(headers: &HeaderMap, budget: &Budget) -> Metered<()> {
        Metered::new((), headers, budget.clone())
    }

    /// A message of gRPC with so many bytes.
    fn message(bytes: usize) -> Vec<u8> {
        let mut message = vec![0];
        message.extend_from_slice(&u32::try_from(bytes).expect("a length").to_be_bytes());
        message.resize(5 + bytes, 7);
        message
    }

    #[tokio::test]
    async fn what_is_whole_is_not_held_however_it_comes() {
        let all: Vec<u8> = [0, 3, 100_000, 0, 70_000]
            .into_iter()
            .flat_map(message)
            .collect();
        for size in [1, 4, 7, 1_000, 16_384, all.len()] {
            let budget = Budget::new(Duration::from_secs(30));
            let mut body = metered(&grpc(), &budget);
            let mut most = 0;
            for part in all.chunks(size) {
                body.takes(part).expect("room");
                most = most.max(budget.server.load(Ordering::Relaxed));
            }
            assert_eq!(body.held, 0, "in parts of {size}");
            assert!(body.late.is_none());
            assert!(
                size == all.len() || most > 80_000,
                "{most} in parts of {size}"
            );
            assert_eq!(budget.server.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn messages_that_lack_their_last_byte_are_held_up_to_a_bound() {
        let server = Budget::new(Duration::from_secs(30));
        let part = message(8 * 1024 * 1024);
        let part = &part[..part.len() - 1];
        let mut held = Vec::new();
        // Two of a connection, and no third; small ones get through.
        for connection in (0..16).map(|_| server.connection()) {
            for allowed in [true, true, false] {
                let mut body = metered(&grpc(), &connection);
                let taken = body.takes(part);
                assert_eq!(taken.is_ok(), allowed, "{}", held.len());
                assert!(metered(&grpc(), &connection).takes(&message(9_000)).is_ok());
                assert!(
                    metered(&HeaderMap::new(), &connection)
                        .takes(&[7; 9_000])
                        .is_ok()
                );
                if allowed {
                    held.push(body);
                }
            }
        }
        // All of them fill the server; another connection is refused.
        let other = server.connection();
        let refused = metered(&grpc(), &other).takes(part).expect_err("no room");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        // One goes, and there is room again.
        held.pop();
        assert!(metered(&grpc(), &other).takes(part).is_ok());
        held.clear();
        assert_eq!(server.server.load(Ordering::Relaxed), 0);
        assert_eq!(other.connection.load(Ordering::Relaxed), 0);
    }
}
