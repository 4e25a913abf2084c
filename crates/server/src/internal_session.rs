//! A session of the server's own, for clients that have none.
//!
//! Whatever changes the state does so under a session and a serial. A client
//! that sends a single request by `curl` has neither, so the server numbers
//! it in a session that it keeps for the purpose. Such a request is done at
//! most once; a client that does not hear the answer has to look.

use std::sync::Mutex;
use std::sync::PoisonError;

use tenure_alpo::{Answer, Outcome, OwnershipProof, Refusal, Serial, SessionId};
use tokio::sync::Mutex as AsyncMutex;

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) session: SessionId,
    /// Drawn for it; no other server, and no client, has it.
    pub(super) proof: OwnershipProof,
    pub(super) next: Serial,
    pub(super) under_way: u64,
}

/// The session, if one is open.
#[derive(Debug, Default)]
pub(super) struct InternalSession {
    pub(super) open: Mutex<Option<Open>>,
    pub(super) opening: AsyncMutex<()>,
}

/// A request of the session, as long as somebody waits for its answer. What
/// was given up counts no more: the machine bounds what it has to do itself.
pub(super) struct UnderWay<'a> {
    pub(super) internal_session: &'a InternalSession,
    pub(super) session: SessionId,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.internal_session.with(|open| {
            if let Some(it) = open.as_mut()
                && it.session == self.session
            {
                it.under_way = it.under_way.saturating_sub(1);
            }
        });
    }
}

impl InternalSession {
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Option<Open>) -> T) -> T {
        work(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Judges an answer; says whether to try again under another session.
    pub(super) fn done(&self, session: SessionId, answer: &Answer) -> bool {
        let expired = matches!(
            answer,
            Answer::Done(
                Outcome::SessionExpired
                    | Outcome::TooOld
                    | Outcome::OtherContent
                    | Outcome::OutOfOrder { .. }
            ) | Answer::Refused(
                // Somebody has used it: it was opened when sessions had no
                // owners yet. The next one has.
                Refusal::OutOfOrder { .. }
                    | Refusal::Window
                    | Refusal::OtherContent
                    | Refusal::NotOwner
            )
        );
        // A request that was not taken leaves a gap that the next would fall
        // into; and a leader that is none any more may have another session.
        // One that there is no room for leaves none: its serial is used.
        let used = matches!(
            answer,
            Answer::Done(_) | Answer::Refused(Refusal::QuotaExceeded(_))
        );
        let over = expired || !used;
        self.with(|open| {
            if let Some(it) = open.as_mut()
                && it.session == session
                && over
            {
                *open = None;
            }
        });
        expired
    }
}
