//! A state that is restored more than once, and one that no server would take.

use tenure_alpo::codec::crc32c_append;
use tenure_alpo::{Gap, MAX_NUMBER, Position};

use super::*;

/// What a server that starts, and one that joins, makes of it.
fn read(state: &State) -> State {
    let image = state.encode();
    let started = State::decode(&image).expect("a state that a server starts from");
    let joined = State::decode_foreign(crc32c_append, &image);
    assert_eq!(joined.expect("one that is taken").encode(), image);
    assert_eq!(started.encode(), image);
    assert_eq!(started.user_log(), state.user_log());
    started
}

fn texts(found: QueryResult) -> Vec<(u64, String)> {
    let QueryResult::UserLog(Ok(entries)) = found else {
        panic!("expected entries, found {found:?}");
    };
    let text = |entry: &Bytes| String::from_utf8_lossy(entry).into_owned();
    let entries = entries.iter();
    entries.map(|(number, it)| (*number, text(it))).collect()
}

#[test]
fn with_nothing_appended_between_two_restores_the_log_is_as_it_was() {
    let mut log = Log::new();
    log.append("one");
    let (id, revision) = (log.state.applied().id, log.state.registers().revision());
    for times in 1..=4 {
        // Elections and sessions go on, but nobody appends.
        let mut next = Log::of(read(&log.restored().state));
        next.put("a", bytes("1"));
        log = next;
        let state = &log.state;
        let next = 2 + times * JUMP;
        assert_eq!(texts(log.read_log(1)), [(1, "one".to_owned())]);
        for from in [2, 2 + JUMP / 2, next - 1] {
            assert_eq!(log.read_log(from), QueryResult::Restored(next), "{from}");
        }
        assert_eq!(state.user_log().next(), next);
        // As one, which servers of the release before read as well.
        let [gaps] = state.gaps() else {
            panic!("expected one gap, found {:?}", state.gaps());
        };
        let numbers = Gap { from: 2, to: next };
        assert_eq!(gaps.numbers, numbers);
        assert_eq!((gaps.ids.from, gaps.revisions.from), (id, revision));
        assert!(state.gap_of_id(state.applied().id).is_none());
        assert!(state.gap_of_id(id + times * JUMP - JUMP / 2).is_some());
    }
    let number = log.append("two");
    assert_eq!(texts(log.read_log(number)), [(number, "two".to_owned())]);
    // From here on gaps are apart again.
    let mut last = Log::of(read(&log.restored().state));
    assert_eq!(last.state.gaps().len(), 2);
    assert_eq!(last.append("three"), number + 1 + JUMP);
    read(&last.state);
}

#[test]
fn with_nothing_at_all_between_restores_it_is_restored_again() {
    for entries in 0..3 {
        let mut log = Log::new();
        for _ in 0..entries {
            log.append("old");
        }
        for _ in 0..3 {
            log.state = read(&log.restored().state);
        }
        let mut anew = Log::of(log.state);
        let number = anew.append("new");
        assert_eq!(number, entries + 1 + 3 * JUMP);
        let user_log = anew.state.user_log();
        assert_eq!(user_log.read(number).map(Iterator::count), Ok(1));
        let first = if entries == 0 { number } else { 1 };
        assert_eq!(user_log.first(), first);
    }
}

#[test]
fn a_log_that_forgets_its_oldest_entries_forgets_both_gaps() {
    let limits = Limits {
        user_log_bytes: 100,
        ..Limits::default()
    };
    let mut log = Log::of(State::new(limits, OLD));
    log.append("one");
    log.state = log.restored().state;
    let mut anew = Log::of(log.restored().state);
    for step in 0..6 {
        let number = anew.append("more");
        assert_eq!(number, 2 + 2 * JUMP + step);
        let first = read(&anew.state).user_log().first();
        assert!(first == 1 || (2 + 2 * JUMP..=number).contains(&first));
    }
}

/// A release before wrote two gaps that touch, which it could not read.
#[test]
fn two_gaps_that_touch_are_read_and_made_one_by_the_next_restore() {
    let mut log = Log::new();
    log.append("one");
    let once = log.restored().state;
    let state = Log { state: once, ..log }.restored().state;
    let [gaps] = state.gaps() else {
        panic!("expected one gap, found {:?}", state.gaps());
    };
    let image = state.encode();
    let written = |all: &[[Gap; 3]]| {
        let mut to = Vec::new();
        put_u64(&mut to, all.len() as u64);
        for gap in all.iter().flatten() {
            put_u64(&mut to, gap.from);
            put_u64(&mut to, gap.to);
        }
        to
    };
    let all = [gaps.ids, gaps.revisions, gaps.numbers];
    let parts = |gap: Gap| {
        let Gap { from, to } = gap;
        let middle = from + JUMP;
        (Gap { from, to: middle }, Gap { from: middle, to })
    };
    let two = [all.map(|gap| parts(gap).0), all.map(|gap| parts(gap).1)];
    let rest = &image[..image.len() - 4 - written(&[all]).len()];
    let mut image = [rest, &written(&two)].concat();
    image.extend(crc32c(&image).to_le_bytes());

    let found = State::decode(&image).expect("a state");
    assert_eq!(found.encode(), image, "as it was");
    assert_eq!(found.user_log(), state.user_log());
    let mut log = Log::of(found);
    for from in [2, 2 + JUMP] {
        assert_eq!(
            log.read_log(from),
            QueryResult::Restored(2 + 2 * JUMP),
            "{from}"
        );
    }
    assert_eq!(log.append("two"), 2 + 2 * JUMP);
    let again = Log::of(read(&log.restored().state));
    assert_eq!(again.state.gaps().len(), 2);
    assert_eq!(texts(again.read_log(1)), [(1, "one".to_owned())]);
}

#[test]
fn a_step_that_leaves_too_few_terms_is_refused() {
    let log = Log::new();
    let with = |term_step, times| {
        let how = Restoring {
            term_step,
            times,
            ..restoring()
        };
        log.restored_by(&how)
    };
    let term = log.state.applied().term;
    let most = (MAX_NUMBER - term.get()) / 2;
    let restored = with(most, 1).expect("half of them are left").state;
    assert_eq!(read(&restored).applied().term.get(), term.get() + most);
    for (step, times) in [
        (most + 1, 1),
        (most / 2 + 1, 2),
        (MAX_NUMBER - 5, 1),
        (MAX_NUMBER, 1),
        (u64::MAX, 1),
        (u64::MAX, 3),
    ] {
        let found = step.saturating_mul(times);
        let refused = with(step, times).expect_err("too far");
        assert_eq!(refused, NotRestorable::Terms { term, step: found });
        let said = refused.to_string();
        assert!(said.contains(&format!("found {found}")), "{said}");
    }
    // Once more by as much as is usual.
    assert!(restored.restored(&restoring()).is_ok());
}

#[test]
fn a_state_that_servers_would_refuse_is_not_made() {
    let mut log = Log::new();
    let past = MAX_NUMBER + 1;
    let Position { id, term } = log.state.applied();
    log.state.apply(&Entry {
        id: id + 1,
        term,
        time: past,
        payload: Payload::NoOp,
    });
    let refused = log.restored_by(&restoring()).expect_err("out of range");
    let why = SnapshotError::Decode(DecodeError::Number);
    assert_eq!(refused, NotRestorable::Refused(why));
    assert!(refused.to_string().contains("out of range"), "{refused}");
}
