//! The network between servers.
//!
//! A server asks over connections that it opened, and is answered on the same
//! ones; so a cut is of *connections*: `cut[a][b]` takes away what `a` asks
//! `b` and what `b` answers to that, and leaves what `b` asks `a`. That is how
//! a server can be able to answer and unable to ask (H7). Besides, messages
//! are lost, late, doubled and out of order.

use tenure_alpo::{Body, Envelope, Start, StorageId};
use tenure_core::rng::Rng;

use super::swarm::Swarm;

/// How many old disks live on at the same time, at most.
pub(super) const LINGER_MAX: usize = 3;

/// A message on its way.
#[derive(Clone, Debug)]
pub(super) struct InFlightMessage {
    pub(super) envelope: Envelope,
    /// The disk that its sender had when it sent it.
    pub(super) storage: StorageId,
    /// The process that sent it: where it was, and which start.
    pub(super) sender: (usize, Start),
    /// The disk that it is for.
    pub(super) wanted: Option<StorageId>,
}

/// The state of the network.
#[derive(Clone, Debug)]
pub(super) struct Network {
    size: usize,
    cut: Vec<bool>,
    /// By connection: by how much everything on it is late, at most.
    slow: Vec<u64>,
    /// Whether messages are lost, doubled and out of order.
    pub(super) unruly: bool,
}

impl Network {
    pub(super) fn new(size: usize) -> Self {
        Self {
            size,
            cut: vec![false; size * size],
            slow: vec![0; size * size],
            unruly: true,
        }
    }

    pub(super) fn heal(&mut self) {
        self.cut.fill(false);
        self.slow.fill(0);
    }

    /// Everything on the connection that `a` opened to `b` is late by up to
    /// this much.
    pub(super) fn slow(&mut self, a: usize, b: usize, by: u64) {
        self.slow[a * self.size + b] = by;
    }

    /// Whether what `a` asks of `b` gets there (both counted from 0).
    pub(super) fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut[a * self.size + b]
    }

    pub(super) fn cut(&mut self, a: usize, b: usize, cut: bool) {
        self.cut[a * self.size + b] = cut;
    }

    /// Cuts the servers in two at random, in both directions.
    pub(super) fn split(&mut self, rng: &mut Rng) {
        let side: Vec<bool> = (0..self.size).map(|_| rng.chance(50)).collect();
        for a in 0..self.size {
            for b in 0..self.size {
                self.cut(a, b, side[a] != side[b]);
            }
        }
    }

    /// Cuts one server off; only from those it asks if `one_way` is 1, only
    /// from those who ask it if 2.
    pub(super) fn isolate(&mut self, server: usize, one_way: u64) {
        for other in (0..self.size).filter(|other| *other != server) {
            if one_way != 2 {
                self.cut(server, other, true);
            }
            if one_way != 1 {
                self.cut(other, server, true);
            }
        }
    }

    /// When a message arrives, in nanoseconds from now; twice if it was
    /// doubled, never if it was lost.
    pub(super) fn send(
        &self,
        envelope: &Envelope,
        swarm: &Swarm,
        rng: &mut Rng,
    ) -> [Option<u64>; 2] {
        let from = envelope.from.get() as usize - 1;
        let to = envelope.to.get() as usize - 1;
        let (a, b) = match envelope.body {
            Body::Request { .. } => (from, to),
            Body::Reply { .. } => (to, from),
        };
        if a >= self.size || b >= self.size || self.is_cut(a, b) {
            return [None, None];
        }
        let slow = rng.below(self.slow[a * self.size + b] + 1);
        let latency = swarm.latency;
        if !self.unruly {
            return [Some(latency + slow), None];
        }
        if rng.below(1_000) < swarm.loss {
            return [None, None];
        }
        let delay = slow
            + if rng.below(1_000) < swarm.late {
                latency + rng.below(latency * 20)
            } else {
                latency + rng.below(latency / 4 + 1)
            };
        let twice = (rng.below(1_000) < swarm.doubled).then(|| delay + rng.below(latency * 10));
        [Some(delay), twice]
    }
}

/// The connections that hold back, and what they hold.
#[derive(Default)]
pub(super) struct DelayedMessages {
    /// Until when, which way, and for how long.
    pub(super) holds: Vec<DelayRule>,
    pub(super) held: Vec<DelayedMessage>,
    pub(super) next: u64,
}

/// What a connection holds back.
#[derive(Clone, Copy)]
pub(super) struct DelayRule {
    /// Who opened it, and to whom.
    pub(super) connection: (usize, usize),
    pub(super) until: u64,
    pub(super) requests: bool,
    pub(super) replies: bool,
    /// Everything comes this long after it was sent, at the latest.
    pub(super) late: u64,
}

pub(super) struct DelayedMessage {
    pub(super) number: u64,
    pub(super) connection: (usize, usize),
    pub(super) message: InFlightMessage,
}

impl DelayedMessages {
    /// For how long a message that is sent now is held back, if it is.
    pub(super) fn holds(&self, now: u64, connection: (usize, usize), body: &Body) -> Option<u64> {
        let of = |hold: &&DelayRule| {
            let fits = match body {
                Body::Request { .. } => hold.requests,
                Body::Reply { .. } => hold.replies,
            };
            hold.connection == connection && hold.until > now && fits
        };
        self.holds.iter().find(of).map(|hold| hold.late)
    }

    /// A connection begins to hold back.
    pub(super) fn begin(&mut self, hold: DelayRule) {
        self.holds.push(hold);
    }

    /// The connection breaks; how many messages are lost with it.
    pub(super) fn breaks(&mut self, is_broken: impl Fn((usize, usize)) -> bool) -> u64 {
        let before = self.held.len();
        self.held.retain(|held| !is_broken(held.connection));
        self.holds.retain(|hold| !is_broken(hold.connection));
        (before - self.held.len()) as u64
    }
}
