//! What all states of a campaign share: who it is, what it has seen of the
//! register, and how it calls the store, counts failures and tells news; and
//! the other elections of an affinity, as far as it follows them.
//!
//! Nothing here decides whether to race, renew or drain: that is for the
//! states.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use tenure_core::call::Calls;
use tenure_core::cas::{Bytes, Expect, Reading, Register, Stamp, Write};
use tenure_core::ids::{Key, LeaderId, Term, Version};
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};

use super::affinity::Affinity;
use super::types::Answer;
use super::{Bind, Call, Event, Failure, FailureClass, Output, Pending};
use crate::{
    Bug, Config, Holder, LeaseJudge, LeaseState, Occupancy, ReadOutcome, Record, TermRegression,
};

/// What all states share.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) config: Config,
    pub(super) key: Key,
    pub(super) me: LeaderId,
    pub(super) rng: Rng,
    /// The latest time seen; time never goes back.
    pub(super) now: Now,
    pub(super) judge: LeaseJudge,
    pub(super) affinity: Vec<Affinity>,
    /// Whether the store reports changes by itself at present.
    pub(super) watch_up: bool,
    /// The application wants the campaign to end.
    pub(super) stopping: bool,
    /// Failures of reads in a row, and of writes. A read that succeeds does
    /// not end the trouble with writes: a full disk can be read all day.
    pub(super) read_failures: u32,
    pub(super) write_failures: u32,
    /// The last read was refused by the store (`FailureClass::Broken`): what a watch
    /// still tells does not mean that the store answers.
    pub(super) read_refused: bool,
    pub(super) calls: Calls,
    /// Who led when it was last told; `None` before the first look.
    pub(super) reported: Option<Option<(Term, LeaderId)>>,
    pub(super) floor: Floor,
    pub(super) outputs: VecDeque<Output>,
}

/// What a candidate has done about its floor. It outlives the states.
#[derive(Clone, Debug, Default)]
pub(super) struct Floor {
    /// What was told last.
    pub(super) reported: Option<TermRegression>,
    /// No request before this.
    pub(super) not_before: Instant,
}

impl Context {
    pub(super) fn new(floor: Term, config: Config, mut rng: Rng, now: Now) -> Self {
        Self {
            key: Key::of_election(&config.election),
            affinity: Affinity::all(&config, now),
            config,
            me: LeaderId::from_u128(rng.next_u128()),
            rng,
            now,
            judge: LeaseJudge::above(floor),
            watch_up: false,
            stopping: false,
            read_failures: 0,
            write_failures: 0,
            read_refused: false,
            calls: Calls::default(),
            reported: None,
            floor: Floor::default(),
            outputs: VecDeque::new(),
        }
    }

    pub(super) fn set_now(&mut self, now: Now) {
        self.now = Now {
            boot: now.boot.max(self.now.boot),
            wall: now.wall,
        };
    }

    pub(super) fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    /// Asks for a read of the register.
    pub(super) fn request_read(&mut self) -> Pending {
        let key = self.key.clone();
        self.request_read_of(key)
    }

    pub(super) fn request_read_of(&mut self, key: Key) -> Pending {
        let within = self.config.interval;
        let pending = self.calls.begin(self.now.boot, within);
        self.outputs.push_back(Output::Read {
            call: pending.call,
            key,
            within,
        });
        pending
    }

    /// Asks for a compare-and-swap of the register; one that names a holder
    /// by session, bound to it.
    pub(super) fn write(&mut self, expect: Expect, record: &Record, within: Duration) -> Pending {
        let pending = self.calls.begin(self.now.boot, within);
        let (key, value) = (self.key.clone(), record.encode());
        let bind = self.config.by_session && record.holder().is_some();
        let bind = bind.then(|| Bind {
            last: on_expiry_value(record),
            // The holder's clock may be slow, and the store's fast.
            ttl: if self.config.planted(Bug::SessionUnstretched) {
                record.lease
            } else {
                self.config.drift_bound().lengthen(record.lease)
            },
        });
        let write = Write {
            key,
            expect,
            value,
            stamp: Stamp::Now,
        };
        self.outputs.push_back(Output::Write {
            call: pending.call,
            write,
            bind,
            within,
        });
        pending
    }

    /// Asks for a confirmation of the session that holds the election. One that
    /// others have asked for within half an interval will do.
    pub(super) fn confirm(&mut self, within: Duration) -> Pending {
        let pending = self.calls.begin(self.now.boot, within);
        self.outputs.push_back(Output::Confirm {
            call: pending.call,
            since: self.now.boot.before(self.config.interval / 2),
            within,
        });
        pending
    }

