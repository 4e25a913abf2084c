//! Handshakes by libraries that may panic.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::error::{StoreError, cut, plain};

/// Does a handshake. A panic on the way is an error of it: libraries of databases panic
/// on some answers that no server should give.
pub(in crate::store) async fn caught<T>(
    handshake: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut handshake = pin!(handshake);
    // After a panic it is not polled again.
    let polled = poll_fn(|context| {
        let handshake = handshake.as_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| handshake.poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    });
    polled.await
}

fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = plain(cut(text.unwrap_or("no text")));
    StoreError::unavailable(format!(
        "expected an answer that the library understands, found one on which it panics: {text}"
    ))
}
