//! Bodies of answers, counted until the system has taken them.
//!
//! The HTTP library takes a piece of a body when it could send some of it, and
//! keeps the rest for as long as the client does not read. So each piece
//! carries its charge with it ([`CountedBytes`]) and gives it back when the library
//! lets go of it: it was written, or its call or its connection is over. What
//! a call with one answer made is taken out of its body at once, to be
//! counted before anything else is made; a stream is asked for its next piece
//! only when there is room ([`FlowControl`]).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};

use super::account::{Charge, FlowControl, RequestCharge, StreamKind};
use super::connection_limit::ActiveCall;

type Taken = Option<Result<Frame<Bytes>, axum::Error>>;

/// A body whose bytes are counted.
#[derive(Debug)]
pub(super) struct CountedBody {
    body: Body,
    request_charge: Arc<RequestCharge>,
    /// What has been taken out and not been asked for.
    taken: Option<Taken>,
    streams: Option<StreamKind>,
    /// What a stream waits for.
    room: Option<FlowControl>,
    /// Its connection is in use.
    _under_way: Option<ActiveCall>,
}

/// A piece of a body, with what it is counted for.
struct CountedBytes {
    bytes: Bytes,
    _charge: Charge,
    /// Its call is under way until it has gone.
    _request_charge: Arc<RequestCharge>,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl CountedBody {
    pub(super) fn new(
        body: Body,
        (request_charge, _under_way): (Arc<RequestCharge>, Option<ActiveCall>),
        streams: Option<StreamKind>,
    ) -> Self {
        let waits = streams.filter(|it| *it != StreamKind::Answers);
        let room = waits.map(|it| FlowControl::new(request_charge.place(), it));
        Self {
            body,
            request_charge,
            taken: None,
            streams,
            room,
            _under_way,
        }
    }

    /// Takes the answer out of the body of a call that has one.
    pub(super) fn take(&mut self, context: &mut Context<'_>) {
        if self.streams.is_none()
            && let Poll::Ready(frame) = self.next(context)
        {
            self.taken = Some(frame);
        }
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Taken> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let charged = |frame: Frame<Bytes>| match frame.into_data() {
            Ok(bytes) => {
                let held = CountedBytes {
                    _charge: self
                        .request_charge
                        .place()
                        .charge(bytes.len(), self.streams),
                    _request_charge: Arc::clone(&self.request_charge),
                    bytes,
                };
                Frame::data(Bytes::from_owner(held))
            }
            Err(trailers) => trailers,
        };
        Poll::Ready(frame.map(|it| it.map(charged)))
    }
}

impl hyper::body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Taken> {
        if let Some(taken) = self.taken.take() {
            return Poll::Ready(taken);
        }
        if let Some(room) = &mut self.room {
            ready!(room.poll(context));
        }
        self.next(context)
    }

    fn is_end_stream(&self) -> bool {
        match &self.taken {
            Some(None) => true,
            Some(Some(_)) => false,
            None => self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.body.size_hint();
        let taken = match &self.taken {
            Some(Some(Ok(frame))) => frame.data_ref().map_or(0, |it| it.len() as u64),
            _ => return rest,
        };
        let mut all = SizeHint::new();
        all.set_lower(taken + rest.lower());
        if let Some(upper) = rest.upper() {
            all.set_upper(taken + upper);
        }
        all
    }
}
