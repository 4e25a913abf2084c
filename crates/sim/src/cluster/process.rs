//! A server's process: it starts, does what its node asks for, and ends.

use tenure_alpo::codec::crc32c_append;
use tenure_alpo::wal::{Format, WalError};
use tenure_alpo::{
    Body, DecodedSnapshot, Envelope, Event as Told, Fault, Identity, Input, Node, Output,
    Recovered, Reply, Snapshot, State, StorageId,
};
use tenure_core::Machine;
use tenure_core::time::ClockId;

use super::checkers::leaders::Leaders;
use super::checkers::members;
use super::checkers::{Broken, Check, Verdict, broken};
use super::disk::StartFailure;
use super::events::Event;
use super::network::InFlightMessage;
use super::world::World;
use crate::clock::SECOND;

impl World {
    pub(super) fn carry_out(&mut self, server: usize, output: Output) -> Verdict {
        match output {
            Output::Persist(batch) => {
                self.stats.batches += 1;
                self.hosts[server].disk.write(batch);
                self.sync(server);
            }
            Output::EncodeSnapshot(copy) => {
                let snapshot = copy.encode();
                self.committed.snapshot(&snapshot)?;
                let event = Event::SnapshotEncoded {
                    server,
                    epoch: self.hosts[server].epoch,
                    snapshot,
                };
                // Most are quick; some take longer than all that may happen
                // meanwhile: a crash, another leader, its snapshot.
                let slow = self.rng.below(4) == 0;
                let most = if slow { 10 * SECOND } else { SECOND / 10 };
                let delay = self.rng.below(most);
                self.after(delay, event);
            }
            Output::DecodeSnapshot(received) => {
                let event = Event::SnapshotDecoded {
                    server,
                    epoch: self.hosts[server].epoch,
                    decoded: Box::new(received.decode()),
                };
                let slow = self.rng.below(4) == 0;
                let most = if slow { 10 * SECOND } else { SECOND / 10 };
                let delay = self.rng.below(most);
                let host = &mut self.hosts[server];
                host.decodes_until = (host.epoch, self.now + delay);
                self.after(delay, event);
            }
            Output::Discard(_) => {}
            Output::Send { envelope, storage } => {
                if let Some(node) = &self.hosts[server].node {
                    Leaders::sends(node, &envelope)?;
                }
                self.cut_off_who_offers(server, &envelope);
                self.send(server, envelope, storage);
            }
            Output::Answer { token, answer } => {
                let delay = self.swarm.latency;
                self.after(delay, Event::Answered { token, answer });
            }
            Output::Applied { from, to } => {
                self.stats.applied += to + 1 - from;
                self.committed.past.now = self.now;
                if let Some(node) = &self.hosts[server].node {
                    self.committed.applied(node, from, to)?;
                    self.session_leases
                        .check(self.now, &self.committed.reference)?;
                    self.tell_watch(server)?;
                }
            }
            Output::Event(event) => self.told(server, &event)?,
            Output::Halt(Fault::Replaced { .. }) => return self.replaced(server),
            Output::Halt(fault) => {
                return broken(Check::Halted, format!("{}: {fault}", self.hosts[server].id));
            }
        }
        Ok(())
    }

    fn send(&mut self, server: usize, envelope: Envelope, wanted: Option<StorageId>) {
        self.stats.messages += 1;
        if self.trace.is_on() {
            self.note(server, &format!("to {}: {:?}", envelope.to, envelope.body));
        }
        if let Body::Reply {
            reply: Reply::Granted,
            ..
        } = envelope.body
        {
            let winner = envelope.to.get() as usize - 1;
            self.tempt(server, winner);
            self.tempt_to_put_back(server, winner);
        }
        let message = InFlightMessage {
            envelope,
            storage: self.hosts[server].storage,
            sender: (server, self.hosts[server].start),
            wanted,
        };
        if self.hold_back(&message) {
            return;
        }
        let [once, twice] = self
            .network
            .send(&message.envelope, &self.swarm, &mut self.rng);
        if once.is_none() {
            self.stats.lost += 1;
        }
        if let Some(delay) = twice {
            self.stats.doubled += 1;
            self.after(delay, Event::Deliver(message.clone()));
        }
        if let Some(delay) = once {
            self.after(delay, Event::Deliver(message));
        }
    }

