//! What one process has seen of an election's register, and what follows.
//!
//! A candidate or an observer keeps a [`LeaseJudge`] of the register (what client-go
//! calls the *observed record*, with its *observed time*) and asks it one question: *is
//! the grant over?* (§3). The rules differ by what clock there is to judge by, but two
//! things hold for all of them:
//!
//! * silence restarts only when the *holder* wrote (its `renewal` moved), so
//!   a stranger's requests cannot keep a dead holder leading;
//! * the verdict falls only on a fresh read, asked when the time had passed.
//!   A watch may have died without saying so; its silence proves nothing.
//!
//! Every span a judge waits is lengthened by the drift bound, whichever clock
//! it waits on, because the holder's clock may run slower than that one.

use core::time::Duration;

use tenure_core::cas::{Reading, Register};
use tenure_core::ids::{LeaderId, Name, Term, Version};
use tenure_core::time::{Instant, Now, StoreTime};

use super::{
    Bug, Certainty, Config, Expiry, Leader, Observation, Occupancy, Record, RecordError,
    TermRegression,
};

/// What the register amounts to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaseState {
    /// It has not been read yet.
    Unknown,
    /// It holds something that is not a record; nobody may write it.
    Corrupt,
    /// Nobody holds the election.
    Vacant {
        /// To whom it was handed, if to anyone.
        successor: Option<Name>,
    },
    /// Somebody holds it; ask again at `expires_at`.
    Held {
        /// When the grant may be over, if it is not renewed.
        expires_at: Instant,
    },
    /// Somebody held it, and the grant has been judged over.
    Expired(Certainty),
}

/// What a read, or a report of a watch, has told of the register.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// Nothing new.
    Nothing,
    /// The same holder has renewed, or somebody wrote a request.
    Written,
    /// Another holder, or none any more.
    LeaderChanged,
    /// The grant has been judged over.
    Expired,
    /// A sign that cannot be placed: read, to be sure.
    Unplaced,
    /// Not a record, for the first time: perhaps only the answer was damaged.
    Malformed(RecordError),
    /// The same version is not a record twice: the register is damaged.
    Corrupt(RecordError),
}

/// What one process has seen of one register, and since when, by its own clock:
/// `observedRecord` and `observedTime` of client-go.
#[derive(Clone, Debug)]
pub struct LeaseJudge {
    seen: Seen,
    /// A version that was not a record, and how often it was read so since
    /// anything else was.
    malformed: Option<(Version, u32)>,
    top_term: Term,
    /// Who was seen to lead in that term: a term has one leader.
    top_leader: Option<LeaderId>,
}

#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one per election, and nearly always a record"
)]
enum Seen {
    Never,
    Absent,
    Record {
        version: Version,
        record: Record,
        /// When this renewal was first seen.
        first: Instant,
        /// When this version was first seen.
        learnt: Instant,
        /// Whether it was seen to replace another, so that it happened while
        /// this process was looking.
        witnessed: bool,
        /// Whether the store's clock could say how old it is.
        dated: bool,
        expires_at: Instant,
        verdict: Verdict,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Holds,
    Expired(Certainty),
}

/// Under which rule, and since when.
struct Evidence<'a> {
    config: &'a Config,
    now: Now,
    /// When the read was asked; `None` for the news of a watch.
    asked: Option<Instant>,
    store_now: Option<StoreTime>,
    /// Whether the read found the register bound to a session.
    bound: bool,
}

impl Default for LeaseJudge {
    fn default() -> Self {
        Self::new()
    }
}

impl LeaseJudge {
    /// Nothing seen yet.
    pub const fn new() -> Self {
        Self::above(Term::ZERO)
    }

    /// Nothing seen yet of the register, but terms up to `floor` are known to
    /// have been used.
    pub(crate) const fn above(floor: Term) -> Self {
        Self {
            seen: Seen::Never,
            malformed: None,
            top_term: floor,
            top_leader: None,
        }
    }

