//! The replicated state: each request once, and sessions that end at the
//! same entry everywhere.

use std::collections::BTreeMap;

use tenure_alpo::codec::{crc32c, put_u64};
use tenure_alpo::{
    ClusterVersion, Command, Entry, Limits, MAX_WINDOW, Member, Membership, Operation, Outcome,
    Payload, Position, SerialStatus, ServerId, SessionOpener, SessionOwner, State, StorageId,
    TooOld, VotingStatus,
};
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Term, Version};
use tenure_core::rng::Rng;
use tenure_core::time::ClockId;

const CLOCK: ClockId = ClockId {
    boot: 7,
    namespace: 8,
};

/// A state, and the time and term at which the next entry is stamped.
struct Log {
    state: State,
    time: u64,
    entries: Vec<Entry>,
}

impl Log {
    fn new(limits: Limits) -> Self {
        Self {
            state: State::new(limits, CLOCK),
            time: 0,
            entries: Vec::new(),
        }
    }

    fn apply(&mut self, payload: Payload) -> Outcome {
        let entry = Entry {
            id: self.state.applied().id + 1,
            term: Term::new(1).expect("a small term"),
            time: self.time,
            payload,
        };
        self.entries.push(entry.clone());
        self.state.apply(&entry)
    }

    fn open(&mut self, ttl: u64) -> u64 {
        match self.apply(Payload::Open { ttl }) {
            Outcome::Opened(session) => session,
            other => panic!("expected a session, found {other:?}"),
        }
    }

    fn submit(&mut self, session: u64, serial: u64, outstanding: u64, what: Operation) -> Outcome {
        self.apply(Payload::Command(Command {
            session,
            serial,
            outstanding,
            operation: what,
        }))
    }

    fn expire(&mut self, session: u64) -> bool {
        let outcome = self.apply(Payload::Expire { session });
        assert_eq!(outcome, Outcome::Nothing);
        self.state.sessions().get(session).is_none()
    }

    fn user_log(&self) -> Vec<(u64, Vec<u8>)> {
        let user_log = self.state.user_log();
        let entries = user_log.read(user_log.first()).expect("from the first");
        entries
            .map(|(number, bytes)| (number, bytes.to_vec()))
            .collect()
    }
}

fn append(text: &str) -> Operation {
    Operation::Append(text.as_bytes().into())
}

fn swap(expect: Expect, value: &str, stamp: Stamp) -> Operation {
    Operation::swap(Write {
        key: Key::new("k").expect("a good key"),
        expect,
        value: value.as_bytes().into(),
        stamp,
    })
}

#[test]
fn a_request_that_is_sent_again_is_answered_and_not_done_again() {
    let mut log = Log::new(Limits::default());
    let a = log.open(100);
    let b = log.open(100);
    assert_eq!(log.submit(a, 1, 1, append("one")), Outcome::Appended(1));
    assert_eq!(log.submit(b, 1, 1, append("two")), Outcome::Appended(2));
    let created = log.submit(a, 2, 1, swap(Expect::Absent, "x", Stamp::Now));
    let version = Version::from_u64(log.state.applied().id);
    assert_eq!(created, Outcome::Swapped(version.clone()));
    assert_eq!(
        log.submit(a, 3, 1, swap(Expect::Absent, "y", Stamp::Now)),
        Outcome::Conflict
    );
    let before = (log.user_log(), log.state.registers().revision());
    // In any order, and whatever the second copy says.
    assert_eq!(log.submit(a, 1, 1, append("another")), Outcome::Appended(1));
    assert_eq!(log.submit(a, 3, 1, Operation::KeepAlive), Outcome::Conflict);
    assert_eq!(
        log.submit(a, 2, 1, swap(Expect::Absent, "x", Stamp::Now)),
        Outcome::Swapped(version)
    );
    assert_eq!(log.submit(a, 1, 1, Operation::Close), Outcome::Appended(1));
    assert_eq!(before, (log.user_log(), log.state.registers().revision()));
    assert_eq!(log.submit(b, 2, 2, Operation::Close), Outcome::Closed);
    assert_eq!(
        log.submit(b, 2, 2, Operation::Close),
        Outcome::SessionExpired
    );
    assert_eq!(log.submit(b, 3, 3, append("late")), Outcome::SessionExpired);
    assert_eq!(log.user_log().len(), 2);
}

