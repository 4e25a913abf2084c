//! What is committed is committed: the same on every server, for ever.
//!
//! The first server that applies an entry writes it down here; every other
//! has to apply the same. A reference state is built from what was written
//! down, and every server's state has to be equal to it, byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use tenure_alpo::codec::crc32c;
use tenure_alpo::{Entry, Log, LogId, Node, Payload, Snapshot, State};
use tenure_core::ids::Term;

use super::bindings::Bound;
use super::reads::Past;
use super::{Check, Verdict, broken};

pub(in super::super) struct Committed {
    /// From id 1 on.
    entries: Vec<Entry>,
    /// The term in which each was first seen to be committed.
    terms: Vec<Term>,
    /// The state they add up to.
    pub(in super::super) reference: State,
    /// The same, with a user log that forgets nothing.
    pub(in super::super) everything: State,
    requests: BTreeSet<(u64, u64)>,
    snapshots: BTreeMap<LogId, u32>,
    /// What is bound to sessions.
    pub(in super::super) bound: Bound,
    /// What was there to read, and when.
    pub(in super::super) past: Past,
}

impl Committed {
    pub(in super::super) fn new(reference: State, everything: State) -> Self {
        Self {
            entries: Vec::new(),
            terms: Vec::new(),
            reference,
            everything,
            requests: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            bound: Bound::default(),
            past: Past::default(),
        }
    }

    pub(in super::super) fn len(&self) -> LogId {
        self.entries.len() as LogId
    }

    /// The last entry that was committed before `term`; 0 if none was.
    pub(in super::super) fn before_term(&self, term: Term) -> LogId {
        let last = self.terms.iter().rposition(|of| *of < term);
        last.map_or(0, |at| at as LogId + 1)
    }

    /// A server applied entries `from` to `to`.
    pub(in super::super) fn applied(&mut self, node: &Node, from: LogId, to: LogId) -> Verdict {
        for id in from..=to {
            let Some(entry) = node.log().get(id) else {
                continue;
            };
            match self.entries.get(id as usize - 1) {
                Some(known) if known == entry => {}
                Some(known) => {
                    let detail = format!(
                        "{} applied {entry:?} where {known:?} had been applied",
                        node.id()
                    );
                    return broken(Check::Committed, detail);
                }
                None if id == self.len() + 1 => {
                    self.take(entry)?;
                    self.terms.push(node.term());
                }
                None => {
                    let detail = format!("{} applied {id} after {}", node.id(), self.len());
                    return broken(Check::Committed, detail);
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, entry: &Entry) -> Verdict {
        if let Payload::Command(command) = &entry.payload
            && !self.requests.insert((command.session, command.serial))
            && self.reference.sessions().get(command.session).is_some()
        {
            let detail = format!(
                "request {} of session {} stands in the log twice, again at {}",
                command.serial, command.session, entry.id
            );
            return broken(Check::Committed, detail);
        }
        let before = self.reference.registers().revision();
        let outcome = self.reference.apply(entry);
        self.bound
            .applied(entry, &outcome, before, &self.reference)?;
        self.everything.apply(entry);
        self.past.applied(entry, before, &self.reference);
        self.entries.push(entry.clone());
        Ok(())
    }

    /// A server took or was given a snapshot: the same as any other's.
    pub(in super::super) fn snapshot(&mut self, snapshot: &Snapshot) -> Verdict {
        let sum = crc32c(&snapshot.bytes);
        let known = *self.snapshots.entry(snapshot.last.id).or_insert(sum);
        let own =
            self.reference.applied() == snapshot.last && crc32c(&self.reference.encode()) != sum;
        if known != sum || own {
            let detail = format!("two states after entry {}", snapshot.last);
            return broken(Check::State, detail);
        }
        Ok(())
    }

    /// Everything that was committed in an earlier term is in this leader's
    /// log. (Who wins late may find that a later term has come and gone.)
    pub(in super::super) fn complete(&self, node: &Node) -> Verdict {
        let log = node.log();
        for (entry, term) in self.entries.iter().zip(&self.terms).rev() {
            if entry.id <= log.base().id {
                break;
            }
            if *term < node.term() && log.get(entry.id) != Some(entry) {
                let detail = format!(
                    "{} leads term {} with a log up to {}, without {} committed in term {term}",
                    node.id(),
                    node.term(),
                    log.last(),
                    entry.position()
                );
                return broken(Check::Completeness, detail);
            }
        }
        Ok(())
    }

    /// A server that has applied everything has the reference state.
    pub(in super::super) fn same_state(&self, node: &Node) -> Verdict {
        if node.state().applied() != self.reference.applied() {
            return Ok(());
        }
        if node.state().encode() != self.reference.encode() {
            let detail = format!("{} has another state after {}", node.id(), self.len());
            return broken(Check::State, detail);
        }
        Ok(())
    }
}

/// Same id and term, same entry (I4), between two logs.
pub(in super::super) fn matching(a: &Log, b: &Log) -> Verdict {
    for entry in a.iter() {
        if let Some(other) = b.get(entry.id)
            && other.term == entry.term
            && other != entry
        {
            let detail = format!("{entry:?} and {other:?}");
            return broken(Check::Matching, detail);
        }
    }
    Ok(())
}
