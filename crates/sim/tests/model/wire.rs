//! Messages on their way: nothing is in order, anything may be late for ever.
//!
//! A message that is never delivered is a lost one, so loss needs no action
//! of its own. The wire is a bag: a delivery takes a message out, and a
//! duplication delivers it and leaves it in.
//!
//! A message of which nobody can ever take note again is taken out, since
//! states that differ by it alone have the same futures. By default so are
//! three kinds that could still be noted, because what they bring about comes
//! about without them too:
//!
//! * A **request of a term that is over** for the one it is sent to brings its
//!   sender no more than the news of a higher term. The server that stood in
//!   that term asked the sender for its vote, and a sender that gets that
//!   request instead knows the term as well. (If it leads it does not listen;
//!   but it may cease to lead at any time, by running out of patience.)
//! * A **request of a candidate whose term is over**, to one who knows that
//!   term already, can only use up a vote that helps nobody any more.
//! * A **refusal** makes a candidate give up, which is no more than winning
//!   nothing; or stand again at once, which it also does when it runs out of
//!   patience; or ask another to step back, with the same in turn.
//!
//! [`Kept`] says which of them stay, to see that it makes no difference.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tenure_alpo::{Body, Envelope, Reply, SenderRole, Status};
use tenure_core::ids::Term;

use super::host::{Host, id_of, index_of};

/// One message.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) envelope: Arc<Envelope>,
    /// Who sent it, and whom it reaches: two servers may have one number.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Of all but the number.
    digest: u64,
}

impl Sent {
    fn new(envelope: Envelope, (from, to): (usize, usize), kept: Kept) -> Self {
        let mut hasher = DefaultHasher::new();
        (from, to).hash(&mut hasher);
        envelope.digest(&mut hasher);
        if kept.times {
            format!("{envelope:?}").hash(&mut hasher);
        }
        Self {
            envelope: Arc::new(envelope),
            from,
            to,
            digest: hasher.finish(),
        }
    }

    fn question(&self) -> Question {
        Question::of(&self.envelope, (self.from, self.to))
    }

    fn key(&self) -> (u64, u64) {
        (self.digest, self.number())
    }

    fn number(&self) -> u64 {
        self.question().number
    }

    /// Whether it can never again make anybody do anything that would not be
    /// done without it; see the head of this file.
    ///
    /// A reply of a term the asker knows, to a question of a term that is over
    /// for it or that it gave up asking in, is read and forgotten: terms on
    /// disk never fall, and a follower that asks again does so in a higher
    /// term, unless pre-votes are messages.
    fn is_idle(&self, hosts: &[Arc<Host>], kept: Kept) -> bool {
        let Envelope { term, body, .. } = &*self.envelope;
        let host = &hosts[self.to];
        let known = host.disk.hard().term;
        match body {
            Body::Request { .. } if kept.stale => false,
            Body::Request { request, .. } => {
                let over = || hosts[self.from].disk.hard().term > *term;
                let stood = request.sender_role() == SenderRole::Candidate;
                *term < known || stood && *term == known && over()
            }
            Body::Reply { reply, .. } if is_refusal(reply) && !kept.refusals => true,
            Body::Reply { asked_in, .. } => {
                let given_up =
                    || host.node.status() == Status::Follower && known == host.node.term();
                let too_late = || self.number() <= host.node.numbered_from();
                *term <= known
                    && (*asked_in < known
                        || *asked_in == known && !kept.polls && (given_up() || too_late()))
            }
        }
    }
}

/// The request that a message is, or answers.
#[derive(Clone, Copy)]
struct Question {
    sender_role: usize,
    peer: usize,
    term: Term,
    number: u64,
}

impl Question {
    fn of(envelope: &Envelope, (from, to): (usize, usize)) -> Self {
        let (sender_role, peer, term, number) = match &envelope.body {
            Body::Request { number, .. } => (from, to, envelope.term, *number),
            Body::Reply {
                number, asked_in, ..
            } => (to, from, *asked_in, *number),
        };
        Self {
            sender_role,
            peer,
            term,
            number,
        }
    }

    /// Whether the asker may yet look at the number of an answer: not if it
    /// gave up asking in that term, since it asks again in a higher one.
    fn counts(self, hosts: &[Arc<Host>]) -> bool {
        let node = &hosts[self.sender_role].node;
        node.term() == self.term && node.status() != Status::Follower
    }
}