#[test]
fn serials_follow_one_another() {
    let mut log = Log::new(Limits::default());
    let session = log.open(100);
    let expected = |expected| Outcome::OutOfOrder { expected };
    assert_eq!(log.submit(session, 2, 1, append("two")), expected(1));
    assert_eq!(
        log.submit(session, u64::MAX, 1, append("last")),
        expected(1)
    );
    assert_eq!(log.submit(session, 0, 0, append("none")), Outcome::TooOld);
    assert_eq!(log.user_log(), []);
    assert_eq!(
        log.submit(session, 1, 1, append("one")),
        Outcome::Appended(1)
    );
    assert_eq!(log.submit(session, 3, 1, append("three")), expected(2));
    assert_eq!(
        log.submit(session, 2, 1, append("two")),
        Outcome::Appended(2)
    );
    assert_eq!(
        log.submit(99, 1, 1, append("who?")),
        Outcome::SessionExpired
    );
}

#[test]
fn answers_are_kept_as_long_as_they_are_waited_for() {
    let mut log = Log::new(Limits::default());
    let session = log.open(100);
    for serial in 1..=4 {
        log.submit(session, serial, 1, append("x"));
    }
    let standing = |log: &Log, serial| {
        let sessions = log.state.sessions();
        sessions.serial_status(session, serial, &append("x"))
    };
    for serial in 1..=4 {
        let done = SerialStatus::Done(Outcome::Appended(serial));
        assert_eq!(standing(&log, serial), done);
    }
    // Those below 4 are waited for no more.
    log.submit(session, 5, 4, append("x"));
    assert_eq!(standing(&log, 3), SerialStatus::Forgotten);
    assert_eq!(standing(&log, 4), SerialStatus::Done(Outcome::Appended(4)));
    assert_eq!(standing(&log, 5), SerialStatus::Done(Outcome::Appended(5)));
    assert_eq!(standing(&log, 6), SerialStatus::Next);
    assert_eq!(standing(&log, 7), SerialStatus::Ahead { expected: 6 });
    assert_eq!(log.submit(session, 3, 3, append("x")), Outcome::TooOld);
    // What was forgotten does not come back.
    log.submit(session, 6, 1, append("x"));
    assert_eq!(standing(&log, 3), SerialStatus::Forgotten);
    assert_eq!(standing(&log, 4), SerialStatus::Done(Outcome::Appended(4)));
    // Nonsense keeps the answer itself.
    log.submit(session, 7, 1_000, append("x"));
    assert_eq!(standing(&log, 6), SerialStatus::Forgotten);
    assert_eq!(standing(&log, 7), SerialStatus::Done(Outcome::Appended(7)));
}

#[test]
fn a_session_keeps_no_more_than_a_window() {
    let mut log = Log::new(Limits::default());
    let session = log.open(100);
    let all = MAX_WINDOW + 10;
    for serial in 1..=all {
        log.submit(session, serial, 1, append("x"));
    }
    let standing = |serial| {
        let sessions = log.state.sessions();
        sessions.serial_status(session, serial, &append("x"))
    };
    assert_eq!(standing(10), SerialStatus::Forgotten);
    assert_eq!(standing(11), SerialStatus::Done(Outcome::Appended(11)));
    assert_eq!(standing(all), SerialStatus::Done(Outcome::Appended(all)));
}

#[test]
fn sessions_end_by_the_time_of_the_log() {
    let mut log = Log::new(Limits::default());
    log.time = 50;
    let session = log.open(100);
    log.time = 149;
    assert!(!log.expire(session));
    // An entry that was stamped late is no reason, but being heard is.
    log.submit(session, 1, 1, Operation::KeepAlive);
    log.time = 248;
    assert!(!log.expire(session));
    log.time = 249;
    assert!(log.expire(session));
    assert!(log.expire(session), "an ended session may end again");
    assert_eq!(
        log.submit(session, 2, 2, append("x")),
        Outcome::SessionExpired
    );
}

#[test]
fn a_session_that_was_not_ended_goes_on_however_late() {
    let mut log = Log::new(Limits::default());
    let session = log.open(10);
    log.time = 1_000;
    assert_eq!(log.submit(session, 1, 1, append("x")), Outcome::Appended(1));
    assert!(!log.expire(session));
}

#[test]
fn a_new_reign_gives_everybody_a_new_lease() {
    let mut log = Log::new(Limits::default());
    let session = log.open(100);
    log.time = 99;
    assert_eq!(log.apply(Payload::NoOp), Outcome::Nothing);
    log.time = 198;
    assert!(!log.expire(session));
    log.time = 199;
    assert!(log.expire(session));
}

#[test]
fn a_time_to_live_may_be_for_ever() {
    let mut log = Log::new(Limits::default());
    log.time = 5;
    let session = log.open(u64::MAX);
    log.time = u64::MAX - 1;
    assert!(!log.expire(session));
}

#[test]
fn there_are_only_so_many_sessions() {
    let limits = Limits {
        sessions: 2,
        ..Limits::default()
    };
    let mut log = Log::new(limits);
    let (a, b) = (log.open(100), log.open(100));
    assert_eq!(
        log.apply(Payload::Open { ttl: 100 }),
        Outcome::TooManySessions
    );
    assert_eq!(log.submit(a, 1, 1, Operation::Close), Outcome::Closed);
    let c = log.open(100);
    let open: Vec<u64> = log.state.sessions().iter().map(|(id, _)| id).collect();
    assert_eq!(open, [b, c]);
}

