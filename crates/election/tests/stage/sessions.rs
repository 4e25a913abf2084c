//! Sessions of the scripted store: what is bound to which, and their ends.
//!
//! A session ends when the script says so: that it outlives the grants that
//! rest on it is the simulator's to show, which has a clock for it.

use std::collections::BTreeMap;

use tenure_core::cas::{Bytes, Stamp, Write};
use tenure_core::ids::Key;

/// All sessions there have been, numbered from 1, and what lives of them.
#[derive(Default)]
pub(crate) struct Sessions {
    over: Vec<bool>,
    bound: BTreeMap<Key, (usize, Bytes)>,
}

impl Sessions {
    pub(crate) fn open(&mut self) -> usize {
        self.over.push(false);
        self.over.len()
    }

    pub(crate) fn is_alive(&self, session: usize) -> bool {
        self.over.get(session.wrapping_sub(1)) == Some(&false)
    }

    /// Which session holds it.
    pub(crate) fn holder(&self, key: &Key) -> Option<u64> {
        self.bound.get(key).map(|(holder, _)| *holder as u64)
    }

    /// Whether the store lets `session`, or somebody without one, write so.
    pub(crate) fn allows(&self, session: Option<usize>, write: &Write) -> bool {
        let holder = self.bound.get(&write.key).map(|(holder, _)| *holder);
        let lives = session.is_none_or(|session| self.is_alive(session));
        let others = holder.is_some() && holder != session;
        lives && (!others || write.stamp == Stamp::Keep)
    }

    /// The write that was allowed has been done.
    pub(crate) fn wrote(&mut self, session: Option<usize>, write: &Write, last: Option<&Bytes>) {
        match (session, last) {
            (Some(session), Some(last)) => {
                let binding = (session, last.clone());
                self.bound.insert(write.key.clone(), binding);
            }
            _ if write.stamp == Stamp::Now => {
                self.bound.remove(&write.key);
            }
            _ => {}
        }
    }

    /// Ends a session; what it held, with the on-expiry values.
    pub(crate) fn end(&mut self, session: usize) -> Vec<(Key, Bytes)> {
        if let Some(over) = self.over.get_mut(session.wrapping_sub(1)) {
            *over = true;
        }
        let held = self
            .bound
            .extract_if(.., |_, (holder, _)| *holder == session);
        held.map(|(key, (_, last))| (key, last)).collect()
    }
}
