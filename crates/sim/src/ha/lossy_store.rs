//! Stores that break their promise: they forget registers, give out older
//! copies of them, or show two copies of all under two names.
//!
//! A file that is deleted, a table that is dropped, a restored backup, one
//! SQLite file under two names: groups do not promise one instance of a
//! workload through that. What they promise is checked all the same:
//!
//! * it is over soon: [`SOON`] leases after the last such *tear* no workload
//!   runs twice any more, and all checkers object again;
//! * no node writes an epoch, or hands out a fence, that is not above all that
//!   it has seen ([`floors`](super::checkers)); in a healed world the epoch is
//!   above all that anybody remembers;
//! * who finds that the view fell names the workloads that went with it.
//!
//! Left out: stores that use one version for different contents, as two copies
//! of one SQLite file do, and etcd restored without raised revisions. There a
//! compare-and-swap may overwrite what it was not drafted from.

use std::collections::BTreeMap;

use tenure_core::cas::{Register, Registers};
use tenure_core::ids::{Key, Name};
use tenure_group::{Heartbeat, Keys, NodeId, View};

use super::checkers::{Check, HeartbeatRecord};
use super::events::GroupEvent;
use super::simulated_store::Books;
use super::world::World;
use crate::clock::MILLI;
use crate::kernel::{HISTORY_MAX, StoreCopy, give_out_again};

/// For how many leases nothing is promised that rests on the store: a verdict
/// or a swap of the view that was on its way lands within two, a node that it
/// hits ends within one, and a node whose view fell has looked within one and a
/// bit, and ended what it ran on the other's word.
const SOON: u64 = 4;

impl World {
    /// The registers that `p` sees.
    pub(super) fn registers(&self, p: usize) -> &Registers {
        let copy = self.store.store_damage.copy(p);
        copy.unwrap_or(&self.store.registers)
    }

    pub(super) fn registers_mut(&mut self, p: usize) -> &mut Registers {
        let copy = self.store.store_damage.copy_mut(p);
        copy.unwrap_or(&mut self.store.registers)
    }

    /// Does something with the checkers' books of the copy that `p` sees.
    pub(super) fn in_copy<T>(&mut self, p: usize, then: impl FnOnce(&mut Self) -> T) -> T {
        let second = self.store.store_damage.copy(p).is_some();
        if second {
            self.exchange_books();
        }
        let found = then(self);
        if second {
            self.exchange_books();
        }
        found
    }

    fn exchange_books(&mut self) {
        if let Some(copy) = &mut self.store.store_damage.copy {
            std::mem::swap(&mut copy.books.views, &mut self.checker_state.views);
            std::mem::swap(
                &mut copy.books.heartbeats,
                &mut self.checker_state.heartbeats,
            );
        }
    }

    /// A register was written: a state that may come back.
    pub(super) fn keep(&mut self, p: usize, key: &Key) {
        if self.swarm.fault_rates.tear == 0 || self.store.store_damage.copy(p).is_some() {
            return;
        }
        let Some(register) = self.store.registers.read(key).cloned() else {
            return;
        };
        if self.rng.chance(1) {
            let all = self.store.registers.list("ha/");
            let all = all.map(|(key, it)| (key.clone(), it.clone()));
            self.store.backup = Some(all.collect());
        }
        let history = &mut self.store.store_damage.history;
        if history.len() < HISTORY_MAX {
            history.push((key.clone(), register));
        } else if self.rng.chance(20) {
            let place = self.rng.below(HISTORY_MAX as u64) as usize;
            history[place] = (key.clone(), register);
        }
    }

    pub(super) fn tear(&mut self) {
        match self.rng.below(6) {
            _ if self.store.store_damage.copy.is_some() => self.join_copies(),
            0 => self.lose_view(),
            1 => self.lose_all(),
            2 => self.fork(),
            3 => self.restore_all(),
            _ => self.restore_one(),
        }
        self.tore();
    }

