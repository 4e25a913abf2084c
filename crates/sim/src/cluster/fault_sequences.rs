//! Faults that only matter in a row.
//!
//! Some mistakes show only after several things have gone wrong in a certain
//! order, and chance takes long to find it. Some such rows are begun on purpose
//! here, at a moment that fits; what becomes of them is up to the servers.
//!
//! * **Orphans.** A leader and one follower are cut off from the rest, and
//!   what the follower answers is held back. The rest elects another; the old
//!   leader is brought back and takes over the new one's log, the follower is
//!   not. Then the new leader is cut off in its turn, or hands over. If the
//!   old one is elected again, it hears what its follower said of a log that
//!   is gone.
//! * **A late round.** All answers to a leader's round are held back for
//!   most of a timeout, and the leader is cut off as soon as all have heard
//!   it. Nobody confirms anything newer, and when the answers come the leader
//!   must count from when it asked.
//! * **A haunting.** A leader is left with those numbers alone under which
//!   removed disks live on, and its connections end at these. The others elect
//!   another: what a removed disk answers must not make a majority.
//! * **A fork.** Shortly before the storm ends a leader is cut off with what
//!   it goes on appending, and so is the next one, as soon as it is elected:
//!   of two logs one is longer and the other one newer.

use tenure_alpo::ClientRequest;

use super::events::{Event, SequenceStep, Waiting};
use super::network::DelayRule;
use super::world::World;

impl World {
    /// A leader begins its term; perhaps with it one of these.
    pub(super) fn plot(&mut self, leader: usize) {
        let kinds = self.swarm.kinds;
        // A removed disk that lives on shares the place of its successor.
        if self.healed || self.swarm.servers < 3 || leader >= self.swarm.servers {
            return;
        }
        let step = self.step_time();
        match self.waiting {
            Some(Waiting::Orphans {
                leader: old,
                orphan,
            }) if old != leader && orphan != leader => {
                self.waiting = None;
                let back = SequenceStep::Return {
                    leader: old,
                    orphan,
                };
                self.after(1, Event::Plot(back));
                let delay = self.rng.between(4 * step, 16 * step);
                self.after(delay, Event::Plot(SequenceStep::Swap { leader: old }));
            }
            Some(Waiting::Fork { leader: old }) if old != leader => {
                self.waiting = None;
                let delay = self.rng.below(2 * step) + 1;
                self.after(delay, Event::Plot(SequenceStep::CutOther { leader }));
            }
            // It leads again, and all is as it was.
            Some(_) => self.waiting = None,
            // The rest must be a majority without the pair.
            None if kinds.delayed_messages && self.swarm.servers > 4 && self.rng.chance(20) => {
                let others = self.swarm.servers as u64 - 1;
                let orphan = (leader + 1 + self.rng.below(others) as usize) % self.swarm.servers;
                let part = SequenceStep::Part { leader, orphan };
                if self.rng.chance(60) {
                    // Its first entry goes to the orphan alone.
                    return self.go_on_plotting(part);
                }
                let delay = self.rng.below(8 * step);
                self.after(delay, Event::Plot(part));
            }
            None if kinds.delayed_messages
                && self.swarm.config.lease_reads
                && self.rng.chance(40) =>
            {
                let delay = self.rng.below(2 * self.timeout());
                self.after(delay, Event::Plot(SequenceStep::CutLate { leader }));
            }
            None => {}
        }
    }

    /// Perhaps the leader is left alone with removed disks.
    pub(super) fn haunt(&mut self) {
        let old = self.swarm.servers..self.hosts.len();
        let old: Vec<_> = old.filter(|old| self.hosts[*old].node.is_some()).collect();
        let (Some(leader), false) = (self.leader(), old.is_empty()) else {
            return;
        };
        if !self.rng.chance(50) {
            return;
        }
        self.stats.plots += 1;
        self.network.heal();
        self.network.isolate(leader, 0);
        for old in old {
            let place = self.place(old);
            if place != leader {
                self.hosts[old].connected |= 1 << self.hosts[leader].id.get();
                self.network.cut(leader, place, false);
            }
        }
    }

    /// Perhaps the storm ends with a fork.
    pub(super) fn plot_the_end(&mut self) {
        let before = 5 * self.timeout();
        if self.swarm.kinds.lasting_partitions && before < self.swarm.storm && self.rng.chance(60) {
            self.after(self.swarm.storm - before, Event::Plot(SequenceStep::Fork));
        }
    }

    pub(super) fn go_on_plotting(&mut self, next: SequenceStep) {
        if self.healed {
            return;
        }
        self.stats.plots += 1;
        match next {
            SequenceStep::Part { leader, orphan } => {
                self.network.heal();
                self.network.isolate(leader, 0);
                self.network.isolate(orphan, 0);
                self.network.cut(leader, orphan, false);
                let late = 20 * self.timeout();
                self.hold_answers(leader, Some(orphan), late);
                self.waiting = Some(Waiting::Orphans { leader, orphan });
                let delay = self.rng.between(self.timeout() / 4, self.timeout());
                self.after(delay, Event::Plot(SequenceStep::Return { leader, orphan }));
            }
            SequenceStep::Return { orphan, .. } => {
                self.network.heal();
                self.network.isolate(orphan, 0);
            }
            SequenceStep::Swap { leader } if self.rng.chance(60) => {
                let id = self.hosts[leader].id;
                self.order(ClientRequest::Transfer(Some(id)));
            }
            SequenceStep::Swap { .. } => {
                self.network.heal();
                if let Some(leader) = self.leader() {
                    self.network.isolate(leader, 0);
                }
            }
            SequenceStep::Fork => {
                self.network.heal();
                if let Some(leader) = self.leader() {
                    self.network.isolate(leader, 0);
                    self.waiting = Some(Waiting::Fork { leader });
                }
            }
            SequenceStep::CutOther { leader } => self.network.isolate(leader, 0),
            SequenceStep::CutLate { leader } => self.cut_off_late(leader),
        }
    }

    /// What is asked from now on is answered late; and as soon as a round has
    /// been asked, nothing more is.
    fn cut_off_late(&mut self, leader: usize) {
        if self.leader() != Some(leader) {
            return;
        }
        let timeout = self.timeout();
        let late = self.rng.between(timeout / 2, timeout);
        self.hold_answers(leader, None, late);
        let beat = self.swarm.config.heartbeat.as_nanos() as u64;
        let span = self.rng.between(beat, 2 * beat) + 2 * self.swarm.latency;
        self.after(span, Event::Dethrone { server: leader });
    }

    fn hold_answers(&mut self, opener: usize, of: Option<usize>, late: u64) {
        let until = self.now + self.timeout();
        for other in (0..self.swarm.servers).filter(|other| *other != opener) {
            if of.is_none_or(|of| of == other) {
                self.delayed_messages.begin(DelayRule {
                    connection: (opener, other),
                    until,
                    requests: false,
                    replies: true,
                    late,
                });
            }
        }
    }

    /// There, onto a disk, and back.
    pub(super) fn step_time(&self) -> u64 {
        2 * self.swarm.latency + self.swarm.sync
    }
}
