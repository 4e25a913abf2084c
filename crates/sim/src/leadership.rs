//! What the application and the guardian of a candidate know of its leadership.

use tenure_core::ids::{Fence, Term};
use tenure_core::time::Instant;
use tenure_election::Grant;

/// What the application knows of its election.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leadership {
    pub(crate) fence: Fence,
    /// The latest grant it was told.
    pub(crate) grant: Grant,
    pub(crate) draining: bool,
    pub(crate) killed: bool,
    pub(crate) ousted: bool,
    /// Its work has ended, and the candidate knows or will.
    pub(crate) drained: bool,
}

/// Work that runs, as its guardian sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) term: Term,
    pub(crate) kill_at: Instant,
}
