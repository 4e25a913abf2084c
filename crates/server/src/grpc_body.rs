//! Bodies of gRPC streams, which hold little between two messages.
//!
//! The gRPC library writes the messages of a stream one after the other into a
//! buffer that grows with the largest of them, and keeps it for as long as the
//! stream lives. A watch that began with a page of registers and waits for
//! changes would hold the room of that page: more than 100 KiB, uncounted, of
//! each of ten thousand watches. So streams are written here instead.
//!
//! A large message has a buffer of its own, exactly as long, that goes with it
//! ([`CountedBody`](super::counted_body::CountedBody) counts it until then);
//! small ones share one that is kept. What is read of an exchange is kept by
//! the library in the same way, up to 8 MiB of each, and is read here too.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hyper::body::{Body as _, Frame};
use prost::Message;
use tokio_stream::Stream;
use tonic::{Code, Status};

/// The largest message that is read from a client.
pub(super) const MESSAGE_BYTES: usize = 8 * 1024 * 1024;

/// What is in front of each message: whether it is compressed, and how long.
const HEADER_BYTES: usize = 5;
/// The buffer that a stream keeps, and how large it is at first: most watches
/// tell little.
const KEPT_BYTES: usize = 8 * 1024;
const FIRST_BYTES: usize = 1024;
/// Messages that have come go together, until they are as many bytes.
const PIECE_BYTES: usize = 32 * 1024;

/// A body on its way past the gRPC library: that of an answer to `listen`, and
/// that of an exchange from there.
#[derive(Clone)]
pub(super) struct GrpcBody(Arc<Mutex<Option<Body>>>);

impl GrpcBody {
    pub(super) fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    pub(super) fn of<T: Message + 'static>(
        messages: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> Self {
        Self::new(Body::new(EncodedMessages::new(messages)))
    }

    /// The first who asks gets it.
    pub(super) fn take(&self) -> Option<Body> {
        let mut body = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        body.take()
    }
}

/// Messages as gRPC has them, and at the end a status.
struct EncodedMessages<S> {
    /// `None` after the last.
    messages: Option<Pin<Box<S>>>,
    buffer: BytesMut,
    /// How large the next one is: twice as large as the one that did not do.
    next_bytes: usize,
    /// What is left to be said after the last message.
    ended: Option<Status>,
}

impl<S> EncodedMessages<S> {
    fn new(messages: S) -> Self {
        Self {
            messages: Some(Box::pin(messages)),
            buffer: BytesMut::new(),
            next_bytes: FIRST_BYTES,
            ended: None,
        }
    }

    fn put<T: Message>(&mut self, message: &T) -> Result<(), Status> {
        let length = message.encoded_len();
        let needed = HEADER_BYTES + length;
        let buffer = &mut self.buffer;
        if buffer.capacity() - buffer.len() < needed && !buffer.try_reclaim(needed) {
            if buffer.is_empty() {
                *buffer = BytesMut::with_capacity(needed.max(self.next_bytes));
                self.next_bytes = KEPT_BYTES.min(2 * self.next_bytes);
            } else {
                buffer.reserve(needed);
            }
        }
        let told = u32::try_from(length).map_err(|error| Status::internal(error.to_string()))?;
        buffer.put_u8(0);
        buffer.put_u32(told);
        let encoded = message.encode(buffer);
        encoded.map_err(|error| Status::internal(error.to_string()))
    }

    /// What was written. The rest of a large buffer would keep all of it.
    fn piece(&mut self) -> Bytes {
        let piece = self.buffer.split().freeze();
        if piece.len() > KEPT_BYTES {
            self.buffer = BytesMut::new();
        }
        piece
    }

    fn end(&mut self, status: Status) {
        self.messages = None;
        self.ended = Some(status);
    }
}

impl<T: Message, S: Stream<Item = Result<T, Status>>> hyper::body::Body for EncodedMessages<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut pending = false;
        while !pending
            && self.buffer.len() < PIECE_BYTES
            && let Some(messages) = &mut self.messages
        {
            match messages.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(message))) => {
                    if let Err(failed) = self.put(&message) {
                        self.end(failed);
                    }
                }
                Poll::Ready(Some(Err(status))) => self.end(status),
                Poll::Ready(None) => self.end(Status::ok("")),
                Poll::Pending => pending = true,
            }
        }
        if !self.buffer.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.piece()))));
        }
        if pending {
            return Poll::Pending;
        }
        let ended = self.ended.take();
        Poll::Ready(ended.map(|it| {
            let mut trailers = axum::http::HeaderMap::new();
            it.add_header(&mut trailers)?;
            Ok(Frame::trailers(trailers))
        }))
    }
}

/// The messages of a body, as they come.
pub(super) struct DecodedMessages {
    body: Body,
    buffer: BytesMut,
    /// The longest that may come.
    most: usize,
}

impl DecodedMessages {
    pub(super) fn new(body: Body, most: usize) -> Self {
        let buffer = BytesMut::new();
        Self { body, buffer, most }
    }

    /// The next message, if there is one. Who stops waiting for it may ask
    /// again, and who was told of an error may not.
    ///
    /// # Errors
    /// What its sender is to be told.
    pub(super) async fn message<T: Message + Default>(&mut self) -> Result<Option<T>, Status> {
        loop {
            if let Some(message) = self.whole()? {
                return tenure_api::decode(message).map(Some);
            }
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            match frame.map(|it| it.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.buffer.extend_from_slice(&data),
                // The trailers of a request say nothing.
                Some(Ok(Err(_))) => {}
                Some(Err(error)) => {
                    let status = Status::from_error(error.into());
                    // It has gone.
                    let gone = status.code() == Code::Cancelled;
                    return if gone { Ok(None) } else { Err(status) };
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::internal("expected the rest of a message")),
            }
        }
    }

