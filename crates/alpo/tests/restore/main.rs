//! A state that begins a new cluster: nothing that the lost one may have given
//! out since its backup is given out again, and everything that was in the
//! backup is there.

mod again;
mod elections;

use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::codec::{DecodeError, crc32c, put_u64};
use tenure_alpo::{
    ClusterVersion, Command, Entry, JUMP, Limits, Membership, NotRestorable, Operation, Outcome,
    Payload, Query, QueryResult, Restored, Restoring, ServerId, SnapshotError, State, StorageId,
    TERM_STEP, TooOld,
};
use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::ids::{Key, LeaderId, Name, Term, Version};
use tenure_core::time::{ClockId, WallTime};
use tenure_election::{Holder, Occupancy, Record};
use tenure_group::{Assignment, Digest, Heartbeat, Keys, Member, NodeId, Place, Target, View};

const OLD: ClockId = ClockId {
    boot: 7,
    namespace: 8,
};
const NEW: ClockId = ClockId {
    boot: 9,
    namespace: 10,
};
const SECOND: u64 = 1_000_000_000;

/// A state and what is applied to it.
struct Log {
    state: State,
    time: u64,
    serial: u64,
    session: u64,
}

impl Log {
    fn of(state: State) -> Self {
        let mut log = Self {
            time: state.time(),
            state,
            serial: 0,
            session: 0,
        };
        log.session = log.open(60 * SECOND);
        log
    }

    fn new() -> Self {
        Self::of(State::new(Limits::default(), OLD))
    }

    fn apply(&mut self, payload: Payload) -> Outcome {
        self.time += SECOND / 10;
        let applied = self.state.applied();
        self.state.apply(&Entry {
            id: applied.id + 1,
            term: applied.term.max(Term::new(3).expect("small")),
            time: self.time,
            payload,
        })
    }

    fn open(&mut self, ttl: u64) -> u64 {
        match self.apply(Payload::Open { ttl }) {
            Outcome::Opened(session) => session,
            other => panic!("{other:?}"),
        }
    }

    fn submit(&mut self, operation: Operation) -> Outcome {
        self.serial += 1;
        self.apply(Payload::Command(Command {
            session: self.session,
            serial: self.serial,
            outstanding: self.serial,
            operation,
        }))
    }

