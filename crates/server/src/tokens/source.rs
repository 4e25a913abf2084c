//! Where the tokens of a server are from, and what it says to callers that
//! have none of them.

use std::sync::Arc;

use super::own::{EXPECTED, Own, Stranger};
use super::table::{Fingerprint, Table, digest};
use crate::transport::{Arrival, OwnToken, Reloaded};
use tenure_api::v1::Cause;

/// Where they are from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    File(Arc<Reloaded<Arc<Table>>>),
    /// The one that all servers of a user share, which calls may prove instead
    /// of saying it.
    Own(Arc<Own>),
}

impl Source {
    pub(super) fn current(&self) -> Arc<Table> {
        match self {
            Self::File(file) => file.current(),
            Self::Own(own) => Arc::clone(&own.table),
        }
    }

    /// What a call that carries this shows.
    pub(super) fn shown(
        &self,
        said: &[u8],
        arrival: Option<Arrival>,
    ) -> Result<Fingerprint, Stranger> {
        match self {
            // Who was given no token shows this one.
            Self::File(_) if OwnToken::is_proof(said) => Err(Stranger::unknown(
                self,
                "found none but that of a user, which only servers without a file of tokens know",
            )),
            Self::File(_) => Ok(digest(said)),
            Self::Own(own) => own.shown(said, arrival),
        }
    }

    pub(super) const fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// What is expected of calls.
    pub(super) const fn expected(&self) -> &'static str {
        match self {
            Self::File(_) => "expected a token (authorization: Bearer …)",
            Self::Own(_) => EXPECTED,
        }
    }
}

impl Stranger {
    pub(super) const fn unknown(known: &Source, found: &'static str) -> Self {
        Self {
            cause: Cause::Unauthenticated,
            expected: known.expected(),
            found,
        }
    }
}
