//! A client: it opens a session, numbers its requests, and asks until it is
//! answered.
//!
//! It does what the client library does: it keeps up to a few requests under
//! way, sends each again unchanged, to whoever is said to lead or else to the
//! next server, and takes no answer for a failure.

use std::collections::BTreeMap;

use tenure_core::alpo::{Ask, Command, Operation, Outcome, Query, Serial, SessionId};
use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;

/// What a client waits for.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) ask: Ask,
    /// When it was first asked, in true time.
    pub(super) since: u64,
    /// How often it was sent.
    pub(super) tries: u64,
    /// Its number in the history.
    pub(super) operation: usize,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) number: usize,
    /// It only reads, often, and believes in one leader until it is told of
    /// another: the first to notice a leader that does not know it is none.
    pub(super) reader: bool,
    pub(super) rng: Rng,
    /// Whom it takes for the leader.
    pub(super) target: usize,
    /// When it last went on to another server.
    pub(super) turned: u64,
    pub(super) session: Option<SessionId>,
    pub(super) next_serial: Serial,
    /// By the client's own number of the request.
    pub(super) pending: BTreeMap<u64, Pending>,
    pub(super) next_request: u64,
    /// What it believes the registers to hold.
    pub(super) seen: BTreeMap<Key, Option<Version>>,
    /// How many values it made up.
    made: u64,
}

/// What a client wants to do next.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    Append(Bytes),
    Swap(Write),
    Delete(Key, Version),
    Read(Key),
    KeepAlive,
}

impl Client {
    pub(super) fn new(number: usize, rng: Rng) -> Self {
        Self {
            number,
            reader: number % 2 == 1,
            rng,
            target: 0,
            turned: 0,
            session: None,
            next_serial: 1,
            pending: BTreeMap::new(),
            next_request: 0,
            seen: BTreeMap::new(),
            made: 0,
        }
    }

    fn value(&mut self) -> Bytes {
        self.made += 1;
        format!("c{}-{}", self.number, self.made)
            .into_bytes()
            .into()
    }

    pub(super) fn key(&mut self) -> Key {
        Key::new(&format!("k{}", self.rng.below(2))).expect("a plain key")
    }

    pub(super) fn wish(&mut self) -> Wish {
        let key = self.key();
        match self.rng.below(20) {
            0..6 => Wish::Append(self.value()),
            6..13 => {
                let expect = match self.seen.get(&key) {
                    Some(Some(version)) => Expect::Version(version.clone()),
                    Some(None) | None => Expect::Absent,
                };
                let value = self.value();
                let stamp = Stamp::Now;
                Wish::Swap(Write {
                    key,
                    expect,
                    value,
                    stamp,
                })
            }
            13 => match self.seen.get(&key) {
                Some(Some(version)) => Wish::Delete(key, version.clone()),
                Some(None) | None => Wish::Read(key),
            },
            14 => Wish::KeepAlive,
            _ => Wish::Read(key),
        }
    }

    /// The lowest serial still waited for.
    pub(super) fn outstanding(&self) -> Serial {
        let serials = self
            .pending
            .values()
            .filter_map(|pending| match &pending.ask {
                Ask::Command(command) => Some(command.serial),
                _ => None,
            });
        serials.min().unwrap_or(self.next_serial)
    }

    /// Turns a wish into a request.
    pub(super) fn request(&mut self, wish: Wish, session: SessionId) -> Ask {
        let operation = match wish {
            Wish::Append(bytes) => Operation::Append(bytes),
            Wish::Swap(write) => Operation::Swap(write),
            Wish::Delete(key, expect) => Operation::Delete { key, expect },
            Wish::KeepAlive => Operation::KeepAlive,
            Wish::Read(key) => return Ask::Read(Query::Register(key)),
        };
        let serial = self.next_serial;
        let outstanding = self.outstanding().min(serial);
        self.next_serial += 1;
        Ask::Command(Command {
            session,
            serial,
            outstanding,
            operation,
        })
    }

    /// Learns from an answer what a register holds.
    pub(super) fn learn(&mut self, ask: &Ask, outcome: &Outcome) {
        let Ask::Command(command) = ask else {
            return;
        };
        match (&command.operation, outcome) {
            (Operation::Swap(write), Outcome::Swapped(version)) => {
                self.seen.insert(write.key.clone(), Some(version.clone()));
            }
            (Operation::Delete { key, .. }, Outcome::Deleted) => {
                self.seen.insert(key.clone(), None);
            }
            _ => {}
        }
    }

    /// The session is over; what is under way is not known.
    pub(super) fn start_over(&mut self) {
        self.session = None;
        self.next_serial = 1;
        self.pending.clear();
    }

    /// Asks the next server from now on.
    pub(super) fn turn(&mut self, servers: usize) {
        self.target = (self.target + 1) % servers;
    }
}
