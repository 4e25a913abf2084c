//! Whether callers may still have what their sessions hold.
//!
//! A register that is bound to a session is no other client's as long as the
//! session lives, and any command of the session keeps that alive. So it is
//! not enough to ask what the command itself needs: a caller whose right to an
//! election was taken away would lead it for ever by keep-alives. A command
//! under a session is refused if its caller may not write a register that is
//! bound to the session. The session then ends after its time to live, and its
//! registers get their on-expiry values.
//!
//! It is the caller's present token that counts, and not the one that opened
//! the session: tokens are replaced, and a session is its secret's.
//!
//! To look at what a session holds is a question to the event loop, so what
//! was found is remembered for [`GOOD_FOR`]. It is forgotten with the rights
//! that it was found for: each reading of the file of tokens makes new ones. A
//! bind that was let in by the rights of before may be applied after that
//! look; the next one finds it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_alpo::SessionId;
use tenure_core::time::Instant;

use super::tokens::Rights;

/// For how long what was found is believed.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// Of how many sessions it is remembered. One more, and one is forgotten: it is
/// looked at again.
const SESSIONS_MAX: usize = 16_384;

/// Sessions that hold nothing which the caller of then might not write.
#[derive(Debug, Default)]
pub(super) struct SessionRights(Mutex<BTreeMap<SessionId, (Weak<Rights>, Instant)>>);

impl SessionRights {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, (Weak<Rights>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was found lately, for these rights.
    pub(super) fn knows(&self, session: SessionId, rights: &Arc<Rights>, now: Instant) -> bool {
        self.lock().get(&session).is_some_and(|(of, at)| {
            Weak::as_ptr(of) == Arc::as_ptr(rights) && now.since(*at) < GOOD_FOR
        })
    }

    pub(super) fn note(&self, session: SessionId, rights: &Arc<Rights>, now: Instant) {
        let mut found = self.lock();
        if found.len() >= SESSIONS_MAX && !found.contains_key(&session) {
            found.pop_first();
        }
        found.insert(session, (Arc::downgrade(rights), now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_of_these_rights_and_for_a_while() {
        let found = SessionRights::default();
        let rights = Arc::new(Rights::everything("a"));
        let other = Arc::new(Rights::everything("a"));
        let now = Instant::from_nanos(1);
        assert!(!found.knows(7, &rights, now));
        found.note(7, &rights, now);
        assert!(found.knows(7, &rights, now));
        assert!(!found.knows(8, &rights, now));
        assert!(!found.knows(7, &other, now), "the file was read again");
        assert!(!found.knows(7, &rights, now.after(GOOD_FOR)));
    }

    #[test]
    fn it_remembers_so_many() {
        let found = SessionRights::default();
        let rights = Arc::new(Rights::everything("a"));
        for session in 1..=2 * SESSIONS_MAX as u64 {
            found.note(session, &rights, Instant::from_nanos(1));
        }
        assert_eq!(found.lock().len(), SESSIONS_MAX);
    }
}
