//! Registers that are bound to a session, and what becomes of them.
//!
//! A process that holds many elections would have to renew each. Instead it
//! binds their registers to its one session and says with each what the
//! register is to hold *at the session's end*: its on-expiry value. As long as
//! the session lives, its keep-alives are the renewal of all of them; at the
//! entry that ends it (closed or expired), every server writes the on-expiry
//! values, each with a new version.
//!
//! Why a leadership can safely rest on that (`docs/design/election.md`, clause
//! 3, rule 1). A register is bound only while its session lives, since both end
//! at the same entry. While it is bound no other session may write it (but for a
//! note that keeps the stamp) or delete it, *whatever version they expect*: so
//! no rival takes the election by judging time, however fast its clock, and no
//! take-over that was sent long ago succeeds late.
//!
//! The session cannot expire before its time to live has passed on the log's
//! time since the leader received its last command; the holder counts its
//! validity from before it sent that command, and only once it is answered. So
//! the holder's validity ends first, provided that it allows for how far the
//! rates of both clocks, its own and that of the leader, may differ from each
//! other. And what a vacated register gives to its next holder is a *value of
//! the holder's making*, an election that is vacant and keeps its term: the
//! register is never deleted, so that terms go on, and nothing here has to know
//! what an election is.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;

use tenure_core::cas::Bytes;
use tenure_core::ids::Key;
use tenure_core::shared_map::SharedMap;

use super::super::entry::SessionId;

/// The most registers that one session can hold. All of them are written at
/// one entry when it ends, and a watch that was up to date can follow that.
pub const MAX_BOUND: usize = 1_024;

/// What a register is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    pub(super) session: SessionId,
    /// What it is to hold when the session ends.
    pub(super) last: Bytes,
}

/// All bindings, by register and by session.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Bindings {
    by_key: SharedMap<Key, Binding>,
    by_session: SharedMap<SessionId, Arc<BTreeSet<Key>>>,
    /// Bytes of all on-expiry values.
    bytes: u64,
}

impl Bindings {
    /// How many registers are bound.
    pub(super) const fn len(&self) -> usize {
        self.by_key.len()
    }

    /// How many bytes their on-expiry values have.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many are bound to this session.
    pub(super) fn held(&self, session: SessionId) -> usize {
        self.by_session.get(&session).map_or(0, |held| held.len())
    }

    /// Which are bound to this session, in order.
    pub(super) fn keys(&self, session: SessionId) -> impl Iterator<Item = &Key> {
        let held = self.by_session.get(&session);
        held.into_iter().flat_map(|held| held.iter())
    }

    /// To which session, if to any.
    pub(super) fn session(&self, key: &Key) -> Option<SessionId> {
        self.by_key.get(key).map(|binding| binding.session)
    }

    /// What it is to hold when that session ends.
    pub(super) fn last(&self, key: &Key) -> Option<&Bytes> {
        self.by_key.get(key).map(|binding| &binding.last)
    }

    /// All of them, in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Binding)> {
        self.by_key.iter()
    }

    /// Whether `session` may bind `key`, which it perhaps has already.
    pub(super) fn has_room(&self, session: SessionId, key: &Key) -> bool {
        let held = self.by_session.get(&session);
        held.is_none_or(|held| held.len() < MAX_BOUND || held.contains(key))
    }

    /// Binds the register, which is bound to nobody else.
    pub(super) fn bind(&mut self, key: Key, session: SessionId, last: Bytes) {
        match self.by_session.get_mut(&session) {
            Some(held) => drop(Arc::make_mut(held).insert(key.clone())),
            None => {
                let held = Arc::new(BTreeSet::from([key.clone()]));
                self.by_session.insert(session, held);
            }
        }
        self.bytes += last.len() as u64;
        let before = self.by_key.insert(key, Binding { session, last });
        self.bytes -= before.map_or(0, |it| it.last.len() as u64);
    }

    /// The register is bound no more.
    pub(super) fn release(&mut self, key: &Key) {
        let Some(binding) = self.by_key.remove(key) else {
            return;
        };
        self.bytes -= binding.last.len() as u64;
        if let Some(held) = self.by_session.get_mut(&binding.session) {
            let held = Arc::make_mut(held);
            held.remove(key);
            if held.is_empty() {
                self.by_session.remove(&binding.session);
            }
        }
    }

    /// The session is over: what it held, in the order of the keys, with the
    /// on-expiry values.
    pub(super) fn end(&mut self, session: SessionId) -> impl Iterator<Item = (Key, Bytes)> {
        let held = self.by_session.remove(&session).unwrap_or_default();
        Arc::unwrap_or_clone(held).into_iter().filter_map(|key| {
            let binding = self.by_key.remove(&key)?;
            self.bytes -= binding.last.len() as u64;
            Some((key, binding.last))
        })
    }
}
