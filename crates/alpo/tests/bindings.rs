//! Registers that are bound to sessions: whose they are, and what becomes of
//! them at the entry that ends the session.

use std::collections::{BTreeMap, BTreeSet};

use tenure_alpo::{Command, Entry, Limits, MAX_BOUND, Operation, Outcome, Payload, State};
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Term, Version};
use tenure_core::rng::Rng;
use tenure_core::time::ClockId;

/// A state, the time of the next entry, and the next serial of each session.
struct Log {
    state: State,
    time: u64,
    serials: BTreeMap<u64, u64>,
}

impl Log {
    fn new() -> Self {
        Self {
            state: State::new(Limits::default(), ClockId::default()),
            time: 0,
            serials: BTreeMap::new(),
        }
    }

    fn apply(&mut self, payload: Payload) -> Outcome {
        let entry = Entry {
            id: self.state.applied().id + 1,
            term: Term::new(1).expect("a small term"),
            time: self.time,
            payload,
        };
        self.state.apply(&entry)
    }

    fn open(&mut self, ttl: u64) -> u64 {
        match self.apply(Payload::Open { ttl }) {
            Outcome::Opened(session) => session,
            other => panic!("expected a session, found {other:?}"),
        }
    }

    fn submit(&mut self, session: u64, operation: Operation) -> Outcome {
        let serial = self.serials.entry(session).or_insert(1);
        let command = Command {
            session,
            serial: *serial,
            outstanding: *serial,
            operation,
        };
        *serial += 1;
        self.apply(Payload::Command(command))
    }

    fn version(&self, name: &str) -> Option<Version> {
        let held = self.state.registers().read(&key(name));
        held.map(|held| held.version.clone())
    }

    fn value(&self, name: &str) -> Option<String> {
        let held = self.state.registers().read(&key(name))?;
        Some(String::from_utf8_lossy(&held.value).into_owned())
    }

    /// A write that expects what is there.
    fn write(&self, name: &str, value: &str, stamp: Stamp) -> Write {
        Write {
            key: key(name),
            expect: self.version(name).map_or(Expect::Absent, Expect::Version),
            value: value.as_bytes().into(),
            stamp,
        }
    }

    fn bind(&mut self, session: u64, name: &str, value: &str) -> Outcome {
        let write = self.write(name, value, Stamp::Now);
        let last = format!("after {value}").into_bytes().into();
        self.submit(session, Operation::bind(write, last))
    }

    fn swap(&mut self, session: u64, name: &str, value: &str, stamp: Stamp) -> Outcome {
        let write = self.write(name, value, stamp);
        self.submit(session, Operation::swap(write))
    }

    fn delete(&mut self, session: u64, name: &str) -> Outcome {
        let expect = self.version(name).expect("it is there");
        self.submit(session, Operation::delete(key(name), expect))
    }

    fn expire(&mut self, session: u64) {
        self.apply(Payload::Expire { session });
    }

    fn holder(&self, name: &str) -> Option<u64> {
        self.state.bound(&key(name)).map(|bound| bound.session)
    }
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a good key")
}

fn swapped(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Swapped(_))
}

#[test]
fn while_it_is_bound_nobody_else_takes_it_whatever_they_expect() {
    let mut log = Log::new();
    let (holder, rival) = (log.open(100), log.open(100));
    assert!(swapped(&log.bind(holder, "a", "1")));
    // Each of these expects the version that is there.
    assert_eq!(log.swap(rival, "a", "2", Stamp::Now), Outcome::Conflict);
    assert_eq!(log.bind(rival, "a", "2"), Outcome::Conflict);
    assert_eq!(log.delete(rival, "a"), Outcome::Conflict);
    assert_eq!(log.value("a").as_deref(), Some("1"));
    // A note that keeps the stamp may be left, and changes no holder.
    assert!(swapped(&log.swap(rival, "a", "1, please", Stamp::Keep)));
    assert_eq!(log.holder("a"), Some(holder));
    // The holder writes as it likes; without binding it lets go.
    assert!(swapped(&log.bind(holder, "a", "3")));
    assert!(swapped(&log.swap(holder, "a", "4", Stamp::Now)));
    assert_eq!(log.holder("a"), None);
    assert!(swapped(&log.swap(rival, "a", "5", Stamp::Now)));
    assert!(swapped(&log.bind(rival, "a", "6")));
    assert_eq!(log.delete(rival, "a"), Outcome::Deleted);
    assert_eq!((log.holder("a"), log.state.bound_len()), (None, 0));
}

