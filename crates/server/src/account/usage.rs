//! What is held of a connection, of a caller, or of all.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::byte_gauge::ByteGauge;

/// What is held of a connection, of a caller, or of all.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) requests: AtomicUsize,
    pub(super) answers: ByteGauge,
    /// Of answers, what streams have made.
    pub(super) streamed: ByteGauge,
    /// How many requests over exchanges are under way.
    pub(super) pipelined: AtomicUsize,
    /// Of answers, what waits in the HTTP library.
    pub(super) unsent: AtomicUsize,
    /// Of a connection, how many bytes it has held and holds no more. It wraps around.
    pub(super) released: AtomicUsize,
}

/// What is held, and may be scarce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resource {
    Requests,
    /// Answers of calls and of exchanges.
    Answers,
}

impl Usage {
    /// How many bytes of it are held.
    pub(super) fn held(&self, resource: Resource) -> usize {
        match resource {
            Resource::Requests => self.requests.load(Ordering::Relaxed),
            Resource::Answers => self.answers.held(),
        }
    }

    /// So many bytes are held no more.
    pub(super) fn release(&self, bytes: usize) {
        self.released.fetch_add(bytes, Ordering::Relaxed);
    }
}
