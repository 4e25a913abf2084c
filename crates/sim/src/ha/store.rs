//! The store of the HA simulator, behind a network that does its worst:
//! messages are lost, late or damaged, a request can land long after its
//! sender has given it up, and a watch tells old news or dies without a word.

use tenure_core::cas::{Reading, Register, Write};
use tenure_core::ids::{Key, Version};
use tenure_election::{Failure, FailureClass};
use tenure_group::{Input, NodeId};

use super::checkers::{Check, Writer};
use super::events::GroupEvent;
use super::simulated_store::{GroupStoreCall, Op};
use super::world::World;
use crate::clock::{MILLI, TrueTime};
use crate::kernel;

impl World {
    /// A question leaves its sender.
    pub(super) fn send(&mut self, mut question: GroupStoreCall) {
        let calls = self.swarm.calls;
        let faulty = self.faulty();
        let mut delay = self.hop();
        self.stats.calls += 1;
        if let Some((p, span)) = self.held
            && p == question.p
            && matches!(question.op, Op::Write(_))
        {
            self.held = None;
            question.held = true;
            delay = span;
        }
        if faulty && self.rng.chance(calls.lose_request) {
            self.stats.lost += 1;
            return self.lost(&question);
        }
        if faulty && self.rng.chance(calls.slow_request) {
            delay = self.rng.between(0, 2 * self.swarm.lease);
            question.slow = true;
        }
        let at = self.now + delay;
        self.queue.push(at, GroupEvent::Arrive(Box::new(question)));
    }

    /// Nothing comes back, or in the end the connection says so.
    fn lost(&mut self, question: &GroupStoreCall) {
        if self.rng.chance(40) {
            let delay = self.rng.between(MILLI, self.swarm.lease / 2);
            self.fail_after(question, FailureClass::Unknown, "connection lost", delay);
        }
    }

    pub(super) fn hop(&mut self) -> u64 {
        kernel::hop(&mut self.rng, self.swarm.net)
    }

    /// A question arrives at the store.
    pub(super) fn arrive(&mut self, question: &GroupStoreCall) {
        let faulty = self.faulty();
        if question.slow && !faulty {
            // Healing ends what was under way.
            return;
        }
        let down = |until: Option<(TrueTime, bool)>| until.filter(|(until, _)| self.now < *until);
        let cut = down(self.store.cuts[question.p]).filter(|_| !question.held);
        if let Some((_, says)) = down(self.store.outage).or(cut) {
            if says {
                self.fail(question, FailureClass::Unavailable, "the store is down");
            }
            return;
        }
        let calls = self.swarm.calls;
        if faulty && self.rng.chance(calls.unavailable) {
            return self.fail(question, FailureClass::Unavailable, "too busy");
        }
        let unknown = faulty && self.rng.chance(calls.unknown);
        if unknown && self.rng.chance(50) {
            self.stats.unknown += 1;
            return self.fail(question, FailureClass::Unknown, "connection reset");
        }
        let input = self.apply(question);
        if unknown {
            self.stats.unknown += 1;
            return self.fail(question, FailureClass::Unknown, "connection reset");
        }
        if faulty && self.rng.chance(calls.lose_answer) {
            self.stats.lost += 1;
            return self.lost(question);
        }
        let mut delay = self.hop();
        if faulty && self.rng.chance(calls.slow_answer) {
            delay = self.rng.between(0, self.swarm.lease);
        }
        self.mail(question, input, delay);
    }

    fn mail(&mut self, question: &GroupStoreCall, input: Input, delay: u64) {
        let (p, life) = (question.p, question.life);
        let at = self.now + delay;
        self.queue.push(at, GroupEvent::Mail { p, life, input });
    }

    fn fail(&mut self, question: &GroupStoreCall, class: FailureClass, why: &str) {
        let delay = self.hop();
        self.fail_after(question, class, why, delay);
    }

    fn fail_after(
        &mut self,
        question: &GroupStoreCall,
        class: FailureClass,
        why: &str,
        delay: u64,
    ) {
        let (call, failure) = (question.call, Failure::new(class, why));
        let input = match question.op {
            Op::Read(_) => Input::Read {
                call,
                result: Err(failure),
            },
            Op::List(_) => Input::Listed {
                call,
                result: Err(failure),
            },
            Op::Page(..) => Input::Paged {
                call,
                result: Err(failure),
            },
            Op::Write(_) => Input::Wrote {
                call,
                result: Err(failure),
            },
            Op::Delete(..) => Input::Deleted {
                call,
                result: Err(failure),
            },
        };
        self.mail(question, input, delay);
    }