#[test]
fn at_the_end_of_a_session_its_registers_get_their_last_wills_at_once() {
    for closed in [true, false] {
        let mut log = Log::new();
        let (holder, other) = (log.open(100), log.open(1_000));
        for (session, name) in [(holder, "a"), (other, "b"), (holder, "c")] {
            log.bind(session, name, name);
        }
        log.submit(holder, Operation::Append(b"x".as_slice().into()));
        let before = log.version("a");
        let revision = log.state.registers().revision();
        // Not over yet: nothing happens.
        log.time = 99;
        log.expire(holder);
        assert_eq!(log.holder("a"), Some(holder));
        log.time = 100;
        if closed {
            assert_eq!(log.submit(holder, Operation::Close), Outcome::Closed);
        } else {
            log.expire(holder);
        }
        let applied = log.state.applied().id;
        for name in ["a", "c"] {
            assert_eq!(log.value(name), Some(format!("after {name}")));
            assert_eq!(log.version(name), Some(Version::from_u64(applied)));
            assert_eq!(log.holder(name), None);
        }
        assert_ne!(log.version("a"), before);
        assert_eq!(log.value("b").as_deref(), Some("b"));
        assert_eq!(log.holder("b"), Some(other));
        // A watch is told, in the order of the keys.
        let changes = log.state.registers().changes_after(revision).expect("kept");
        let keys: Vec<_> = changes.map(|it| it.key.as_str().to_owned()).collect();
        assert_eq!(keys, ["a", "c"]);
        assert_eq!(log.state.revision_at(applied), Ok(revision + 2));
        // What the dead holder had sent comes too late.
        let late = log.swap(holder, "a", "late", Stamp::Now);
        assert_eq!(late, Outcome::SessionExpired);
        assert!(swapped(&log.swap(other, "a", "next", Stamp::Now)));
    }
}

#[test]
fn a_keep_alive_renews_all_that_a_session_holds() {
    let mut log = Log::new();
    let holder = log.open(100);
    for name in ["a", "b"] {
        log.bind(holder, name, "1");
    }
    log.time = 90;
    log.submit(holder, Operation::KeepAlive);
    log.time = 150;
    log.expire(holder);
    for name in ["a", "b"] {
        // A reader sees when that was; the register itself was not written.
        let seen = log.state.register(&key(name)).expect("a register");
        assert_eq!(seen.stamp.map(|it| it.nanos), Some(90));
        let held = log.state.registers().read(&key(name)).expect("a register");
        assert_eq!(held.stamp.map(|it| it.nanos), Some(0));
        let bound = log.state.bound(&key(name)).expect("it is bound");
        assert_eq!((bound.session, bound.heard, bound.ends), (holder, 90, 190));
    }
    // A new leader gives everybody a new lease, and so all that is held.
    log.apply(Payload::NoOp);
    assert_eq!(log.state.bound(&key("a")).map(|it| it.ends), Some(250));
}

#[test]
fn a_session_holds_so_many_registers_and_no_more() {
    let mut log = Log::new();
    let holder = log.open(100);
    for number in 0..MAX_BOUND {
        assert!(swapped(&log.bind(holder, &format!("k{number}"), "x")));
    }
    assert_eq!(log.bind(holder, "more", "x"), Outcome::TooManyBound);
    assert_eq!(log.value("more"), None);
    // One that it holds may be written again, and one that it lets go makes room.
    assert!(swapped(&log.bind(holder, "k0", "y")));
    assert!(swapped(&log.swap(holder, "k0", "z", Stamp::Now)));
    assert!(swapped(&log.bind(holder, "more", "x")));
    log.submit(holder, Operation::Close);
    assert_eq!(log.value("more").as_deref(), Some("after x"));
    assert_eq!(log.value("k0").as_deref(), Some("z"));
    assert_eq!(log.state.bound_len(), 0);
}