    /// What the register amounts to.
    pub fn lease_state(&self) -> LeaseState {
        match &self.seen {
            _ if self
                .malformed
                .as_ref()
                .is_some_and(|(_, times)| *times >= 2) =>
            {
                LeaseState::Corrupt
            }
            Seen::Never => LeaseState::Unknown,
            Seen::Absent => LeaseState::Vacant { successor: None },
            Seen::Record {
                record,
                expires_at,
                verdict,
                ..
            } => match (&record.occupancy, verdict) {
                (Occupancy::Vacant { successor }, _) => LeaseState::Vacant {
                    successor: successor.clone(),
                },
                (Occupancy::Held(_), Verdict::Expired(certainty)) => {
                    LeaseState::Expired(*certainty)
                }
                (Occupancy::Held(_), Verdict::Holds) => LeaseState::Held {
                    expires_at: *expires_at,
                },
            },
        }
    }

    /// The record, if there is one that can be read.
    pub const fn record(&self) -> Option<&Record> {
        match &self.seen {
            Seen::Record { record, .. } => Some(record),
            Seen::Never | Seen::Absent => None,
        }
    }

    /// The version of that record, to expect in a compare-and-swap.
    pub const fn version(&self) -> Option<&Version> {
        match &self.seen {
            Seen::Record { version, .. } => Some(version),
            Seen::Never | Seen::Absent => None,
        }
    }

    /// Who leads as far as can be seen: nobody once the grant is over.
    pub fn leader(&self) -> Option<Leader> {
        match &self.seen {
            Seen::Record {
                record,
                verdict: Verdict::Holds,
                ..
            } => record.leader(),
            Seen::Record { .. } | Seen::Never | Seen::Absent => None,
        }
    }

    /// How sure [`leader`](Self::leader) is.
    pub fn certainty(&self, expiry: Expiry) -> Certainty {
        match &self.seen {
            Seen::Never => Certainty::Assumed,
            Seen::Absent => Certainty::Proven,
            Seen::Record {
                record:
                    Record {
                        occupancy: Occupancy::Vacant { .. },
                        ..
                    },
                ..
            } => Certainty::Proven,
            Seen::Record {
                verdict: Verdict::Expired(certainty),
                ..
            } => *certainty,
            // The store itself says that it is held, by a session that lives.
            Seen::Record { expires_at, .. } if *expires_at == Instant::MAX => Certainty::Proven,
            Seen::Record {
                witnessed, dated, ..
            } => match expiry {
                Expiry::Session => Certainty::Proven,
                Expiry::BoundedSkew(_) => Certainty::Likely,
                // Without a clock that can be used the lease is judged by observed silence.
                Expiry::Silence if !*witnessed => Certainty::Assumed,
                _ if !*witnessed && !*dated => Certainty::Assumed,
                Expiry::StoreClock => Certainty::Likely,
                Expiry::Silence | Expiry::SteadyClock => Certainty::Proven,
            },
        }
    }

    /// What others are told of it.
    pub fn observation(&self, expiry: Expiry) -> Observation {
        let expires_at = match self.lease_state() {
            // What a session holds has no end that a clock could tell.
            LeaseState::Held { expires_at } if expires_at < Instant::MAX => Some(expires_at),
            _ => None,
        };
        Observation {
            leader: self.leader(),
            term: self.top_term,
            certainty: self.certainty(expiry),
            expires_at,
        }
    }

    /// Takes note of a write of this process's own.
    pub(crate) fn wrote(&mut self, config: &Config, now: Now, record: Record, version: Version) {
        let expires_at = now.boot.after(config.drift_bound().lengthen(record.lease));
        self.malformed = None;
        self.note_term(config, &record);
        let (first, verdict) = (now.boot, Verdict::Holds);
        self.seen = Seen::Record {
            version,
            record,
            first,
            learnt: now.boot,
            witnessed: true,
            dated: false,
            expires_at,
            verdict,
        };
    }

    /// The highest term ever seen, which survives a register that was
    /// deleted or restored from a backup while this process lived.
    pub const fn top_term(&self) -> Term {
        self.top_term
    }

