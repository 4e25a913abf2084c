//! Whose log it is, and how its checksums are made.

use tenure_core::bug::Plant;

use super::Checksum;
use crate::{Bug, Identity};

/// Whose log it is, and how its checksums are made.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub(super) identity: Identity,
    pub(super) sum: Checksum,
    pub(super) planted: Plant<Bug>,
}

impl Format {
    /// The log of `identity`, with this way to work out CRC-32C.
    pub const fn new(identity: Identity, sum: Checksum) -> Self {
        Self {
            identity,
            sum,
            planted: Plant::NONE,
        }
    }

    /// Whose log it is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The same, with a mistake that is to be made.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub const fn with_bug(self, planted: Option<Bug>) -> Self {
        Self {
            planted: Plant::of(planted),
            ..self
        }
    }
}
