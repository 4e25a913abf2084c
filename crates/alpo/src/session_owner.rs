//! Whose a session is, and what proves it.
//!
//! A session's number is no secret: it is the id of an entry, and the next
//! one can be guessed. So the entry that opens a session names its *owner*,
//! and a leader takes a command of the session only from who proves to be it
//! ([`SessionOwner::admits`]; `docs/design/identity.md`, Sessions and their owners).
//!
//! A client draws a secret and opens the session with it; the owner is who has
//! the secret. The entry holds its hash, so that neither the log nor a backup
//! gives it away. Without a secret the owner is who has the token that opened
//! it; without either there is none, and only the digest of each
//! command ([`digest_of`](super::digest_of)) keeps two clients apart.
//!
//! Hashes are computed by the driver, and compared here.

/// The first half of a SHA-256.
pub type Fingerprint = [u8; 16];

/// Who opened a session: against whose quota it counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum SessionOpener {
    /// A server of the cluster for itself; or it was not said, as in version 1.
    #[default]
    Server,
    /// A client with the token of this hash.
    Token(Fingerprint),
    /// A client without a token, from this address (IPv6, or IPv4 mapped
    /// into it).
    Address([u8; 16]),
}

/// Whose a session is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct SessionOwner {
    /// The hash of the secret that it was opened with, if it was with one.
    pub secret: Option<Fingerprint>,
    /// Who opened it.
    pub opener: SessionOpener,
}

/// What a client proves with a command.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct OwnershipProof {
    /// The hash of the secret that it has shown.
    pub secret: Option<Fingerprint>,
    /// The hash of its token.
    pub token: Option<Fingerprint>,
}

impl OwnershipProof {
    /// Proves nothing.
    pub const NONE: Self = Self {
        secret: None,
        token: None,
    };

    /// Proves to have the secret of this hash.
    pub const fn of_secret(secret: Fingerprint) -> Self {
        Self {
            secret: Some(secret),
            token: None,
        }
    }
}

impl SessionOwner {
    /// Whether there is anything to prove.
    pub const fn is_unowned(&self) -> bool {
        self.secret.is_none() && !matches!(self.opener, SessionOpener::Token(_))
    }

    /// Whether a server of the cluster has opened it for itself. Of a session
    /// from before the cluster's version was 2 it is not known who has.
    pub const fn is_servers(&self) -> bool {
        self.secret.is_some() && matches!(self.opener, SessionOpener::Server)
    }

    /// Whether who proves this is the owner. A secret counts alone: who has it
    /// may have another token by now. An address proves nothing.
    pub fn admits(&self, proof: &OwnershipProof) -> bool {
        match (self.secret, self.opener) {
            (Some(secret), _) => proof.secret == Some(secret),
            (None, SessionOpener::Token(token)) => proof.token == Some(token),
            (None, SessionOpener::Server | SessionOpener::Address(_)) => true,
        }
    }
}

/// What it takes to open a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenSession {
    /// How long it lives without being heard of, in nanoseconds.
    pub ttl: super::LogTime,
    /// Whose it is to be. Not noted before the cluster's version is 2.
    pub owner: SessionOwner,
    /// How many sessions there may be of this opener, this one included;
    /// [`u64::MAX`] if they are not counted, and may have the places that are
    /// kept.
    pub most: u64,
}

impl OpenSession {
    /// Of a session without an owner.
    pub const fn unowned(ttl: super::LogTime) -> Self {
        Self {
            ttl,
            owner: SessionOwner {
                secret: None,
                opener: SessionOpener::Server,
            },
            most: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_counts_alone_then_the_token_and_an_address_proves_nothing() {
        let (mine, other) = ([1; 16], [2; 16]);
        let proof = |secret, token| OwnershipProof { secret, token };
        let owner = |secret, opener| SessionOwner { secret, opener };
        let secret = owner(Some(mine), SessionOpener::Token(other));
        assert!(secret.admits(&OwnershipProof::of_secret(mine)));
        assert!(!secret.admits(&proof(Some(other), Some(other))));
        assert!(!secret.admits(&proof(None, Some(other))));
        let by_token = owner(None, SessionOpener::Token(mine));
        assert!(by_token.admits(&proof(Some(other), Some(mine))));
        assert!(!by_token.admits(&proof(Some(mine), Some(other))));
        assert!(!by_token.admits(&OwnershipProof::NONE));
        for opener in [SessionOpener::Server, SessionOpener::Address(mine)] {
            assert!(owner(None, opener).admits(&OwnershipProof::NONE));
            assert!(owner(None, opener).is_unowned());
        }
        assert!(!secret.is_unowned() && !by_token.is_unowned());
    }
}
