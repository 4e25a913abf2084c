//! Calls of libraries, and of backends that others wrote, which may panic.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::error::{StoreError, cut, plain};

/// Does what `call` does. A panic on the way is an error of it: libraries of databases panic
/// on some answers that no server should give.
pub(super) async fn caught<T>(
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let mut call = pin!(call);
    // After a panic it is not polled again.
    let polled = poll_fn(|context| {
        let call = call.as_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| call.poll(context)));
        polled.unwrap_or_else(|panic| Poll::Ready(Err(panicked(&*panic))))
    });
    polled.await
}

fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = plain(cut(text.unwrap_or("no text")));
    StoreError::unavailable(format!(
        "expected an answer, found that the library or the backend panicked: {text}"
    ))
}
