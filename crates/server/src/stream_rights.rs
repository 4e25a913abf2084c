//! Streams of answers, whose callers are asked again who they are.
//!
//! A watch, a tail or a pipeline may be open for days, and one on which
//! nothing happens asks for nothing. Its token may be taken out of the file
//! meanwhile. So each stream is looked at every [`AGAIN`], and ends once its
//! caller is not known any more. What a caller may see is asked with each
//! message, where that is made.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tenure_api::v1;
use tokio::time::{Sleep, sleep};

use super::grpc_status::status;

/// How often: so that what is revoked ends within a minute.
const AGAIN: Duration = Duration::from_secs(30);

/// The answers of a stream.
pub(super) struct StreamRights<K> {
    body: Body,
    /// Whether its caller is known.
    known: K,
    /// Whether the end is told in trailers.
    grpc: bool,
    every: Duration,
    again: Pin<Box<Sleep>>,
    over: bool,
}

impl<K> StreamRights<K>
where
    K: Fn() -> Result<(), v1::Error>,
{
    pub(super) fn new(body: Body, known: K, grpc: bool) -> Self {
        Self {
            body,
            known,
            grpc,
            every: AGAIN,
            again: Box::pin(sleep(AGAIN)),
            over: false,
        }
    }

    /// The error of a caller who is not known any more.
    fn poll_unknown(&mut self, context: &mut Context<'_>) -> Poll<v1::Error> {
        loop {
            ready!(self.again.as_mut().poll(context));
            self.again = Box::pin(sleep(self.every));
            if let Err(unknown) = (self.known)() {
                return Poll::Ready(unknown);
            }
        }
    }
}

impl<K> hyper::body::Body for StreamRights<K>
where
    K: Fn() -> Result<(), v1::Error> + Unpin,
{
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        // A message was made for a caller who was known then.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let unknown = ready!(self.poll_unknown(context));
        self.over = true;
        // What was under way is dropped with it.
        self.body = Body::empty();
        let (mut end, _) = status(unknown).into_http::<Body>().into_parts();
        end.headers.remove(CONTENT_TYPE);
        let trailers = self.grpc.then(|| Ok(Frame::trailers(end.headers)));
        Poll::Ready(trailers)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::future::poll_fn;
    use hyper::body::Body as _;
    use tenure_api::v1::Cause;
    use tokio::time::timeout;

    use super::*;
    use crate::errors::error;

    #[tokio::test]
    async fn one_on_which_nothing_happens_ends_once_its_caller_is_unknown() {
        let known = Cell::new(true);
        let asked = || match known.get() {
            true => Ok(()),
            false => Err(error(Cause::Unauthenticated, "it is gone")),
        };
        for grpc in [true, false] {
            known.set(true);
            let nothing =
                Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
            let mut body = StreamRights::new(nothing, asked, grpc);
            let every = Duration::from_millis(20);
            (body.every, body.again) = (every, Box::pin(sleep(every)));
            let mut next = async || {
                let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
                timeout(20 * every, frame).await
            };
            assert!(next().await.is_err(), "it goes on");
            known.set(false);
            let end = next().await.expect("it ends");
            let trailers = end.map(|it| it.expect("no error").into_trailers());
            let status = trailers.map(|it| it.expect("trailers")["grpc-status"].clone());
            assert_eq!(status.is_some_and(|it| it == "16"), grpc);
            assert!(next().await.expect("at once").is_none());
        }
    }
}
