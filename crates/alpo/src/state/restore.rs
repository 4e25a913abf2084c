//! A state that begins a new cluster, made from a backup of one that is lost.
//!
//! After the backup was taken the old cluster went on: it gave out ids of
//! entries (which are the versions of registers and the numbers of sessions),
//! numbers of the user log, terms of elections and epochs of groups, and
//! which ones is not known any more. None of them may be given out again, for
//! clients and the resources that they fence still know them. So all of them
//! jump, by more than a cluster gives out in its life:
//!
//! * ids, revisions and numbers of the user log by [`JUMP`]. At a million
//!   entries a second the old cluster would have had to go on for twelve days
//!   after the backup to come so far, and after eight thousand restores they
//!   still fit the numbers of JSON ([`LAST`]; beyond that a backup cannot be
//!   restored). What is left out is remembered ([`Gaps`]): a reader that comes
//!   from inside is told, and never sent past it.
//! * terms of elections and epochs of groups by [`TERM_STEP`] or what the
//!   operator says, since many keep fences in 32 bits. One that is too large to
//!   be raised so far becomes the last that there is, and no candidate can lead there
//!   any more: one register must not keep all the others from being restored.
//!
//! Who led when the old cluster was lost may still believe in its lease. So
//! each election is *held*, in the raised term, by an id that no process has:
//! for the longest lease of the backup, counted by every judge from its first
//! sight of it or on the log's time from here on (`docs/design/election.md`,
//! clause 3), whatever the old holder's renewal says.
//!
//! A judge by the calendar (`--max-clock-skew`) counts from the restore: so
//! that comes after the old cluster is off. Anybody who may write one election
//! could keep all the others waiting by a long lease there, so an operator who
//! knows better says what the longest lease was; an election whose own record
//! has a longer one is held for that.
//!
//! A leader of the old cluster was confirmed last before that was off, so
//! before any judge looks: it is over first. The election is bound to no
//! session. For the same reason each group's nodes are replaced by one that is
//! no process and that is silent: what they ran goes to successors when it is judged
//! dead (`docs/design/groups.md`, clause 3); their heartbeats are gone, so none
//! of them can go on beating.
//!
//! Sessions of the backup are over for their clients: which of their serials
//! were done after the backup is not known. One that holds other registers
//! lives on under a number that was never given out, and ends when its time
//! to live has passed in the new cluster; what it holds is free no sooner
//! than its holder gives up.
//!
//! All times are of one clock, the new cluster's. The log's time goes on from
//! where it was.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use tenure_core::cas::{Bytes, Register, Registers};
use tenure_core::ids::{Key, LeaderId, Name, Term, Version};
use tenure_core::time::{ClockId, StoreTime, WallTime};
use tenure_election::{Config, Holder, Occupancy, Record};
use tenure_group::{Keys, Member as Node, NodeId, Place, Target, View};

use super::super::bug::Bug;
use super::super::codec::crc32c_append;
use super::super::entry::{ClusterVersion, SessionId};
use super::super::ids::{LogId, MAX_NUMBER, Position};
use super::super::membership::Membership;
use super::super::session_owner::SessionOwner;
use super::bindings::Bindings;
use super::change_index::ChangeIndex;
use super::gaps::{Gap, Gaps, LAST, joined};
use super::sessions::Sessions;
use super::snapshot_codec::SnapshotError;
use super::state_checksums::{self, StateChecksums};
use super::{Session, State};

/// By how much ids, revisions and numbers of the user log jump.
pub const JUMP: u64 = 1 << 40;

/// By how much terms of elections and epochs of groups jump, unless the
/// operator says otherwise.
pub const TERM_STEP: u64 = 1_000_000;

/// The name of the holder of elections for which no candidate may race yet.
const HELD_BY: &str = "restored-from-backup";