    fn append(&mut self, text: &str) -> u64 {
        match self.submit(Operation::Append(text.as_bytes().into())) {
            Outcome::Appended(number) => number,
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, key: &str, value: Bytes) -> Write {
        let key = self::key(key);
        let held = self.state.registers().read(&key);
        let expect = held.map_or(Expect::Absent, |it| Expect::Version(it.version.clone()));
        Write {
            key,
            expect,
            value,
            stamp: Stamp::Now,
        }
    }

    fn put(&mut self, key: &str, value: Bytes) -> Version {
        let write = self.write(key, value);
        match self.submit(Operation::swap(write)) {
            Outcome::Swapped(version) => version,
            other => panic!("{other:?}"),
        }
    }

    fn bind(&mut self, key: &str, value: Bytes, last: Bytes) {
        let write = self.write(key, value);
        let outcome = self.submit(Operation::bind(write, last));
        assert!(matches!(outcome, Outcome::Swapped(_)), "{outcome:?}");
    }

    fn read_log(&self, from: u64) -> QueryResult {
        let count = usize::MAX;
        self.state.find(Query::UserLog { from, count }, 0)
    }

    fn restored(&self) -> Restored {
        self.restored_by(&restoring()).expect("restorable")
    }

    /// As a backup would: through its bytes.
    fn restored_by(&self, how: &Restoring) -> Result<Restored, NotRestorable> {
        let state = State::decode(&self.state.encode()).expect("a state");
        state.restored(how)
    }
}

fn restoring() -> Restoring {
    let server = ServerId::new(5).expect("a number");
    Restoring {
        clock: NEW,
        members: Membership::bootstrapped([(server, StorageId::from_u128(55))]),
        times: 1,
        term_step: TERM_STEP,
        longest_lease: None,
        holder: 0xabc,
        wall: WallTime::from_millis(1_000),
    }
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn bytes(text: &str) -> Bytes {
    text.as_bytes().into()
}

fn record(election: &str, term: u64, lease: u64, leader: Option<u128>) -> Record {
    Record {
        election: name(election),
        term: Term::new(term).expect("a term"),
        sequence: 17,
        renewal: 16,
        lease: Duration::from_secs(lease),
        acquired_at: WallTime::from_millis(1),
        renewed_at: WallTime::from_millis(2),
        occupancy: match leader {
            None => Occupancy::Vacant { successor: None },
            Some(id) => Occupancy::Held(Holder {
                id: LeaderId::from_u128(id),
                name: name("web-1"),
                addresses: Arc::from([name("h:1")]),
                params: bytes("p"),
                request: None,
            }),
        },
    }
}

fn held(log: &State, at: &str) -> Record {
    let register = log.registers().read(&key(at)).expect("it is there");
    Record::decode(&register.value).expect("a record")
}

#[test]
fn what_the_lost_cluster_gave_out_after_the_backup_is_never_given_out_again() {
    let mut log = Log::new();
    log.append("one");
    log.put("a", bytes("1"));
    let backup = log.restored();
    // The old one goes on.
    let lost: Vec<u64> = (0..20).map(|_| log.append("lost")).collect();
    let versions: Vec<Version> = (0..20).map(|_| log.put("a", bytes("lost"))).collect();
    let sessions: Vec<u64> = (0..20).map(|_| log.open(SECOND)).collect();

    let last = log.state.applied();
    let revision = log.state.registers().revision();
    let mut anew = Log::of(backup.state);
    assert!(anew.state.applied().id > last.id + JUMP / 2);
    assert!(anew.state.registers().revision() > revision + JUMP / 2);
    assert_eq!(anew.state.applied().term.get(), 3 + TERM_STEP);
    for _ in 0..20 {
        assert!(!lost.contains(&anew.append("new")));
        assert!(!versions.contains(&anew.put("a", bytes("new"))));
        assert!(!sessions.contains(&anew.open(SECOND)));
    }
    // What the lost one wrote cannot be taken for what is here.
    let write = Write {
        expect: Expect::Version(versions[19].clone()),
        ..anew.write("a", bytes("late"))
    };
    assert_eq!(anew.submit(Operation::swap(write)), Outcome::Conflict);
}

#[test]
fn everything_that_was_in_the_backup_is_there() {
    let mut log = Log::new();
    for text in ["one", "two", "three"] {
        log.append(text);
    }
    let version = log.put("a", bytes("1"));
    log.put("b", bytes("2"));
    let state = log.restored().state;
    let a = state.registers().read(&key("a")).expect("a");
    assert_eq!((&*a.value, &a.version), (&b"1"[..], &version));
    assert_eq!(state.registers().len(), 2);
    let read: Vec<_> = state.user_log().read(1).expect("all").collect();
    let wanted: Vec<Bytes> = ["one", "two", "three"].map(bytes).into();
    assert!(read.iter().map(|(number, _)| *number).eq(1..=3));
    assert!(read.iter().map(|(_, entry)| *entry).eq(&wanted));
    assert_eq!(state.version(), ClusterVersion::SECOND);
    assert_eq!(*state.members(), restoring().members);
    // As bytes, too.
    let again = State::decode(&state.encode()).expect("a state");
    assert_eq!(again.encode(), state.encode());
    assert_eq!(again.gaps(), state.gaps());
    assert_eq!(again.user_log(), state.user_log());
}

#[test]
fn all_times_are_of_the_new_clock() {
    let mut log = Log::new();
    log.put("a", bytes("1"));
    let before = log.state.store_time();
    let mut anew = Log::of(log.restored().state);
    let a = anew.state.registers().read(&key("a")).expect("a").stamp;
    assert_eq!(a.map(|stamp| stamp.clock), Some(NEW));
    assert_eq!(anew.state.store_time().clock, NEW);
    assert!(anew.state.store_time().nanos > before.nanos, "it goes on");
    anew.put("b", bytes("1"));
    let b = anew.state.registers().read(&key("b")).expect("b").stamp;
    assert_eq!(b.map(|stamp| stamp.clock), Some(NEW));
}

#[test]
fn a_reader_from_the_gap_is_told_and_nobody_reads_across_it() {
    let mut log = Log::new();
    for text in ["one", "two", "three"] {
        log.append(text);
    }
    log.put("a", bytes("1"));
    let (id, revision) = (log.state.applied().id, log.state.registers().revision());
    let mut anew = Log::of(log.restored().state);
    let next = 4 + JUMP;
    assert_eq!(anew.append("four"), next);
    assert_eq!(anew.append("five"), next + 1);

    let texts = |found: QueryResult| match found {
        QueryResult::UserLog(Ok(entries)) => entries
            .iter()
            .map(|(number, entry)| (*number, String::from_utf8_lossy(entry).into_owned()))
            .collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let of = |number: u64, text: &str| (number, text.to_owned());
    assert_eq!(texts(anew.read_log(2)), [of(2, "two"), of(3, "three")]);
    for from in [4, 5, 1_000, 3 + JUMP] {
        assert_eq!(anew.read_log(from), QueryResult::Restored(next), "{from}");
    }
    let new = [of(next, "four"), of(next + 1, "five")];
    assert_eq!(texts(anew.read_log(next)), new);
    assert_eq!(texts(anew.read_log(next + 1)), new[1..]);
    assert_eq!(texts(anew.read_log(next + 2)), []);

    let state = &anew.state;
    for (place, told) in [(0, false), (id - 1, false), (id, true), (id + 9, true)] {
        assert_eq!(state.gap_of_id(place).is_some(), told, "{place}");
    }
    assert_eq!(state.gap_of_id(id + JUMP), None, "here it begins");
    let gap = state.gap_of_revision(revision + 1).expect("a gap");
    assert!(gap.holds(revision) && !gap.holds(revision - 1));
    assert_eq!(gap.to, revision + JUMP);
    assert_eq!(state.gap_of_revision(gap.to), None);
}

#[test]
fn a_log_that_forgets_its_oldest_entries_keeps_its_numbers_across_the_gap() {
    let limits = Limits {
        user_log_bytes: 200,
        ..Limits::default()
    };
    let mut log = Log::of(State::new(limits, OLD));
    for text in ["one", "two", "three"] {
        log.append(text);
    }
    let mut anew = Log::of(log.restored().state);
    for step in 0..20 {
        assert_eq!(anew.append("more"), 4 + JUMP + step);
        let user_log = anew.state.user_log();
        let again = State::decode(&anew.state.encode()).expect("a state");
        assert_eq!(again.user_log(), user_log);
        assert_eq!(again.encode(), anew.state.encode());
        let first = user_log.first();
        assert!(user_log.read(first).is_ok() && user_log.gap(first).is_none());
        // The last of the old ones, if it is still there, and the new ones.
        let old = user_log.read(3).map(Iterator::count);
        assert_eq!(old.is_ok(), first <= 3, "{first}");
        assert_eq!(user_log.gap(4).map(|gap| gap.to), Some(4 + JUMP));
    }
    let first = anew.state.user_log().first();
    assert!(first > 4 + JUMP);
    let gone = anew.state.user_log().read(4 + JUMP).map(Iterator::count);
    assert_eq!(gone, Err(TooOld { first }));
}

#[test]
fn what_was_restored_is_restored_again_and_jumps_again() {
    let mut log = Log::new();
    log.append("one");
    let mut second = Log::of(log.restored().state);
    second.append("two");
    let mut third = Log::of(second.restored().state);
    assert_eq!(third.append("three"), 3 + 2 * JUMP);
    assert_eq!(third.state.gaps().len(), 2);
    let again = State::decode(&third.state.encode()).expect("a state");
    assert_eq!(again.encode(), third.state.encode());
    assert_eq!(third.read_log(2), QueryResult::Restored(2 + JUMP));
    assert_eq!(
        third.read_log(3 + JUMP),
        QueryResult::Restored(3 + 2 * JUMP)
    );
    let QueryResult::UserLog(Ok(two)) = third.read_log(2 + JUMP) else {
        panic!("it is there");
    };
    assert_eq!(two.len(), 1, "and no further");
}

#[test]
fn the_same_backup_twice_gives_nothing_out_twice_if_it_is_told_so() {
    let mut log = Log::new();
    log.append("one");
    log.put("elections/pay", record("pay", 7, 10, None).encode());
    let how = Restoring {
        times: 2,
        ..restoring()
    };
    let (once, twice) = (log.restored(), log.restored_by(&how).expect("restorable"));
    let once = Log::of(once.state);
    let twice = Log::of(twice.state);
    assert!(twice.state.applied().id > once.state.applied().id + JUMP / 2);
    let term = |log: &Log| held(&log.state, "elections/pay").term.get();
    assert_eq!((term(&once), term(&twice)), (1_000_007, 2_000_007));
}

#[test]
fn ids_that_would_not_fit_json_are_refused() {
    let log = Log::new();
    let how = Restoring {
        times: (1 << 13) - 1,
        ..restoring()
    };
    let mut last = log.restored_by(&how).expect("it just fits").state;
    assert_eq!(
        last.clone().restored(&restoring()).err(),
        Some(NotRestorable::Exhausted)
    );
    last = last.with_version(ClusterVersion::new(1_000).expect("a version"));
    let newer = last.restored(&restoring()).err();
    assert!(matches!(newer, Some(NotRestorable::Newer(_))), "{newer:?}");
}

#[test]
fn sessions_of_the_backup_are_over_and_what_they_hold_is_free_no_sooner_than_a_ttl() {
    let mut log = Log::new();
    log.bind("locks/a", bytes("mine"), bytes("free"));
    let session = log.session;
    let mut idle = Log::of(log.state.clone());
    idle.open(SECOND);
    let state = log.restored().state;
    assert_eq!(state.sessions().get(session), None);
    assert_eq!(state.sessions().len(), 1, "the one that holds something");
    let bound = state.bound(&key("locks/a")).expect("bound");
    assert!(bound.session > log.state.applied().id && bound.session <= state.applied().id);
    assert_eq!(idle.restored().state.sessions().len(), 1);

    let again = State::decode(&state.encode()).expect("a state");
    assert_eq!(again.bound(&key("locks/a")), Some(bound));
    let mut anew = Log::of(again);
    // A request of its client finds no session.
    anew.session = session;
    anew.serial = 7;
    assert_eq!(anew.submit(Operation::KeepAlive), Outcome::SessionExpired);
    // A new leader, as every cluster begins with.
    anew.time += 1_000 * SECOND;
    anew.apply(Payload::NoOp);
    let expire = Payload::Expire {
        session: bound.session,
    };
    anew.time += 59 * SECOND;
    anew.apply(expire.clone());
    let value = |log: &Log| {
        let held = log.state.registers().read(&key("locks/a"));
        held.expect("it is there").value.clone()
    };
    assert_eq!(&*value(&anew), b"mine");
    anew.time += 2 * SECOND;
    anew.apply(expire);
    assert_eq!(&*value(&anew), b"free");
}

fn assignment(place: Place) -> Assignment {
    Assignment {
        digest: Digest::new("abc").expect("a digest"),
        instances: 2,
        ha: true,
        order: 0,
        fails: 0,
        needs: Vec::new(),
        place,
    }
}

#[test]
fn a_group_waits_for_its_nodes_of_before_and_its_epoch_is_raised() {
    let (one, two) = (NodeId::from_u128(1), NodeId::from_u128(2));
    let keys = Keys::of(name("web"));
    let mut view = View::empty(name("web"), 2, true);
    view.epoch = 12;
    for id in [one, two] {
        view.members.push(Member {
            id,
            name: name("node"),
            ha: true,
            draining: false,
            lease: Duration::from_secs(20),
            max: None,
            serial: 3,
            labels: Vec::new(),
        });
    }
    let to = Target::Node(two);
    let places = [
        ("a", Place::Assigned(one)),
        ("b", Place::Releasing { from: one, to }),
        ("c", Place::Waiting),
    ];
    for (workload, place) in places {
        view.workloads.insert(name(workload), assignment(place));
    }
    let mut log = Log::new();
    let beat = Heartbeat {
        node: one,
        sequence: 4,
        lease: Duration::from_secs(20),
        status: bytes(""),
        dead: None,
    };
    log.put(keys.view().as_str(), view.encode());
    log.put(keys.heartbeat(one).as_str(), beat.encode());
    log.put("ha/web/content/abc", bytes("a config"));
    let restored = log.restored();
    assert_eq!((restored.groups, restored.unread.len()), (1, 0));
    assert_eq!(restored.lease, Duration::from_secs(20));
    let registers = restored.state.registers();
    assert_eq!(registers.read(&keys.heartbeat(one)), None, "no way back");
    assert!(registers.read(&key("ha/web/content/abc")).is_some());
    let held = registers.read(&keys.view()).expect("a view");
    let found = View::decode(&held.value).expect("a view");
    assert_eq!(found.epoch, 12 + TERM_STEP);
    assert_eq!((found.quorum, found.spread), (2, true));
    let [node] = &found.members[..] else {
        panic!(
            "expected one that has everything, found {:?}",
            found.members
        );
    };
    assert_eq!(node.lease, Duration::from_secs(20));
    assert!(node.draining && found.voters() == 0 && node.id != one);
    assert_eq!(found.workloads.len(), 3);
    for assignment in found.workloads.values() {
        assert_eq!(assignment.place, Place::Assigned(node.id));
        assert_eq!(assignment.instances, 2);
    }
}

#[test]
fn gaps_that_make_no_sense_are_refused() {
    let mut log = Log::new();
    log.append("one");
    let state = log.restored().state;
    let [gaps] = state.gaps() else {
        panic!("one gap");
    };
    let written = |all: &[[u64; 6]]| {
        let mut to = Vec::new();
        put_u64(&mut to, all.len() as u64);
        for number in all.iter().flatten() {
            put_u64(&mut to, *number);
        }
        to
    };
    let right = [gaps.ids, gaps.revisions, gaps.numbers].map(|gap| [gap.from, gap.to]);
    let right: [u64; 6] = right.concat().try_into().expect("six");
    let image = state.encode();
    let rest = &image[..image.len() - 4 - written(&[right]).len()];
    let decode = |all: &[[u64; 6]]| {
        let mut image = [rest, &written(all)].concat();
        image.extend(crc32c(&image).to_le_bytes());
        State::decode(&image).err()
    };
    assert_eq!(decode(&[right]), None);
    let wrong = |at: usize, number| {
        let mut gaps = right;
        gaps[at] = number;
        vec![gaps]
    };
    for wrong in [
        // An end that is none, and one behind which nothing can follow.
        wrong(1, right[0]),
        wrong(5, right[4]),
        wrong(5, u64::MAX),
        // An entry that is there has a number in it.
        wrong(4, 1),
        // Twice the same.
        vec![right, right],
    ] {
        assert_eq!(
            decode(&wrong),
            Some(SnapshotError::Decode(DecodeError::Number)),
            "{wrong:?}"
        );
    }
}
