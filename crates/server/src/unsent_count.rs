//! Counts the answers of one connection that have not gone; `unsent_answers.rs` says why.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How much is unsent of one connection.
#[derive(Debug, Default)]
pub(super) struct UnsentCount {
    /// Calls that have ended, of which the end was not seen.
    pub(super) ended: AtomicUsize,
    /// Streams that the library resets behind their answers. No frame of an
    /// answer says that the reset has gone.
    pub(super) reset: AtomicUsize,
    /// Whether the system took no more when it was asked last.
    pub(super) blocked: AtomicBool,
}

impl UnsentCount {
    /// A call was, or will be, answered before all of its body has come.
    pub(super) fn reset(&self) {
        self.reset.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls have ended and not gone.
    pub(super) fn held(&self) -> usize {
        self.ended.load(Ordering::Relaxed) + self.reset.load(Ordering::Relaxed)
    }
}