/// How to restore.
#[derive(Clone, Debug)]
pub struct Restoring {
    /// The new cluster's clock.
    pub clock: ClockId,
    /// Its members.
    pub members: Membership,
    /// How often this very backup was restored, this time included; from 1.
    /// What an earlier restored cluster gave out is not given out again.
    pub times: u64,
    /// By how much terms and epochs are raised, each time.
    pub term_step: u64,
    /// The longest lease that anybody may have had; if it is not known, the
    /// longest in the backup.
    pub longest_lease: Option<Duration>,
    /// 128 random bits: the id that holds elections and groups meanwhile.
    pub holder: u128,
    /// The calendar, for those who judge by it.
    pub wall: WallTime,
}

/// A state that was restored, and what was done to it.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The state.
    pub state: State,
    /// How many elections are held.
    pub elections: usize,
    /// How many groups had their epoch raised.
    pub groups: usize,
    /// For how long elections and what groups ran are held, but for those
    /// with a longer lease of their own.
    pub lease: Duration,
    /// The longest lease in the backup, and the register that has it.
    pub longest: Option<(Key, Duration)>,
    /// Registers of elections and groups whose term or epoch is the last one.
    pub spent: Vec<Key>,
    /// Registers of elections and groups that could not be read, and are as
    /// they were.
    pub unread: Vec<Key>,
}

/// Why a state cannot be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotRestorable {
    /// Entries of a later version than this release speaks may follow.
    Newer(ClusterVersion),
    /// The ids would be too large.
    Exhausted,
    /// So large a step of the terms would leave the new cluster fewer than half
    /// of those that are left.
    Terms {
        /// The cluster's term in the backup.
        term: Term,
        /// By how much it was to be raised.
        step: u64,
    },
    /// Servers would refuse the state, for this reason.
    Refused(SnapshotError),
}

impl fmt::Display for NotRestorable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer(version) => write!(
                f,
                "expected a backup of a cluster of version {} at most, found version {version}: \
                 restore it with a later release",
                ClusterVersion::NEWEST
            ),
            Self::Exhausted => write!(
                f,
                "expected ids that stay below {LAST} when they are raised, found larger ones: the \
                 backup was restored too often"
            ),
            Self::Terms { term, step } => write!(
                f,
                "expected a step that leaves at least half of the terms from {term} to \
                 {MAX_NUMBER}, found {step} (--term-step, as often as --times says): raise terms \
                 by less"
            ),
            Self::Refused(error) => write!(
                f,
                "expected numbers that servers take once they are raised, found a state that \
                 every server refuses: {error}"
            ),
        }
    }
}

impl core::error::Error for NotRestorable {}

impl State {
    /// The state that a new cluster begins with.
    ///
    /// # Errors
    /// If that cannot be; then there is none.
    pub fn restored(self, how: &Restoring) -> Result<Restored, NotRestorable> {
        if self.version > ClusterVersion::NEWEST {
            return Err(NotRestorable::Newer(self.version));
        }
        let step = how.term_step.saturating_mul(how.times.max(1));
        let term = raised_by(self.applied.term, step)?;
        // The mistake leaves no numbers out.
        let jumped = !self.planted(Bug::RestoredInPlace);
        let gaps = self.next_gaps(if jumped { how.times.max(1) } else { 0 })?;
        let end = gaps.ids.to;
        let mut work = Work {
            registers: stamped(&self.registers, how.clock),
            version: Version::from_u64(end),
            stamp: StoreTime {
                clock: how.clock,
                nanos: self.time,
            },
            step,
            lease: Duration::ZERO,
            longest: None,
            how,
            spent: Vec::new(),
            written: BTreeSet::new(),
            unread: Vec::new(),
        };
        work.read_leases();
        let (elections, groups) = (work.hold_elections(), work.hold_groups());
        let owned = self.without_owners(&work.written, &work.registers, end);
        let Work {
            registers,
            lease,
            longest,
            unread,
            spent,
            ..
        } = work;
        let mut state = self.begun_anew(how, Position::new(term, end), registers, gaps.revisions);
        (state.sessions, state.bindings) = owned;
        if jumped {
            state.user_log.leave_out(gaps.numbers);
            state.gaps.push(gaps);
            state.gaps = joined(&state.gaps);
        }
        // A number in the backup that was just good may be too large now: then
        // no server of the new cluster could start.
        Self::decode_foreign(crc32c_append, &state.encode()).map_err(NotRestorable::Refused)?;
        Ok(Restored {
            state,
            elections,
            groups,
            lease,
            longest,
            unread,
            spent,
        })
    }