    /// Takes note of a term, and of who leads in it first.
    fn note_term(&mut self, config: &Config, record: &Record) {
        let leader = record.holder().map(|holder| holder.id);
        let leader = leader.filter(|_| !config.planted(Bug::TermHadTwice));
        if record.term > self.top_term {
            (self.top_term, self.top_leader) = (record.term, leader);
        } else if record.term == self.top_term {
            self.top_leader = self.top_leader.or(leader);
        }
    }

    /// Whether the register has fallen under the highest term seen, or shows
    /// it under another leader: then it had fallen, and somebody was elected
    /// in that term again. Reads say so: an answer older than what is known is
    /// not taken (`is_overtaken`), and a hint with a lower term is
    /// `ReadOutcome::Unplaced` and read.
    pub fn regression(&self) -> Option<TermRegression> {
        let (shown, leader) = match &self.seen {
            Seen::Never => return None,
            Seen::Absent => (Term::ZERO, None),
            Seen::Record { record, .. } => (record.term, record.holder().map(|it| it.id)),
        };
        let floor = self.top_term;
        let again = shown == floor
            && matches!((leader, self.top_leader), (Some(one), Some(other)) if one != other);
        (shown < floor || again).then_some(TermRegression { shown, floor })
    }

    /// Takes note of an answer to a read that was asked at `asked`.
    pub fn read(
        &mut self,
        config: &Config,
        now: Now,
        asked: Instant,
        reading: &Reading,
    ) -> ReadOutcome {
        // Once: whether it is overtaken and what it says are of one decoding.
        let register = reading.register.as_ref();
        let shown = register.map(|register| (register, Record::decode(&register.value)));
        if self.is_overtaken(asked, shown.as_ref().map(|(_, record)| record)) {
            return ReadOutcome::Nothing;
        }
        let evidence = Evidence {
            config,
            now,
            asked: Some(asked),
            store_now: reading.now,
            bound: reading.bound.is_some(),
        };
        match shown {
            Some((register, record)) => self.learn(&evidence, register, record),
            None => self.absent(),
        }
    }

    /// Whether the news of a watch, or a write of this process's own, came
    /// between the asking and this older answer. A register that is older
    /// than what was known *before* it was asked for was restored or deleted,
    /// and is believed.
    fn is_overtaken(&self, asked: Instant, shown: Option<&Result<Record, RecordError>>) -> bool {
        let Seen::Record { record, learnt, .. } = &self.seen else {
            return false;
        };
        let older = match shown {
            None => true,
            Some(Ok(shown)) => shown.sequence < record.sequence,
            Some(Err(_)) => false,
        };
        older && asked <= *learnt
    }

    /// Takes note of the news of a watch, which was true at some time past.
    pub fn hint(&mut self, config: &Config, now: Now, register: Option<&Register>) -> ReadOutcome {
        let evidence = Evidence {
            config,
            now,
            asked: None,
            store_now: None,
            bound: false,
        };
        let Some(register) = register else {
            return if matches!(self.seen, Seen::Absent) {
                ReadOutcome::Nothing
            } else {
                ReadOutcome::Unplaced
            };
        };
        match Record::decode(&register.value) {
            Err(_) => ReadOutcome::Unplaced,
            Ok(record) => match self.record() {
                // A watch may deliver late what a read has overtaken.
                Some(known) if record.sequence <= known.sequence && record.term <= known.term => {
                    ReadOutcome::Nothing
                }
                // A register that began anew, or was restored.
                Some(known) if record.sequence <= known.sequence || record.term < known.term => {
                    ReadOutcome::Unplaced
                }
                _ => self.learn(&evidence, register, Ok(record)),
            },
        }
    }

    /// Judges without a read once the time has passed: the mistake
    /// [`Bug::SilentWatch`], and nothing else calls this.
    pub(crate) fn judge_unread(&mut self, now: Instant) -> bool {
        match &mut self.seen {
            Seen::Record {
                verdict,
                expires_at,
                ..
            } if now >= *expires_at => {
                *verdict = Verdict::Expired(Certainty::Proven);
                true
            }
            _ => false,
        }
    }

