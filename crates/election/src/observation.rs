//! What one process can tell others about an election, and how sure it is.

use core::fmt;

use tenure_core::ids::Term;
use tenure_core::time::Instant;

use super::Leader;

/// How sure an answer to "is it led?" is (§6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Certainty {
    /// One read: it looked so, and cannot be known better without waiting.
    Assumed,
    /// Judged by a clock that can step.
    Likely,
    /// By a session, a clock that cannot step, observed silence, or because
    /// the register says so itself.
    Proven,
}

impl fmt::Display for Certainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Assumed => "assumed",
            Self::Likely => "likely",
            Self::Proven => "proven",
        })
    }
}

/// What one process can tell others about an election.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// Who leads; `None` if nobody does.
    pub leader: Option<Leader>,
    /// The highest term seen.
    pub term: Term,
    /// How sure this is.
    pub certainty: Certainty,
    /// When the grant may be over if it is not renewed, on this process's
    /// boot-time clock; `None` if nobody leads, or a session holds the election.
    pub expires_at: Option<Instant>,
}

/// The register shows a lower term than this process has seen, or the same
/// under another leader: it was lost, or an older copy of it came back (§1.11).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TermRegression {
    /// What it shows; zero where there is no register.
    pub shown: Term,
    /// The highest term that was seen: the floor, which no leader may be
    /// elected under.
    pub floor: Term,
}

impl TermRegression {
    /// Nobody asks a leader to go for the sake of a floor above this, 2^62. A
    /// term that high is a mistake, and must not spread: half of all terms are
    /// left above it.
    pub const ASKED_MAX: u64 = 1 << 62;
}
