//! Which start of a server speaks, and how far its disk has come.
//!
//! A data directory that was set back to an earlier copy of itself has
//! forgotten votes that it gave and entries that it acknowledged. A directory
//! that was copied is used by two processes, of which neither knows what the
//! other has promised. Both look like the directory that they were copied
//! from: they have its number and its storage. What gives them away is what
//! others remember of that one ([`KnownStarts`]), in two ways:
//!
//! * **The start.** Each start of a server raises a counter in its directory,
//!   which is on the disk before the first greeting, and draws a random
//!   number. So two starts of one directory never say the same counter. A
//!   counter that is below the one that was heard before, or equal to it with
//!   another random number, comes from a copy.
//! * **How far the disk has come.** Its term never falls, since a server says
//!   nothing in a term before that is durable. And as long as the term stays
//!   the same the log never ends before what was committed in it, or was known
//!   to be the log of the term's leader, or was acknowledged to that leader:
//!   there is one leader in a term, and it never takes back an entry. In a
//!   later term the log may become shorter, up to what is committed; that is
//!   no sign of anything, and is not taken for one.
//!
//! Why a rightful start is never refused for good: all that is compared was
//! durable when it was said, so neither a crash nor a loss of power takes it
//! back, and both comparisons only use what never falls on one directory.
//!
//! A copy of a directory that is in use now has the higher counter when it is
//! started, as the directory itself would have after a crash. Only one thing
//! tells the two cases apart: whether the process before is still alive. So the
//! later start waits until nothing was heard of the earlier one for an election
//! timeout; from then on the earlier one is behind, and is refused.
//!
//! The wait is over at once if both starts name one lock ([`Start::lock`]): an
//! operating system gives a lock to one process at a time, so the process
//! before has ended. What that one sent before is dropped, as after a wait.
//!
//! How far the disk has come is compared only for a start that is not the accepted
//! one. The accepted start makes progress while it sends a greeting, so its greeting may
//! be older than messages that arrived on another connection. If a machine is set back with
//! the memory of its processes, its server greets as the same start: only a
//! leader notices that, by what it has acknowledged (`node/progress.rs`).
//!
//! What no running process remembers is not noticed: the memory ends with the
//! process.

use alloc::collections::BTreeMap;
use core::fmt;
use core::time::Duration;

use tenure_core::ids::Term;
use tenure_core::time::Instant;

use tenure_core::bug::Plant;

use super::bug::Bug;
use super::ids::{LogId, Position, ServerId, StorageId};
use super::membership::{MAX_MEMBERS, Membership};

/// Which start of a server speaks.
///
/// A data directory counts the starts of servers on it; the count is raised,
/// and on the disk, before the first greeting. Each start draws a random
/// number too, so that two processes with copies of one directory differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Start {
    /// How many starts this data directory has seen, this one among them.
    pub counter: u64,
    /// Drawn at this start.
    pub random: u128,
    /// Which lock on the data directory this start holds: the same number for
    /// one lock file on one boot of one machine, and another for every copy of
    /// the file. 0 where that cannot be told.
    pub lock: u128,
}

impl Start {
    /// Whether the process of the start `before` has ended, since this one
    /// holds its lock.
    const fn follows(&self, before: &Self) -> bool {
        self.lock != 0 && self.lock == before.lock && self.counter > before.counter
    }
}

/// How far the disk of a server has come. All of it is durable there, so no
/// crash takes it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct DiskProgress {
    /// The term of the hard state.
    pub term: Term,
    /// The last entry of the log.
    pub last: Position,
    /// Up to here the log can lose nothing as long as the term stays the same:
    /// it is committed, or known to be that of the term's leader. Beyond it
    /// that leader may still replace entries, even by fewer.
    pub settled: LogId,
}

impl DiskProgress {
    /// Takes over how far the disk is known to have come `now`. While a
    /// snapshot replaces the log, `now` may know less to be durable than
    /// before; what was durable still is, one way or the other.
    pub fn advance(&mut self, now: Self) {
        if now.term > self.term || now.last.id >= self.settled {
            *self = now;
        }
    }
}

/// How a disk shows that it is a copy of an earlier state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyEvidence {
    /// Its start counter is not above that of an earlier start.
    Counter {
        /// The counter that was heard before.
        known: u64,
        /// The counter that it says.
        found: u64,
    },
    /// It lacks what was known to be on it.
    Disk {
        /// The term, and the entry up to which its log was known to go in it.
        known: (Term, LogId),
        /// Its term, and where its log ends.
        found: (Term, LogId),
    },
}