    fn absent(&mut self) -> ReadOutcome {
        let had_leader = self.leader().is_some();
        let known = matches!(self.seen, Seen::Absent);
        self.seen = Seen::Absent;
        self.malformed = None;
        match (known, had_leader) {
            (true, _) => ReadOutcome::Nothing,
            (false, true) => ReadOutcome::LeaderChanged,
            (false, false) => ReadOutcome::Written,
        }
    }

    /// Takes note of a register and of what decoding its value gave.
    fn learn(
        &mut self,
        evidence: &Evidence<'_>,
        register: &Register,
        record: Result<Record, RecordError>,
    ) -> ReadOutcome {
        let record = match record {
            Ok(record) if record.election == evidence.config.election => record,
            Ok(other) => {
                let found = other.election.as_str().into();
                let expected = "election";
                return self.malformed(register, RecordError::Field { expected, found });
            }
            Err(error) => return self.malformed(register, error),
        };
        self.malformed = None;
        self.note_term(evidence.config, &record);
        let leader = |judge: &Self| judge.leader().map(|leader| (leader.term, leader.id));
        let (before, was_over) = (leader(self), self.is_over(&record));
        let written = self.version() != Some(&register.version);
        self.seen = self.found(evidence, register, record);
        let over = matches!(self.verdict(), Verdict::Expired(_));
        if over && !was_over && self.holder_named() {
            return ReadOutcome::Expired;
        }
        match (before == leader(self), written) {
            (false, _) => ReadOutcome::LeaderChanged,
            (true, true) => ReadOutcome::Written,
            (true, false) => ReadOutcome::Nothing,
        }
    }

    /// Whether this very grant has been judged over before.
    fn is_over(&self, record: &Record) -> bool {
        match &self.seen {
            Seen::Record {
                record: known,
                verdict: Verdict::Expired(_),
                ..
            } => known.is_same_grant_as(record),
            Seen::Never | Seen::Absent | Seen::Record { .. } => false,
        }
    }

    /// What a record amounts to, after what was seen before it.
    fn found(&self, evidence: &Evidence<'_>, register: &Register, record: Record) -> Seen {
        let (first, witnessed, known_over_at) = match &self.seen {
            Seen::Record {
                record: known,
                first,
                witnessed,
                expires_at,
                ..
            } if known.is_same_grant_as(&record) => (*first, *witnessed, Some(*expires_at)),
            Seen::Never => (evidence.now.boot, false, None),
            Seen::Absent | Seen::Record { .. } => (evidence.now.boot, true, None),
        };
        let (mut expires_at, verdict) = evidence.judge(&record, register.stamp, first);
        if let (Some(known), None) = (known_over_at, evidence.asked) {
            // A hint of the same renewal (a request was written) knows no
            // better than the read before it, and must not put off the next.
            expires_at = expires_at.min(known);
        }
        // Once over, over: a clock that is asked twice may have stepped back,
        // and a stranger's request makes no new grant of the old one.
        let verdict = if self.is_over(&record) {
            self.verdict()
        } else {
            verdict
        };
        let learnt = match &self.seen {
            Seen::Record {
                learnt, version, ..
            } if *version == register.version => *learnt,
            Seen::Never | Seen::Absent | Seen::Record { .. } => evidence.now.boot,
        };
        Seen::Record {
            version: register.version.clone(),
            record,
            first,
            learnt,
            witnessed,
            dated: evidence.dates(register),
            expires_at,
            verdict,
        }
    }

    fn holder_named(&self) -> bool {
        self.record()
            .is_some_and(|record| record.holder().is_some())
    }

    fn verdict(&self) -> Verdict {
        match &self.seen {
            Seen::Record { verdict, .. } => *verdict,
            Seen::Never | Seen::Absent => Verdict::Holds,
        }
    }

    fn malformed(&mut self, register: &Register, error: RecordError) -> ReadOutcome {
        let times = match &self.malformed {
            Some((version, times)) if *version == register.version => times.saturating_add(1),
            _ => 1,
        };
        self.malformed = Some((register.version.clone(), times));
        if times >= 2 {
            ReadOutcome::Corrupt(error)
        } else {
            ReadOutcome::Malformed(error)
        }
    }
}

