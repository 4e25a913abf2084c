//! Stores that break their promise: they forget a register, give out an older
//! copy of it, or show two copies under two names.
//!
//! A file that is deleted, a table that is dropped, a restored backup, one
//! SQLite file under two names: the election does not promise one leader
//! through that. What it promises is checked all the same:
//!
//! * it is over soon: a lease after the last such *tear* there is at most one
//!   valid leadership again, and all other checkers object again, too;
//! * nobody is elected in a term that it has seen, or in a lower one
//!   ([`Floors`](crate::checkers::Floors));
//! * a candidate that remembers a higher term gets the election above it again,
//!   and asks a leader to go at most once a lease.
//!
//! Left out: registers that are bound to sessions, and a fork whose copies use the same version for different contents,
//! as two copies of one SQLite file do. A compare-and-swap of one name would
//! then overwrite the other's, and only the fence would tell.

use tenure_core::cas::{Register, Registers};
use tenure_core::ids::{Key, Version};
use tenure_election::Record;

use crate::clock::MILLI;
use crate::events::SimEvent;
use crate::kernel::{HISTORY_MAX, StoreCopy, give_out_again};
use crate::world::World;

impl World {
    /// The registers that `p` sees.
    pub(crate) fn registers(&self, p: usize) -> &Registers {
        self.store
            .store_damage
            .copy(p)
            .unwrap_or(&self.store.registers)
    }

    /// A state of a register that may come back.
    pub(crate) fn keep(&mut self, key: &Key, register: Register) {
        let history = &mut self.store.store_damage.history;
        if self.swarm.fault_rates.tear > 0 && history.len() < HISTORY_MAX {
            history.push((key.clone(), register));
        }
    }

    pub(crate) fn tear(&mut self) {
        match self.rng.below(4) {
            _ if self.store.store_damage.copy.is_some() => self.join(),
            0 => self.forget(),
            1 => self.fork(),
            _ => self.restore(),
        }
        self.tore();
    }

    /// From now on, for a lease: a leadership that is valid now may last as
    /// long, and what is on its way was judged by what there was.
    fn tore(&mut self) {
        let store_damage = &mut self.store.store_damage;
        store_damage.ever = true;
        store_damage.until = self.now + self.swarm.lease * 5 / 4;
        for p in 0..self.processes.len() {
            self.causes.disturb(p, self.now);
        }
    }

    fn forget(&mut self) {
        let election = self.rng.below(self.store.keys.len() as u64) as usize;
        let key = self.store.keys[election].clone();
        let Some(held) = self.store.registers.read(&key) else {
            return;
        };
        let version = held.version.clone();
        if self.store.registers.delete(&key, &version).is_ok() {
            self.stats.forgotten += 1;
            self.note(0, || format!("** the store has lost {key}"));
            self.terms[election].tore(None, self.now);
            self.spread(election);
        }
    }

    fn restore(&mut self) {
        let states = self.store.store_damage.history.len() as u64;
        if states == 0 {
            return;
        }
        let (key, old) = self.store.store_damage.history[self.rng.below(states) as usize].clone();
        let (registers, hashed) = (&mut self.store.registers, self.swarm.hashed);
        if let Some(version) = give_out_again(registers, &key, old, hashed, &mut self.rng) {
            self.stats.restored += 1;
            self.came_back(&key, &version);
        }
    }

    /// Some see a copy of the registers from now on.
    fn fork(&mut self) {
        let known = self.store.keys.iter().filter_map(|key| {
            let register = self.store.registers.read(key)?;
            Some((key.clone(), register.clone()))
        });
        let (forks, processes) = (self.stats.forks, self.processes.len());
        let copy = StoreCopy::new(known.collect(), forks, processes, (), &mut self.rng);
        self.store.store_damage.copy = Some(copy);
        self.stats.forks += 1;
        self.note(0, || "** the store has two copies".into());
        self.terms.iter_mut().for_each(|terms| terms.forked(true));
        let at = self.now + self.rng.between(MILLI, 4 * self.swarm.lease);
        self.queue.push(at, SimEvent::Join);
    }

    /// One of the copies is lost.
    pub(crate) fn join(&mut self) {
        let Some(copy) = self.store.store_damage.copy.take() else {
            return;
        };
        if self.rng.chance(50) {
            self.store.registers = copy.registers;
        }
        self.note(0, || "** the store has one copy".into());
        self.terms.iter_mut().for_each(|terms| terms.forked(false));
        for key in self.store.keys.clone() {
            match self.store.registers.read(&key) {
                Some(register) => {
                    let version = register.version.clone();
                    self.came_back(&key, &version);
                }
                None => {
                    let election = self.election_of(&key);
                    self.terms[election].tore(None, self.now);
                }
            }
        }
        self.tore();
    }

    /// A register holds what was not written to it just now.
    fn came_back(&mut self, key: &Key, version: &Version) {
        let election = self.election_of(key);
        let register = self.store.registers.read(key);
        let Some(Ok(record)) = register.map(|register| Record::decode(&register.value)) else {
            return;
        };
        self.note(0, || {
            format!(
                "** the store gives out {version} {} again",
                crate::process::sketch(&record)
            )
        });
        self.terms[election].tore(Some((&record, version)), self.now);
        self.spread(election);
    }
}