impl fmt::Display for CopyEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counter { known, found } => write!(
                f,
                "expected a start counter above {known}, found {found} of another start"
            ),
            Self::Disk {
                known: (term, id),
                found: (its_term, its_id),
            } => write!(
                f,
                "expected term {} with entries up to {id}, found term {} with entries up to \
                 {its_id}",
                term.get(),
                its_term.get()
            ),
        }
    }
}

/// What is to become of a connection with a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartVerdict {
    /// It is used.
    Accepted,
    /// Another process with this disk was heard a moment ago. The server may
    /// come again; for how long it has been told so.
    WaitFor(Duration),
    /// The disk was set back, or is a copy; it must never count.
    SetBack(CopyEvidence),
}

/// What is remembered of one disk.
#[derive(Clone, Copy, Debug)]
struct KnownStart {
    /// The start that is let in.
    start: Start,
    term: Term,
    settled: LogId,
    /// When that start was heard last.
    heard_at: Instant,
    /// Since when another start waits for this one to be silent.
    waited_since: Option<Instant>,
}

impl KnownStart {
    fn learn(&mut self, term: Term, settled: LogId) {
        if term > self.term {
            (self.term, self.settled) = (term, settled);
        } else if term == self.term {
            self.settled = self.settled.max(settled);
        }
    }
}

/// How many disks are remembered, members and others.
const KNOWN_MAX: usize = 4 * MAX_MEMBERS;

/// What one process remembers of the disks of others.
#[derive(Clone, Debug, Default)]
pub struct KnownStarts {
    known: BTreeMap<(ServerId, StorageId), KnownStart>,
    planted: Plant<Bug>,
}

impl KnownStarts {
    /// The same, with a mistake that is to be made.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with_bug(self, planted: Option<Bug>) -> Self {
        Self {
            planted: Plant::of(planted),
            ..self
        }
    }

    /// A server with this number and disk greets. If it is welcome, it is the
    /// one that is let in from now on.
    pub fn greeted(
        &mut self,
        who: (ServerId, StorageId),
        (start, reached): (Start, DiskProgress),
        members: &Membership,
        (now, timeout): (Instant, Duration),
    ) -> StartVerdict {
        let blind = self.planted.is(Bug::SetBackCounted) || self.planted.is(Bug::CloneCounted);
        let Some(known) = self.known.get_mut(&who) else {
            self.remember(who, (start, reached), members, now);
            return StartVerdict::Accepted;
        };
        if let Some(copy_evidence) = known.copy_evidence(start, reached).filter(|_| !blind) {
            return StartVerdict::SetBack(copy_evidence);
        }
        let ended = start.follows(&known.start) || now.since(known.heard_at) >= timeout;
        if start != known.start && !ended && !blind {
            let since = *known.waited_since.get_or_insert(now);
            return StartVerdict::WaitFor(now.since(since));
        }
        (known.start, known.heard_at) = (start, now);
        known.waited_since = None;
        known.learn(reached.term, reached.settled);
        StartVerdict::Accepted
    }

    /// Something came from this start. Whether it is still the one that is let
    /// in: if not, what came must not be heeded.
    pub fn heard(
        &mut self,
        who: (ServerId, StorageId),
        start: Start,
        reached: Option<DiskProgress>,
        now: Instant,
    ) -> bool {
        let both = self.planted.is(Bug::CloneCounted);
        // One that was forgotten was let in, and no other since.
        let Some(known) = self.known.get_mut(&who) else {
            return true;
        };
        if known.start != start {
            return both;
        }
        known.heard_at = now;
        if let Some(reached) = reached {
            known.learn(reached.term, reached.settled);
        }
        true
    }

    /// The leader of `term` knows that this disk has its log up to `id`.
    pub fn acknowledged(&mut self, who: (ServerId, StorageId), term: Term, id: LogId) {
        if let Some(known) = self.known.get_mut(&who) {
            known.learn(term, id);
        }
    }

    /// A leader has found that this disk lacks what it has acknowledged: what
    /// comes from it is not heeded any more, until it greets and is judged.
    pub fn expel(&mut self, who: (ServerId, StorageId)) {
        if let Some(known) = self.known.get_mut(&who) {
            known.start = Start::default();
        }
    }

    fn remember(
        &mut self,
        who: (ServerId, StorageId),
        (start, reached): (Start, DiskProgress),
        members: &Membership,
        now: Instant,
    ) {
        if self.known.len() >= KNOWN_MAX {
            // Members are fewer than there is room for, so there is another.
            let is_member = |(server, storage): &(ServerId, StorageId)| {
                let member = members.get(*server);
                member.is_some_and(|member| member.storage == *storage)
            };
            let others = self.known.iter().filter(|(it, _)| !is_member(it));
            let oldest = others.min_by_key(|(_, known)| known.heard_at);
            if let Some(oldest) = oldest.map(|(it, _)| *it) {
                self.known.remove(&oldest);
            }
        }
        let known = KnownStart {
            start,
            term: reached.term,
            settled: reached.settled,
            heard_at: now,
            waited_since: None,
        };
        self.known.insert(who, known);
    }
}

