//! The store behind a network that does its worst.
//!
//! The registers are the core's own ([`Registers`]); around them messages are
//! lost, late or damaged, answers lie about nothing but may say nothing, and
//! a watch tells old news, loses its line, or dies without a word. A request
//! can land long after its sender has given it up.
//!
//! Stores that lose what they acknowledged are in
//! [`lossy_store`](crate::lossy_store). Left out: stores that answer reads from
//! the past. Against those the election promises nothing without a fence.

use tenure_core::cas::{Bytes, Expect, Reading, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::{ClockId, StoreTime};
use tenure_election::{Failure, FailureClass, Input, Record};

use crate::checkers::{Causes, Check};
use crate::clock::{MILLI, TrueTime};
use crate::events::SimEvent;
use crate::kernel;
use crate::process::sketch;
use crate::simulated_process::{Actor, ProcessInput};
use crate::simulated_store::{Op, Store, StoreCall};
use crate::swarm::{BootId, StoreClock};
use crate::world::World;

impl World {
    /// A question leaves its sender.
    pub(crate) fn send(&mut self, mut question: StoreCall) {
        let calls = self.swarm.calls;
        let faulty = self.faulty();
        let mut delay = self.hop();
        if faulty && self.rng.chance(calls.lose_request) {
            self.stats.lost_requests += 1;
            return self.lost(&question);
        }
        if faulty && self.rng.chance(calls.slow_request) {
            delay = self.rng.between(0, 2 * self.swarm.lease);
            self.causes.disturb(question.p, self.now + delay);
            question.slow = true;
        }
        self.queue
            .push(self.now + delay, SimEvent::Arrive(Box::new(question)));
    }

    /// Nothing comes back, or in the end the connection says so.
    fn lost(&mut self, question: &StoreCall) {
        self.causes.disturb(question.p, self.now);
        if self.rng.chance(40) {
            let delay = self.rng.between(MILLI, self.swarm.lease / 2);
            self.causes.disturb(question.p, self.now + delay);
            self.fail_at(question, FailureClass::Unknown, "connection lost", delay);
        }
    }

    fn hop(&mut self) -> u64 {
        kernel::hop(&mut self.rng, self.swarm.net)
    }

    /// A question arrives at the store.
    pub(crate) fn arrive(&mut self, question: &StoreCall) {
        let faulty = self.faulty();
        if question.slow && !faulty {
            // Healing ends what was under way.
            return;
        }
        let down = |until: Option<(TrueTime, bool)>| until.filter(|(until, _)| self.now < *until);
        let cut = down(self.store.cuts[question.p]);
        if let Some((_, says)) = down(self.store.outage).or(cut) {
            self.stats.refused += 1;
            self.causes.disturb(question.p, self.now);
            if says {
                self.fail(question, FailureClass::Unavailable, "the store is down");
            }
            return;
        }
        let calls = self.swarm.calls;
        if faulty && self.rng.chance(calls.unavailable) {
            self.stats.unavailable += 1;
            return self.fail(question, FailureClass::Unavailable, "too busy");
        }
        if faulty && self.rng.chance(calls.broken) {
            self.stats.broken += 1;
            return self.fail(question, FailureClass::Broken, "permission denied");
        }
        let unknown = faulty && self.rng.chance(calls.unknown);
        if unknown && self.rng.chance(50) {
            self.stats.unknown += 1;
            return self.fail(question, FailureClass::Unknown, "connection reset");
        }
        let mail = self.apply(question);
        if unknown {
            self.stats.unknown += 1;
            return self.fail(question, FailureClass::Unknown, "connection reset");
        }
        if faulty && self.rng.chance(calls.lose_answer) {
            self.stats.lost_answers += 1;
            return self.lost(question);
        }
        let mut delay = self.hop();
        if faulty && self.rng.chance(calls.slow_answer) {
            delay = self.rng.between(0, self.swarm.lease);
            self.causes.disturb(question.p, self.now + delay);
        }
        let (p, life) = (question.p, question.life);
        self.queue
            .push(self.now + delay, SimEvent::ProcessInput { p, life, mail });
    }

    fn fail(&mut self, question: &StoreCall, class: FailureClass, why: &str) {
        let delay = self.hop();
        self.causes.disturb(question.p, self.now + delay);
        self.fail_at(question, class, why, delay);
    }

    fn fail_at(&mut self, question: &StoreCall, class: FailureClass, why: &str, delay: u64) {
        let (p, life, call) = (question.p, question.life, question.call);
        let failure = Failure::new(class, why);
        let input = match question.op {
            Op::Read => Input::Read {
                call,
                result: Err(failure),
            },
            Op::Write(..) => Input::Wrote {
                call,
                result: Err(failure),
            },
            Op::Confirm(_) => Input::Confirmed {
                call,
                result: Err(failure),
            },
            Op::Keep(_) => return,
        };
        let mail = ProcessInput::Answer(input, None);
        self.queue
            .push(self.now + delay, SimEvent::ProcessInput { p, life, mail });
    }

    /// The question takes effect.
    fn apply(&mut self, question: &StoreCall) -> ProcessInput {
        let call = question.call;
        let election = self.election_of(&question.key);
        match &question.op {
            Op::Read => {
                let mut register = self.registers(question.p).read(&question.key).cloned();
                let mut writes = Some(self.terms[election].writes());
                if self.faulty() && self.rng.chance(self.swarm.calls.corrupt) {
                    self.stats.corrupted += 1;
                    self.causes.disturb(question.p, self.now);
                    register = register.map(|register| kernel::damaged(&mut self.rng, register));
                    writes = None;
                }
                let now = self.store_time(question.p);
                // A session renews what is bound to it; a process that does not
                // know of sessions sees no more than that.
                let heard = self.store.sessions.heard(&question.key);
                let stamp = register.as_mut().and_then(|it| it.stamp.as_mut());
                if let (Some(heard), Some(stamp)) = (heard, stamp) {
                    stamp.nanos = stamp.nanos.max(heard);
                }
                let bound = heard.filter(|_| self.processes[question.p].knows_sessions);
                let bound = bound.map(|_| 1);
                let writes = writes.filter(|_| self.processes[question.p].election == election);
                let reading = Reading {
                    register,
                    now,
                    bound,
                };
                let result = Ok(reading);
                ProcessInput::Answer(Input::Read { call, result }, writes)
            }
            Op::Write(write, bind) => {
                let last = bind.as_ref().map(|bind| bind.last.clone());
                let result = self.swap(question, write.clone(), last, election);
                let writes = result.is_ok().then(|| self.terms[election].writes());
                ProcessInput::Answer(Input::Wrote { call, result }, writes)
            }
            Op::Confirm(start) => {
                let over = Failure::new(FailureClass::Conflict, "there is no session");
                let session = question.session.ok_or(over);
                let result = session.and_then(|session| self.confirm(session, *start));
                ProcessInput::Answer(Input::Confirmed { call, result }, None)
            }
            Op::Keep(start) => {
                let session = question.session.unwrap_or(usize::MAX);
                ProcessInput::Kept(session, self.confirm(session, *start).ok())
            }
        }
    }

    /// Writes whatever is there, as the store itself.
    pub(crate) fn force(
        &mut self,
        key: &Key,
        value: Bytes,
        stamp: Option<StoreTime>,
    ) -> Option<Version> {
        let held = self.store.registers.read(key)?;
        let write = Write {
            key: key.clone(),
            expect: Expect::Version(held.version.clone()),
            value,
            stamp: Stamp::Now,
        };
        self.put(None, write, stamp)
    }

    /// Writes to the copy that `p` sees, or to the first one.
    fn put(&mut self, p: Option<usize>, write: Write, stamp: Option<StoreTime>) -> Option<Version> {
        let Store {
            registers,
            store_damage,
            ..
        } = &mut self.store;
        let copy = p.and_then(|p| store_damage.copy_mut(p));
        let second = copy.is_some();
        let registers = copy.unwrap_or(registers);
        let key = write.key.clone();
        let version = kernel::swap(registers, write, stamp, self.swarm.hashed).ok()?;
        let state = registers.read(&key).filter(|_| !second).cloned();
        if let Some(state) = state {
            self.keep(&key, state);
        }
        Some(version)
    }

    fn swap(
        &mut self,
        question: &StoreCall,
        write: Write,
        last: Option<Bytes>,
        election: usize,
    ) -> Result<Version, Failure> {
        let p = question.p;
        if self.refuses(p, &write) {
            let why = "somebody else wrote first";
            return Err(Failure::new(FailureClass::Conflict, why));
        }
        if let Some(session) = question.session {
            self.hear(session, last.is_some())?;
        }
        let stamp = self.store_time(p);
        let allowed = self.store.sessions.allows(question.session, &write);
        let swapped = if allowed {
            self.put(Some(p), write.clone(), stamp)
        } else {
            None
        };
        let Some(version) = swapped else {
            self.stats.conflicts += 1;
            if let Some(shown) = question.shown {
                let finding = Causes::conflict(shown, &self.terms[election]);
                self.judge(Check::Causes, p, finding);
            }
            return Err(Failure::new(
                FailureClass::Conflict,
                "somebody else wrote first",
            ));
        };
        self.store.sessions.wrote(question.session, &write, last);
        self.stats.writes += 1;
        if self.now > question.give_up_at || self.processes[p].life != question.life {
            self.stats.late_landings += 1;
            self.causes.disturb(p, self.now);
        }
        if let Ok(record) = Record::decode(&write.value) {
            self.written(p, election, &record, &version);
            if matches!(self.processes[p].actor, Actor::RequestSender(_)) {
                self.requests.reached(election, record.term);
                self.stats.leader_requests += 1;
                let at = self.now + self.heeded_within(&record, &write.key) + 1;
                self.queue.push(
                    at,
                    SimEvent::RequestDue {
                        election,
                        term: record.term,
                    },
                );
            }
        }
        self.spread(election);
        Ok(version)
    }

    /// Whether the store refuses a write that it could do.
    fn refuses(&mut self, p: usize, write: &Write) -> bool {
        let stands = matches!(self.processes[p].actor, Actor::Candidate(_));
        let fits = write.expect.is_met_by(self.registers(p).read(&write.key));
        if self.now >= self.store.refuses_until || !stands || !fits {
            return false;
        }
        self.stats.denied += 1;
        self.causes.disturb(p, self.now);
        let finding = self.refusals.refused(p, self.now, self.swarm.lease);
        self.judge(Check::Spin, p, finding);
        true
    }

    /// How long a leadership may last that was asked to end: a renewal finds
    /// the request, or fails; where a session holds the election, a look.
    fn heeded_within(&self, record: &Record, key: &Key) -> u64 {
        let leases = match self.store.sessions.heard(key) {
            None => 1,
            Some(_) if self.swarm.watch => 12,
            Some(_) => 3,
        };
        leases * record.lease.as_nanos() as u64
    }

    /// The register holds something else.
    pub(crate) fn written(
        &mut self,
        p: usize,
        election: usize,
        record: &Record,
        version: &Version,
    ) {
        self.note(p, || {
            format!("** the register is now {version} {}", sketch(record))
        });
        let old = self.terms[election].last().and_then(|entry| entry.holder);
        if record.holder().is_some_and(|holder| Some(holder.id) != old) {
            self.held_before[election] = old.is_some();
        }
        let finding = self.terms[election].wrote(record, version, self.now);
        self.judge(Check::Terms, p, finding);
    }

    pub(crate) fn store_time(&self, p: usize) -> Option<StoreTime> {
        let node = &self.nodes[self.processes[p].node];
        let (clock, nanos) = match self.swarm.store_clock {
            StoreClock::None => return None,
            StoreClock::Steady => {
                let namespace = if self.swarm.namespaces {
                    p as u64 % 2
                } else {
                    0
                };
                // A process that reads no id of the boot has no time; one that
                // reads another id may be shown another time as well.
                let (boot, shift) = match self.processes[p].boot_id {
                    BootId::Own => (node.boot_id, namespace * 777),
                    BootId::Foreign => {
                        let boot = (p as u64 + 1) << 32 | node.boot_id;
                        (boot, namespace * 777 + p as u64 * 33)
                    }
                    BootId::Hidden => return None,
                };
                let clock = ClockId { boot, namespace };
                // Each namespace shows the clock with a shift of its own.
                (
                    clock,
                    node.boot(self.now).as_nanos() + shift * self.swarm.lease,
                )
            }
            StoreClock::Even | StoreClock::Stepping => {
                let clock = ClockId {
                    boot: 1,
                    namespace: 0,
                };
                (clock, self.store.curve.at(self.now) + self.store.stepped)
            }
        };
        Some(StoreTime { clock, nanos })
    }

    pub(crate) fn election_of(&self, key: &Key) -> usize {
        self.store
            .keys
            .iter()
            .position(|known| known == key)
            .unwrap_or(0)
    }

    /// Tells a change to everybody who has a line.
    pub(crate) fn spread(&mut self, election: usize) {
        for index in 0..self.store.lines.len() {
            let line = &self.store.lines[index];
            if line.up && line.election == election {
                self.tell_line(index);
            }
        }
    }

    /// Sends the present state down a line.
    pub(crate) fn tell_line(&mut self, index: usize) {
        let mut delay = self.hop();
        let faulty = self.faulty();
        if faulty && self.rng.chance(self.swarm.calls.stale_news) {
            self.stats.stale_news += 1;
            delay = self.rng.between(0, self.swarm.lease * 3 / 2);
        }
        let line = &mut self.store.lines[index];
        let at = (self.now + delay).max(line.last + 1);
        // Healing brings news up to date.
        let at = if faulty { at } else { self.now + delay };
        line.last = at;
        let (p, election) = (line.p, line.election);
        let key = self.store.keys[election].clone();
        let mut register = self.registers(p).read(&key).cloned();
        if faulty && self.rng.chance(self.swarm.calls.corrupt) {
            register = register.map(|register| kernel::damaged(&mut self.rng, register));
        }
        self.post(p, at, ProcessInput::Input(Input::Seen { key, register }));
    }
}
