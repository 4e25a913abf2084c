//! What must be true in every state, and the memory it takes to tell.
//!
//! The rules speak of what happened, so a state carries a little history:
//! who led in which term, what each server said about its vote, and what
//! anybody ever took for committed, with the term in which that was decided.
//!
//! | rule | what must be true |
//! |---|---|
//! | election safety | at most one leadership begins in a term |
//! | vote uniqueness | a server says in a term that one candidate has its vote; to ask for votes is to say that one's own has it |
//! | log matching | two logs that have an entry with the same id and term are the same up to there |
//! | leader completeness | a leader has every entry that was committed in an earlier term |
//! | agreement | two servers never take different entries with the same id for committed |
//! | leases | a leader that answers a read at once has applied all that anybody ever took for committed |
//! | soundness | no server finds a broken rule itself: none halts, none panics; but one may end whose number another disk has, by what is committed |

use std::sync::Arc;

use tenure_alpo::{
    Body, Entry, Envelope, Fault, LogId, Output, Payload, Reply, Request, Status, StorageId,
};
use tenure_core::ids::Term;

use super::host::{Host, index_with};

/// A broken rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Broken {
    TwoReigns,
    TwoVotes,
    LogsDiffer,
    Incomplete,
    StatesDisagree,
    Halted,
    Panicked,
    StaleRead,
}

impl Broken {
    pub(crate) const ALL: [Self; 8] = [
        Self::TwoReigns,
        Self::TwoVotes,
        Self::LogsDiffer,
        Self::Incomplete,
        Self::StatesDisagree,
        Self::Halted,
        Self::Panicked,
        Self::StaleRead,
    ];

    pub(crate) const fn rule(self) -> &'static str {
        match self {
            Self::TwoReigns => "election safety",
            Self::TwoVotes => "vote uniqueness",
            Self::LogsDiffer => "log matching",
            Self::Incomplete => "leader completeness",
            Self::StatesDisagree => "agreement",
            Self::Halted => "soundness (halted)",
            Self::Panicked => "soundness (panicked)",
            Self::StaleRead => "leases",
        }
    }
}

/// What has happened, as far as rules speak of it.
#[derive(Clone, Default, Debug)]
pub(crate) struct ResumeState {
    /// Who led, by term.
    reigns: Vec<(Term, usize)>,
    /// Who said of whom that it has its vote, by term.
    votes: Vec<(usize, Term, usize)>,
    /// How many leaderships there were.
    pub(crate) count: u64,
    /// Committed entries and in which term they were.
    committed: Vec<(Entry, Term)>,
}

/// What a server was before a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) status: Status,
    pub(crate) term: Term,
    pub(crate) commit: LogId,
}

impl Before {
    pub(crate) fn of(host: &Host) -> Self {
        Self {
            status: host.node.status(),
            term: host.node.term(),
            commit: host.node.commit(),
        }
    }
}

impl ResumeState {
    /// Forgets what no rule will ask for again. On disk terms never fall, so
    /// below them nobody votes, begins a leadership, or leads without knowing.
    pub(crate) fn forget(&mut self, hosts: &[Arc<Host>]) {
        let known = |server: usize| hosts[server].disk.hard().term;
        self.votes
            .retain(|(server, term, _)| *term >= known(*server));
        let all = (0..hosts.len()).map(known).min().unwrap_or(Term::ZERO);
        self.reigns.retain(|(term, _)| *term >= all);
        for (_, term) in &mut self.committed {
            if *term < all {
                *term = Term::ZERO;
            }
        }
    }

    /// How many entries are committed.
    pub(crate) fn committed(&self) -> usize {
        self.committed.len()
    }

    pub(crate) fn digest(&self, into: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        (&self.reigns, &self.votes, self.committed.len()).hash(into);
        for (entry, term) in &self.committed {
            entry.digest(into);
            term.hash(into);
        }
    }