impl KnownStart {
    /// What shows that one that says this has an earlier state of the disk.
    fn copy_evidence(&self, start: Start, reached: DiskProgress) -> Option<CopyEvidence> {
        // The start that is let in goes on while it greets: what it has
        // acknowledged meanwhile, on another connection, may be heard before
        // a greeting that was made before it. What is remembered of earlier
        // starts was durable before this one began.
        if start == self.start {
            return None;
        }
        let Start {
            counter, random, ..
        } = self.start;
        let same = start.counter == counter;
        if start.counter < counter || (same && start.random != random) {
            return Some(CopyEvidence::Counter {
                known: counter,
                found: start.counter,
            });
        }
        let short = reached.term == self.term && reached.last.id < self.settled;
        (reached.term < self.term || short).then_some(CopyEvidence::Disk {
            known: (self.term, self.settled),
            found: (reached.term, reached.last.id),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn who(server: u64) -> (ServerId, StorageId) {
        let server = ServerId::new(server).expect("a number");
        (server, StorageId::from_u128(7))
    }

    fn start(counter: u64, random: u128) -> Start {
        Start {
            counter,
            random,
            lock: 0,
        }
    }

    fn reached(term: u64, last: LogId, settled: LogId) -> DiskProgress {
        let term = Term::new(term).expect("a term");
        DiskProgress {
            term,
            last: Position::new(term, last),
            settled,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// What becomes of server 3 when it greets so, some milliseconds after
    /// the beginning.
    fn greets(
        starts: &mut KnownStarts,
        start: Start,
        reached: DiskProgress,
        millis: u64,
    ) -> StartVerdict {
        let members = Membership::default();
        starts.greeted(who(3), (start, reached), &members, (at(millis), TIMEOUT))
    }

    #[test]
    fn a_rightful_start_is_let_in() {
        let mut starts = KnownStarts::default();
        let welcome = StartVerdict::Accepted;
        assert_eq!(
            greets(&mut starts, start(1, 9), reached(5, 20, 10), 0),
            welcome
        );
        // It connects again, and has gone on.
        assert_eq!(
            greets(&mut starts, start(1, 9), reached(5, 30, 30), 1),
            welcome
        );
        // It was restarted, and what was not settled is lost.
        assert_eq!(
            greets(&mut starts, start(2, 8), reached(5, 30, 0), 2_000),
            welcome
        );
        // Several starts were not heard of here.
        assert_eq!(
            greets(&mut starts, start(7, 1), reached(5, 31, 0), 4_000),
            welcome
        );
        // In a later term the log may be shorter.
        assert_eq!(
            greets(&mut starts, start(8, 2), reached(6, 12, 12), 6_000),
            welcome
        );
        // What the leader of that term may still replace may go in it.
        assert!(starts.heard(who(3), start(8, 2), Some(reached(6, 40, 15)), at(6_001)));
        assert_eq!(
            greets(&mut starts, start(8, 2), reached(6, 15, 15), 6_002),
            welcome
        );
    }

    #[test]
    fn an_earlier_state_of_the_disk_is_not() {
        let mut starts = KnownStarts::default();
        greets(&mut starts, start(4, 9), reached(5, 20, 10), 0);
        let set_back = |verdict| matches!(verdict, StartVerdict::SetBack(_));
        // The directory of an earlier start, or of this one, started twice.
        assert!(set_back(greets(
            &mut starts,
            start(3, 9),
            reached(5, 20, 10),
            9_000
        )));
        assert!(set_back(greets(
            &mut starts,
            start(4, 8),
            reached(5, 20, 10),
            9_000
        )));
        // A lower term, however long the log.
        assert!(set_back(greets(
            &mut starts,
            start(5, 1),
            reached(4, 99, 99),
            9_000
        )));
        // The same term, and less than was known to be settled.
        assert!(set_back(greets(
            &mut starts,
            start(5, 1),
            reached(5, 9, 9),
            9_000
        )));
        // A greeting of the start that is let in may be older than what was
        // heard of it on another connection.
        let late = greets(&mut starts, start(4, 9), reached(5, 9, 9), 9_000);
        assert_eq!(late, StartVerdict::Accepted);
        // What a leader was told counts, and what keep-alives have said.
        starts.acknowledged(who(3), Term::new(5).expect("a term"), 15);
        assert!(set_back(greets(
            &mut starts,
            start(5, 1),
            reached(5, 14, 0),
            9_000
        )));
        starts.heard(who(3), start(4, 9), Some(reached(7, 15, 0)), at(1));
        assert!(set_back(greets(
            &mut starts,
            start(5, 1),
            reached(6, 15, 0),
            9_000
        )));
        // It is the disk that is refused; what it really is is welcome.
        assert_eq!(
            greets(&mut starts, start(5, 1), reached(7, 15, 0), 9_000),
            StartVerdict::Accepted
        );
    }

    #[test]
    fn a_second_process_waits_until_the_first_is_silent_and_then_that_one_is_refused() {
        let mut starts = KnownStarts::default();
        let (first, second) = (start(1, 1), start(2, 2));
        let disk = reached(5, 20, 20);
        greets(&mut starts, first, disk, 0);
        assert!(starts.heard(who(3), first, None, at(900)));
        let later = |millis| StartVerdict::WaitFor(Duration::from_millis(millis));
        assert_eq!(greets(&mut starts, second, disk, 1_000), later(0));
        assert_eq!(greets(&mut starts, second, disk, 1_800), later(800));
        assert!(starts.heard(who(3), first, None, at(1_850)));
        assert_eq!(greets(&mut starts, second, disk, 2_800), later(1_800));
        assert_eq!(
            greets(&mut starts, second, disk, 2_850),
            StartVerdict::Accepted
        );
        // What the first still says is not heeded, and it is not let in.
        assert!(!starts.heard(who(3), first, None, at(2_851)));
        assert!(matches!(
            greets(&mut starts, first, disk, 9_000),
            StartVerdict::SetBack(CopyEvidence::Counter { known: 2, found: 1 })
        ));
        assert!(starts.heard(who(3), second, None, at(9_001)));
    }

    #[test]
    fn a_start_that_holds_the_lock_of_the_one_before_does_not_wait() {
        let mut starts = KnownStarts::default();
        let with = |start, lock| Start { lock, ..start };
        let disk = reached(5, 20, 20);
        let first = with(start(1, 1), 8);
        greets(&mut starts, first, disk, 0);
        // A copy has a lock of its own; who cannot tell has none.
        let waits = StartVerdict::WaitFor(Duration::ZERO);
        for lock in [0, 9] {
            let copy = with(start(2, 3), lock);
            assert_eq!(greets(&mut starts, copy, disk, 1), waits);
        }
        let next = with(start(2, 2), 8);
        // It is still judged by its counter and by its disk.
        assert!(matches!(
            greets(&mut starts, next, reached(5, 19, 19), 1),
            StartVerdict::SetBack(CopyEvidence::Disk { .. })
        ));
        assert_eq!(greets(&mut starts, next, disk, 1), StartVerdict::Accepted);
        assert!(!starts.heard(who(3), first, None, at(2)));
        // Two that cannot tell do not have one lock.
        let mut starts = KnownStarts::default();
        greets(&mut starts, start(1, 1), disk, 0);
        assert_eq!(greets(&mut starts, start(2, 2), disk, 1), waits);
    }

    /// That a second process waits is noticed if it is not so.
    #[cfg(feature = "planted-bugs")]
    #[test]
    fn a_second_process_that_is_let_in_beside_the_first_is_noticed() {
        let mut starts = KnownStarts::default().with_bug(Some(Bug::CloneCounted));
        let (first, second) = (start(1, 1), start(2, 2));
        greets(&mut starts, first, reached(5, 20, 20), 0);
        let early = greets(&mut starts, second, reached(5, 20, 20), 1);
        assert_eq!(early, StartVerdict::Accepted);
        assert!(starts.heard(who(3), first, None, at(2)));
        assert!(starts.heard(who(3), second, None, at(3)));
    }

    #[test]
    fn strangers_do_not_crowd_out_members() {
        let mut starts = KnownStarts::default();
        let members = Membership::bootstrapped([who(1)]);
        let greets = |starts: &mut KnownStarts, server, counter| {
            let says = (start(counter, 0), reached(1, 1, 1));
            // All at once: the first is no younger than the rest.
            starts.greeted(who(server), says, &members, (at(0), Duration::ZERO))
        };
        greets(&mut starts, 1, 5);
        for stranger in 2..1_000 {
            greets(&mut starts, stranger, 5);
        }
        assert_eq!(starts.known.len(), KNOWN_MAX);
        let set_back = greets(&mut starts, 1, 4);
        assert!(matches!(set_back, StartVerdict::SetBack(_)));
    }

    #[test]
    fn a_log_that_is_being_replaced_does_not_look_short() {
        let mut known = reached(5, 20, 15);
        known.advance(reached(5, 0, 0));
        assert_eq!(known, reached(5, 20, 15));
        known.advance(reached(5, 15, 15));
        assert_eq!(known, reached(5, 15, 15));
        known.advance(reached(6, 3, 0));
        assert_eq!(known, reached(6, 3, 0));
    }
}
