//! Registers that are bound to a session: what the log says must become of
//! them.
//!
//! Every committed entry is followed here by a second, simpler account of what
//! is bound to which session and when that was heard of.
//!
//! From the first to the last entry of a session nobody else may write what it
//! has bound (but for a note), it may not end before its time to live has
//! passed on the log's time since its last command *or since a new leader's
//! first entry*, and at the entry that ends it all its registers must get their
//! on-expiry values, under that entry's version, and nothing else may change.
//! That this is so on every server is for the comparison of states to say.

use std::collections::{BTreeMap, BTreeSet};

use tenure_alpo::{Command, Entry, LogTime, Operation, Outcome, Payload, SessionId, State};
use tenure_core::cas::{Bytes, Stamp};
use tenure_core::ids::{Key, Version};

use super::{Check, Verdict, broken};

/// A session as the log tells it.
struct Alive {
    ttl: LogTime,
    heard: LogTime,
}

/// What happened to bound registers in a run.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Seen {
    /// Registers bound.
    pub(in super::super) binds: u64,
    /// Last wills executed.
    pub(in super::super) wills: u64,
    /// Writes refused for the sake of another session.
    pub(in super::super) kept_off: u64,
    /// Notes left on bound registers.
    pub(in super::super) notes: u64,
    /// Sessions that ended because nothing was heard of them.
    pub(in super::super) expired: u64,
    /// Ends that were proposed and came too late: the session spoke again.
    pub(in super::super) spared: u64,
    /// Sessions with registers bound that a new leader renewed.
    pub(in super::super) renewed: u64,
}

#[derive(Default)]
pub(in super::super) struct Bound {
    by_key: BTreeMap<Key, (SessionId, Bytes)>,
    alive: BTreeMap<SessionId, Alive>,
    pub(in super::super) seen: Seen,
}

impl Bound {
    /// Entry `entry` was applied, with this outcome; before it the registers
    /// had revision `before`, and now the state is this.
    pub(in super::super) fn applied(
        &mut self,
        entry: &Entry,
        outcome: &Outcome,
        before: u64,
        state: &State,
    ) -> Verdict {
        let now = state.time();
        let changes = match &entry.payload {
            Payload::NoOp => {
                for session in self.alive.values_mut() {
                    session.heard = now;
                }
                let holders = self.by_key.values().map(|(session, _)| *session);
                let holders: BTreeSet<_> = holders.collect();
                self.seen.renewed += holders.len() as u64;
                0
            }
            Payload::Open { ttl } | Payload::OpenOwned { ttl, .. } => {
                if let Outcome::Opened(session) = outcome {
                    let (ttl, heard) = (*ttl, now);
                    self.alive.insert(*session, Alive { ttl, heard });
                }
                0
            }
            Payload::Expire { session } => self.expired(*session, entry, state)?,
            Payload::Command(command) => self.done(command, entry, outcome, state)?,
            _ => 0,
        };
        let bound = self.by_key.len();
        if state.registers().revision() != before + changes || state.bound_len() != bound {
            let changed = state.registers().revision() - before;
            let counted = state.bound_len();
            let detail = format!(
                "{entry:?} ({outcome:?}) changed {changed} registers and left {counted} bound; \
                 expected {changes} and {bound}"
            );
            return broken(Check::Bound, detail);
        }
        Ok(())
    }

    /// The end of a session was proposed: how many registers it changes.
    fn expired(
        &mut self,
        session: SessionId,
        entry: &Entry,
        state: &State,
    ) -> Result<u64, super::Broken> {
        let Some(alive) = self.alive.get(&session) else {
            return Ok(0);
        };
        let (ends, now) = (alive.heard + alive.ttl, state.time());
        let ended = state.sessions().get(session).is_none();
        if ended != (ends <= now) {
            let what = if ended { "ended" } else { "went on" };
            let detail = format!(
                "session {session} {what} at {now} by entry {}, and was to end at {ends}",
                entry.id
            );
            return Err(super::Broken::new(Check::Bound, detail));
        }
        if ended {
            self.seen.expired += 1;
            return self.ended(session, entry, state);
        }
        self.seen.spared += 1;
        Ok(0)
    }

    /// A command was applied: how many registers it changes.
    fn done(
        &mut self,
        command: &Command,
        entry: &Entry,
        outcome: &Outcome,
        state: &State,
    ) -> Result<u64, super::Broken> {
        if !was_done(outcome) {
            return Ok(0);
        }
        let session = command.session;
        if let Some(alive) = self.alive.get_mut(&session) {
            alive.heard = state.time();
        }
        let (key, stamp) = match &command.operation {
            Operation::Swap(write) => (&write.key, write.stamp),
            Operation::Bind(bind) => (&bind.write.key, bind.write.stamp),
            Operation::Delete(delete) => (&delete.key, Stamp::Now),
            Operation::Close => return self.ended(session, entry, state),
            Operation::Append(_) | Operation::KeepAlive => return Ok(0),
        };
        let holder = self.by_key.get(key).map(|(holder, _)| *holder);
        let anothers = holder.is_some_and(|holder| holder != session);
        if !matches!(outcome, Outcome::Swapped(_) | Outcome::Deleted) {
            self.seen.kept_off += u64::from(anothers);
            return Ok(0);
        }
        let bind = match &command.operation {
            Operation::Bind(bind) => Some(&bind.last),
            _ => None,
        };
        if bind.is_none() && stamp == Stamp::Keep {
            self.seen.notes += u64::from(holder.is_some());
            return Ok(1);
        }
        if anothers {
            let detail = format!("{key} is bound to {holder:?}, and {entry:?} wrote it");
            return Err(super::Broken::new(Check::Bound, detail));
        }
        match bind {
            Some(last) => {
                self.seen.binds += 1;
                self.by_key.insert(key.clone(), (session, last.clone()));
            }
            None => {
                self.by_key.remove(key);
            }
        }
        Ok(1)
    }

    /// A session is over: its registers hold what was said.
    fn ended(
        &mut self,
        session: SessionId,
        entry: &Entry,
        state: &State,
    ) -> Result<u64, super::Broken> {
        self.alive.remove(&session);
        let held = self.by_key.extract_if(.., |_, (of, _)| *of == session);
        let mut count = 0;
        for (key, (_, last)) in held {
            let found = state.registers().read(&key);
            let version = Version::from_u64(entry.id);
            let right = found.is_some_and(|it| it.value == last && it.version == version);
            if !right || state.bound(&key).is_some() {
                let detail = format!(
                    "session {session} ended at entry {}, and {key} holds {found:?}, not {last:?}",
                    entry.id
                );
                return Err(super::Broken::new(Check::Bound, detail));
            }
            count += 1;
        }
        self.seen.wills += count;
        Ok(count)
    }
}

/// Whether the command was carried out by an entry with this outcome, and so
/// was a keep-alive.
pub(in super::super) const fn was_done(outcome: &Outcome) -> bool {
    !matches!(
        outcome,
        Outcome::SessionExpired | Outcome::TooOld | Outcome::OutOfOrder { .. }
    )
}
