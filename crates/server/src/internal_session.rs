//! Sessions of the server's own, for clients that have none.
//!
//! Whatever changes the state does so under a session and a serial. A client
//! that sends a single request by `curl` has neither, so the server numbers
//! it in a session that it keeps for the purpose. Such a request is done at
//! most once; a client that does not hear the answer has to look.
//!
//! Requests of one session are done in their order. So that nobody waits for
//! all that another has asked for, there are [`SESSIONS`] of them, and a
//! caller's token or address says which one is its.

use std::sync::PoisonError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_alpo::{
    Answer, ClientRequest, Command, MAX_WINDOW, OpenSession, Operation, Outcome, OwnershipProof,
    Refusal, Serial, SessionId, SessionOpener,
};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::handle::ServerHandle;
use super::inbox::{Event, ReplyTo, TimedAnswer};
use super::quota_usage::Quota;

/// How many there are: all servers together need fewer than are kept for them.
const SESSIONS: usize = 8;
/// How long a session lives without being used.
const TTL: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Open {
    session: SessionId,
    /// Drawn for it; no other server, and no client, has it.
    proof: OwnershipProof,
    next: Serial,
    under_way: u64,
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
    open: Mutex<Option<Open>>,
    opening: AsyncMutex<()>,
}

/// A request of the session, as long as somebody waits for its answer. What
/// was given up counts no more: the machine bounds what it has to do itself.
struct UnderWay<'a> {
    internal_session: &'a InternalSession,
    session: SessionId,
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
    fn with<T>(&self, work: impl FnOnce(&mut Option<Open>) -> T) -> T {
        work(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does `operation` under a number of the server's own.
    pub(super) async fn run(
        &self,
        handle: &ServerHandle,
        operation: Operation,
        quota: Option<&Arc<Quota>>,
    ) -> TimedAnswer {
        let Some(_permit) = handle.permit() else {
            return refused(Refusal::Busy);
        };
        loop {
            let (sender, answer) = oneshot::channel();
            let sent = self.with(|open| {
                let open = open.as_mut()?;
                if open.under_way >= MAX_WINDOW / 2 {
                    return Some(Err(open.session));
                }
                let command = Command {
                    session: open.session,
                    serial: open.next,
                    outstanding: open.next,
                    operation: operation.clone(),
                };
                open.next += 1;
                open.under_way += 1;
                // Under the lock, so that serials arrive in their order.
                let (ask, reply) = (
                    ClientRequest::Command(command, open.proof),
                    ReplyTo::InternalSession(sender),
                );
                handle
                    .inbox
                    .put(Event::ClientRequest(ask, quota.cloned(), reply));
                Some(Ok(open.session))
            });
            match sent {
                Some(Ok(session)) => {
                    // The caller may give up while this waits.
                    let counted = UnderWay {
                        internal_session: self,
                        session,
                    };
                    let told = ServerHandle::answer(answer).await;
                    drop(counted);
                    if !self.done(session, &told.answer) {
                        return told;
                    }
                }
                Some(Err(_)) => {
                    handle.shared.metrics.refused();
                    return refused(Refusal::Busy);
                }
                None => {
                    if let Err(told) = self.open(handle).await {
                        return told;
                    }
                }
            }
        }
    }

    /// Judges an answer; says whether to try again under another session.
    fn done(&self, session: SessionId, answer: &Answer) -> bool {
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

    async fn open(&self, handle: &ServerHandle) -> Result<(), TimedAnswer> {
        let _alone = self.opening.lock().await;
        if self.with(|open| open.is_some()) {
            return Ok(());
        }
        let ttl = u64::try_from(TTL.as_nanos()).unwrap_or(u64::MAX);
        // What stands in the log for a secret that nobody has to show.
        let mut drawn = [0; 16];
        if getrandom::fill(&mut drawn).is_err() {
            return Err(refused(Refusal::Busy));
        }
        let mut opening = OpenSession::unowned(ttl);
        opening.owner.secret = Some(drawn);
        let told = handle.ask_to_open(opening).await;
        let Answer::Done(Outcome::Opened(session)) = told.answer else {
            return Err(told);
        };
        self.with(|open| {
            *open = Some(Open {
                session,
                proof: OwnershipProof::of_secret(drawn),
                next: 1,
                under_way: 0,
            });
        });
        Ok(())
    }
}

fn refused(refusal: Refusal) -> TimedAnswer {
    TimedAnswer::from(Answer::Refused(refusal))
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
