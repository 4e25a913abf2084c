//! A call on its way to a thread, which its caller may give up before the thread has
//! begun with it.
//!
//! A disk or a lock may hang for longer than a caller waits. Then it matters whether
//! the thread has begun: a write that was begun may be done at any time, and is
//! unknown; one that was not never will be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::oneshot;

use crate::clock;
use crate::error::{StoreError, about};

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The thread's end of a call.
#[derive(Debug)]
pub(super) struct Call<T> {
    /// When its caller gives it up.
    pub(super) until: Instant,
    state: Arc<AtomicU8>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

/// The caller's end of it.
#[derive(Debug)]
pub(super) struct Pending<T> {
    within: Duration,
    state: Arc<AtomicU8>,
    answer: oneshot::Receiver<Result<T, StoreError>>,
}

/// A call that has to end within this time.
pub(super) fn call<T>(within: Duration) -> (Call<T>, Pending<T>) {
    let (reply, answer) = oneshot::channel();
    let state = Arc::new(AtomicU8::new(WAITING));
    let call = Call {
        until: clock::boot().after(within),
        state: Arc::clone(&state),
        reply,
    };
    (
        call,
        Pending {
            within,
            state,
            answer,
        },
    )
}

fn turn(state: &AtomicU8, to: u8) -> bool {
    let turned = state.compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire);
    turned.is_ok()
}

impl<T> Call<T> {
    /// Whether it is to be carried out: its caller waits still.
    pub(super) fn begin(&self) -> bool {
        turn(&self.state, BEGUN)
    }

    /// An answer that nobody waits for any more is dropped.
    pub(super) fn answer(self, answer: Result<T, StoreError>) {
        let _ = self.reply.send(answer);
    }
}

impl<T> Pending<T> {
    /// The answer; `late` makes the error of a call that was begun and not answered.
    pub(super) async fn answer(
        self,
        place: &str,
        late: fn(String) -> StoreError,
    ) -> Result<T, StoreError> {
        match tokio::time::timeout(self.within, self.answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(late(format!("a thread of {place} has ended"))),
            Err(_) if turn(&self.state, GIVEN_UP) => Err(StoreError::unavailable(format!(
                "{place} did not come to this call within {}: another process has it locked, or \
                 the disk hangs",
                about(self.within)
            ))),
            Err(_) => Err(late(format!(
                "{place} did not answer within {}: the disk is slow or hangs",
                about(self.within)
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn a_call_that_was_not_begun_certainly_did_not_happen() {
        let (call, pending) = call::<()>(SHORT);
        let answer = pending.answer("file:///x", StoreError::unknown).await;
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
        assert!(!call.begin(), "nobody waits for it");
    }

    #[tokio::test]
    async fn a_call_that_was_begun_and_not_answered_is_unknown() {
        let (call, pending) = call::<()>(SHORT);
        assert!(call.begin());
        let answer = pending.answer("file:///x", StoreError::unknown).await;
        assert!(matches!(answer, Err(StoreError::Unknown(_))), "{answer:?}");
        call.answer(Ok(()));
    }
}
