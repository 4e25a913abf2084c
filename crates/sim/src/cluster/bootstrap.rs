//! A cluster begins, or fails to.
//!
//! In a share of the worlds the founders' disks are blank: each asks the
//! others who they are (`tenure_alpo::Bootstrap`) over the same network
//! that messages take, until all have answered or one says that there is a
//! cluster. Meanwhile they crash, with their disks half made; and once in a
//! run something worse may happen: a disk is wiped, before or after, and its
//! server started again with the same flags, or a second server with the
//! same number turns up.
//!
//! Who is wiped later is refused by everybody who knows better, and must not
//! take part; the others go on. Who is wiped, or doubled, while the rest is
//! being founded can leave promises that nobody can keep: then an operator
//! empties the directories of all, which hold nothing else, and begins anew.
//! There is never a second cluster.

use super::world::committed;
use std::collections::BTreeSet;

use tenure_alpo::{
    Bootstrap, Hello, Identity, JoinError, MemberDisks, Membership, ServerId, State, StorageId,
    quorum,
};
use tenure_core::time::ClockId;

use super::checkers::{Check, Verdict, broken};
use super::disk::Disk;
use super::events::Event;
use super::world::World;

impl World {
    /// Plans how the founders begin.
    pub(super) fn begin_founding(&mut self) {
        let span = 3 * self.timeout();
        for server in 0..self.swarm.founders {
            self.hosts[server].founder = true;
            let delay = self.rng.below(span);
            self.after(delay, Event::Restart { server });
            if self.swarm.kinds.crashes && self.rng.chance(40) {
                let delay = delay + self.rng.below(4 * self.swarm.latency + 2 * self.swarm.sync);
                self.after(delay, Event::Stumble { server });
            }
        }
        if self.rng.chance(25) {
            let (delay, server) = (self.rng.below(2 * span), self.rng.below(3) as usize);
            self.after(delay, Event::Mishap { server });
        }
    }

    /// What all servers are told of the others.
    fn founders(&self) -> BTreeSet<ServerId> {
        let founders = self.hosts.iter().take(self.swarm.founders);
        founders.map(|host| host.id).collect()
    }

    /// A server without a cluster starts to look for one.
    pub(super) fn look_for_peers(&mut self, server: usize) -> Verdict {
        let founders = self.founders();
        let host = &mut self.hosts[server];
        let bootstrap = Bootstrap::new(host.id, host.storage, founders);
        let bootstrap = bootstrap.resumed(host.promised.clone());
        #[cfg(feature = "planted-bugs")]
        let bootstrap = bootstrap.with_bug(self.swarm.config.planted);
        let alone = bootstrap.complete();
        host.bootstrap = Some(bootstrap);
        host.epoch += 1;
        let epoch = host.epoch;
        if let Some((identity, members)) = alone {
            return self.bootstrapped(server, &identity, &members);
        }
        self.after(0, Event::Greet { server, epoch });
        Ok(())
    }

    /// Asks all others who they are, and again and again.
    pub(super) fn greet(&mut self, server: usize, epoch: u64) {
        let host = &self.hosts[server];
        let Some(bootstrap) = host.bootstrap.as_ref().filter(|_| host.epoch == epoch) else {
            return;
        };
        let hello = bootstrap.hello();
        for peer in (0..self.swarm.founders).filter(|peer| *peer != server) {
            self.say_hello(server, peer, hello.clone(), true);
        }
        // Who has founded asks as well: a server may be able to answer only.
        for peer in (0..self.swarm.founders).filter(|peer| *peer != server) {
            if let Some(hello) = self.hello_of(peer).filter(|hello| hello.cluster.is_some()) {
                self.say_hello(peer, server, hello, true);
            }
        }
        let again = self.timeout() / 2;
        self.after(again, Event::Greet { server, epoch });
    }