/// How old a renewal is, if its stamp can say so: not one that is ahead of its
/// own clock. To wait for that time would keep a dead holder for as long.
fn age(stamp: StoreTime, now: StoreTime) -> Option<Duration> {
    now.since(stamp).filter(|_| stamp.nanos <= now.nanos)
}

impl Evidence<'_> {
    /// Whether the store's clock can say how old this renewal is.
    fn dates(&self, register: &Register) -> bool {
        let dates = |(stamp, now)| age(stamp, now).is_some();
        register.stamp.zip(self.store_now).is_some_and(dates)
    }

    /// When a grant may be over, and whether it is by this look.
    fn judge(
        &self,
        record: &Record,
        stamp: Option<StoreTime>,
        first: Instant,
    ) -> (Instant, Verdict) {
        let span = self.config.drift_bound().lengthen(record.lease);
        if self.bound {
            // Rule 1, whatever the rule for others: the store empties it.
            return (Instant::MAX, Verdict::Holds);
        }
        match self.config.expiry {
            Expiry::Session => (Instant::MAX, Verdict::Holds),
            Expiry::Silence if self.config.planted(Bug::JudgedByWall) => {
                self.by_wall(record, Duration::ZERO)
            }
            Expiry::Silence => self.by_silence(span, first),
            Expiry::BoundedSkew(skew) => self.by_wall(record, span - record.lease + skew),
            Expiry::SteadyClock => self.by_clock(stamp, span, first, Certainty::Proven),
            Expiry::StoreClock => self.by_clock(stamp, span, first, Certainty::Likely),
        }
    }

    /// Rule 3: not renewed for `span` on this process's own clock.
    fn by_silence(&self, span: Duration, first: Instant) -> (Instant, Verdict) {
        let expires_at = first.after(span);
        let over = self.asked.is_some_and(|asked| asked >= expires_at);
        (
            expires_at,
            if over {
                Verdict::Expired(Certainty::Proven)
            } else {
                Verdict::Holds
            },
        )
    }

    /// Rules 2 and 4: the store's clock is past the stamp by `span`.
    fn by_clock(
        &self,
        stamp: Option<StoreTime>,
        span: Duration,
        first: Instant,
        certainty: Certainty,
    ) -> (Instant, Verdict) {
        if self.asked.is_none() {
            // The news of a watch: read again when it may be over.
            return (self.now.boot.after(span), Verdict::Holds);
        }
        // No stamp: the holder cannot say which clock it reads. No time: this
        // process cannot.
        let (Some(stamp), Some(now)) = (stamp, self.store_now) else {
            return self.by_silence(span, first);
        };
        match age(stamp, now) {
            Some(age) if age >= span => (self.now.boot, Verdict::Expired(certainty)),
            Some(age) => (self.now.boot.after(span - age), Verdict::Holds),
            None if self.config.planted(Bug::BootTrusted) && now.clock.boot != stamp.clock.boot => {
                (self.now.boot, Verdict::Expired(certainty))
            }
            // Another clock. That its boot id differs proves no reboot: the
            // writer may be alive on this very machine and be shown another
            // id (a sandbox, a container that masks it), and so may this
            // judge. In another time namespace of the same boot its clock is
            // shifted against ours by an unknown span. Silence needs neither:
            // it is measured on this process's own clock. After a real reboot
            // that costs one lease.
            None => self.by_silence(span, first),
        }
    }

    /// Rule 5: the calendar is past the last renewal by lease and `extra`.
    fn by_wall(&self, record: &Record, extra: Duration) -> (Instant, Verdict) {
        let span = record.lease.saturating_add(extra);
        let age = self.now.wall.since(record.renewed_at);
        // What counts is how old it was when it was *asked* for: an answer
        // that waited for a process to be woken says nothing of the present.
        let then = |asked| {
            let waited = self.config.drift.lengthen(self.now.boot.since(asked));
            age.saturating_sub(waited)
        };
        if self.asked.is_some_and(|asked| then(asked) >= span) {
            return (self.now.boot, Verdict::Expired(Certainty::Likely));
        }
        (
            self.now.boot.after(span.saturating_sub(age)),
            Verdict::Holds,
        )
    }
}