/// What bindings mean, as simply as it can be said.
#[derive(Default)]
struct Model {
    sessions: BTreeSet<u64>,
    registers: BTreeMap<String, String>,
    bound: BTreeMap<String, (u64, String)>,
}

impl Model {
    fn may(&self, session: u64, name: &str) -> bool {
        self.bound
            .get(name)
            .is_none_or(|(holder, _)| *holder == session)
    }

    fn end(&mut self, session: u64) {
        self.sessions.remove(&session);
        let held: Vec<_> = self
            .bound
            .iter()
            .filter(|(_, (it, _))| *it == session)
            .collect();
        let held: Vec<_> = held
            .into_iter()
            .map(|(name, (_, last))| (name.clone(), last.clone()))
            .collect();
        for (name, last) in held {
            self.bound.remove(&name);
            self.registers.insert(name, last);
        }
    }
}

#[test]
fn whatever_happens_a_register_is_bound_as_long_as_its_session_lives() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let (mut log, mut model) = (Log::new(), Model::default());
        let mut counted = (0, 0);
        for step in 0..120 {
            let names = ["a", "b", "c", "d"];
            let name = names[rng.below(4) as usize];
            let known: Vec<u64> = model.sessions.iter().copied().collect();
            let Some(session) = known.get(rng.below(4) as usize).copied() else {
                model.sessions.insert(log.open(1 + rng.below(20)));
                continue;
            };
            let value = format!("{step}");
            let may = model.may(session, name);
            match rng.below(8) {
                0 | 1 => {
                    assert_eq!(swapped(&log.bind(session, name, &value)), may);
                    if may {
                        let last = (session, format!("after {value}"));
                        model.bound.insert(name.into(), last);
                        model.registers.insert(name.into(), value);
                    }
                }
                2 => {
                    assert_eq!(swapped(&log.swap(session, name, &value, Stamp::Now)), may);
                    if may {
                        model.bound.remove(name);
                        model.registers.insert(name.into(), value);
                    }
                }
                3 => {
                    assert!(swapped(&log.swap(session, name, &value, Stamp::Keep)));
                    model.registers.insert(name.into(), value);
                }
                4 if model.registers.contains_key(name) => {
                    let deleted = log.delete(session, name) == Outcome::Deleted;
                    assert_eq!(deleted, may);
                    if may {
                        model.bound.remove(name);
                        model.registers.remove(name);
                    }
                }
                5 => {
                    log.submit(session, Operation::Close);
                    model.end(session);
                }
                6 => {
                    log.time += rng.below(10);
                    log.expire(session);
                    if log.state.sessions().get(session).is_none() {
                        model.end(session);
                    }
                }
                _ => {
                    log.submit(session, Operation::KeepAlive);
                    // And a server that was given all this as a snapshot.
                    let image = log.state.encode();
                    log.state = State::decode(&image).expect("a state");
                    assert_eq!(log.state.encode(), image);
                }
            }
            agree(&log, &model, seed);
            count(&log, &model, &mut counted);
        }
    }
}

/// The room that registers take is what they and their on-expiry values hold,
/// and what all changes up to `counted` and since add up to.
fn count(log: &Log, model: &Model, counted: &mut (u64, i64)) {
    let registers = log.state.registers();
    let news = registers.changes_after(counted.0).expect("few changes");
    let grown: i64 = news.map(|change| change.grown).sum();
    *counted = (registers.revision(), counted.1 + grown);
    let values = (model.registers.iter()).map(|(name, value)| name.len() + value.len());
    let wills = model.bound.values().map(|(_, last)| last.len());
    let bytes: usize = values.chain(wills).sum();
    assert_eq!(log.state.register_bytes(), bytes as u64);
    assert_eq!(counted.1, bytes as i64);
    let each = registers
        .list("")
        .map(|(key, it)| log.state.weight(key, it));
    assert_eq!(each.sum::<usize>(), bytes);
}

fn agree(log: &Log, model: &Model, seed: u64) {
    for name in ["a", "b", "c", "d"] {
        assert_eq!(
            log.value(name).as_ref(),
            model.registers.get(name),
            "seed {seed}"
        );
        let holder = model.bound.get(name).map(|(session, _)| *session);
        assert_eq!(log.holder(name), holder, "seed {seed}");
    }
    assert_eq!(log.state.bound_len(), model.bound.len());
}
