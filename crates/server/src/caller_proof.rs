//! What a caller proves of itself to the machine.

use tenure_alpo::{Fingerprint, OpenSession, OwnershipProof, SessionOpener, SessionOwner};

/// What a caller proves, and what it may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerProof {
    pub(super) claim: OwnershipProof,
    pub(super) opener: SessionOpener,
    pub(super) most: u64,
}

impl CallerProof {
    /// With this secret, whose hash it is.
    pub(super) const fn with(mut self, secret: Option<Fingerprint>) -> Self {
        self.claim.secret = secret;
        self
    }

    /// Asks for a session that is this caller's.
    pub(super) const fn opening(&self, ttl: u64) -> OpenSession {
        let owner = SessionOwner {
            secret: self.claim.secret,
            opener: self.opener,
        };
        OpenSession {
            ttl,
            owner,
            most: self.most,
        }
    }
}

/// The half of a hash that the log holds.
pub(super) fn half(hash: &[u8; 32]) -> Fingerprint {
    let mut half = [0; 16];
    half.copy_from_slice(&hash[..16]);
    half
}
