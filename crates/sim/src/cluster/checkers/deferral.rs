//! Who steps back for a better candidate waits a full timeout before it stands
//! again, unless the leader asks it to or a connection breaks (H10). Who drops
//! out because of one better log does so once, and not again until somebody has
//! led (H7). Neither is a matter of safety, and breaking either rule is likely
//! to be healed by chance some seconds later; so it is the rules that are
//! watched, not the delay.

use tenure_alpo::{Body, Envelope, Event, Node, Position, Rank, Request, ServerId, Status};
use tenure_core::Machine;
use tenure_core::time::Instant;

use super::{Check, Verdict, broken};

pub(in super::super) struct Patience {
    /// By server, when it stepped back, on its own clock.
    since: Vec<Option<u64>>,
    /// By server, whether it dropped out and nobody has led since.
    vetoed: Vec<bool>,
    timeout: u64,
}

impl Patience {
    pub(in super::super) fn new(servers: usize, timeout: u64) -> Self {
        Self {
            since: vec![None; servers],
            vetoed: vec![false; servers],
            timeout,
        }
    }

    /// Something happened after which standing at once is right.
    pub(in super::super) fn excuse(&mut self, server: usize) {
        self.since[server] = None;
    }

    /// Its process began anew.
    pub(in super::super) fn restart(&mut self, server: usize) {
        self.since[server] = None;
        self.vetoed[server] = false;
    }

    pub(in super::super) fn event(
        &mut self,
        server: usize,
        id: ServerId,
        event: &Event,
        local: u64,
    ) -> Verdict {
        match event {
            Event::Deferred { .. } => self.since[server] = Some(local),
            Event::LeaderKnown { .. } => {
                self.since[server] = None;
                self.vetoed[server] = false;
            }
            Event::Vetoed if self.vetoed[server] => {
                let detail = format!("{id} dropped out twice, and nobody reigned in between");
                return broken(Check::Veto, detail);
            }
            Event::Vetoed => self.vetoed[server] = true,
            Event::PreVoting | Event::Standing { .. } => {
                if let Some(since) = self.since[server].take()
                    && local - since < self.timeout
                {
                    let waited = (local - since) / 1_000_000;
                    let detail = format!("{id} deferred and stood again after {waited} ms");
                    return broken(Check::Patience, detail);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// A follower is about to hear a candidate that is worse than itself.
/// Unless it votes for it, that must not make it wait longer (H8).
pub(in super::super) struct Calm {
    deadline: Option<Instant>,
    candidate: ServerId,
}

impl Calm {
    pub(in super::super) fn before(node: &Node, envelope: &Envelope) -> Option<Self> {
        let Body::Request { request, .. } = &envelope.body else {
            return None;
        };
        let last: Position = match request {
            Request::PreVote { last } | Request::Vote { last, .. } | Request::Defer { last } => {
                *last
            }
            _ => return None,
        };
        let rank = |last, server| Rank { last, server };
        let candidate = envelope.from;
        let worse = rank(last, candidate) < rank(node.log().last(), node.id());
        (worse && node.status() == Status::Follower).then(|| Self {
            deadline: node.deadline(),
            candidate,
        })
    }

    pub(in super::super) fn after(&self, node: &Node) -> Verdict {
        let vote = node.hard_state().vote;
        let voted = vote.is_some_and(|vote| vote.rank.server == self.candidate);
        if node.status() == Status::Follower && !voted && node.deadline() > self.deadline {
            let detail = format!("{} waits longer because of {}", node.id(), self.candidate);
            return broken(Check::Calm, detail);
        }
        Ok(())
    }
}