    fn told(&mut self, server: usize, event: &Told) -> Verdict {
        let host = &self.hosts[server];
        let local = host.now(self.now).boot.as_nanos();
        self.deferral.event(server, host.id, event, local)?;
        self.stats.told(event);
        if let (Told::Installed { .. }, Some(node)) = (event, &host.node)
            && let Some(snapshot) = node.snapshot()
        {
            self.committed.snapshot(snapshot)?;
        }
        if let (Told::Truncated { .. }, Some(node)) = (event, &self.hosts[server].node) {
            members::look(node)?;
        }
        if let Told::Installed { .. } = event {
            self.begins_with(server);
        }
        if let Told::Standing { .. } | Told::Deferred { .. } | Told::Truncated { .. } = event {
            self.snipe(server, false);
        }
        if self.trace.is_on() {
            self.note(server, &format!("{event:?}"));
        }
        Ok(())
    }

    /// Begins a sync of everything that waits, if none is under way.
    fn sync(&mut self, server: usize) {
        let host = &mut self.hosts[server];
        let Some(upto) = host.disk.begin() else {
            return;
        };
        let epoch = host.epoch;
        let mut delay = self.swarm.sync + self.rng.below(self.swarm.sync + 1);
        let disks = self.swarm.kinds.disks && !self.healed;
        if disks && self.rng.below(100) == 0 {
            self.stats.slow_syncs += 1;
            delay *= 50;
        }
        let bytes = self.hosts[server].disk.bytes();
        delay += self.stall(server, bytes);
        let fails = disks && self.rng.below(300) == 0;
        let event = Event::Synced {
            server,
            epoch,
            upto,
            fails,
        };
        self.after(delay, event);
    }

    /// A connection of that process was closed.
    pub(super) fn closed(&mut self, server: usize, epoch: u64, closed: Input) -> Verdict {
        if self.hosts[server].epoch != epoch {
            return Ok(());
        }
        self.deferral.excuse(server);
        self.step(server, |node, now| node.handle(now, closed))
    }

    /// A thread of that process has encoded a snapshot.
    pub(super) fn snapshot_encoded(
        &mut self,
        server: usize,
        epoch: u64,
        snapshot: Snapshot,
    ) -> Verdict {
        if self.hosts[server].epoch != epoch {
            return Ok(());
        }
        let event = || Event::SnapshotEncoded {
            server,
            epoch,
            snapshot: snapshot.clone(),
        };
        if let Some(event) = self.postponed(server, event) {
            return self.put_off(server, event);
        }
        self.step(server, |node, now| {
            node.handle(now, Input::SnapshotEncoded(snapshot));
        })
    }

    /// A thread of that process has made a state of a snapshot.
    pub(super) fn snapshot_decoded(
        &mut self,
        server: usize,
        epoch: u64,
        decoded: Box<DecodedSnapshot>,
    ) -> Verdict {
        if self.hosts[server].epoch != epoch {
            return Ok(());
        }
        let event = || Event::SnapshotDecoded {
            server,
            epoch,
            decoded: decoded.clone(),
        };
        if let Some(event) = self.postponed(server, event) {
            return self.put_off(server, event);
        }
        self.step(server, |node, now| {
            node.handle(now, Input::SnapshotDecoded(decoded));
        })
    }

    pub(super) fn synced(&mut self, server: usize, epoch: u64, upto: u64, fails: bool) -> Verdict {
        if self.hosts[server].epoch != epoch {
            return Ok(());
        }
        let event = Event::Synced {
            server,
            epoch,
            upto,
            fails,
        };
        if let Some(event) = self.postponed(server, || event) {
            return self.put_off(server, event);
        }
        let disk = &mut self.hosts[server].disk;
        let full = fails && disk.spoil(&mut self.rng);
        match disk.sync() {
            // It took fewer steps than were spoilt.
            Ok(()) => disk.repair(),
            Err(WalError::Disk { .. }) => {
                // A sync that failed must not be tried again: the process
                // stops and reads what is really there when it comes back.
                self.stats.failed_syncs += u64::from(!full);
                self.stats.full_disks += u64::from(full);
                let delay = self.rng.between(SECOND / 10, 3 * SECOND);
                self.crash(server, Some(delay));
                return Ok(());
            }
            Err(error) => {
                let id = self.hosts[server].id;
                return broken(Check::Disk, format!("{id}: {error}"));
            }
        }
        self.step(server, |node, now| {
            node.handle(now, Input::Persisted(upto));
        })?;
        self.sync(server);
        Ok(())
    }

