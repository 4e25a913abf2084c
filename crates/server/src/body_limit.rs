//! What has come of the bodies of requests.
//!
//! A message is collected until its last byte is there. A client that sends all
//! of it but that would make the server keep it, in each of a thousand calls of
//! a connection, and in as many connections as it likes. So what comes is
//! counted ([`RequestCharge`]); what goes beyond the bounds is refused, and so
//! is a message that takes too long. The beginning of a message has bounds of
//! its own above those of what follows ([`FREE_BYTES`]): small calls get
//! through while large ones fill theirs.
//!
//! A body of HTTP is one message, and one of gRPC a row of them, each behind
//! five bytes that say how long it is. What a call has sent is held until it
//! is over; of a stream that stays open, nothing is held between two messages.
//!
//! Over HTTP/2 a call may be answered before all of its body has come: there is
//! nothing at its path, it is too large, its caller is not known. The answer
//! goes at once. Were the rest of the body given up with it, the HTTP library
//! would reset the stream (RFC 9113, 8.1, with `NO_ERROR`), and curl takes that
//! for a failure and shows no answer. So it is read on for a while and dropped
//! ([`read_on`]); by then clients have seen the answer.

use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use axum::http::{HeaderMap, header};
use bytes::{Buf as _, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep, timeout};
use tonic::Status;

use super::account::RequestCharge;
use super::grpc_status::status;

/// How much of a body is read and dropped, and for how long: what a client
/// may send before it sees the answer, twice.
const UNWANTED_BYTES: usize = 8 * 1024 * 1024;
const UNWANTED_WITHIN: Duration = Duration::from_secs(3);

/// Reads what comes of a body after its call was answered. The call counts as
/// under way until then.
pub(super) fn read_on(mut body: axum::body::Body, request_charge: Arc<RequestCharge>) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(async move {
        let read = async {
            let mut left = UNWANTED_BYTES;
            while left > 0
                && let Some(Ok(frame)) =
                    poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            {
                let length = frame.data_ref().map_or(0, Bytes::len);
                left = left.saturating_sub(length);
            }
        };
        // It is dropped in any case.
        let _ = timeout(UNWANTED_WITHIN, read).await;
        drop(request_charge);
    });
}

/// The beginning of a message, which has room where the rest has none.
const FREE_BYTES: usize = 16 * 1024;

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

/// A body whose bytes are counted.
#[derive(Debug)]
pub(super) struct MeteredBody {
    body: axum::body::Body,
    /// Whether it is read to its end though its call was refused.
    pub(super) read_on: bool,
    request_charge: Arc<RequestCharge>,
    /// How long a message may take from its first byte to its last.
    within: Duration,
    /// Whether what was sent is held until the call is over.
    keeps: bool,
    message: Message,
    /// What is counted at the moment.
    held: usize,
    /// There is no more of it.
    ended: bool,
    /// When the message under way is too late, if one is.
    late: Option<Pin<Box<Sleep>>>,
}

impl MeteredBody {
    pub(super) fn new(
        body: axum::body::Body,
        headers: &HeaderMap,
        request_charge: Arc<RequestCharge>,
        within: Duration,
        keeps: bool,
    ) -> Self {
        Self {
            body,
            read_on: false,
            request_charge,
            within,
            keeps,
            message: Message::new(headers),
            held: 0,
            ended: false,
            late: None,
        }
    }

    fn takes(&mut self, bytes: &[u8]) -> Result<(), Status> {
        let unfinished = self.message.goes_on(bytes);
        if unfinished == 0 {
            self.late = None;
        } else if self.late.is_none() {
            self.late = Some(Box::pin(sleep(self.within)));
        }
        let counted = if self.keeps {
            self.held + bytes.len()
        } else {
            unfinished
        };
        let before = std::mem::replace(&mut self.held, counted);
        if counted <= before {
            if counted < before {
                self.request_charge.give(before - counted);
            }
            return Ok(());
        }
        let taken = self
            .request_charge
            .take(counted - before, counted > FREE_BYTES);
        taken.map_err(status)
    }
}

impl Drop for MeteredBody {
    fn drop(&mut self) {
        if !self.keeps {
            self.request_charge.give(self.held);
        }
        if !self.ended && !self.body.is_end_stream() {
            self.request_charge.place().unsent().reset();
        }
        if self.read_on {
            let body = std::mem::take(&mut self.body);
            read_on(body, Arc::clone(&self.request_charge));
        }
    }
}