    /// Takes a message if all of it has come.
    fn whole(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 {
            let text = "expected a message that is not compressed, found one that is";
            return Err(Status::internal(text));
        }
        if length > self.most {
            let text = format!(
                "expected a message of at most {} bytes, found one of {length}",
                self.most
            );
            return Err(Status::out_of_range(text));
        }
        let missing = length.saturating_sub(rest.len());
        if missing > 0 {
            self.buffer.reserve(missing);
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let message = self.buffer.split_to(length).freeze();
        if length > KEPT_BYTES {
            // What has come of the next.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tenure_api::v1;

    use super::*;

    type Item = Result<v1::ReadLogResponse, Status>;

    fn message(bytes: usize) -> v1::ReadLogResponse {
        let entry = v1::LogEntry {
            data: vec![7; bytes].into(),
            ..v1::LogEntry::default()
        };
        v1::ReadLogResponse {
            entries: vec![entry],
            cluster: String::new(),
        }
    }

    /// The next piece, as the system would have taken it, and what is kept
    /// then.
    fn next(
        body: &mut EncodedMessages<impl Stream<Item = Item>>,
    ) -> Option<Result<Frame<Bytes>, Status>> {
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(body).poll_frame(&mut context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => None,
        }
    }

    fn framed(messages: &[v1::ReadLogResponse]) -> Vec<u8> {
        let framed = messages.iter().map(|it| {
            let mut bytes = vec![0];
            let length = u32::try_from(it.encoded_len()).expect("short");
            bytes.extend(length.to_be_bytes());
            bytes.extend(it.encode_to_vec());
            bytes
        });
        framed.flatten().collect()
    }

    #[test]
    fn messages_come_together_as_they_are_and_the_status_is_last() {
        let sizes = [10, 5_000, 5_000, 40_000, 1, 0];
        let messages = sizes.map(message);
        let failed = Err(Status::aborted("over"));
        let items: Vec<Item> = messages.iter().cloned().map(Ok).chain([failed]).collect();
        let mut body = EncodedMessages::new(tokio_stream::iter(items));
        let mut told = Vec::new();
        let trailers = loop {
            let frame = next(&mut body).expect("more").expect("no error");
            match frame.into_data() {
                Ok(data) => told.push(data),
                Err(trailers) => break trailers.into_trailers().expect("trailers"),
            }
        };
        assert_eq!(told.concat(), framed(&messages));
        assert_eq!(told.len(), 2, "up to the large one, and the rest");
        assert_eq!(trailers["grpc-status"], "10");
        assert!(next(&mut body).is_none());
    }

    #[tokio::test]
    async fn messages_are_read_however_they_come() {
        let sizes = [10, 0, 7_000, 300_000, 20, 9_000, 8_000, 1];
        let messages = sizes.map(message);
        let bytes = framed(&messages);
        for piece in [1, 7, 4_096, 16_384, 1_000_000] {
            let pieces: Vec<_> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
            let pieces = pieces.into_iter().map(Ok::<_, Status>);
            let body = Body::from_stream(tokio_stream::iter(pieces));
            let mut read = DecodedMessages::new(body, 400_000);
            for message in &messages {
                let next = read.message::<v1::ReadLogResponse>().await;
                assert_eq!(next.expect("no error").as_ref(), Some(message));
                let kept = read.buffer.capacity();
                assert!(kept <= 32 * 1024 || piece > kept / 3, "{kept} of {piece}");
            }
            let end = read.message::<v1::ReadLogResponse>().await;
            assert!(end.expect("no error").is_none());
        }
        for (bytes, code) in [
            (&bytes[..bytes.len() - 1], Code::Internal),
            (&[1, 0, 0, 0, 0], Code::Internal),
            (&[0, 1, 0, 0, 0], Code::OutOfRange),
        ] {
            let body = Body::from(bytes.to_vec());
            let mut read = DecodedMessages::new(body, 400_000);
            let failed = loop {
                match read.message::<v1::ReadLogResponse>().await {
                    Ok(message) => assert!(message.is_some(), "no error"),
                    Err(failed) => break failed,
                }
            };
            assert_eq!(failed.code(), code);
        }
    }

    #[test]
    fn what_is_large_is_not_kept_when_it_has_gone() {
        let (sender, messages) = tokio::sync::mpsc::unbounded_channel::<Item>();
        let messages = tokio_stream::wrappers::UnboundedReceiverStream::new(messages);
        let mut body = EncodedMessages::new(messages);
        for size in [10, 7_000, 80_000, 10, 100, 5_000, 7_000, 300_000, 3_000] {
            for _ in 0..10 {
                sender.send(Ok(message(size))).expect("it is read");
                let piece = next(&mut body).expect("a piece").expect("no error");
                let piece = piece.into_data().expect("no trailers");
                assert_eq!(piece, framed(&[message(size)]));
                // All of its buffer, as far as it is this stream's own again.
                drop(piece);
                let _ = body.buffer.try_reclaim(KEPT_BYTES);
                assert!(body.buffer.capacity() <= KEPT_BYTES, "after {size}");
                assert!(next(&mut body).is_none(), "more would have come");
            }
        }
    }
}