    /// Disowns whatever has been bound, or may yet be by a late write: the
    /// session may be kept alive for other elections, and would keep this one
    /// for an id that nobody goes by.
    pub(super) fn release(&mut self) {
        if self.config.by_session && !self.config.planted(Bug::NeverReleased) {
            self.outputs.push_back(Output::Release);
        }
    }

    /// The sequence after `last`; `None` if nobody could read it.
    pub(super) fn next_sequence(&self, last: u64) -> Option<u64> {
        if self.config.planted(Bug::SequenceKept) {
            Some(last)
        } else {
            (last < Record::SEQUENCE_MAX).then(|| last + 1)
        }
    }

    /// A write met a conflict, and `reading`, asked after it, shows what it
    /// expected.
    pub(super) fn refused(&mut self, reading: &Reading) -> Duration {
        let failure = Failure::refused(&self.key, reading);
        self.write_failed(&failure)
    }

    /// Somebody has written a sequence after which there is none.
    pub(super) fn exhausted(&mut self, record: &Record) -> Duration {
        let why = alloc::format!(
            "expected a sequence of at most 2^62 - 2^40 in the register, which leaves room for \
             what a leader writes, found {}: the record was written by hand; stop every candidate, \
             delete it (`tenure forget {}`), and have the next leader lead above term {} (`tenure \
             repair {} --term-above {}`)",
            record.sequence,
            record.election,
            record.term,
            record.election,
            record.term
        );
        self.write_failed(&Failure::new(FailureClass::Broken, &why))
    }

    /// This candidate as a holder.
    pub(super) fn holder(&self) -> Holder {
        Holder {
            id: self.me,
            name: self.config.name.clone(),
            addresses: self.config.addresses.clone().into(),
            params: self.config.params.clone(),
            request: None,
        }
    }

    /// Counts a failed read and says how long to wait before the next.
    pub(super) fn read_failed(&mut self, failure: &Failure) -> Duration {
        self.read_failures = self.read_failures.saturating_add(1);
        self.trouble(failure, self.read_failures)
    }

    /// Counts a failed write and says how long to wait before the next.
    pub(super) fn write_failed(&mut self, failure: &Failure) -> Duration {
        self.write_failures = self.write_failures.saturating_add(1);
        self.trouble(failure, self.write_failures)
    }

    /// Tells of a failure, and says how long to wait after it.
    fn trouble(&mut self, failure: &Failure, in_a_row: u32) -> Duration {
        let pause = failure.pause(in_a_row, self.config.interval, self.config.lease);
        let failure = failure.clone();
        self.event(Event::Trouble { failure, in_a_row });
        pause
    }

    /// A read has succeeded.
    pub(super) fn read_succeeded(&mut self) {
        if core::mem::take(&mut self.read_failures) > 0 && self.write_failures == 0 {
            self.event(Event::Recovered);
        }
    }

    /// A write has succeeded, ours or somebody else's.
    pub(super) fn write_succeeded(&mut self) {
        if core::mem::take(&mut self.write_failures) + core::mem::take(&mut self.read_failures) > 0
        {
            self.event(Event::Recovered);
        }
    }

    /// Takes note of a reading; says whether it may be acted on.
    pub(super) fn learn(&mut self, pending: &Pending, reading: &Reading) -> ReadOutcome {
        self.judge
            .read(&self.config, self.now, pending.asked, reading)
    }

    /// Takes note of an acknowledged write of our own.
    pub(super) fn wrote(&mut self, record: &Record, version: &Version) {
        self.judge
            .wrote(&self.config, self.now, record.clone(), version.clone());
    }

    pub(super) fn tell_leader(&mut self) {
        if self.judge.lease_state() == LeaseState::Unknown {
            return;
        }
        let reported = Some(self.judge.leader().map(|leader| (leader.term, leader.id)));
        if reported != self.reported {
            self.reported = reported;
            let observation = self.judge.observation(self.config.expiry);
            self.event(Event::LeaderChanged(observation));
        }
        self.tell_regression();
    }

    /// Another incarnation, so that nothing the last one sent can surprise.
    pub(super) fn renew_id(&mut self) {
        self.release();
        let fresh = LeaderId::from_u128(self.rng.next_u128());
        if !self.config.planted(Bug::OldId) {
            self.me = fresh;
        }
    }