    /// Starts a server's process, for the first time or again.
    pub(super) fn start(&mut self, server: usize) -> Verdict {
        let host = &self.hosts[server];
        if host.node.is_some() || host.bootstrap.is_some() || host.dead || host.lost {
            return Ok(());
        }
        if host.founder && !host.disk.has_log() {
            return self.look_for_peers(server);
        }
        self.start_node(server)
    }

    /// Starts the node of a server that has a cluster.
    pub(super) fn start_node(&mut self, server: usize) -> Verdict {
        let Some(mut recovered) = self.recover(server)? else {
            return Ok(());
        };
        recovered.no_vote_time = self.owed(server);
        let config = self
            .settings_rollout
            .config(&self.hosts[server], &self.swarm.config)
            .clone();
        let host = &mut self.hosts[server];
        let blank = State::new(self.swarm.limits, ClockId::default());
        let now = host.now(self.now).boot;
        let rng = self.rng.fork();
        match Node::start(config, host.identity(), recovered, blank, rng, now) {
            Ok(node) => host.node = Some(node),
            Err(_) if host.disk.rotten => {
                host.dead = true;
                self.stats.refused_starts += 1;
                return Ok(());
            }
            Err(error) => return broken(Check::State, format!("{}: {error}", host.id)),
        }
        host.epoch += 1;
        host.wake_at = u64::MAX;
        self.deferral.restart(server);
        self.begins_with(server);
        if self.trace.is_on() {
            self.note(server, "starts");
        }
        self.plan_wake(server);
        self.meets_all(server);
        Ok(())
    }

    /// What a server reads back; `None` if it does not start, for now or for
    /// ever.
    fn recover(&mut self, server: usize) -> Result<Option<Recovered>, Broken> {
        let spoils = self.swarm.kinds.disks && !self.healed && self.rng.chance(10);
        let spoils = spoils && !self.set_back_disks.returns(server);
        let host = &mut self.hosts[server];
        let format = Format::new(host.identity(), crc32c_append);
        #[cfg(feature = "planted-bugs")]
        let format = format.with_bug(self.swarm.config.planted);
        if spoils {
            host.disk.spoil_start(&mut self.rng);
        }
        let found = host.disk.open(format, self.swarm.log);
        host.disk.repair();
        match found {
            Ok(found) => {
                self.stats.torn += u64::from(found.torn);
                self.stats.spares += u64::from(found.spare);
                Ok(Some(found.recovered))
            }
            Err(StartFailure::Failed) => {
                self.stats.cut_starts += 1;
                host.disk.crash(&mut self.rng);
                let delay = self.rng.between(SECOND / 100, SECOND);
                self.after(delay, Event::Restart { server });
                Ok(None)
            }
            Err(StartFailure::Refused(_)) if host.disk.rotten => {
                host.dead = true;
                self.stats.refused_starts += 1;
                Ok(None)
            }
            Err(StartFailure::Refused(refused)) => {
                let detail = format!("{}: {refused}", host.id);
                Err(Broken::new(Check::Disk, detail))
            }
        }
    }

    /// Ends a server's process; it comes back after `restart`.
    pub(super) fn crash(&mut self, server: usize, restart: Option<u64>) {
        let host = &mut self.hosts[server];
        let looked = host.bootstrap.take().is_some();
        if host.node.take().is_none() && !looked {
            return;
        }
        host.epoch += 1;
        host.paused_until = 0;
        host.stalled_until = 0;
        self.stats.crashes += 1;
        if host.disk.crash(&mut self.rng) {
            self.stats.lost_writes += 1;
        }
        if self.trace.is_on() {
            self.note(server, "crashes");
        }
        // The kernel of its machine closes its connections.
        self.hang_up(server);
        if let Some(delay) = restart {
            self.after(delay, Event::Restart { server });
        }
    }

    /// Everybody who can hear it is told that the connection to a server is
    /// closed. That may be a lie: a middlebox can reset connections too.
    pub(super) fn hang_up(&mut self, server: usize) {
        self.lose_held(server);
        let Identity {
            server: id,
            storage,
            ..
        } = self.hosts[server].identity();
        for other in 0..self.hosts.len() {
            let [a, b] = [server, other].map(|server| self.place(server));
            if a != b && !self.network.is_cut(a, b) {
                let epoch = self.hosts[other].epoch;
                let event = Event::Closed {
                    server: other,
                    epoch,
                    peer: id,
                    storage,
                };
                self.after(self.swarm.latency, event);
            }
        }
    }
}