    /// The question takes effect.
    fn apply(&mut self, question: &GroupStoreCall) -> Input {
        let call = question.call;
        match &question.op {
            Op::Read(key) => {
                let register = self.registers(question.p).read(key).cloned();
                let register = register.map(|register| self.maybe_damage(register));
                let now = None;
                Input::Read {
                    call,
                    result: Ok(Reading {
                        register,
                        now,
                        bound: None,
                    }),
                }
            }
            Op::List(prefix) => {
                let listed = self.registers(question.p).list(prefix);
                let listed: Vec<(Key, Register)> =
                    listed.map(|(key, it)| (key.clone(), it.clone())).collect();
                let damaged = listed.into_iter();
                let damaged = damaged.map(|(key, it)| (key, self.maybe_damage(it)));
                Input::Listed {
                    call,
                    result: Ok(damaged.collect()),
                }
            }
            Op::Page(prefix, after) => Input::Paged {
                call,
                result: Ok(self.page(prefix, after.as_ref())),
            },
            Op::Write(write) => {
                let result = self.swap(question, write);
                Input::Wrote { call, result }
            }
            Op::Delete(key, version) => {
                let result = self.registers_mut(question.p).delete(key, version);
                if result.is_ok() {
                    self.changed(question, key);
                }
                let conflict = |_| Failure::new(FailureClass::Conflict, "it is another");
                let result = result.map_err(conflict);
                Input::Deleted { call, result }
            }
        }
    }

    fn swap(&mut self, question: &GroupStoreCall, write: &Write) -> Result<Version, Failure> {
        // Content is written again with the same bytes, and rests on the promise
        // of every store that a version is never used twice. All else differs
        // from what was there.
        let again = write.key.as_str().contains("/content/");
        let idle = self.check_idle(question, write);
        let hashed = self.swarm.hashed && !again;
        let registers = self.registers_mut(question.p);
        let Ok(version) = kernel::swap(registers, write.clone(), None, hashed) else {
            self.stats.conflicts += 1;
            return Err(Failure::new(FailureClass::Conflict, "somebody wrote first"));
        };
        self.stats.writes += 1;
        self.judge(Check::Floors, Some(question.p), idle);
        self.changed(question, &write.key);
        Ok(version)
    }

    /// A register has changed: the checkers look, and watches tell.
    fn changed(&mut self, question: &GroupStoreCall, key: &Key) {
        let writer = Writer {
            p: question.p,
            id: question.id,
        };
        self.in_copy(writer.p, |world| world.registered(writer, key));
        self.keep(writer.p, key);
        self.spread(key);
    }

    /// Somebody deletes a heartbeat by hand.
    pub(super) fn forget(&mut self) {
        let keys: Vec<(Key, Version)> = self
            .store
            .registers
            .list("ha/")
            .filter(|(key, _)| key.as_str().contains("/nodes/"))
            .map(|(key, it)| (key.clone(), it.version.clone()))
            .collect();
        if keys.is_empty() {
            return;
        }
        let (key, version) = keys[self.rng.below(keys.len() as u64) as usize].clone();
        if self.store.registers.delete(&key, &version).is_ok() {
            self.stats.forgotten += 1;
            let id = key.as_str().rsplit('/').next().and_then(NodeId::parse);
            if let Some(heartbeat_record) =
                id.and_then(|id| self.checker_state.heartbeats.get_mut(&id))
            {
                heartbeat_record.exists = false;
            }
            self.checker_state.gone.extend(id);
            self.trace_note(None, || format!("somebody deletes {key}"));
            self.spread(&key);
        }
    }

    fn maybe_damage(&mut self, register: Register) -> Register {
        if !self.faulty() || !self.rng.chance(self.swarm.calls.corrupt) {
            return register;
        }
        kernel::damaged(&mut self.rng, register)
    }

    /// Tells a change to everybody who has a line.
    pub(super) fn spread(&mut self, key: &Key) {
        for p in 0..self.store.lines.len() {
            let follows = self.agents[p].follows(key);
            if self.store.lines[p].up && follows {
                self.tell_line(p, key.clone());
            }
        }
    }

    /// Sends the present state of a register down a line.
    pub(super) fn tell_line(&mut self, p: usize, key: Key) {
        let mut delay = self.hop();
        let faulty = self.faulty();
        if faulty && self.rng.chance(self.swarm.calls.stale_news) {
            delay = self.rng.between(0, self.swarm.lease * 3 / 2);
        }
        let line = &mut self.store.lines[p];
        let at = (self.now + delay).max(line.last + 1);
        // Healing brings news up to date.
        let at = if faulty { at } else { self.now + delay };
        line.last = at;
        let register = self.registers(p).read(&key).cloned();
        let register = register.map(|register| self.maybe_damage(register));
        let life = self.agents[p].life;
        let input = Input::Seen { key, register };
        self.queue.push(at, GroupEvent::Mail { p, life, input });
    }
}