    /// What is left out this time.
    fn next_gaps(&self, times: u64) -> Result<Gaps, NotRestorable> {
        let jump = JUMP.checked_mul(times).ok_or(NotRestorable::Exhausted)?;
        let gap = |from: u64| {
            let to = from.checked_add(jump.max(1)).filter(|to| *to < LAST);
            let to = to.ok_or(NotRestorable::Exhausted)?;
            Ok(Gap { from, to })
        };
        Ok(Gaps {
            ids: gap(self.applied.id)?,
            revisions: gap(self.registers.revision())?,
            numbers: gap(self.user_log.next())?,
        })
    }

    /// Its clock, members, version, place and registers are those of the new
    /// cluster.
    fn begun_anew(
        self,
        how: &Restoring,
        applied: Position,
        registers: BTreeMap<Key, Register>,
        revisions: Gap,
    ) -> Self {
        let changes = usize::try_from(self.limits.changes).unwrap_or(usize::MAX);
        let registers = Registers::restored(registers, revisions.to, changes);
        let sum = state_checksums::sum(registers.list(""));
        Self {
            clock: how.clock,
            applied,
            // It is a cluster of servers of this release alone.
            version: self.version.max(ClusterVersion::SECOND),
            members: how.members.clone(),
            change_index: ChangeIndex::begin(applied.id, registers.revision(), changes),
            state_checksums: StateChecksums::restored(self.state_checksums.chain, sum),
            registers,
            ..self
        }
    }

    /// Sessions that hold registers which were not written since, under
    /// the last ids before `end`, which no cluster has given out: so none of
    /// their clients can go on. The others are over.
    fn without_owners(
        &self,
        written: &BTreeSet<Key>,
        registers: &BTreeMap<Key, Register>,
        end: LogId,
    ) -> (Sessions, Bindings) {
        let held = |key: &Key| registers.contains_key(key) && !written.contains(key);
        let kept = || self.bindings.iter().filter(|(key, _)| held(key));
        let old: BTreeSet<SessionId> = kept().map(|(_, binding)| binding.session).collect();
        let first = end - old.len() as u64;
        let renamed: BTreeMap<SessionId, SessionId> = old.into_iter().zip(first..).collect();
        let (mut sessions, mut bindings) = (Sessions::default(), Bindings::default());
        for (old, new) in &renamed {
            if let Some(session) = self.sessions.get(*old) {
                // No secret has this hash that anybody could find.
                let secret = (self.version >= ClusterVersion::SECOND).then_some([0; 16]);
                let owner = SessionOwner {
                    secret,
                    ..*session.owner()
                };
                let nobodys = Session {
                    completed: 0,
                    owner,
                    saved: VecDeque::new(),
                    ..session.clone()
                };
                sessions.insert(*new, nobodys);
            }
        }
        for (key, binding) in kept() {
            if let Some(session) = renamed.get(&binding.session) {
                bindings.bind(key.clone(), *session, binding.last.clone());
            }
        }
        (sessions, bindings)
    }

    /// What was left out when the state was restored from a backup, the first
    /// time first.
    pub fn gaps(&self) -> &[Gaps] {
        &self.gaps
    }

    /// The gap that this place in the log is in: a watch that came up to there
    /// did so in a cluster that is lost.
    pub fn gap_of_id(&self, id: LogId) -> Option<Gap> {
        let mut gaps = self.gaps.iter().map(|gaps| gaps.ids);
        gaps.find(|gap| gap.holds(id))
    }

    /// The same by revision.
    pub fn gap_of_revision(&self, revision: u64) -> Option<Gap> {
        let mut gaps = self.gaps.iter().map(|gaps| gaps.revisions);
        gaps.find(|gap| gap.holds(revision))
    }
}