impl Body for MeteredBody {
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
                let why = format!("expected a whole message within {:?}", self.within);
                return Poll::Ready(Some(Err(Status::deadline_exceeded(why).into())));
            }
            return Poll::Pending;
        };
        let frame = match frame.transpose().map_err(Into::into) {
            Ok(Some(frame)) => frame,
            ended => {
                self.ended = true;
                return Poll::Ready(ended.transpose());
            }
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
    use std::net::Ipv4Addr;

    use prometheus_client::metrics::family::Family;

    use super::super::account::{Account, Connection};
    use super::*;

    fn grpc() -> HeaderMap {
        let kind = (header::CONTENT_TYPE, "application/grpc+proto");
        HeaderMap::from_iter([(kind.0, kind.1.parse().expect("a value"))])
    }

    fn metered(headers: &HeaderMap, connection: &Connection, keeps: bool) -> MeteredBody {
        let request_charge = RequestCharge::begin(connection.alone(), 0, false).expect("room");
        MeteredBody::new(
            axum::body::Body::empty(),
            headers,
            request_charge,
            Duration::from_secs(30),
            keeps,
        )
    }

    fn account() -> Arc<Account> {
        Account::new(Family::default(), false)
    }

    /// A message of gRPC with so many bytes.
    fn message(bytes: usize) -> Vec<u8> {
        let mut message = vec![0];
        message.extend_from_slice(&u32::try_from(bytes).expect("a length").to_be_bytes());
        message.resize(5 + bytes, 7);
        message
    }

    #[tokio::test]
    async fn of_a_stream_what_is_whole_is_not_held_however_it_comes() {
        let all: Vec<u8> = [0, 3, 100_000, 0, 70_000]
            .into_iter()
            .flat_map(message)
            .collect();
        for size in [1, 4, 7, 1_000, 16_384, all.len()] {
            let account = account();
            let connection = account.connection(Ipv4Addr::LOCALHOST.into());
            for keeps in [false, true] {
                let mut body = metered(&grpc(), &connection, keeps);
                let [before, _] = account.held();
                let mut most = 0;
                for part in all.chunks(size) {
                    body.takes(part).expect("room");
                    most = most.max(account.held()[0] - before);
                }
                let kept = if keeps { all.len() } else { 0 };
                assert_eq!(body.held, kept, "in parts of {size}");
                assert_eq!(account.held()[0] - before, kept);
                assert!(body.late.is_none());
                assert!(
                    size == all.len() || most > 80_000,
                    "{most} in parts of {size}"
                );
                drop(body);
                assert_eq!(account.held(), [0, 0]);
            }
        }
    }

    #[tokio::test]
    async fn messages_that_lack_their_last_byte_are_held_up_to_a_bound() {
        let account = account();
        let part = message(6 * 1024 * 1024);
        let part = &part[..part.len() - 1];
        let mut held = Vec::new();
        let from = |it| account.connection(Ipv4Addr::new(10, 0, 0, it).into());
        // Two of a connection, and no third; small ones get through.
        for connection in (1..=5).map(from) {
            for allowed in [true, true, false] {
                let mut body = metered(&grpc(), &connection, true);
                let taken = body.takes(part);
                assert_eq!(taken.is_ok(), allowed, "{}", held.len());
                if allowed {
                    held.push(body);
                } else {
                    drop(body);
                }
                let mut small = metered(&grpc(), &connection, true);
                assert!(small.takes(&message(9_000)).is_ok());
                let mut small = metered(&HeaderMap::new(), &connection, true);
                assert!(small.takes(&[7; 9_000]).is_ok());
            }
        }
        // What is free is less by each of them, and so is what one may have.
        let sixth = from(6);
        let mut body = metered(&grpc(), &sixth, true);
        assert!(body.takes(part).is_ok());
        held.push(body);
        assert!(metered(&grpc(), &sixth, true).takes(part).is_err());
        // All of them fill the server; another connection is refused.
        let other = from(77);
        let refused = metered(&grpc(), &other, true).takes(part);
        let refused = refused.expect_err("no room");
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        // One goes, and there is room again.
        held.pop();
        assert!(metered(&grpc(), &other, true).takes(part).is_ok());
        held.clear();
        assert_eq!(account.held(), [0, 0]);
    }
}
