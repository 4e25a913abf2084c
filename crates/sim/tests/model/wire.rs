//! Messages on their way: nothing is in order, anything may be late for ever.
//!
//! A message that is never delivered is a lost one, so loss needs no action
//! of its own. The wire is a bag: a delivery takes a message out, and a
//! duplication delivers it and leaves it in.
//!
//! A message of which nobody can ever take note again is taken out, since
//! states that differ by it alone have the same futures. By default so are
//! two kinds that could still be noted, because what they bring about comes
//! about without them too:
//!
//! * A **request of a term that is over** for the one it is sent to brings its
//!   sender no more than the news of a higher term. Whoever stood in that
//!   term asked the sender for its vote, and a sender that gets that request
//!   instead knows the term as well. (If it leads it does not listen; but it
//!   may cease to lead at any time, by running out of patience.)
//! * A **refusal** makes a candidate give up, which is no more than winning
//!   nothing; or stand again at once, which it also does when it runs out of
//!   patience; or ask another to step back, with the same in turn.
//!
//! [`Kept`] says which of them stay, to see that it makes no difference.

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

    /// Whether it can never again make anybody do anything that would not be
    /// done without it; see the head of this file.
    ///
    /// A reply of a term the asker knows, to a question of a term that is
    /// over for it or that it gave up asking in, is read and forgotten: terms
    /// on disk never fall, and a passive server that asks again does so in a
    /// higher term, unless polls are messages.
    fn is_idle(&self, hosts: &[Arc<Host>], kept: Kept) -> bool {
        let Envelope { to, term, body, .. } = &*self.envelope;
        let host = &hosts[index_of(*to)];
        let known = host.disk.hard().term;
        match body {
            Body::Request { .. } => *term < known && !kept.stale,
            Body::Reply { reply, .. } if is_refusal(reply) && !kept.refusals => true,
            Body::Reply { asked_in, .. } => {
                let given_up = || host.node.status() == Status::Passive && known == host.node.term();
                let too_late = || self.number() <= host.node.numbered_from();
                *term <= known
                    && (*asked_in < known || *asked_in == known && !kept.polls && (given_up() || too_late()))
            }
        }
    }
}

/// Whether it says no, or less.
const fn is_refusal(reply: &Reply) -> bool {
    match reply {
        Reply::StaleTerm
        | Reply::Led { .. }
        | Reply::LogIncomplete { .. }
        | Reply::NoVote
        | Reply::Taken { .. }
        | Reply::Deferred
        | Reply::AlreadyLeader
        | Reply::NotOutranked { .. } => true,
        Reply::WouldGrant
        | Reply::Granted
        | Reply::Appended { .. }
        | Reply::Mismatch { .. }
        | Reply::Heard { .. }
        | Reply::Installed { .. }
        | Reply::Standing => false,
    }
}

/// Which messages are carried although safety could do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// Requests of terms that are over for the one they are sent to.
    pub(crate) stale: bool,
    /// Refusals.
    pub(crate) refusals: bool,
    /// Polls and answers to them.
    pub(crate) polls: bool,
}

/// All of them, in an order that is the same however they came to be there.
#[derive(Clone, Debug)]
pub(crate) struct Wire {
    sent: Vec<Sent>,
    kept: Kept,
}

impl Wire {
    /// With nothing on it.
    pub(crate) const fn new(kept: Kept) -> Self {
        let sent = Vec::new();
        Self { sent, kept }
    }

    pub(crate) fn send(&mut self, envelope: Envelope) {
        let sent = Sent::new(envelope);
        let at = self.sent.partition_point(|other| other.key() < sent.key());
        self.sent.insert(at, sent);
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
        let kept = self.kept;
        self.sent.retain(|sent| !sent.is_idle(hosts, kept));
    }

    pub(crate) fn digest(&self, hosts: &[Arc<Host>], into: &mut impl Hasher) {
        for sent in &self.sent {
            sent.meaning(hosts).hash(into);
        }
    }
}
