//! The store between the actors: registers, a clock if the script wants one,
//! and what strangers write.

use std::error::Error;
use std::time::Duration;

use tenure_core::cas::{Bytes, Change, Expect, Reading, Register, Registers, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::{ClockId, StoreTime};
use tenure_election::{Failure, FailureClass, Record};

use super::actor::{Effect, What};
use super::sessions::Sessions;

/// The store's clock at the start of a script.
const STORE_DAWN: i128 = 1_000_000_000_000;

pub(crate) struct Store {
    pub(crate) registers: Registers,
    /// Whether answers carry the store's time.
    pub(crate) clock: bool,
    /// How far its clock was set forward (or back), in nanoseconds.
    pub(crate) step: i128,
    pub(crate) sessions: Sessions,
    /// It answers every write with a conflict, and does nothing.
    pub(crate) refuses: bool,
    /// Up to which change the watches have been served.
    served: u64,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self {
            registers: Registers::new(10_000),
            clock: false,
            step: 0,
            sessions: Sessions::default(),
            refuses: false,
            served: 0,
        }
    }

    /// Nothing for who cannot say which clock it reads.
    fn now(&self, at: Duration, clock: Option<ClockId>) -> Option<StoreTime> {
        let clock = clock?;
        let at = i128::try_from(at.as_nanos()).unwrap_or(i128::MAX);
        let nanos = u64::try_from(STORE_DAWN + at + self.step).unwrap_or(0);
        self.clock.then_some(StoreTime { clock, nanos })
    }

    /// Carries out a call, as somebody who knows the store's clock as `clock`.
    pub(crate) fn carry_out(
        &mut self,
        at: Duration,
        clock: Option<ClockId>,
        what: &What,
    ) -> Effect {
        let now = self.now(at, clock);
        match what {
            What::Read(key) => Effect::Read(Reading {
                register: self.registers.read(key).cloned(),
                now,
                bound: self.sessions.holder(key),
            }),
            What::Write(write, session, last) => {
                let lost = || Failure::new(FailureClass::Conflict, "somebody else wrote first");
                if self.refuses || !self.sessions.allows(*session, write) {
                    return Effect::Wrote(Err(lost()));
                }
                let wrote = self.registers.compare_and_swap(write.clone(), now);
                if wrote.is_ok() {
                    self.sessions.wrote(*session, write, last.as_ref());
                }
                Effect::Wrote(wrote.map_err(|_| lost()))
            }
            What::Confirm(session, asked) => {
                let alive = session.is_some_and(|session| self.sessions.is_alive(session));
                let over = || Failure::new(FailureClass::Conflict, "the session is over");
                Effect::Confirmed(if alive { Ok(*asked) } else { Err(over()) })
            }
        }
    }

    /// Changes that the watches have not been told of.
    pub(crate) fn unserved(&mut self) -> Vec<Change> {
        let changes = self.registers.changes_after(self.served);
        let changes = changes.map(|changes| changes.cloned().collect());
        self.served = self.registers.revision();
        changes.unwrap_or_default()
    }

    /// The state of a register that once had this version.
    pub(crate) fn once(&self, version: &str) -> Result<Change, Box<dyn Error>> {
        let mut changes = self.registers.changes_after(0).map_err(|_| "too old")?;
        changes
            .find(|change| {
                let register = change.register.as_ref();
                register.is_some_and(|register| register.version.to_string() == version)
            })
            .cloned()
            .ok_or_else(|| format!("there was no {version}").into())
    }

    pub(crate) fn record(&self, key: &Key) -> Option<Record> {
        let register = self.registers.read(key)?;
        Record::decode(&register.value).ok()
    }

    /// Writes whatever is there now, as a stranger.
    pub(crate) fn put(&mut self, at: Duration, key: &Key, value: Bytes, stamp: Stamp) {
        let version = self.next_version();
        self.put_as(at, key, value, stamp, version);
    }

    pub(crate) fn next_version(&self) -> Version {
        Version::from_u64(self.registers.revision() + 1)
    }

    /// The same under a version of the script's choosing.
    pub(crate) fn put_as(
        &mut self,
        at: Duration,
        key: &Key,
        value: Bytes,
        stamp: Stamp,
        version: Version,
    ) {
        let held = self.registers.read(key);
        let expect = held.map_or(Expect::Absent, |held: &Register| {
            Expect::Version(held.version.clone())
        });
        let now = self.now(at, Some(ClockId::default()));
        let key = key.clone();
        let write = Write {
            key,
            expect,
            value,
            stamp,
        };
        self.registers
            .swap_as(write, now, version)
            .expect("nobody writes in between");
    }
}
