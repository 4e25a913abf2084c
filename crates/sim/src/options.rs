//! What is simulated, and what may be wrong with that.

use std::fmt;

#[cfg(feature = "planted-bugs")]
use tenure_election::Bug;

use crate::checkers::Check;

/// How to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How long faults last, in leases.
    pub leases: u64,
    /// Whether there are any.
    pub faults: bool,
    /// How many candidates stand; drawn from the seed if `None`.
    pub candidates: Option<usize>,
    /// How many lines of the trace a violation shows.
    pub trace: usize,
    /// The one checker to heed; all of them if `None`.
    pub only: Option<Check>,
    /// A mistake that every candidate makes.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<Bug>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            leases: 12,
            faults: true,
            candidates: None,
            trace: 200,
            only: None,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

/// A world that cannot be drawn: a mistake in the simulator itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
