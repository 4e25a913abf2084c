//! Histories that a real atomic register made.
//!
//! A call is made, takes effect at one instant on the core's own registers,
//! and is answered later, each at a time of chance. Some are given up: then
//! they take effect later, or never.

use tenure_core::cas::{Bytes, Expect, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_sim::linearize::{Answer, Ask, Call, CallId, History};

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
        let ask = if self.rng.chance(self.shape.reads) {
            Ask::Read
        } else {
            let value: Bytes = format!("x{}", self.rng.below(5)).into_bytes().into();
            let held = self.registers.read(&key).map(|held| held.version.clone());
            let chance = self.rng.below(100);
            let old = self.versions[self.rng.below(self.versions.len() as u64) as usize].clone();
            match held {
                _ if chance < 10 => Ask::Delete { expect: old },
                _ if chance < 20 => Ask::Swap {
                    expect: Expect::Version(old),
                    value,
                },
                Some(expect) if chance < 30 => Ask::Delete { expect },
                Some(expect) if chance < 80 => Ask::Swap {
                    expect: Expect::Version(expect),
                    value,
                },
                None | Some(_) => Ask::Swap {
                    expect: Expect::Absent,
                    value,
                },
            }
        };
        let id = self.history.invoke(at_ns, client, key, ask);
        self.open.push(Open {
            id,
            client: Some(client),
            answer: None,
        });
    }

    /// The call takes effect, unless it has.
    fn effect(&mut self, open: usize) {
        if self.open[open].answer.is_some() {
            return;
        }
        let call = self.history.call(self.open[open].id);
        self.log += 1 + self.rng.below(2);
        let key = call.key.clone();
        let answer = match call.ask.clone() {
            Ask::Read => match self.registers.read(&key) {
                None => Answer::Absent,
                Some(held) => Answer::Holds {
                    value: held.value.clone(),
                    version: held.version.clone(),
                },
            },
            Ask::Swap { expect, value } => {
                let stamp = Stamp::Keep;
                let write = Write {
                    key,
                    expect,
                    value,
                    stamp,
                };
                let version = Version::from_u64(self.log);
                match self.registers.swap_as(write, None, version) {
                    Ok(version) => {
                        self.versions.push(version.clone());
                        Answer::Swapped(version)
                    }
                    Err(_) => Answer::Conflict,
                }
            }
            Ask::Delete { expect } => match self.registers.delete(&key, &expect) {
                Ok(()) => Answer::Deleted,
                Err(_) => Answer::Conflict,
            },
        };
        self.open[open].answer = Some(answer);
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
                client, key, ask, ..
            } = call.clone();
            changed.invoke(call.invoked_ns, client, key, ask);
        } else if let Some((at_ns, answer)) = &call.answer
            && let Some(answer) = change(id, answer)
        {
            changed.answer(*at_ns, id, answer);
        }
    }
    changed
}