    /// On the connection of the server that asked.
    fn say_hello(&mut self, from: usize, to: usize, hello: Hello, is_request: bool) {
        let (a, b) = if is_request { (from, to) } else { (to, from) };
        let lost = self.network.unruly && self.rng.below(1_000) < self.swarm.loss;
        if self.network.is_cut(a, b) || lost {
            return;
        }
        let latency = self.swarm.latency;
        let delay = latency + self.rng.below(latency);
        let event = Event::Hello {
            from,
            to,
            hello,
            is_request,
        };
        self.after(delay, event);
    }

    /// What a server says of itself, if it runs.
    fn hello_of(&self, server: usize) -> Option<Hello> {
        let host = &self.hosts[server];
        if let Some(bootstrap) = &host.bootstrap {
            return Some(bootstrap.hello());
        }
        let members = host.node.as_ref()?.members().iter();
        Some(Hello {
            server: host.id,
            storage: host.storage,
            cluster: Some(host.cluster),
            known: members.map(|(id, member)| (id, member.storage)).collect(),
            founders: BTreeSet::new(),
        })
    }

    pub(super) fn hear(
        &mut self,
        from: usize,
        to: usize,
        hello: &Hello,
        is_request: bool,
    ) -> Verdict {
        if self.hosts[to].paused_until > self.now {
            return Ok(());
        }
        if is_request && let Some(answer) = self.hello_of(to) {
            self.say_hello(to, from, answer, false);
        }
        let host = &mut self.hosts[to];
        if host.node.is_some() {
            if host.identity().meets(hello).is_err() {
                self.stats.strangers += 1;
            }
            return Ok(());
        }
        let Some(bootstrap) = &mut host.bootstrap else {
            return Ok(());
        };
        let heard = bootstrap.heard(hello);
        let mut promised = false;
        let heard = match bootstrap.due().filter(|_| matches!(heard, Ok(None))) {
            Some(table) => {
                promised = true;
                host.promised = Some(table.clone());
                Ok(bootstrap.promise(table))
            }
            None => heard,
        };
        match heard {
            Ok(None) => {
                let epoch = host.epoch;
                if promised {
                    self.after(0, Event::Greet { server: to, epoch });
                }
                Ok(())
            }
            Ok(Some((identity, members))) => self.bootstrapped(to, &identity, &members),
            Err(JoinError::Promised { .. }) => {
                // One whose disk failed just after it had founded the cluster
                // is blank again, and nobody else has heard of that.
                if !self.hosts.iter().any(|host| host.disk.has_log()) {
                    self.begin_anew();
                }
                Ok(())
            }
            Err(JoinError::SameNumber { .. } | JoinError::NotAPeer { .. }) => {
                self.stats.strangers += 1;
                Ok(())
            }
            Err(stranger) => {
                self.stats.refused_strangers += 1;
                host.bootstrap = None;
                host.founder = false;
                host.dead = !self.swarm.kinds.members;
                self.note(to, &stranger.to_string());
                Ok(())
            }
        }
    }

    /// A server knows its cluster: it writes that down, and begins.
    fn bootstrapped(
        &mut self,
        server: usize,
        identity: &Identity,
        members: &Membership,
    ) -> Verdict {
        self.stats.foundings += 1;
        let host = &mut self.hosts[server];
        host.bootstrap = None;
        host.cluster = identity.cluster;
        self.note(server, &format!("is of cluster {}", identity.cluster));
        match &self.beginning.bootstrapped {
            None => {
                self.beginning.bootstrapped = Some((identity.cluster, members.clone()));
                self.committed = committed(&self.swarm, members);
            }
            Some((first, table)) if *first == identity.cluster => {
                let known = table.get(identity.server).map(|member| member.storage);
                if known.is_some_and(|known| known != identity.storage) {
                    let detail = format!(
                        "{} takes part with storage {}, and {known:?} was founded",
                        identity.server, identity.storage
                    );
                    return broken(Check::Bootstrap, detail);
                }
            }
            Some((first, _)) => {
                let detail = format!("{identity:?}, and before it {first}");
                return broken(Check::Bootstrap, detail);
            }
        }
        let host = &mut self.hosts[server];
        if !members.is_empty() {
            let state = State::bootstrapped(self.swarm.limits, ClockId::default(), members.clone());
            // Nothing fails here: the log is made next, and that may.
            let written = host.disk.found(&state.encode());
            written.expect("a sound disk");
        }
        self.start_node(server)
    }

