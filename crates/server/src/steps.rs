//! Streams that are made one message at a time, when the next is asked for.
//!
//! One that is not read does nothing, and holds nothing but its place.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio_stream::Stream;

use super::services::ApiResult;

/// What comes next, and from where it goes on then, if it does; `None` at the
/// end.
pub(super) type Next<S> = Option<(Option<S>, ApiResult<<S as Step>::Message>)>;

/// A place in a stream.
pub(super) trait Step: Send + Sized + 'static {
    /// What the stream consists of.
    type Message;

    /// Makes the next message.
    fn step(self) -> impl Future<Output = Next<Self>> + Send;
}

/// The stream from a place on.
pub(super) struct Steps<S: Step> {
    place: Option<S>,
    making: Option<Pin<Box<dyn Future<Output = Next<S>> + Send>>>,
}

impl<S: Step> Steps<S> {
    pub(super) const fn from(place: S) -> Self {
        Self {
            place: Some(place),
            making: None,
        }
    }
}

impl<S: Step + Unpin> Stream for Steps<S> {
    type Item = ApiResult<S::Message>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(place) = self.place.take() {
            self.making = Some(Box::pin(place.step()));
        }
        let Some(making) = &mut self.making else {
            return Poll::Ready(None);
        };
        let next = ready!(making.as_mut().poll(context));
        self.making = None;
        Poll::Ready(next.map(|(place, message)| {
            self.place = place;
            message
        }))
    }
}
