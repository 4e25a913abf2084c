//! The token that the servers of a user share, for a server that has no file
//! of tokens.
//!
//! It allows everything, as a server without tokens does for everybody. A call
//! says it, or proves that its caller has it, by its connection
//! ([`OwnToken`](crate::transport::OwnToken)).

use std::sync::Arc;

use super::rights::Rights;
use super::table::{Fingerprint, Table, digest};
use crate::transport::{Arrival, OwnToken, Verdict};
use tenure_api::v1::Cause;

/// What is expected of calls, and where to find it. Nothing of it is a secret,
/// nor tells strangers who the user is.
pub(super) const EXPECTED: &str = "expected the token of the user of this server (authorization: \
     Bearer …), which that user finds in $XDG_STATE_HOME/tenure/token, or in \
     ~/.local/state/tenure/token (clients of that user on this machine find it by themselves)";

/// What it is called where callers are named.
const NAME: &str = "own";

/// The token, and the one row of its table.
pub(super) struct Own {
    token: OwnToken,
    fingerprint: Fingerprint,
    pub(super) table: Arc<Table>,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Own")
    }
}

impl Own {
    pub(super) fn new(token: &OwnToken) -> Self {
        let fingerprint = digest(token.as_bytes());
        let table = Table(vec![(fingerprint, Arc::new(Rights::everything(NAME)))]);
        Self {
            token: token.clone(),
            fingerprint,
            table: Arc::new(table),
        }
    }

    /// Which token a call shows that carries this: the user's own if it proves
    /// that.
    pub(super) fn shown(
        &self,
        said: &[u8],
        arrival: Option<Arrival>,
    ) -> Result<Fingerprint, Stranger> {
        if !OwnToken::is_proof(said) {
            return Ok(digest(said));
        }
        let refused = |cause, found| {
            Err(Stranger {
                cause,
                expected: EXPECTED,
                found,
            })
        };
        let judged = arrival.map(|arrival| self.token.judge(said, arrival));
        match judged.unwrap_or(Verdict::Wrong) {
            Verdict::Proven => Ok(self.fingerprint),
            Verdict::Wrong => refused(
                Cause::Unauthenticated,
                "found a proof of another one, or for another address than this",
            ),
            // Its next connection is good.
            Verdict::Stale => refused(
                Cause::NotReady,
                "found a proof of a connection that was dialled before this server listened here, \
                 or more than a minute before it was taken: dial again",
            ),
        }
    }
}

/// Why a caller is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stranger {
    pub(super) cause: Cause,
    pub(super) expected: &'static str,
    pub(super) found: &'static str,
}