    /// Server `index` has taken a step and said `outputs`; the first rule
    /// that `is_watched` and broken.
    pub(crate) fn look(
        &mut self,
        hosts: &[Arc<Host>],
        index: usize,
        before: Before,
        outputs: &[Output],
        is_watched: impl Fn(Broken) -> bool,
    ) -> Option<Broken> {
        let votes = outputs.iter().filter_map(|output| match output {
            Output::Send { envelope, storage } => vote(envelope, index, *storage),
            _ => None,
        });
        let mut found = Vec::new();
        for (term, whose) in votes {
            found.extend(self.voted(index, term, whose));
        }
        let node = &hosts[index].node;
        let led = before.status == Status::Leader && before.term == node.term();
        if node.status() == Status::Leader && !led {
            found.extend(self.begins(node.term(), index));
        }
        found.extend(self.commits(&hosts[index], before.commit));
        found.extend(self.complete(hosts));
        let others = hosts
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index);
        found.extend(others.filter_map(|(_, other)| differ(&hosts[index], other)));
        let host = &hosts[index];
        let ends = outputs.iter().any(|output| match output {
            Output::Halt(Fault::Replaced { .. }) => !self.is_replaced(host),
            Output::Halt(_) => true,
            _ => false,
        });
        if ends {
            found.push(Broken::Halted);
        }
        found.into_iter().find(|broken| is_watched(*broken))
    }

    /// Whether the members that are committed give its number to another disk.
    fn is_replaced(&self, host: &Host) -> bool {
        let mut newest = self.committed.iter().rev();
        let members = newest.find_map(|(entry, _)| match &entry.payload {
            Payload::Members(members) => Some(members),
            _ => None,
        });
        let has = members.and_then(|members| members.storage(host.node.id()));
        has.is_some_and(|storage| storage != host.storage())
    }

    fn voted(&mut self, server: usize, term: Term, whose: usize) -> Option<Broken> {
        let at = self.votes.partition_point(|v| (v.0, v.1) < (server, term));
        match self.votes.get(at) {
            Some((s, t, other)) if (*s, *t) == (server, term) => {
                (*other != whose).then_some(Broken::TwoVotes)
            }
            _ => {
                self.votes.insert(at, (server, term, whose));
                None
            }
        }
    }

    fn begins(&mut self, term: Term, server: usize) -> Option<Broken> {
        let at = self.reigns.partition_point(|(other, _)| *other < term);
        if self.reigns.get(at).is_some_and(|(other, _)| *other == term) {
            return Some(Broken::TwoReigns);
        }
        self.reigns.insert(at, (term, server));
        self.count += 1;
        None
    }

    fn commits(&mut self, host: &Host, from: LogId) -> Option<Broken> {
        for id in from + 1..=host.node.commit() {
            let entry = host.node.log().get(id).expect("nothing is compacted");
            match self.committed.get(id as usize - 1) {
                Some((known, _)) if same(known, entry) => {}
                Some(_) => return Some(Broken::StatesDisagree),
                None => self.committed.push((entry.clone(), host.node.term())),
            }
        }
        None
    }

    fn complete(&self, hosts: &[Arc<Host>]) -> Option<Broken> {
        let leads = |host: &&Arc<Host>| host.node.status() == Status::Leader;
        let lacks = |host: &Arc<Host>| {
            let earlier = |c: &&(Entry, Term)| c.1 < host.node.term();
            let has = |entry: &Entry| {
                let own = host.node.log().get(entry.id);
                own.is_some_and(|own| same(own, entry))
            };
            let mut committed = self.committed.iter().filter(earlier);
            !committed.all(|(entry, _)| has(entry))
        };
        let mut leaders = hosts.iter().filter(leads);
        leaders.any(lacks).then_some(Broken::Incomplete)
    }
}

/// What a message of `from` for this disk says about its sender's vote.
fn vote(envelope: &Envelope, from: usize, to: Option<StorageId>) -> Option<(Term, usize)> {
    match &envelope.body {
        Body::Request {
            request: Request::Vote { .. },
            ..
        } => Some((envelope.term, from)),
        Body::Reply {
            reply: Reply::Granted,
            ..
        } => Some((envelope.term, index_with(to?))),
        _ => None,
    }
}

/// The same entry, payload and time included.
fn same(a: &Entry, b: &Entry) -> bool {
    a == b
}

fn differ(a: &Host, b: &Host) -> Option<Broken> {
    let (a, b) = (a.node.log(), b.node.log());
    let pairs: Vec<_> = a.iter().zip(b.iter()).collect();
    let meet = pairs.iter().rposition(|(a, b)| a.term == b.term)?;
    let equal = pairs[..=meet].iter().all(|(a, b)| same(a, b));
    (!equal).then_some(Broken::LogsDiffer)
}