/// The new cluster's own term. A cluster takes a new one for each of its
/// leaders, so it must not begin near the end of them.
fn raised_by(term: Term, step: u64) -> Result<Term, NotRestorable> {
    let left = MAX_NUMBER.saturating_sub(term.get());
    let raised = Term::new(term.get().saturating_add(step));
    let raised = raised.filter(|_| step <= left / 2);
    raised.ok_or(NotRestorable::Terms { term, step })
}

/// Registers with their stamps on another clock.
fn stamped(registers: &Registers, clock: ClockId) -> BTreeMap<Key, Register> {
    let restamped = |(key, held): (&Key, &Register)| {
        let stamp = held.stamp.map(|stamp| StoreTime { clock, ..stamp });
        let register = Register {
            stamp,
            ..held.clone()
        };
        (key.clone(), register)
    };
    registers.list("").map(restamped).collect()
}

/// What is written anew.
struct Work<'a> {
    registers: BTreeMap<Key, Register>,
    version: Version,
    stamp: StoreTime,
    step: u64,
    lease: Duration,
    longest: Option<(Key, Duration)>,
    how: &'a Restoring,
    written: BTreeSet<Key>,
    unread: Vec<Key>,
    spent: Vec<Key>,
}

impl Work<'_> {
    fn keys(&self, fits: impl Fn(&Key) -> bool) -> Vec<Key> {
        let keys = self.registers.keys().filter(|key| fits(key));
        keys.cloned().collect()
    }

    fn value(&self, key: &Key) -> Option<&Bytes> {
        self.registers.get(key).map(|register| &register.value)
    }

    fn record(&self, key: &Key) -> Option<Record> {
        let record = Record::decode(self.value(key)?).ok()?;
        (key.election().as_ref() == Some(&record.election)).then_some(record)
    }

    fn view(&self, key: &Key) -> Option<View> {
        let view = View::decode(self.value(key)?).ok()?;
        (Keys::of(view.group.clone()).view() == *key).then_some(view)
    }

    /// Writes a register anew: as young as it can be.
    fn write(&mut self, key: Key, value: Bytes) {
        let register = Register {
            value,
            version: self.version.clone(),
            stamp: Some(self.stamp),
        };
        self.registers.insert(key.clone(), register);
        self.written.insert(key);
    }

    /// The longest lease of all elections and nodes, as far as it is one that
    /// anybody can have set.
    fn read_leases(&mut self) {
        for key in self.registers.keys() {
            let record = self.record(key).map(|record| record.lease);
            let view = self.view(key);
            let lease = record.into_iter().chain(view.as_ref().map(longest)).max();
            let known = self.longest.as_ref().map(|(_, lease)| *lease);
            if let Some(lease) = lease
                && lease > known.unwrap_or_default()
            {
                self.longest = Some((key.clone(), lease));
            }
        }
        let in_backup = self.longest.as_ref().map(|(_, lease)| *lease);
        let known = self.how.longest_lease.or(in_backup);
        self.lease = known.unwrap_or_default();
    }

    /// A term or an epoch raised, or the last one.
    fn raised(&mut self, key: &Key, from: u64) -> u64 {
        let raised = from.checked_add(self.step);
        let raised = raised.filter(|term| *term < Term::MAX.get());
        raised.unwrap_or_else(|| {
            self.spent.push(key.clone());
            Term::MAX.get()
        })
    }

    fn hold_elections(&mut self) -> usize {
        let mut held = 0;
        for key in self.keys(|key| key.election().is_some()) {
            let Some(record) = self.record(&key) else {
                self.unread.push(key);
                continue;
            };
            let term = self.raised(&key, record.term.get());
            let term = Term::new(term).unwrap_or(Term::MAX);
            // Above what the old cluster has come to: who knows that must
            // not take this for older news.
            // At most what is read. Above `Record::SEQUENCE_TO_STAND_MAX` nobody stands
            // anyway, and the term has been raised.
            let sequence = record.sequence.saturating_add(JUMP);
            let sequence = sequence.min(Record::SEQUENCE_MAX);
            let record = Record {
                term,
                sequence,
                renewal: sequence,
                lease: self.lease.max(record.lease),
                acquired_at: self.how.wall,
                renewed_at: self.how.wall,
                occupancy: Occupancy::Held(Holder {
                    id: LeaderId::from_u128(self.how.holder),
                    name: held_by(),
                    addresses: [].into(),
                    params: [].into(),
                    request: None,
                }),
                ..record
            };
            self.write(key, record.encode());
            held += 1;
        }
        held
    }

    fn hold_groups(&mut self) -> usize {
        let is_view = |key: &Key| {
            let group = key.as_str().strip_prefix(Keys::PREFIX);
            let group = group.and_then(|rest| rest.strip_suffix("/view"));
            group.is_some_and(|group| !group.contains('/'))
        };
        let mut held = 0;
        for key in self.keys(is_view) {
            let Some(mut view) = self.view(&key) else {
                self.unread.push(key);
                continue;
            };
            view.epoch = self.raised(&key, view.epoch);
            let keys = Keys::of(view.group.clone());
            for beat in self.keys(|key| keys.node(key).is_some()) {
                self.registers.remove(&beat);
            }
            self.hold_group(&mut view);
            self.write(key, view.encode());
            held += 1;
        }
        held
    }

    /// One that is no process has all that the nodes had.
    fn hold_group(&self, view: &mut View) {
        let id = NodeId::from_u128(self.how.holder);
        let anything = !view.members.is_empty() || !view.workloads.is_empty();
        let lease = self.lease.max(longest(view));
        view.members.clear();
        if !anything {
            return;
        }
        let millis = u64::try_from(lease.as_nanos().div_ceil(1_000_000));
        view.members.push(Node {
            id,
            name: held_by(),
            // It makes no quorum, and takes nothing over.
            ha: false,
            draining: true,
            lease: Duration::from_millis(millis.unwrap_or(u64::MAX)),
            max: Some(0),
            serial: 0,
            labels: Vec::new(),
        });
        for assignment in view.workloads.values_mut() {
            assignment.place = match assignment.place {
                Place::Releasing {
                    to: Target::Nowhere,
                    ..
                } => Place::Releasing {
                    from: id,
                    to: Target::Nowhere,
                },
                // Even what waited: after the backup somebody may have got it.
                Place::Assigned(_) | Place::Releasing { .. } | Place::Waiting => {
                    Place::Assigned(id)
                }
            };
        }
    }
}

