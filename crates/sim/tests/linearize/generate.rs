//! Histories that a real atomic register made.
//!
//! A call is made, takes effect at one instant on the core's own registers,
//! and is answered later, each at a time of chance. Some are given up: then
//! they take effect later, or never. Some bind a register to their client's
//! session, which ends at some time or other.

use std::collections::BTreeMap;

use tenure_core::cas::{Bytes, Expect, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_sim::linearize::{Answer, Call, CallId, History, Invocation};

/// What kind of history.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) calls: usize,
    pub(crate) clients: u64,
    pub(crate) keys: u64,
    /// How many calls of a hundred are given up.
    pub(crate) given_up: u64,
    /// How many of a hundred are reads.
    pub(crate) reads: u64,
    /// How many writes of a hundred bind the register, or are notes.
    pub(crate) bound: u64,
}

struct Open {
    id: CallId,
    client: Option<u64>,
    answer: Option<Answer>,
}

struct World<'a> {
    rng: &'a mut Rng,
    shape: Shape,
    history: History,
    registers: Registers,
    log: u64,
    open: Vec<Open>,
    /// Versions somebody may expect.
    versions: Vec<Version>,
    /// By client, how many sessions of it have ended.
    ended: BTreeMap<u64, u64>,
    bound: BTreeMap<Key, (u64, Bytes)>,
    ends: BTreeMap<(u64, Key), CallId>,
}

/// A history of this shape.
pub(crate) fn generate(rng: &mut Rng, shape: Shape) -> History {
    let mut world = World {
        rng,
        shape,
        history: History::new(),
        registers: Registers::new(0),
        log: 0,
        open: Vec::new(),
        versions: vec![Version::from_u64(1)],
        ended: BTreeMap::new(),
        bound: BTreeMap::new(),
        ends: BTreeMap::new(),
    };
    let mut at_ns = 0;
    while world.history.len() < shape.calls {
        at_ns += world.rng.below(3);
        world.happen(at_ns);
    }
    // Whatever was not answered by now never will be.
    world.history
}

