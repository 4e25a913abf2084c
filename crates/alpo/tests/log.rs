//! The log in memory, the members and the arithmetic of majorities, each
//! against a model so naive that it can be believed at sight.

use std::sync::Arc;

use tenure_alpo::quorum::{is_majority, majority, reached_by_majority};
use tenure_alpo::{
    Change, ChangeError, Command, Entry, Log, MAX_MEMBERS, Member, Membership, Operation, Payload,
    Position, ServerId, StorageId, VotingStatus,
};
use tenure_core::ids::Term;
use tenure_core::rng::Rng;

fn term(number: u64) -> Term {
    Term::new(number).expect("a small term")
}

fn server(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn storage(number: u64) -> StorageId {
    StorageId::from_u128(number.into())
}

/// What a log is: every entry there ever was, and how many are forgotten.
struct Model {
    base: Position,
    /// Those that are kept.
    entries: Vec<Entry>,
}

impl Model {
    fn last(&self) -> Position {
        self.entries.last().map_or(self.base, Entry::position)
    }

    fn position_at(&self, id: u64) -> Option<Position> {
        let mut all = vec![self.base];
        all.extend(self.entries.iter().map(Entry::position));
        all.into_iter().find(|position| position.id == id)
    }

    /// The lowest position of the term of entry `id` that is known.
    fn first_of_term(&self, id: u64) -> Option<Position> {
        let term = self.position_at(id)?.term;
        (self.base.id..=self.last().id)
            .filter_map(|id| self.position_at(id))
            .find(|position| position.term == term)
    }

    fn last_up_to_term(&self, term: Term) -> u64 {
        let kept = self.entries.iter().filter(|entry| entry.term <= term);
        kept.map(|entry| entry.id).max().unwrap_or(self.base.id)
    }

    fn slice(&self, from: u64, count: usize, bytes: usize) -> Vec<Entry> {
        let mut slice: Vec<Entry> = Vec::new();
        if from <= self.base.id {
            return slice;
        }
        for entry in self.entries.iter().filter(|entry| entry.id >= from) {
            let weight: usize = slice.iter().map(Entry::weight).sum();
            let fits = slice.is_empty() || weight + entry.weight() <= bytes;
            if slice.len() == count || !fits {
                break;
            }
            slice.push(entry.clone());
        }
        slice
    }
}

fn any_entry(rng: &mut Rng, after: Position) -> Entry {
    let length = rng.below(50) as usize;
    let payload = match rng.below(3) {
        0 => Payload::NoOp,
        1 => Payload::Open { ttl: 1 },
        _ => Payload::Command(Command {
            session: 1,
            serial: 1,
            outstanding: 1,
            operation: Operation::Append(vec![0; length].into()),
        }),
    };
    Entry {
        id: after.id + 1,
        term: term(after.term.get() + rng.below(4) / 3),
        time: after.id,
        payload,
    }
}

fn operate(rng: &mut Rng, log: &mut Log, model: &mut Model) {
    let near = |rng: &mut Rng, model: &Model| {
        let low = model.base.id.saturating_sub(2);
        rng.between(low, model.last().id + 2)
    };
    match rng.below(12) {
        0 => {
            let mut id = near(rng, model).min(model.last().id);
            if rng.chance(50) {
                log.compact(id);
            } else {
                let (count, bytes) = (rng.below(5), rng.below(300) as usize);
                log.compact(log.behind(id, count, bytes));
                // Of those up to there the last few stay.
                let upto = model.entries.iter().rev().filter(|entry| entry.id <= id);
                let mut room = bytes;
                let stay = upto.take(count as usize).take_while(|entry| {
                    let fits = entry.weight() <= room;
                    room = room.saturating_sub(entry.weight());
                    fits
                });
                id = id.saturating_sub(stay.count() as u64);
            }
            if let Some(position) = model.position_at(id.min(model.last().id)) {
                model.base = position;
                model.entries.retain(|entry| entry.id > position.id);
            }
        }
        1 | 2 => {
            let from = near(rng, model).max(model.base.id + 1);
            log.truncate(from);
            model.entries.retain(|entry| entry.id < from);
        }
        _ => {
            let entry = any_entry(rng, model.last());
            log.append(entry.clone());
            model.entries.push(entry);
        }
    }
}

fn compare_checksums(rng: &mut Rng, log: &Log, model: &Model) {
    assert_eq!((log.base(), log.last()), (model.base, model.last()));
    assert_eq!(log.len(), model.entries.len());
    assert_eq!(log.is_empty(), model.entries.is_empty());
    assert!(log.iter().eq(&model.entries));
    let bytes: usize = model.entries.iter().map(Entry::weight).sum();
    assert_eq!(log.bytes(), bytes);
    let time = model.entries.last().map(|entry| entry.time);
    assert_eq!(log.last_time(), time);
    let low = model.base.id.saturating_sub(2);
    for id in (low..=model.last().id + 2).chain([0, u64::MAX]) {
        let position = model.position_at(id);
        let entry = model.entries.iter().find(|entry| entry.id == id);
        assert_eq!(log.get(id), entry);
        assert_eq!(log.term_at(id), position.map(|position| position.term));
        assert_eq!(log.first_of_term(id), model.first_of_term(id), "{id}");
        for number in 0..=model.last().term.get() + 1 {
            let term = term(number);
            let here = position == Some(Position { term, id });
            assert_eq!(log.has(Position { term, id }), here);
            assert_eq!(log.last_up_to_term(term), model.last_up_to_term(term));
        }
        let (count, bytes) = (rng.below(5) as usize, rng.below(400) as usize);
        let slice = model.slice(id, count, bytes);
        assert_eq!(log.slice(id, count, bytes), slice, "{id} {count} {bytes}");
    }
}

#[test]
fn random_operations_agree_with_the_model() {
    for seed in 0..150 {
        let rng = &mut Rng::from_seed(seed);
        let base = match rng.below(2) {
            0 => Position::ZERO,
            _ => Position::new(term(rng.below(3)), rng.below(9)),
        };
        let entries = Vec::new();
        let (mut log, mut model) = (Log::after(base), Model { base, entries });
        for _ in 0..120 {
            operate(rng, &mut log, &mut model);
            compare_checksums(rng, &log, &model);
        }
    }
}

#[test]
fn what_does_not_follow_is_not_appended() {
    let refused = |entry: Entry| {
        let mut log = Log::after(Position::new(term(3), 7));
        std::panic::catch_unwind(move || log.append(entry)).is_err()
    };
    let entry = |id, number| Entry {
        id,
        term: term(number),
        time: 0,
        payload: Payload::NoOp,
    };
    assert!(!refused(entry(8, 3)) && !refused(entry(8, 9)));
    assert!(refused(entry(7, 3)) && refused(entry(9, 3)) && refused(entry(8, 2)));
    let mut log = Log::after(Position::new(term(3), 7));
    log.append(Entry {
        time: 5,
        ..entry(8, 3)
    });
    assert!(
        !log.fits(&Entry {
            time: 4,
            ..entry(9, 3)
        }),
        "time fell"
    );
    assert!(log.fits(&Entry {
        time: 5,
        ..entry(9, 3)
    }));
    let truncated = std::panic::catch_unwind(|| Log::after(Position::new(term(3), 7)).truncate(7));
    assert!(truncated.is_err());
}

#[test]
fn a_majority_is_more_than_half() {
    for voters in 1..50 {
        let needed = majority(voters);
        assert!(
            2 * needed > voters && 2 * (needed - 1) <= voters,
            "{voters}"
        );
    }
}

fn any_members(rng: &mut Rng) -> Membership {
    let mut members = Vec::new();
    for number in 1..=rng.below(8) {
        let voting_status = if rng.chance(70) {
            VotingStatus::Voter
        } else {
            VotingStatus::Learner
        };
        let storage = storage(number);
        members.push((
            server(number),
            Member {
                voting_status,
                storage,
            },
        ));
    }
    members.into_iter().collect()
}

#[test]
fn majorities_agree_with_counting() {
    let rng = &mut Rng::from_seed(1);
    for _ in 0..5_000 {
        let members = any_members(rng);
        // Strangers and learners too, who do not count.
        let those: Vec<ServerId> = (1..10).filter(|_| rng.chance(50)).map(server).collect();
        let (mut all, mut ours) = (0, 0);
        for (id, member) in members.iter() {
            if member.voting_status == VotingStatus::Voter {
                all += 1;
                ours += usize::from(those.contains(&id));
            }
        }
        assert_eq!(is_majority(&members, those), 2 * ours > all);
    }
}

#[test]
fn what_a_majority_has_reached_agrees_with_counting() {
    let rng = &mut Rng::from_seed(2);
    assert_eq!(reached_by_majority(Vec::new()), None);
    for _ in 0..5_000 {
        let count = rng.between(1, 9);
        let most = rng.between(1, 12);
        let numbers: Vec<u64> = (0..count).map(|_| rng.below(most)).collect();
        let by_majority = |number: u64| {
            let there = numbers.iter().filter(|other| **other >= number).count();
            2 * there > numbers.len()
        };
        let highest = (0..12).filter(|number| by_majority(*number)).max();
        assert_eq!(reached_by_majority(numbers.clone()), highest, "{numbers:?}");
    }
}

fn any_change(rng: &mut Rng) -> Change {
    let server = server(rng.between(1, 9));
    match rng.below(3) {
        0 => Change::AddLearner {
            server,
            storage: storage(rng.next_u64()),
        },
        1 => Change::Promote(server),
        _ => Change::Remove(server),
    }
}

#[test]
fn members_change_one_at_a_time_and_majorities_overlap() {
    for seed in 0..100 {
        let rng = &mut Rng::from_seed(seed);
        let founders = rng.between(1, 5);
        let mut members = Membership::bootstrapped((1..=founders).map(|n| (server(n), storage(n))));
        assert_eq!(members.voters().count() as u64, founders);
        for _ in 0..60 {
            let change = any_change(rng);
            let before = members.clone();
            let Ok(after) = members.after(change) else {
                assert_eq!(members, before);
                continue;
            };
            assert!(before.is_next_to(&after) && after.is_next_to(&before));
            assert!(after.voters().next().is_some());
            assert_overlap(&before, &after);
            match change {
                Change::AddLearner { server, storage } => {
                    let voting_status = VotingStatus::Learner;
                    assert_eq!(before.get(server), None);
                    assert_eq!(
                        after.get(server),
                        Some(Member {
                            voting_status,
                            storage
                        })
                    );
                }
                Change::Promote(server) => {
                    assert!(!before.is_voter(server) && after.is_voter(server));
                    let storage = |members: &Membership| members.get(server).map(|m| m.storage);
                    assert_eq!(storage(&before), storage(&after));
                }
                Change::Remove(server) => assert_eq!(after.get(server), None),
            }
            members = after;
        }
    }
}

/// Any majority before and any majority after share a voter.
fn assert_overlap(before: &Membership, after: &Membership) {
    let all: Vec<ServerId> = (1..10).map(server).collect();
    let sets = || 0..1_u32 << all.len();
    let set = |bits: u32| {
        let all = all.iter().enumerate();
        all.filter(move |(at, _)| bits >> at & 1 == 1)
            .map(|(_, id)| *id)
    };
    // It is enough to look at a set and at all who are not in it.
    for bits in sets() {
        let apart = is_majority(before, set(bits)) && is_majority(after, set(!bits));
        assert!(!apart, "{before:?} {after:?}");
    }
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    let one = Membership::bootstrapped([(server(1), storage(1))]);
    let admit = |number| Change::AddLearner {
        server: server(number),
        storage: storage(number),
    };
    assert_eq!(one.after(admit(1)), Err(ChangeError::AlreadyMember));
    assert_eq!(
        one.after(Change::Promote(server(1))),
        Err(ChangeError::AlreadyVoter)
    );
    assert_eq!(
        one.after(Change::Promote(server(2))),
        Err(ChangeError::NotAMember)
    );
    assert_eq!(
        one.after(Change::Remove(server(2))),
        Err(ChangeError::NotAMember)
    );
    assert_eq!(
        one.after(Change::Remove(server(1))),
        Err(ChangeError::LastVoter)
    );
    // A learner is nobody who could go on alone.
    let two = one.after(admit(2)).expect("room for one more");
    assert_eq!(
        two.after(Change::Remove(server(1))),
        Err(ChangeError::LastVoter)
    );
    assert!(two.after(Change::Remove(server(2))).is_ok());
    assert_eq!(two.peers(server(1)), [server(2)]);
    assert_eq!(two.peers(server(3)), [server(1), server(2)]);

    let most = MAX_MEMBERS as u64;
    let full = Membership::bootstrapped((1..=most).map(|n| (server(n), storage(n))));
    assert_eq!(full.after(admit(most + 1)), Err(ChangeError::Full));
}

#[test]
fn two_steps_at_once_are_not_next_to_each_other() {
    let of = |numbers: &[u64]| {
        let members = numbers.iter().map(|n| (server(*n), storage(*n)));
        Membership::bootstrapped(members)
    };
    assert!(of(&[1, 2, 3]).is_next_to(&of(&[1, 2, 3])));
    assert!(of(&[1, 2, 3]).is_next_to(&of(&[1, 2])));
    assert!(!of(&[1, 2, 3]).is_next_to(&of(&[1, 2, 4])));
    assert!(!of(&[1, 2, 3]).is_next_to(&of(&[1])));
    assert!(!of(&[1]).is_next_to(&of(&[1, 2, 3])));
}

/// To free a snapshot's worth of entries at once would keep everybody waiting.
#[test]
fn what_is_forgotten_is_handed_out_to_be_freed() {
    let data: Arc<[u8]> = vec![7; 100].into();
    let entry = |id| Entry {
        id,
        term: term(1),
        time: id,
        payload: Payload::Command(Command {
            session: 1,
            serial: id,
            outstanding: 1,
            operation: Operation::Append(Arc::clone(&data)),
        }),
    };
    let mut log = Log::default();
    (1..=1_000).for_each(|id| log.append(entry(id)));
    let forgotten = log.compact(990);
    assert_eq!(log.len(), 10);
    assert_eq!(Arc::strong_count(&data), 1_001, "the caller frees them");
    drop(forgotten);
    // But for those that lie next to one that is still needed.
    let kept = Arc::strong_count(&data) - 1 - log.len();
    assert!(kept < 128, "{kept} of 990 are kept");
    let same = {
        let mut same = Log::after(log.base());
        (991..=1_000).for_each(|id| same.append(entry(id)));
        same
    };
    assert_eq!(log, same, "what is forgotten is no part of it");
    drop(same);
}