/// The longest lease of a group's nodes.
fn longest(view: &View) -> Duration {
    let leases = view.members.iter().map(|node| node.lease);
    let leases = leases.filter(|lease| *lease <= Config::LEASE_MAX);
    leases.max().unwrap_or_default()
}

fn held_by() -> Name {
    Name::new(HELD_BY).unwrap_or_else(|error| unreachable!("{HELD_BY}: {error}"))
}

/// What `tests/alpo_restore` says of a backup is noticed if it is not so.
#[cfg(all(test, feature = "planted-bugs"))]
mod tests {
    use super::super::super::ids::{ServerId, StorageId};
    use super::super::Limits;
    use super::*;

    #[test]
    fn a_backup_that_is_restored_in_place_gives_out_what_was_given_out() {
        let server = ServerId::new(1).expect("a number");
        let how = Restoring {
            clock: ClockId::default(),
            members: Membership::bootstrapped([(server, StorageId::from_u128(1))]),
            times: 1,
            term_step: TERM_STEP,
            longest_lease: None,
            holder: 1,
            wall: WallTime::default(),
        };
        let restored = |planted| {
            let mut state = State::new(Limits::default(), ClockId::default());
            state.plant(planted);
            state.restored(&how).expect("restorable").state.applied.id
        };
        assert_eq!(restored(Some(Bug::RestoredInPlace)), 1);
        assert!(restored(None) >= JUMP);
    }
}