    /// When to look again if nothing else calls for it: after an interval, a
    /// little more or less so that candidates spread out. Where a watch
    /// reports changes, after a lease; and not at all while somebody holds the
    /// election, for then the end of the grant calls for a look anyway. So a
    /// crowd of watchers costs the store nothing while its leaders renew. An
    /// election that a session holds has no such end: there the net under the
    /// watch is a look every ten leases.
    pub(super) fn next_look(&mut self, held: bool) -> Instant {
        let by_session = self.judge.lease_state()
            == LeaseState::Held {
                expires_at: Instant::MAX,
            };
        let gap = match (self.watch_up, held) {
            (true, true) => return Instant::MAX,
            (true, false) if by_session => self.config.lease * 10,
            (true, false) => self.config.lease,
            (false, _) => self.config.interval,
        };
        let spread = self.rng.span(gap / 5);
        self.now.boot.after(gap / 10 * 9 + spread)
    }

    pub(super) fn is_held(&self) -> bool {
        // A session has no such end, so it is looked at all the same.
        matches!(self.judge.lease_state(), LeaseState::Held { expires_at } if expires_at < Instant::MAX)
    }

    /// How long a transferred election is left to the one named: without a
    /// watch its next look comes within 1.1 intervals.
    pub(super) fn turn_of_successor(&self) -> Duration {
        self.config.interval * 3 / 2
    }

    /// At most 10 % of the lease, so that candidates do not stampede.
    pub(super) fn jitter(&mut self) -> Duration {
        let lease = self
            .judge
            .record()
            .map_or(self.config.lease, |record| record.lease);
        self.rng.span(lease.min(self.config.lease) / 10)
    }

    /// Whether this candidate may stand: it has no affinity, or each of the
    /// other elections is led by its namesake.
    pub(super) fn may_stand(&self) -> bool {
        let name = &self.config.name;
        self.affinity.iter().all(|other| other.is_led_by(name))
    }

    pub(super) fn affinity_answer(&mut self, call: Call, answer: &Answer) -> bool {
        let (now, look) = (self.now, self.next_look(false));
        let answered = self.affinity.iter_mut().find_map(|other| {
            let pending = other.pending.take_if(|pending| pending.call == call)?;
            Some((other, pending))
        });
        let Some((other, pending)) = answered else {
            return false;
        };
        other.read_at = look;
        other.failed = !matches!(answer, Answer::Read(Ok(_)));
        if let Answer::Read(Ok(reading)) = answer {
            other.judge.read(&other.config, now, pending.asked, reading);
        }
        true
    }

    pub(super) fn affinity_seen(&mut self, key: &Key, register: Option<&Register>) -> bool {
        let now = self.now;
        let Some(other) = self.affinity.iter_mut().find(|other| other.key == *key) else {
            return false;
        };
        if other.judge.hint(&other.config, now, register) == ReadOutcome::Unplaced {
            other.read_at = now.boot;
        }
        true
    }

    pub(super) fn affinity_advance(&mut self) {
        for number in 0..self.affinity.len() {
            self.affinity_advance_one(number);
        }
    }

    fn affinity_advance_one(&mut self, number: usize) {
        let now = self.now.boot;
        let Some(other) = self.affinity.get_mut(number) else {
            return;
        };
        if other.pending.is_some_and(|it| it.is_given_up(now)) {
            other.pending = None;
            other.failed = true;
            other.read_at = now;
        }
        if other.pending.is_some() || now < other.due() {
            return;
        }
        let key = other.key.clone();
        let pending = self.request_read_of(key);
        if let Some(other) = self.affinity.get_mut(number) {
            other.pending = Some(pending);
            other.read_at = Instant::MAX;
        }
    }
}

/// How far above its own write a holder's on-expiry value counts: more than the
/// notes that strangers leave in one leadership.
const ON_EXPIRY_AHEAD: u64 = 1 << 20;

/// What the register is to hold when the session ends: the election vacant, the
/// term kept (§1.8), the sequence above that of every note left meanwhile.
fn on_expiry_value(record: &Record) -> Bytes {
    // What nobody can read would hold the election for ever.
    let sequence = record.sequence.saturating_add(ON_EXPIRY_AHEAD);
    let sequence = sequence.min(Record::SEQUENCE_MAX);
    let vacant = Record {
        sequence,
        renewal: sequence,
        occupancy: Occupancy::Vacant { successor: None },
        ..record.clone()
    };
    vacant.encode()
}