    /// A register is given out once more as it was, under its old version.
    pub(super) fn bring_back(&mut self, key: &Key, old: Register) {
        let hashed = std::mem::replace(&mut self.swarm.hashed, true);
        self.put_back(key, Some(old));
        self.swarm.hashed = hashed;
        self.stats.restored += 1;
        self.tore();
    }

    /// From now on, for some leases. A node that was answered before may be
    /// told anything of what was lost.
    fn tore(&mut self) {
        let store_damage = &mut self.store.store_damage;
        store_damage.ever = true;
        store_damage.until = self.now + SOON * self.swarm.lease;
        self.queue.push(store_damage.until, GroupEvent::Mended);
        for ticket in self.users.tickets.values_mut() {
            ticket.lost = true;
        }
    }

    fn views(&self) -> Vec<Key> {
        let groups = self.agents.iter().map(|agent| &agent.config.group);
        let mut keys: Vec<Key> = groups.map(|it| Keys::of(it.clone()).view()).collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn lose_view(&mut self) {
        let views = self.views();
        let key = views[self.rng.below(views.len() as u64) as usize].clone();
        self.stats.views_lost += 1;
        self.put_back(&key, None);
    }

    /// A table is dropped.
    fn lose_all(&mut self) {
        self.stats.views_lost += 1;
        self.put_all(BTreeMap::new());
    }

    fn restore_one(&mut self) {
        let (states, dice) = (self.store.store_damage.history.clone(), self.rng.below(10));
        // A view, or the beat of a member that does not beat at present, more
        // often than any: beats are many.
        let silent = |key: &Key| {
            let id = key.as_str().rsplit('/').next().and_then(NodeId::parse);
            id.is_some_and(|id| self.is_silent(id))
        };
        let some = states.iter().filter(|(key, _)| match dice {
            0..=3 => is_view(key),
            4..=7 => silent(key),
            _ => true,
        });
        let mut states: Vec<_> = some.cloned().collect();
        if states.is_empty() {
            states.clone_from(&self.store.store_damage.history);
        }
        if states.is_empty() {
            return;
        }
        let (key, old) = states[self.rng.below(states.len() as u64) as usize].clone();
        self.stats.restored += 1;
        self.put_back(&key, Some(old));
    }

    /// Whether that is a member that nobody runs any more.
    fn is_silent(&self, id: NodeId) -> bool {
        let mut views = self.checker_state.views.values();
        let mut agents = self.agents.iter();
        let runs = agents.any(|it| it.runs() && it.node().is_some_and(|node| node.id() == id));
        views.any(|view| view.member(id).is_some()) && !runs
    }

    /// A backup is restored.
    fn restore_all(&mut self) {
        if let Some(backup) = self.store.backup.clone() {
            self.stats.restored += 1;
            self.put_all(backup);
        }
    }

    fn put_all(&mut self, registers: BTreeMap<Key, Register>) {
        let held = self.store.registers.list("ha/");
        let mut keys: Vec<Key> = held.map(|(key, _)| key.clone()).collect();
        keys.extend(registers.keys().cloned());
        keys.sort();
        keys.dedup();
        for key in keys {
            let old = registers.get(&key).cloned();
            self.put_back(&key, old);
        }
    }

    /// A register holds what it held once, or nothing.
    fn put_back(&mut self, key: &Key, old: Option<Register>) {
        let held = self.store.registers.read(key);
        let held = held.map(|held| held.version.clone());
        match (old, held) {
            (None, None) => return,
            (None, Some(version)) => {
                // It is there, with this version.
                let _ = self.store.registers.delete(key, &version);
            }
            (Some(old), _) => {
                let (registers, hashed) = (&mut self.store.registers, self.swarm.hashed);
                // It is what is expected.
                let _ = give_out_again(registers, key, old, hashed, &mut self.rng);
            }
        }
        self.came_back(key);
    }

    /// A register holds what nobody wrote just now: the checkers take note, and
    /// watches tell.
    fn came_back(&mut self, key: &Key) {
        let register = self.store.registers.read(key).cloned();
        self.trace_note(None, || {
            let shown = register.as_ref().map(|it| it.version.clone());
            format!("** the store gives out {key} as {shown:?}")
        });
        let value = register.as_ref().map(|it| &it.value);
        if is_view(key) {
            let groups = self.agents.iter().map(|agent| &agent.config.group);
            let mut groups = groups.filter(|it| Keys::of((*it).clone()).view() == *key);
            if let Some(group) = groups.next().cloned() {
                match value.and_then(|value| View::decode(value).ok()) {
                    Some(view) => self.checker_state.views.insert(group, view),
                    None => self.checker_state.views.remove(&group),
                };
            }
        } else if let Some(id) = key.as_str().rsplit('/').next().and_then(NodeId::parse) {
            let beat = value.and_then(|value| Heartbeat::decode(value).ok());
            if beat.is_none() {
                self.checker_state.gone.insert(id);
            }
            let now = self.now;
            let heartbeat_record =
                self.checker_state
                    .heartbeats
                    .entry(id)
                    .or_insert(HeartbeatRecord {
                        sequence: 0,
                        beat_at: now,
                        dead: false,
                        exists: false,
                    });
            heartbeat_record.exists = beat.is_some();
            heartbeat_record.dead = beat.as_ref().is_some_and(|beat| beat.dead.is_some());
            heartbeat_record.sequence =
                beat.map_or(heartbeat_record.sequence, |beat| beat.sequence);
        }
        self.spread(key);
    }

    /// Some see a copy of the store from now on.
    fn fork(&mut self) {
        let known = self.store.registers.list("ha/");
        let known = known.map(|(key, it)| (key.clone(), it.clone())).collect();
        let books = Books {
            views: self.checker_state.views.clone(),
            heartbeats: self.checker_state.heartbeats.clone(),
        };
        let (forks, agents) = (self.stats.forks, self.agents.len());
        let copy = StoreCopy::new(known, forks, agents, books, &mut self.rng);
        self.store.store_damage.copy = Some(copy);
        self.stats.forks += 1;
        self.trace_note(None, || "** the store has two copies".into());
        let at = self.now + self.rng.between(MILLI, 4 * self.swarm.lease);
        self.queue.push(at, GroupEvent::Join);
    }

    /// One of the copies is lost.
    pub(super) fn join_copies(&mut self) {
        let Some(copy) = self.store.store_damage.copy.take() else {
            return;
        };
        let mut keys: Vec<Key> = Vec::new();
        for registers in [&self.store.registers, &copy.registers] {
            keys.extend(registers.list("ha/").map(|(key, _)| key.clone()));
        }
        if self.rng.chance(50) {
            self.store.registers = copy.registers;
            (self.checker_state.views, self.checker_state.heartbeats) =
                (copy.books.views, copy.books.heartbeats);
        }
        self.trace_note(None, || "** the store has one copy".into());
        keys.sort();
        keys.dedup();
        for key in keys {
            self.came_back(&key);
        }
        self.tore();
    }

    /// The store has kept its promise for long enough: nothing runs twice.
    pub(super) fn mended(&mut self) {
        if self.store.store_damage.excuses(self.now) {
            return;
        }
        let mut runs: BTreeMap<(Name, Name), usize> = BTreeMap::new();
        let mut twice = None;
        for (p, agent) in self.agents.iter().enumerate() {
            let awake = !self.sleeps(p);
            for work in agent.works.values().filter(|_| awake) {
                let key = (agent.config.group.clone(), work.order.name.clone());
                if let Some(other) = runs.insert(key, p).filter(|other| *other != p) {
                    twice = Some((p, other, work.order.name.clone()));
                }
            }
        }
        if let Some((p, other, name)) = twice {
            let text = format!("{name} runs on agent {other} too, long after the store was torn");
            self.judge(Check::Once, Some(p), Err(text));
        }
    }
}

fn is_view(key: &Key) -> bool {
    key.as_str().ends_with("/view")
}
