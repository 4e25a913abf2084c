//! Streams of answers, whose callers are asked again who they are.
//!
//! A watch, a tail or a pipeline may be open for days, and one on which
//! nothing happens asks for nothing. Its token may be taken out of the file
//! meanwhile. So each stream is looked at every [`AGAIN`], and ends once its
//! caller is not known any more. What a caller may see is asked with each
//! message, where that is made.
//!
//! The HTTP library asks a stream for more only while its client has room for
//! it. One that is not read would be asked for nothing, and live on. So the task that
//! runs the call ([`CallEnd`]) looks too, and drops what does not end by itself
//! [`GRACE`] after its caller became unknown.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// How long a stream whose caller is not known any more has to end by itself,
/// and to say why.
const GRACE: Duration = Duration::from_secs(5);

tokio::task_local! {
    /// That of the call which is polled.
    static CALL_END: CallEnd;
}

/// Whether the caller of a stream is still known, as who runs its call sees it.
#[derive(Clone, Default)]
pub(super) struct CallEnd(Arc<Mutex<Option<Known>>>);

type Known = Box<dyn Fn() -> bool + Send>;

impl CallEnd {
    fn lock(&self) -> MutexGuard<'_, Option<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls a call, which may begin a stream.
    pub(super) fn scope<T>(&self, poll: impl FnOnce() -> T) -> T {
        CALL_END.sync_scope(self.clone(), poll)
    }

    /// What the call that is polled has begun is a stream.
    fn begin(known: impl Fn() -> bool + Send + 'static) -> Option<Self> {
        let end = CALL_END.try_with(Self::clone).ok()?;
        *end.lock() = Some(Box::new(known));
        Some(end)
    }
}

/// Looks after a call: when it has to be dropped.
pub(super) struct CallWatch {
    end: CallEnd,
    every: Duration,
    grace: Duration,
    again: Option<Pin<Box<Sleep>>>,
    unknown: bool,
}

impl CallWatch {
    pub(super) fn new() -> Self {
        Self {
            end: CallEnd::default(),
            every: AGAIN,
            grace: GRACE,
            again: None,
            unknown: false,
        }
    }

    /// What the call is polled with.
    pub(super) const fn end(&self) -> &CallEnd {
        &self.end
    }

    /// Ready once the call is a stream of which the caller is not known any
    /// more, and has not ended by itself.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let known = self.end.lock();
        let Some(known) = &*known else {
            (self.again, self.unknown) = (None, false);
            return Poll::Pending;
        };
        loop {
            let every = self.every;
            let again = self.again.get_or_insert_with(|| Box::pin(sleep(every)));
            ready!(again.as_mut().poll(context));
            let before = std::mem::replace(&mut self.unknown, !known());
            if before && self.unknown {
                return Poll::Ready(());
            }
            let pause = if self.unknown { self.grace } else { self.every };
            self.again = Some(Box::pin(sleep(pause)));
        }
    }
}

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
    /// Where it is noted that the call is a stream.
    end: Option<CallEnd>,
}

impl<K> Drop for StreamRights<K> {
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            *end.lock() = None;
        }
    }
}

impl<K> StreamRights<K>
where
    K: Fn() -> Result<(), v1::Error> + Clone + Send + 'static,
{
    pub(super) fn new(body: Body, known: K, grpc: bool) -> Self {
        let asked = known.clone();
        Self {
            body,
            known,
            grpc,
            every: AGAIN,
            again: Box::pin(sleep(AGAIN)),
            over: false,
            end: CallEnd::begin(move || asked().is_ok()),
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
    K: Fn() -> Result<(), v1::Error> + Clone + Send + Unpin + 'static,
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::future::poll_fn;
    use hyper::body::Body as _;
    use tenure_api::v1::Cause;
    use tokio::time::timeout;

    use super::*;
    use crate::errors::error;

    #[tokio::test]
    async fn one_on_which_nothing_happens_ends_once_its_caller_is_unknown() {
        let known = Arc::new(AtomicBool::new(true));
        let looked = Arc::clone(&known);
        let asked = move || match looked.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(error(Cause::Unauthenticated, "it is gone")),
        };
        for grpc in [true, false] {
            known.store(true, Ordering::Relaxed);
            let nothing =
                Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
            let mut body = StreamRights::new(nothing, asked.clone(), grpc);
            let every = Duration::from_millis(20);
            (body.every, body.again) = (every, Box::pin(sleep(every)));
            let mut next = async || {
                let frame = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
                timeout(20 * every, frame).await
            };
            assert!(next().await.is_err(), "it goes on");
            known.store(false, Ordering::Relaxed);
            let end = next().await.expect("it ends");
            let trailers = end.map(|it| it.expect("no error").into_trailers());
            let status = trailers.map(|it| it.expect("trailers")["grpc-status"].clone());
            assert_eq!(status.is_some_and(|it| it == "16"), grpc);
            assert!(next().await.expect("at once").is_none());
        }
    }

    #[tokio::test]
    async fn one_that_is_not_asked_for_more_has_to_be_dropped_once_its_caller_is_unknown() {
        let known = Arc::new(AtomicBool::new(true));
        let looked = Arc::clone(&known);
        let asked = move || match looked.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(error(Cause::Unauthenticated, "it is gone")),
        };
        let mut watch = CallWatch::new();
        (watch.every, watch.grace) = (Duration::from_millis(20), Duration::from_millis(10));
        let body = watch
            .end()
            .clone()
            .scope(|| StreamRights::new(Body::empty(), asked, true));
        let mut over = async || {
            let over = poll_fn(|context| watch.poll(context));
            timeout(Duration::from_millis(400), over).await.is_ok()
        };
        assert!(!over().await, "it goes on");
        known.store(false, Ordering::Relaxed);
        assert!(over().await);
        drop(body);
        assert!(!over().await, "it has ended by itself");
    }
}