#[test]
fn who_holds_most_sessions_is_known() {
    let mut log = Log::new(Limits::default());
    log.apply(Payload::Version(ClusterVersion::SECOND));
    for (opener, count) in [(3, 1), (4, 5), (5, 2)] {
        for _ in 0..count {
            let opener = SessionOpener::Address([opener; 16]);
            let owner = SessionOwner {
                secret: None,
                opener,
            };
            log.apply(Payload::OpenOwned { ttl: 100, owner });
        }
    }
    let holders = log.state.sessions().holders(2);
    let wanted = [(4, 5), (5, 2)].map(|(it, held)| (SessionOpener::Address([it; 16]), held));
    assert_eq!(holders, wanted);
}

#[test]
fn the_plain_log_forgets_the_oldest_and_says_so() {
    let limits = Limits {
        user_log_bytes: 100,
        ..Limits::default()
    };
    let mut log = Log::new(limits);
    let session = log.open(100);
    // Each counts for 33: three of them are 99.
    for (serial, text) in (1..).zip(["a", "b", "c", "d"]) {
        let told = log.submit(session, serial, serial, append(text));
        assert_eq!(told, Outcome::Appended(serial));
    }
    let kept = [(2, b"b".to_vec()), (3, b"c".to_vec()), (4, b"d".to_vec())];
    assert_eq!(log.user_log(), kept);
    let user_log = log.state.user_log();
    assert_eq!((user_log.first(), user_log.next()), (2, 5));
    for from in [0, 1] {
        assert_eq!(user_log.read(from).err(), Some(TooOld { first: 2 }));
    }
    let from = |from| {
        user_log
            .read(from)
            .map(|entries| entries.map(|(n, _)| n).collect())
    };
    assert_eq!(from(3), Ok(vec![3, 4]));
    assert_eq!(from(5), Ok(vec![]));
    assert_eq!(from(u64::MAX), Ok(vec![]));
    // One that is too large alone is kept all the same.
    let large = "x".repeat(1_000);
    assert_eq!(
        log.submit(session, 5, 5, append(&large)),
        Outcome::Appended(5)
    );
    assert_eq!(log.user_log(), [(5, large.into_bytes())]);
}

#[test]
fn registers_have_the_id_of_the_entry_and_the_time_of_the_log() {
    let mut log = Log::new(Limits::default());
    let session = log.open(100);
    log.time = 40;
    log.submit(session, 1, 1, swap(Expect::Absent, "x", Stamp::Now));
    let key = Key::new("k").expect("a good key");
    let held = log
        .state
        .registers()
        .read(&key)
        .expect("a register")
        .clone();
    assert_eq!(held.version, Version::from_u64(2));
    assert_eq!(
        held.stamp.map(|stamp| (stamp.clock, stamp.nanos)),
        Some((CLOCK, 40))
    );
    // A time that went back is the time before.
    log.time = 30;
    let again = swap(Expect::Version(held.version), "y", Stamp::Now);
    log.submit(session, 2, 2, again);
    assert_eq!(log.state.time(), 40);
    let held = log
        .state
        .registers()
        .read(&key)
        .expect("a register")
        .clone();
    assert_eq!(held.stamp.map(|stamp| stamp.nanos), Some(40));
    log.time = 90;
    let kept = swap(Expect::Version(held.version), "z", Stamp::Keep);
    assert_eq!(
        log.submit(session, 3, 3, kept),
        Outcome::Swapped(Version::from_u64(4))
    );
    let held = log
        .state
        .registers()
        .read(&key)
        .expect("a register")
        .clone();
    assert_eq!(held.stamp.map(|stamp| stamp.nanos), Some(40));
    let delete = |expect| Operation::delete(key.clone(), expect);
    let old = delete(Version::from_u64(2));
    assert_eq!(log.submit(session, 4, 4, old), Outcome::Conflict);
    assert_eq!(
        log.submit(session, 5, 5, delete(held.version)),
        Outcome::Deleted
    );
    assert_eq!(log.state.registers().read(&key), None);
}