/// Whether it says no, or less.
const fn is_refusal(reply: &Reply) -> bool {
    match reply {
        Reply::StaleTerm
        | Reply::LeaderKnown { .. }
        | Reply::LogIncomplete { .. }
        | Reply::NotAMember
        | Reply::AlreadyVoted { .. }
        | Reply::Deferred
        | Reply::AlreadyLeader
        | Reply::NotOutranked { .. } => true,
        Reply::PreVoteGranted
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
    /// Pre-votes and answers to them.
    pub(crate) polls: bool,
    /// Rounds and numbers tell messages apart, since leases rest on them.
    pub(crate) times: bool,
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

    pub(crate) fn send(&mut self, envelope: Envelope, ends: (usize, usize)) {
        let sent = Sent::new(envelope, ends, self.kept);
        let at = self.sent.partition_point(|other| other.key() < sent.key());
        self.sent.insert(at, sent);
    }

    pub(crate) fn get(&self, index: usize) -> &Sent {
        &self.sent[index]
    }

    pub(crate) fn take(&mut self, index: usize) {
        self.sent.remove(index);
    }

    /// These messages are lost.
    pub(crate) fn lose(&mut self, which: impl Fn(&Sent) -> bool) {
        self.sent.retain(|sent| !which(sent));
    }

    pub(crate) fn len(&self) -> usize {
        self.sent.len()
    }

    /// One index for each message that differs from the others.
    pub(crate) fn distinct(&self, hosts: &[Arc<Host>]) -> Vec<usize> {
        let ranks = Ranks::new(self, hosts);
        let meaning = |index: usize| {
            let sent = &self.sent[index];
            (sent.digest, ranks.of(sent.question(), hosts))
        };
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
        let ranks = Ranks::new(self, hosts);
        for sent in &self.sent {
            (sent.digest, ranks.of(sent.question(), hosts)).hash(into);
        }
        // Then what tells hosts apart has all the numbers.
        if self.kept.times {
            return;
        }
        for (sender_role, host) in hosts.iter().enumerate() {
            if self.kept.polls {
                (host.node.numbered_from(), host.node.last_number()).hash(into);
            }
            for envelope in host.node.held() {
                let to = index_of(envelope.to);
                let question = Question::of(envelope, (sender_role, to));
                ranks.of(question, hosts).hash(into);
            }
            for peer in 0..hosts.len() {
                for number in host.node.numbers_to(id_of(peer)) {
                    ranks.rank((sender_role, peer, number)).hash(into);
                }
            }
        }
    }
}

/// The numbers that matter, in order: by who asked, whom, and number. Two
/// states in which they are in the same order have the same futures.
struct Ranks {
    known: Vec<(usize, usize, u64)>,
    /// Nothing is simplified: numbers are what they are.
    plain: bool,
}

impl Ranks {
    fn new(wire: &Wire, hosts: &[Arc<Host>]) -> Self {
        let plain = wire.kept.polls;
        if wire.kept.times {
            let known = Vec::new();
            return Self { known, plain };
        }
        let sent = wire.sent.iter().map(Sent::question);
        let held = hosts.iter().enumerate().flat_map(|(index, host)| {
            let to = |envelope: &Envelope| index_of(envelope.to);
            let held = host.node.held();
            held.map(move |envelope| Question::of(envelope, (index, to(envelope))))
        });
        let asked = sent.chain(held);
        let asked = asked.filter(|question| question.counts(hosts));
        let mut known: Vec<_> = asked.map(|q| (q.sender_role, q.peer, q.number)).collect();
        for (sender_role, host) in hosts.iter().enumerate() {
            for peer in 0..hosts.len() {
                let numbers = host.node.numbers_to(id_of(peer));
                known.extend(numbers.map(|number| (sender_role, peer, number)));
            }
        }
        known.retain(|(sender_role, _, number)| *number > hosts[*sender_role].node.numbered_from());
        known.sort_unstable();
        known.dedup();
        Self { known, plain }
    }

    fn rank(&self, (sender_role, peer, number): (usize, usize, u64)) -> u64 {
        if self.plain {
            return number;
        }
        let before = self
            .known
            .partition_point(|key| *key < (sender_role, peer, 0));
        match self.known.binary_search(&(sender_role, peer, number)) {
            Ok(at) => (at + 1 - before) as u64,
            Err(_) => 0,
        }
    }

    /// A message's number as far as it makes a difference.
    fn of(&self, question: Question, hosts: &[Arc<Host>]) -> u64 {
        if self.plain || question.counts(hosts) {
            self.rank((question.sender_role, question.peer, question.number))
        } else {
            0
        }
    }
}
