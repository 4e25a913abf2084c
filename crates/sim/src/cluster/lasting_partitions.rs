//! Networks that are broken in part, for long.
//!
//! After the storm, in some worlds, the network is not healed at once: it
//! keeps a shape in which some servers reach each other and others do not.
//! Everything else is well. Then *who reaches a majority should lead*.
//!
//! What the protocol promises, exactly. Server `x` *could lead* if it may
//! stand, and if of the voters that it reaches (what it asks them arrives, and
//! so do their answers), itself counted, a majority are up, may vote, and have
//! no better log than it has.
//!
//! If at every moment for [`bound`](World::bound) somebody could lead, then
//! within that time somebody does, and reaches a majority. Nothing is promised
//! where the only servers with good enough logs reach too few (a star of five
//! whose centre lacks what three of the leaves have): no election can be won
//! there, and none may be.
//!
//! Why it holds. While nobody leads, no log changes, so who could lead stays
//! able to. Its pre-vote is refused by those of its voters alone that still
//! hear a leader, and they stop hearing it within a timeout, or that leader has
//! a majority. A server with a better log that cannot lead itself makes it step
//! back once (H7).
//!
//! Rivals that it cannot ask to defer have waits that are drawn anew each time,
//! so one of them goes first before long. And nobody can depose it again and
//! again: raising a term takes a pre-vote that a majority grants, and its own
//! voters grant none.

use tenure_alpo::Status;

use super::checkers::{Check, Verdict, broken};
use super::events::Event;
use super::recovery_checks::describe;
use super::world::World;
use crate::clock::SECOND;

/// A broken network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PartitionShape {
    /// One is reached by all, who do not reach each other.
    Star,
    /// Each reaches the next and the one before.
    Chain,
    /// Each reaches the next and the one before, and the last the first.
    Ring,
    /// Of any two, only one reaches the other.
    OneWay,
    /// Barely a majority reach each other, and nobody else.
    Few,
    /// Each connection works or does not.
    Ragged,
}

/// So many looks in a row have to find the same leader.
const STEADY: u64 = 10;
/// After so many looks the partition is over, whichever server leads.
const LOOKS_MAX: u64 = 150;

impl World {
    /// Breaks the network into a shape.
    pub(super) fn partition_shape(&mut self, partition_shape: PartitionShape) {
        let size = self.swarm.servers;
        let mut order: Vec<_> = (0..size).collect();
        for at in (1..size).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        // Where few are left, those whose logs are the longest and the newest
        // are among them, so that they need each other.
        let last = |server: &usize| self.hosts[*server].node.as_ref().map(|n| n.log().last());
        let longest = |server: &usize| last(server).map(|last| last.id);
        if let Some(at) = (0..size).max_by_key(|at| longest(&order[*at])) {
            order.swap(0, at);
        }
        if let Some(at) = (1..size).max_by_key(|at| last(&order[*at])) {
            order.swap(1, at);
        }
        for i in 0..size {
            for j in 0..size {
                let (low, high) = (i.min(j), i.max(j));
                let next = high - low == 1;
                let joined = match partition_shape {
                    PartitionShape::Star => low == 0,
                    PartitionShape::Chain => next,
                    PartitionShape::Ring => next || (low, high) == (0, size - 1),
                    PartitionShape::OneWay => (i < j) == ((i + j) % 2 == 0),
                    PartitionShape::Few => high <= size / 2,
                    PartitionShape::Ragged => self.rng.chance(55),
                };
                self.network.cut(order[i], order[j], !joined && i != j);
            }
        }
    }

    /// A random one of them.
    pub(super) fn any_shape(&mut self) -> PartitionShape {
        let all = [
            PartitionShape::Star,
            PartitionShape::Chain,
            PartitionShape::Ring,
            PartitionShape::OneWay,
            PartitionShape::Few,
            PartitionShape::Few,
            PartitionShape::Ragged,
        ];
        all[self.rng.below(all.len() as u64) as usize]
    }

    /// Within what time somebody is elected when all is well.
    pub(super) fn bound(&self) -> u64 {
        // Nobody is elected while silence is owed to a leader of before.
        let owed = self.settings_rollout.longest(&self.swarm.config);
        25 * self.timeout() + 3 * SECOND + owed * 11 / 10
    }

    /// A look at a network that keeps a shape: does somebody lead who could?
    pub(super) fn look_at_shape(&mut self) -> Verdict {
        let leader = (0..self.swarm.servers).find(|server| self.leads(*server));
        let partition_check = &mut self.partition_check;
        partition_check.looks += 1;
        partition_check.steady = match leader {
            Some(_) if leader == partition_check.led_by => partition_check.steady + 1,
            _ => 0,
        };
        partition_check.led_by = leader;
        let could = (0..self.swarm.servers).find(|server| self.could_lead(*server));
        let now = self.now;
        self.partition_check.leaderless = match (leader, could) {
            (None, Some(_)) => self.partition_check.leaderless.or(Some(now)),
            _ => None,
        };
        if let (Some(since), Some(could)) = (self.partition_check.leaderless, could)
            && now - since > self.bound()
        {
            let all: Vec<_> = self.hosts.iter().map(describe).collect();
            let detail = format!(
                "s{} could lead for {} ms: {}",
                could + 1,
                (now - since) / 1_000_000,
                all.join("; ")
            );
            return broken(Check::Reaches, detail);
        }
        let idle = leader.is_none() && could.is_none() && self.partition_check.looks > 3 * STEADY;
        if self.partition_check.steady >= STEADY || idle || self.partition_check.looks >= LOOKS_MAX
        {
            self.stats.shapes_led += u64::from(self.partition_check.steady >= STEADY);
            self.stats.shapes_idle += u64::from(idle);
            return self.mended();
        }
        let again = self.timeout() / 2;
        self.after(again, Event::PartitionCheck);
        Ok(())
    }

    /// Whether what `a` asks `b` arrives and is answered.
    fn reaches(&self, a: usize, b: usize) -> bool {
        a == b || !self.network.is_cut(a, b)
    }

    /// Whether it leads, and reaches a majority.
    fn leads(&self, server: usize) -> bool {
        let node = self.hosts[server].node.as_ref();
        node.is_some_and(|node| node.status() == Status::Leader)
            && self.reaches_majority(server, |_| true)
    }

    /// See above.
    fn could_lead(&self, server: usize) -> bool {
        let Some(node) = &self.hosts[server].node else {
            return false;
        };
        let (mine, members) = (node.rank().last, node.members());
        let stands = members.get(node.id()).map(|member| member.storage);
        stands == Some(self.hosts[server].storage)
            && members.is_voter(node.id())
            && self.reaches_majority(server, |other| {
                let node = self.hosts[other].node.as_ref();
                node.is_some_and(|node| {
                    let own = node.members().get(node.id());
                    own.is_some_and(|own| own.storage == self.hosts[other].storage)
                        && node.rank().last <= mine
                })
            })
    }

    /// Whether it reaches a majority of its voters that are up and `fit`.
    fn reaches_majority(&self, server: usize, fit: impl Fn(usize) -> bool) -> bool {
        let Some(node) = &self.hosts[server].node else {
            return false;
        };
        let voters: Vec<_> = node
            .members()
            .voters()
            .map(|id| id.get() as usize - 1)
            .collect();
        let reached = voters.iter().filter(|voter| {
            self.hosts[**voter].node.is_some() && self.reaches(server, **voter) && fit(**voter)
        });
        reached.count() * 2 > voters.len()
    }
}