#[test]
fn changes_are_found_by_the_entries_that_made_them() {
    let mut log = Log::new(Limits {
        changes: 3,
        ..Limits::default()
    });
    let session = log.open(100);
    let mut expect = Expect::Absent;
    for serial in 1..=4 {
        log.submit(session, 2 * serial - 1, 1, append("in between"));
        let swapped = log.submit(session, 2 * serial, 1, swap(expect, "x", Stamp::Now));
        let Outcome::Swapped(version) = swapped else {
            panic!("expected a swap, found {swapped:?}");
        };
        expect = Expect::Version(version);
    }
    // Entries 3, 5, 7 and 9 changed something; the first is forgotten.
    let at = |state: &State, id| state.revision_at(id).ok();
    let wanted = [
        (4, None),
        (5, Some(2)),
        (6, Some(2)),
        (7, Some(3)),
        (9, Some(4)),
    ];
    for (id, revision) in wanted {
        assert_eq!(at(&log.state, id), revision, "entry {id}");
    }
    let copy = State::decode(&log.state.encode()).expect("a state");
    assert_eq!(at(&copy, 9), Some(4), "the last one is where a copy begins");
    assert_eq!(at(&copy, 8), None);
}

#[test]
fn members_are_as_the_last_entry_says() {
    let mut log = Log::new(Limits::default());
    assert!(log.state.members().is_empty());
    let member = Member {
        voting_status: VotingStatus::Voter,
        storage: StorageId::from_u128(1),
    };
    let server = ServerId::new(1).expect("not zero");
    let members: Membership = [(server, member)].into_iter().collect();
    assert_eq!(
        log.apply(Payload::Members(members.clone())),
        Outcome::Members
    );
    assert_eq!(*log.state.members(), members);
}

#[test]
fn entries_are_applied_in_order() {
    for id in [0, 2, 3] {
        let entry = Entry {
            id,
            term: Term::ZERO,
            time: 0,
            payload: Payload::NoOp,
        };
        let applied = std::panic::catch_unwind(|| {
            State::new(Limits::default(), CLOCK).apply(&entry);
        });
        assert!(applied.is_err(), "entry {id} after none");
    }
    assert_eq!(
        State::new(Limits::default(), CLOCK).applied(),
        Position::ZERO
    );
}

/// Clients that number their requests, lose answers and ask again, on a log
/// that may be given every request any number of times, in a muddle.
#[test]
fn whatever_is_repeated_is_done_once() {
    for seed in 0..100 {
        let rng = &mut Rng::from_seed(seed);
        let mut log = Log::new(Limits::default());
        let sessions: Vec<u64> = (0..3).map(|_| log.open(u64::MAX)).collect();
        let mut told: BTreeMap<(u64, u64), Outcome> = BTreeMap::new();
        let mut done = [0_u64; 3];
        for _ in 0..200 {
            let client = rng.below(3) as usize;
            let (session, next) = (sessions[client], done[client] + 1);
            let serial = rng.between(next.saturating_sub(6).max(1), next + 1);
            let outstanding = next.saturating_sub(8).max(1).min(serial);
            let what = append(&format!("{session}/{serial}"));
            let outcome = log.submit(session, serial, outstanding, what);
            if serial > next {
                assert_eq!(outcome, Outcome::OutOfOrder { expected: next });
                continue;
            }
            if serial == next {
                done[client] += 1;
            }
            let first = told
                .entry((session, serial))
                .or_insert_with(|| outcome.clone());
            assert_eq!(*first, outcome, "seed {seed}: {session}/{serial}");
        }
        let user_log = log.user_log();
        assert_eq!(user_log.len() as u64, done.iter().sum::<u64>());
        for ((session, serial), outcome) in told {
            let Outcome::Appended(number) = outcome else {
                panic!("seed {seed}: {outcome:?}");
            };
            let text = format!("{session}/{serial}");
            assert_eq!(user_log[number as usize - 1], (number, text.into_bytes()));
        }
        // And the same log gives the same state.
        let mut other = State::new(Limits::default(), CLOCK);
        for entry in &log.entries {
            other.apply(entry);
        }
        assert_eq!(other.encode(), log.state.encode());
    }
}

#[test]
fn after_the_last_serial_there_is_none() {
    let mut log = Log::new(Limits::default());
    let session = log.open(u64::MAX);
    // No client gets that far; somebody who forges snapshots does.
    let mut bytes = log.state.encode();
    // It ends with the serials done, the answers saved, the registers bound,
    // and a checksum.
    bytes.truncate(bytes.len() - 7);
    put_u64(&mut bytes, u64::MAX - 1);
    put_u64(&mut bytes, 0);
    put_u64(&mut bytes, 0);
    let checksum = crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    log.state = State::decode(&bytes).expect("a state");
    let last = u64::MAX;
    assert_eq!(
        log.submit(session, last, 1, append("last")),
        Outcome::Appended(1)
    );
    for again in [append("last"), Operation::KeepAlive] {
        assert_eq!(log.submit(session, last, 1, again), Outcome::Appended(1));
    }
    assert_eq!(log.submit(session, 0, 1, append("none")), Outcome::TooOld);
    let read = State::decode(&log.state.encode()).expect("the same state");
    assert_eq!(read.encode(), log.state.encode());
}