impl World<'_> {
    fn happen(&mut self, at_ns: u64) {
        let client = self.rng.below(self.shape.clients);
        let open = self.open.iter().position(|o| o.client == Some(client));
        match open {
            None if self.shape.bound > 0 && self.rng.chance(5) => self.end(at_ns, client),
            None => self.invoke(at_ns, client),
            Some(open) if self.rng.chance(50) => self.effect(open),
            Some(open) if self.rng.chance(self.shape.given_up) => self.open[open].client = None,
            Some(open) => {
                self.effect(open);
                let Open { id, answer, .. } = self.open.swap_remove(open);
                if let Some(answer) = answer {
                    self.history.answer(at_ns, id, answer);
                }
            }
        }
        let orphans = self.open.iter().filter(|o| o.client.is_none()).count();
        if orphans > 0 && self.rng.chance(10) {
            let nth = self.rng.below(orphans as u64) as usize;
            let mut orphans = self.open.iter().enumerate();
            let orphan = orphans
                .by_ref()
                .filter(|(_, o)| o.client.is_none())
                .nth(nth);
            if let Some((orphan, _)) = orphan {
                self.effect(orphan);
                if self.rng.chance(50) {
                    self.open.swap_remove(orphan);
                }
            }
        }
    }

    fn invoke(&mut self, at_ns: u64, client: u64) {
        let key = Key::new(&format!("k{}", self.rng.below(self.shape.keys))).expect("a key");
        let invocation = if self.rng.chance(self.shape.reads) {
            Invocation::Read
        } else {
            let value: Bytes = format!("x{}", self.rng.below(5)).into_bytes().into();
            let held = self.registers.read(&key).map(|held| held.version.clone());
            let chance = self.rng.below(100);
            let old = self.versions[self.rng.below(self.versions.len() as u64) as usize].clone();
            match held {
                _ if chance < 10 => Invocation::Delete { expect: old },
                _ if chance < 20 => Invocation::Swap {
                    expect: Expect::Version(old),
                    value,
                },
                Some(expect) if chance < 30 => Invocation::Delete { expect },
                Some(expect) if chance < 80 => Invocation::Swap {
                    expect: Expect::Version(expect),
                    value,
                },
                None | Some(_) => Invocation::Swap {
                    expect: Expect::Absent,
                    value,
                },
            }
        };
        let session = self.session(client);
        let invocation = self.perhaps_bound(invocation);
        if let Invocation::Bind { .. } = invocation {
            let history = &mut self.history;
            let end = || history.invoke_in(session, at_ns, client, key.clone(), Invocation::End);
            self.ends.entry((session, key.clone())).or_insert_with(end);
        }
        let id = self
            .history
            .invoke_in(session, at_ns, client, key, invocation);
        self.open.push(Open {
            id,
            client: Some(client),
            answer: None,
        });
    }

    /// The session the client has now.
    fn session(&self, client: u64) -> u64 {
        let ended = self.ended.get(&client).copied().unwrap_or(0);
        1 + client + 100 * ended
    }

    /// A swap may be one that binds, or a note.
    fn perhaps_bound(&mut self, invocation: Invocation) -> Invocation {
        match invocation {
            Invocation::Swap { expect, value } if self.rng.chance(self.shape.bound) => {
                if self.rng.chance(20) {
                    return Invocation::Note { expect, value };
                }
                let last: Bytes = format!("l{}", self.rng.below(3)).into_bytes().into();
                Invocation::Bind {
                    expect,
                    value,
                    last,
                }
            }
            invocation => invocation,
        }
    }

    /// A client's session is over. It may never learn that.
    fn end(&mut self, at_ns: u64, client: u64) {
        let session = self.session(client);
        *self.ended.entry(client).or_default() += 1;
        let held = self.bound.extract_if(.., |_, (of, _)| *of == session);
        for (key, (_, value)) in held.collect::<Vec<_>>() {
            let held = self.registers.read(&key).expect("a bound register");
            let expect = Expect::Version(held.version.clone());
            self.log += 1;
            let version = Version::from_u64(self.log);
            let write = write(key, expect, value);
            let written = self.registers.swap_as(write, None, version);
            self.versions.push(written.expect("as it was just read"));
        }
        for (_, id) in self.ends.extract_if(.., |(of, _), _| *of == session) {
            if self.rng.chance(60) {
                self.history.answer(at_ns, id, Answer::Ended);
            }
        }
    }

    /// Whether the call comes too late: its session is over.
    fn is_late(&self, call: &Call) -> bool {
        call.session != self.session(call.client)
    }

    /// Writes the register if nobody else has it; a note it takes anyway.
    fn swap(&mut self, call: &Call, expect: Expect, value: Bytes, last: Option<Bytes>) -> Answer {
        let note = matches!(call.invocation, Invocation::Note { .. });
        if !note && self.is_anothers(call) {
            return Answer::Conflict;
        }
        let version = Version::from_u64(self.log);
        let write = write(call.key.clone(), expect, value);
        let Ok(version) = self.registers.swap_as(write, None, version) else {
            return Answer::Conflict;
        };
        self.versions.push(version.clone());
        match last {
            Some(last) => {
                self.bound.insert(call.key.clone(), (call.session, last));
            }
            None if note => {}
            None => {
                self.bound.remove(&call.key);
            }
        }
        Answer::Swapped(version)
    }

    fn is_anothers(&self, call: &Call) -> bool {
        let holder = self.bound.get(&call.key);
        holder.is_some_and(|(session, _)| *session != call.session)
    }

    /// The call takes effect, unless it has.
    fn effect(&mut self, open: usize) {
        if self.open[open].answer.is_some() {
            return;
        }
        let call = self.history.call(self.open[open].id).clone();
        self.log += 1 + self.rng.below(2);
        let key = call.key.clone();
        let answer = match call.invocation.clone() {
            // A call of a session that is over does nothing.
            _ if self.is_late(&call) => Answer::Conflict,
            Invocation::Read => match self.registers.read(&key) {
                None => Answer::Absent,
                Some(held) => Answer::Holds {
                    value: held.value.clone(),
                    version: held.version.clone(),
                },
            },
            Invocation::Swap { expect, value } | Invocation::Note { expect, value } => {
                self.swap(&call, expect, value, None)
            }
            Invocation::Bind {
                expect,
                value,
                last,
            } => self.swap(&call, expect, value, Some(last)),
            Invocation::Delete { .. } if self.is_anothers(&call) => Answer::Conflict,
            Invocation::Delete { expect } => match self.registers.delete(&key, &expect) {
                Ok(()) => {
                    self.bound.remove(&key);
                    Answer::Deleted
                }
                Err(_) => Answer::Conflict,
            },
            Invocation::End => Answer::Ended,
        };
        self.open[open].answer = Some(answer);
    }
}

fn write(key: Key, expect: Expect, value: Bytes) -> Write {
    let stamp = Stamp::Keep;
    Write {
        key,
        expect,
        value,
        stamp,
    }
}

/// The same history with the answers that `change` gives: `None` for a call
/// that is not answered after all.
pub(crate) fn with_answers(
    history: &History,
    mut change: impl FnMut(CallId, &Answer) -> Option<Answer>,
) -> History {
    // The events in the order in which they were recorded.
    let mut events: Vec<(usize, bool, CallId)> = Vec::new();
    for (id, call) in history.calls() {
        let (invoked, returned) = call.order();
        events.push((invoked, false, id));
        events.extend(returned.map(|at| (at, true, id)));
    }
    events.sort_unstable();
    // Calls are numbered in the order in which they are made, so each keeps
    // its number.
    let mut changed = History::new();
    for (_, returned, id) in events {
        let call = history.call(id);
        if !returned {
            let Call {
                client,
                session,
                key,
                invocation,
                ..
            } = call.clone();
            changed.invoke_in(session, call.invoked_ns, client, key, invocation);
        } else if let Some((at_ns, answer)) = &call.answer
            && let Some(answer) = change(id, answer)
        {
            changed.answer(*at_ns, id, answer);
        }
    }
    changed
}
