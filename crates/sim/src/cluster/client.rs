//! A client: it opens a session, numbers its requests, and asks until it is
//! answered.
//!
//! It does what the client library does: it keeps up to a few requests under
//! way, sends each again unchanged, to the server that is said to lead or else
//! to the next one, and takes no answer for a failure.
//!
//! Some registers it binds to its session, as the holder of an election would,
//! and lets go again. Some clients fall silent for about as long as a session
//! lives, so that it is over, or nearly over, when they speak again.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_alpo::{
    ClientRequest, Command, Fingerprint, OpenSession, Operation, Outcome, OwnershipProof, Query,
    Serial, SessionId,
};
use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_core::time::Drift;

/// What a client waits for.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) request: ClientRequest,
    /// When it was first asked, in true time.
    pub(super) since: u64,
    /// How many entries were committed then.
    pub(super) known: tenure_alpo::LogId,
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
    /// How fast its clock is, in parts per million off.
    pub(super) rate: i64,
    /// It falls silent every now and then.
    pub(super) moody: bool,
    /// It says nothing until then.
    pub(super) silent_until: u64,
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
pub(super) enum ClientOperation {
    Append(Bytes),
    Swap(Write),
    Bind(Write, Bytes),
    Delete(Key, Version),
    Read(Key),
    KeepAlive,
    Close,
}

impl Client {
    pub(super) fn new(number: usize, mut rng: Rng, rate: i64) -> Self {
        let reader = number % 2 == 1;
        Self {
            number,
            reader,
            moody: !reader && rng.chance(40),
            rng,
            rate,
            silent_until: 0,
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

    /// What proves its sessions to be its own.
    pub(super) const fn secret(&self) -> Fingerprint {
        [self.number as u8 + 1; 16]
    }

    /// What it asks to have a session.
    pub(super) const fn opening(&self, ttl: u64) -> OpenSession {
        let mut opening = OpenSession::unowned(ttl);
        opening.owner.secret = Some(self.secret());
        opening
    }

    fn value(&mut self) -> Bytes {
        self.made += 1;
        format!("c{}-{}", self.number, self.made)
            .into_bytes()
            .into()
    }

    /// One register to look at.
    pub(super) fn key(&mut self) -> Key {
        let kind = if self.rng.chance(5) { "b" } else { "k" };
        self.key_of(kind)
    }

    fn key_of(&mut self, kind: &str) -> Key {
        Key::new(&format!("{kind}{}", self.rng.below(2))).expect("a plain key")
    }

    fn write(&mut self, key: Key, stamp: Stamp) -> Write {
        let expect = match self.seen.get(&key) {
            Some(Some(version)) => Expect::Version(version.clone()),
            Some(None) | None => Expect::Absent,
        };
        Write {
            key,
            expect,
            value: self.value(),
            stamp,
        }
    }

    fn delete(&self, key: Key) -> ClientOperation {
        match self.seen.get(&key) {
            Some(Some(version)) => ClientOperation::Delete(key, version.clone()),
            Some(None) | None => ClientOperation::Read(key),
        }
    }

    pub(super) fn client_operation(&mut self) -> ClientOperation {
        if self.rng.chance(15) {
            return self.operation_of_bound();
        }
        let key = self.key_of("k");
        match self.rng.below(20) {
            0..6 => ClientOperation::Append(self.value()),
            6..13 => ClientOperation::Swap(self.write(key, Stamp::Now)),
            13 => self.delete(key),
            14 => ClientOperation::KeepAlive,
            _ => ClientOperation::Read(key),
        }
    }

    /// Something about a register that is, or may be, bound.
    fn operation_of_bound(&mut self) -> ClientOperation {
        let key = self.key_of("b");
        match self.rng.below(20) {
            0..11 => {
                let write = self.write(key, Stamp::Now);
                let last = self.value();
                ClientOperation::Bind(write, last)
            }
            11..13 => ClientOperation::Swap(self.write(key, Stamp::Now)),
            13..15 => ClientOperation::Swap(self.write(key, Stamp::Keep)),
            15 => self.delete(key),
            // Alone, so that nothing of the session is left unanswered.
            16 if self.pending.is_empty() => ClientOperation::Close,
            _ => ClientOperation::Read(key),
        }
    }

    /// The lowest serial still waited for.
    pub(super) fn outstanding(&self) -> Serial {
        let serials = self
            .pending
            .values()
            .filter_map(|pending| match &pending.request {
                ClientRequest::Command(command, _) => Some(command.serial),
                _ => None,
            });
        serials.min().unwrap_or(self.next_serial)
    }

    /// Turns a wish into a request.
    pub(super) fn numbered(
        &mut self,
        client_operation: ClientOperation,
        session: SessionId,
    ) -> ClientRequest {
        let operation = match client_operation {
            ClientOperation::Append(bytes) => Operation::Append(bytes),
            ClientOperation::Swap(write) => Operation::swap(write),
            ClientOperation::Bind(write, last) => Operation::bind(write, last),
            ClientOperation::Delete(key, expect) => Operation::delete(key, expect),
            ClientOperation::KeepAlive => Operation::KeepAlive,
            ClientOperation::Close => Operation::Close,
            ClientOperation::Read(key) => return ClientRequest::Read(Query::Register(key)),
        };
        let serial = self.next_serial;
        let outstanding = self.outstanding().min(serial);
        self.next_serial += 1;
        let command = Command {
            session,
            serial,
            outstanding,
            operation,
        };
        ClientRequest::Command(command, OwnershipProof::of_secret(self.secret()))
    }

    /// Learns from an answer what a register holds.
    pub(super) fn learn(&mut self, request: &ClientRequest, outcome: &Outcome) {
        let ClientRequest::Command(command, _) = request else {
            return;
        };
        match (&command.operation, outcome) {
            (Operation::Swap(write), Outcome::Swapped(version)) => {
                self.seen.insert(write.key.clone(), Some(version.clone()));
            }
            (Operation::Bind(bind), Outcome::Swapped(version)) => {
                let key = bind.write.key.clone();
                self.seen.insert(key, Some(version.clone()));
            }
            (Operation::Delete(delete), Outcome::Deleted) => {
                self.seen.insert(delete.key.clone(), None);
            }
            _ => {}
        }
    }

    /// Whether it has asked for the end of its session.
    pub(super) fn is_closing(&self) -> bool {
        let close = |pending: &Pending| matches!(&pending.request, ClientRequest::Command(command, _) if command.operation == Operation::Close);
        self.pending.values().any(close)
    }

    /// Until when it counts on its session, in true time, after a request
    /// that it sent at `since` was answered: for the time to live, less what
    /// clocks may differ by, on its own clock.
    pub(super) fn believes_until(&self, since: u64, ttl: u64) -> u64 {
        let span = Drift::DEFAULT.shorten(Duration::from_nanos(ttl)).as_nanos();
        let span = i128::from(span as u64) * 1_000_000 / (1_000_000 + i128::from(self.rate));
        since.saturating_add(span as u64)
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
