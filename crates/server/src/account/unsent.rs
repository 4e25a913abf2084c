//! Answers that wait in the HTTP library, as they are counted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_api::v1;

use super::bounds::{UNSENT, UNSENT_STRANGERS};
use super::{CallerAccount, Full};

/// Bytes of answers of one connection that have not gone.
#[derive(Debug)]
pub(crate) struct UnsentCharge {
    place: Arc<CallerAccount>,
    bytes: usize,
}

impl UnsentCharge {
    /// None yet.
    pub(crate) const fn new(place: Arc<CallerAccount>) -> Self {
        Self { place, bytes: 0 }
    }

    /// So many are held now.
    pub(crate) fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes == before {
            return;
        }
        for of in [Full::Connection, Full::Caller, Full::Server] {
            let held = &self.place.usage(of).unsent;
            held.fetch_add(bytes, Ordering::Relaxed);
            held.fetch_sub(before, Ordering::Relaxed);
        }
    }

    /// Whether there is room for what is held.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(crate) fn room(&self) -> Result<(), v1::Error> {
        let bounds = if self.place.is_stranger() {
            UNSENT_STRANGERS
        } else {
            UNSENT
        };
        let held = |of| self.place.usage(of).unsent.load(Ordering::Relaxed);
        self.place
            .within(bounds, held, "answers that have not gone")
    }
}

impl Drop for UnsentCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}