    /// After a mishap there may be no majority of any cluster. Then nobody
    /// can vote, and nothing is left to be tried.
    pub(super) fn give_up(&mut self) {
        // A founder whose disk was lost before all had heard of it: those who
        // have not wait for it, and only an operator can tell them not to.
        let waits = self.hosts.iter().any(|host| host.bootstrap.is_some());
        if waits && self.hosts.iter().any(|host| host.dead) {
            self.beginning.failed = true;
            self.stats.failed_foundings += 1;
            return;
        }
        if !self.beginning.mishap {
            return;
        }
        let Some((cluster, table)) = &self.beginning.bootstrapped else {
            return;
        };
        let able = self.hosts.iter().filter(|host| {
            let known = table.get(host.id).map(|member| member.storage);
            let elsewhere = host.dead && host.cluster != *cluster;
            known == Some(host.storage) && !elsewhere
        });
        self.beginning.failed = !quorum::is_majority(table, able.map(|host| host.id));
        self.stats.failed_foundings += u64::from(self.beginning.failed);
    }

    /// An operator stops all servers of a cluster that cannot be founded any
    /// more, empties their directories, and starts them again when nothing
    /// that they have said is on its way.
    fn begin_anew(&mut self) {
        self.stats.begun_anew += 1;
        self.beginning.bootstrapped = None;
        for server in 0..self.swarm.founders {
            self.crash(server, None);
            self.storages += 1;
            let host = &mut self.hosts[server];
            host.disk = Disk::default();
            host.storage = StorageId::from_u128(self.storages);
            host.promised = None;
            let delay = 3 * self.swarm.latency + self.rng.below(self.timeout());
            self.after(delay, Event::Restart { server });
        }
        self.note(0, "and all others are emptied, to be founded anew");
    }

    /// A server crashes before it is a member, or just after.
    pub(super) fn stumble(&mut self, server: usize) {
        if !self.healed {
            let delay = self.rng.below(self.timeout());
            self.crash(server, Some(delay));
        }
    }

    /// A disk is wiped, or a number used twice; once in a run, and not if
    /// another disk may be lost as well.
    pub(super) fn mishap(&mut self, server: usize) {
        let lost = self.hosts.iter().any(|host| host.disk.rotten || host.dead);
        let few = self.swarm.founders < 3 || self.swarm.kinds.members;
        if self.healed || lost || few || self.beginning.mishap {
            return;
        }
        self.beginning.mishap = true;
        self.storages += 1;
        let storage = StorageId::from_u128(self.storages);
        if self.rng.chance(40) {
            self.stats.doubles += 1;
            let hello = Hello {
                server: self.hosts[server].id,
                storage,
                cluster: None,
                known: MemberDisks::new(),
                founders: self.founders(),
            };
            for _ in 0..self.rng.between(1, 2 * self.swarm.founders as u64) {
                let to = self.rng.below(self.swarm.founders as u64) as usize;
                // Its answers go to somebody nobody looks at.
                self.say_hello(server, to, hello.clone(), false);
            }
            return;
        }
        self.stats.wipes += 1;
        self.crash(server, None);
        let delay = self.rng.below(2 * self.timeout());
        let host = &mut self.hosts[server];
        host.disk = Disk::default();
        host.storage = storage;
        host.promised = None;
        self.note(server, "is wiped");
        self.after(delay, Event::Restart { server });
    }
}
