//! Messages on their way: nothing is in order, anything may be late for ever.
//!
//! A message that is never delivered is a lost one, so loss needs no action
//! of its own. Duplicates come in two ways. Where their number is bounded,
//! the wire is a bag: a delivery takes a message out, and a duplication
//! delivers it and leaves it in. Where it is not, the wire is a set that
//! only grows: whatever was said once can be heard any number of times.
//!
//! A message that nobody can ever take note of again is taken out, since
//! states that differ by it alone have the same futures ([`Wire::sweep`]).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenure_core::alpo::{Body, Envelope, Reply, Status};
use tenure_core::ids::Term;

use super::host::{Host, index_of};

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) envelope: Arc<Envelope>,
    /// Of all but the number.
    digest: u64,
}

impl Sent {
    fn new(envelope: Envelope) -> Self {
        let mut hasher = DefaultHasher::new();
        envelope.digest(&mut hasher);
        Self {
            envelope: Arc::new(envelope),
            digest: hasher.finish(),
        }
    }

    fn key(&self) -> (u64, u64) {
        (self.digest, self.number())
    }

    fn number(&self) -> u64 {
        match &self.envelope.body {
            Body::Request { number, .. } | Body::Reply { number, .. } => *number,
        }
    }

    /// Who asked, and in which term.
    fn asked(&self) -> (usize, Term) {
        let Envelope {
            from,
            to,
            term,
            body,
        } = &*self.envelope;
        match body {
            Body::Request { .. } => (index_of(*from), *term),
            Body::Reply { asked_in, .. } => (index_of(*to), *asked_in),
        }
    }

    /// The message as far as it makes a difference: the number counts from
    /// the beginning of the candidacy or reign it belongs to, and is nothing
    /// in a term that is over for the one who asked, for good.
    fn meaning(&self, hosts: &[Arc<Host>]) -> (u64, u64) {
        let (asker, term) = self.asked();
        let asker = &hosts[asker];
        let number = if term < asker.disk.hard().term {
            0
        } else if term == asker.node.term() {
            self.number().saturating_sub(asker.node.numbered_from())
        } else {
            self.number()
        };
        (self.digest, number)
    }

    /// Whether it can never again make anybody do anything.
    ///
    /// A reply of a term the asker knows, to a question of a term that is
    /// over for it or that it gave up asking in, is read and forgotten: terms
    /// on disk never fall, and a passive server that asks again does so in a
    /// higher term (polls are no messages here). That somebody leads is no
    /// more than a refusal: who gets none does not win either.
    fn is_idle(&self, hosts: &[Arc<Host>], polls: bool) -> bool {
        let Envelope { to, term, body, .. } = &*self.envelope;
        let host = &hosts[index_of(*to)];
        let known = host.disk.hard().term;
        match body {
            Body::Request { .. } => false,
            Body::Reply {
                reply: Reply::Led { .. },
                ..
            } => true,
            Body::Reply { asked_in, .. } => {
                let given_up = || host.node.status() == Status::Passive && known == host.node.term();
                let too_late = || self.number() <= host.node.numbered_from();
                *term <= known
                    && (*asked_in < known || *asked_in == known && !polls && (given_up() || too_late()))
            }
        }
    }
}

/// All of them, in an order that is the same however they came to be there.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    sent: Vec<Sent>,
    /// Whether what was delivered stays.
    is_set: bool,
    /// Whether polls are messages.
    polls: bool,
}

impl Wire {
    /// With nothing on it.
    pub(crate) const fn new(is_set: bool, polls: bool) -> Self {
        let sent = Vec::new();
        Self {
            sent,
            is_set,
            polls,
        }
    }

    /// Whether what was delivered stays.
    pub(crate) const fn is_set(&self) -> bool {
        self.is_set
    }

    pub(crate) fn send(&mut self, envelope: Envelope) {
        let sent = Sent::new(envelope);
        let at = self.sent.partition_point(|other| other.key() < sent.key());
        let known = self.sent.get(at).is_some_and(|s| s.key() == sent.key());
        if !(known && self.is_set) {
            self.sent.insert(at, sent);
        }
    }

    pub(crate) fn get(&self, index: usize) -> &Sent {
        &self.sent[index]
    }

    pub(crate) fn take(&mut self, index: usize) {
        self.sent.remove(index);
    }

    pub(crate) fn len(&self) -> usize {
        self.sent.len()
    }

    /// One index for each message that differs from the others.
    pub(crate) fn distinct(&self, hosts: &[Arc<Host>]) -> Vec<usize> {
        let meaning = |index: usize| self.sent[index].meaning(hosts);
        let mut all: Vec<_> = (0..self.sent.len()).collect();
        all.dedup_by_key(|index| meaning(*index));
        all
    }

    /// Takes out what can make no difference any more.
    pub(crate) fn sweep(&mut self, hosts: &[Arc<Host>]) {
        let polls = self.polls;
        self.sent.retain(|sent| !sent.is_idle(hosts, polls));
    }

    pub(crate) fn digest(&self, hosts: &[Arc<Host>], into: &mut impl Hasher) {
        let mut last = None;
        for sent in &self.sent {
            let meaning = sent.meaning(hosts);
            if !(self.is_set && last == Some(meaning)) {
                meaning.hash(into);
            }
            last = Some(meaning);
        }
    }
}
