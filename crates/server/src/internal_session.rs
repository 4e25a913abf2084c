//! Sessions of the server's own, for clients that have none.
//!
//! Whatever changes the state does so under a session and a serial. A client
//! that sends a single request by `curl` has neither, so the server numbers
//! it in a session that it keeps for the purpose. Such a request is done at
//! most once; a client that does not hear the answer has to look.
//!
//! Requests of one session are done in their order. So that no caller waits for
//! all that another has asked for, there are [`SESSIONS`] of them, and a
//! caller's token or address says which one is its.

use std::sync::Mutex;
use std::sync::PoisonError;

use tenure_alpo::{Answer, Outcome, OwnershipProof, Refusal, Serial, SessionId, SessionOpener};
use tokio::sync::Mutex as AsyncMutex;

/// How many there are: all servers together need fewer than are kept for them.
const SESSIONS: usize = 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) session: SessionId,
    /// Drawn for it; no other server, and no client, has it.
    pub(super) proof: OwnershipProof,
    pub(super) next: Serial,
    pub(super) under_way: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct InternalSessions([InternalSession; SESSIONS]);

impl InternalSessions {
    /// The one for requests of this caller.
    pub(super) fn of(&self, opener: SessionOpener) -> &InternalSession {
        let (SessionOpener::Token(bytes) | SessionOpener::Address(bytes)) = opener else {
            return &self.0[0];
        };
        // The hash of a token is as good as drawn, the end of an address nearly.
        let sum = bytes.iter().fold(0, |sum: usize, byte| {
            sum.wrapping_mul(31).wrapping_add(usize::from(*byte))
        });
        &self.0[sum % SESSIONS]
    }
}

/// One session, if it is open.
#[derive(Debug, Default)]
pub(super) struct InternalSession {
    pub(super) open: Mutex<Option<Open>>,
    pub(super) opening: AsyncMutex<()>,
}

/// A request of the session, as long as its caller waits for the answer. What
/// was given up counts no more: the state machine bounds what it has to do itself.
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
                    | Refusal::SessionWindowFull
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_have_sessions_that_are_theirs_or_shared_with_few() {
        let sessions = InternalSessions::default();
        let place = |opener| std::ptr::from_ref(sessions.of(opener));
        let address = |last| {
            let mut bytes = [0; 16];
            bytes[15] = last;
            SessionOpener::Address(bytes)
        };
        assert_eq!(place(address(7)), place(address(7)));
        let all: std::collections::HashSet<_> = (0..8).map(|last| place(address(last))).collect();
        assert_eq!(all.len(), SESSIONS);
        let token = |first| {
            let mut bytes = [7; 16];
            bytes[0] = first;
            SessionOpener::Token(bytes)
        };
        let tokens = (0..=255).map(|first| place(token(first)));
        let all: std::collections::HashSet<_> = tokens.collect();
        assert_eq!(all.len(), SESSIONS);
    }
}
