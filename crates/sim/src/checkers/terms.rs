//! The term never falls and grows by exactly one whenever the leader changes;
//! the sequence grows with every write; every leadership has an id of its own.
//!
//! The first two are read off the register itself, write by write. The third
//! is asked of what candidates are told: an election nobody else could see,
//! or an id that has led before, is one leader too many.
//!
//! The same ledger of writes answers the question of
//! [`Check::Grants`](super::Check::Grants): did the write that gave a grant take effect after the
//! moment from which the grant counts?

use std::collections::BTreeSet;

use tenure_core::ids::{Fence, LeaderId, Term, Version};
use tenure_election::Record;

use super::Finding;
use crate::clock::TrueTime;

/// One write of an election's register.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) version: Version,
    pub(crate) term: Term,
    pub(crate) holder: Option<LeaderId>,
    pub(crate) sequence: u64,
    pub(crate) renewal: u64,
    pub(crate) applied: TrueTime,
}

/// All writes of one election's register, and all its leaders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Terms {
    entries: Vec<Entry>,
    top: Term,
    ids: BTreeSet<u128>,
    /// The register was lost once, or an older state of it came back: terms
    /// may be had twice, and a leader's is only above the one that it found.
    store_damage: bool,
    /// There are two copies of it.
    forked: bool,
}

impl Terms {
    /// The register holds something else that nobody has written.
    pub(crate) fn tore(&mut self, record: Option<(&Record, &Version)>, now: TrueTime) {
        self.store_damage = true;
        self.entries.push(Entry {
            version: record.map_or_else(|| Version::from_u64(0), |(_, version)| version.clone()),
            term: record.map_or(Term::ZERO, |(record, _)| record.term),
            holder: record.and_then(|(record, _)| record.holder().map(|holder| holder.id)),
            sequence: record.map_or(0, |(record, _)| record.sequence),
            renewal: record.map_or(0, |(record, _)| record.renewal),
            applied: now,
        });
    }

    /// There are two copies of the register from now on, or one again.
    pub(crate) const fn forked(&mut self, forked: bool) {
        self.store_damage = true;
        self.forked = forked;
    }

    /// A write has taken effect.
    pub(crate) fn wrote(&mut self, record: &Record, version: &Version, now: TrueTime) -> Finding {
        let entry = Entry {
            version: version.clone(),
            term: record.term,
            holder: record.holder().map(|holder| holder.id),
            sequence: record.sequence,
            renewal: record.renewal,
            applied: now,
        };
        let finding = if self.forked {
            Ok(())
        } else {
            self.follows(&entry)
        };
        self.entries.push(entry);
        finding
    }

    fn follows(&self, next: &Entry) -> Finding {
        let (term, sequence, holder) = self.entries.last().map_or((Term::ZERO, 0, None), |last| {
            (last.term, last.sequence, last.holder)
        });
        if next.sequence <= sequence {
            return Err(format!(
                "the sequence went from {sequence} to {}",
                next.sequence
            ));
        }
        let expected = match next.holder {
            Some(id) if holder != Some(id) => term.next(),
            Some(_) | None => Some(term),
        };
        // Above the register's, and above what its holder remembers.
        let risen = self.store_damage && expected != Some(term) && next.term > term;
        if expected == Some(next.term) || risen {
            return Ok(());
        }
        Err(format!(
            "the term went from {term} to {} as the holder went from {holder:?} to {:?}",
            next.term, next.holder
        ))
    }

    /// A candidate was told that it leads.
    pub(crate) fn elected(&mut self, fence: Fence) -> Finding {
        let Fence { term, leader } = fence;
        if term <= self.top && !self.store_damage {
            return Err(format!("elected in term {term} after term {}", self.top));
        }
        self.top = self.top.max(term);
        if !self.ids.insert(leader.to_u128()) {
            return Err(format!("{leader} was elected again, in term {term}"));
        }
        if !self.held(term, leader) {
            return Err(format!(
                "elected in term {term}, which the register never showed"
            ));
        }
        Ok(())
    }

    /// A grant was told that counts from `start`.
    pub(crate) fn granted(&self, fence: Fence, start: TrueTime) -> Finding {
        let mine = |entry: &&Entry| {
            entry.term == fence.term
                && entry.holder == Some(fence.leader)
                && entry.renewal == entry.sequence
        };
        let last = self.entries.iter().rev().find(mine);
        match last {
            Some(entry) if entry.applied >= start => Ok(()),
            found => Err(format!(
                "a grant in term {} counts from {start} ns, but its last write took effect at \
                 {:?} ns",
                fence.term,
                found.map(|entry| entry.applied)
            )),
        }
    }

    /// The session lives that the register is bound to.
    pub(crate) fn confirmed(&mut self, now: TrueTime) {
        let Some(shown) = self.entries.last() else {
            return;
        };
        let (term, holder) = (shown.term, shown.holder);
        let own = |entry: &&mut Entry| {
            (entry.term, entry.holder) == (term, holder) && entry.renewal == entry.sequence
        };
        if let Some(entry) = self.entries.iter_mut().rev().find(own) {
            entry.applied = now;
        }
    }

    /// Whether the register ever showed this holder in this term.
    pub(crate) fn held(&self, term: Term, leader: LeaderId) -> bool {
        let mut back = self
            .entries
            .iter()
            .rev()
            .skip_while(|entry| entry.term > term && !self.store_damage);
        back.any(|entry| entry.term == term && entry.holder == Some(leader))
    }

    /// What the register shows.
    pub(crate) fn last(&self) -> Option<&Entry> {
        self.entries.last()
    }

    /// What a version stood for.
    pub(crate) fn by_version(&self, version: &Version) -> Option<&Entry> {
        self.entries
            .iter()
            .rev()
            .find(|entry| entry.version == *version)
    }

    /// How many writes there were.
    pub(crate) fn writes(&self) -> u64 {
        self.entries.len() as u64
    }
}
