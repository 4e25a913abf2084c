//! Histories that a person can judge.

use tenure_core::ids::Key;
use tenure_sim::linearize::{Verdict, check, check_within};

use super::script::history;

fn good(text: &str) {
    let verdict = check(&history(text));
    assert!(verdict.is_linearizable(), "{text}\n{verdict}");
}

/// The history is wrong, and at least these calls (by number, from 0)
/// contradict each other.
fn bad(text: &str, core: &[usize]) {
    let history = history(text);
    let verdict = check(&history);
    let found = verdict
        .violation()
        .unwrap_or_else(|| panic!("expected a violation of\n{text}\nfound {verdict}"));
    let numbers: Vec<usize> = history
        .calls()
        .enumerate()
        .filter(|(_, (id, _))| found.core.contains(id))
        .map(|(number, _)| number)
        .collect();
    assert_eq!(numbers, core, "{text}\n{verdict}");
}

#[test]
fn nothing_happened() {
    good("");
    good("a read = absent");
}

#[test]
fn one_after_the_other() {
    good(
        "a create x = v1
         b read = x v1
         b create y = conflict
         b replace v1 y = v2
         a replace v1 z = conflict
         a read = y v2
         a delete v1 = conflict
         a delete v2 = deleted
         b read = absent
         b create x = v5
         a read = x v5",
    );
}

#[test]
fn a_read_during_a_write_sees_either_side() {
    good(
        "a create x
         b read = absent
         c read = x v1
         d read = x v1
         a = v1",
    );
}

#[test]
fn a_read_that_goes_back_is_stale() {
    // Even while the write is under way: who came second cannot see less.
    bad(
        "a create x
         b read = x v1
         c read = absent
         a = v1",
        &[1, 2],
    );
}

#[test]
fn a_read_after_a_write_sees_it() {
    bad("a create x = v1\nb read = absent", &[0, 1]);
    bad(
        "a create x = v1
         a replace v1 y = v2
         b read = x v1",
        &[1, 2],
    );
}

#[test]
fn an_update_is_not_lost() {
    // Both replaced the same version, so one of them is lost.
    bad(
        "a create x = v1
         a replace v1 y
         b replace v1 z
         a = v2
         b = v3",
        &[1, 2],
    );
}

#[test]
fn of_two_that_create_one_wins() {
    good(
        "a create x
         b create y
         b = v1
         a = conflict",
    );
    bad(
        "a create x
         b create y
         b = v1
         a = v2",
        &[0, 1],
    );
    bad(
        "a create x
         b create y
         b = conflict
         a = conflict",
        &[0, 1],
    );
}

#[test]
fn nobody_reads_what_nobody_wrote() {
    bad("a create x = v1\nb read = y v1", &[1]);
    bad("a create x = v1\nb read = x v2", &[0, 1]);
}

#[test]
fn a_failed_swap_writes_nothing() {
    bad(
        "a create x = v3
         b replace v1 y = conflict
         c read = y v4",
        &[1, 2],
    );
}

#[test]
fn a_conflict_needs_a_cause() {
    bad(
        "a create x = v1
         b replace v1 y = conflict
         c read = x v1",
        &[0, 1],
    );
    bad("a create x = conflict", &[0]);
    good(
        "a create x = v1
         c delete v1
         b replace v1 y = conflict",
    );
}

#[test]
fn one_call_does_not_take_effect_twice() {
    // The unanswered one wrote x as v1; it cannot have written it as v3 too.
    bad(
        "a create x
         b read = x v1
         b delete v1 = deleted
         c read = x v3",
        &[2, 3],
    );
}

#[test]
fn what_was_deleted_does_not_come_back() {
    bad(
        "a create x = v1
         a delete v1 = deleted
         b read = x v1",
        &[1, 2],
    );
    bad(
        "a create x = v1
         a delete v1 = deleted
         b delete v1 = deleted",
        &[1, 2],
    );
}

#[test]
fn what_was_never_answered_may_have_happened_or_not() {
    good("a create x\nb read = absent\nb read = absent");
    good("a create x\nb read = absent\nb read = x v4\nc read = x v4");
    // Long after others wrote, too.
    good(
        "a create x
         b create y = v1
         b delete v1 = deleted
         b read = absent
         b read = x v9",
    );
    bad("a create x\nb read = x v4\nb read = absent", &[1, 2]);
    bad("a create x\nb read = x v4\nb read = x v5", &[1, 2]);
}

#[test]
fn an_unseen_version_is_not_what_a_conflict_ruled_out() {
    good(
        "a create x
         b create y = conflict
         b replace v3 y = conflict
         b read = x v4",
    );
    bad(
        "a create x
         b create y = conflict
         b replace v3 y = conflict
         b read = x v3",
        &[1, 2, 3],
    );
    // Before it was there, everything conflicts.
    good(
        "a create x
         b replace v3 y = conflict
         b read = x v3",
    );
}

#[test]
fn versions_only_grow() {
    bad(
        "a create x = v5
         b replace v5 y = v4",
        &[1],
    );
    bad(
        "a create x = v5
         a delete v5 = deleted
         b create x = v5",
        &[1, 2],
    );
    bad(
        "a create x = v5
         a replace v5 y
         b read = y v3",
        &[2],
    );
}

#[test]
fn nothing_happens_before_it_is_asked_for() {
    bad(
        "b read = x v1
         a create x = v1",
        &[0],
    );
}

#[test]
fn an_answer_fits_its_question() {
    bad("a read = deleted", &[0]);
    bad("a create x = absent", &[0]);
}

#[test]
fn registers_are_independent() {
    good(
        "a create@r x = v1
         a create@s y = v2
         b read@r = x v1
         b read@s = y v2
         b read@t = absent",
    );
    let verdict = check(&history(
        "a create@r x = v1
         a create@s y = v2
         b read@r = x v1
         b read@s = absent",
    ));
    let found = verdict.violation().expect("a violation");
    assert_eq!(found.key, Key::new("s").expect("a good key"));
}

#[test]
fn a_withdrawn_call_never_happened() {
    let mut history = history("a create x\nb read = x v1");
    assert!(check(&history).is_linearizable());
    let (first, _) = history.calls().next().expect("a call");
    history.withdraw(first);
    assert!(check(&history).violation().is_some());
}

#[test]
fn a_search_that_is_given_up_says_so() {
    let history = history("a create x = v1\nb read = x v1");
    let Verdict::Inconclusive { key, .. } = check_within(&history, 1) else {
        panic!("expected no verdict");
    };
    assert_eq!(key.as_str(), "r");
}

#[test]
fn an_explanation_names_what_contradicts_what() {
    let verdict = check(&history(
        "a create x = v1
         b read = x v1
         a replace v1 y = v2
         c read = y v2
         b read = x v1
         c read = y v2",
    ));
    let expected = "\
register r: no order of the calls explains this answer:
  client 98 at 4 ns: read, at 4 ns: \"x\" of v1
by what was answered before it, the register held \"y\" of v2
these answers contradict each other, whatever became of all other calls:
  client 99 at 3 ns: read, at 3 ns: \"y\" of v2
  client 98 at 4 ns: read, at 4 ns: \"x\" of v1";
    assert_eq!(verdict.to_string(), expected);
}

#[test]
fn a_bound_register_is_its_sessions_until_that_ends() {
    good(
        "a create x = v1
         A end
         a bind v1 y z = v2
         b replace v2 w = conflict
         b delete v2 = conflict
         b note v2 n = v3
         b replace v3 w = conflict
         a bind v3 y z2 = v4
         b read = y v4
         b read = z2 v5
         b replace v5 w = v6
         A = ended
         a read = w v6",
    );
    // What was bound may be let go by another write, and then nothing comes
    // of the end.
    good(
        "a create x = v1
         A end
         a bind v1 y z = v2
         a replace v2 x = v3
         A = ended
         b read = x v3
         b replace v3 w = v4",
    );
    // Nobody knows whether the session has ended.
    good(
        "a create x = v1
         A end
         a bind v1 y z = v2
         b replace v2 w = conflict
         b replace v2 w = conflict",
    );
}

#[test]
fn another_that_writes_a_bound_register_is_caught() {
    bad(
        "a create x = v1
         A end
         a bind v1 y z = v2
         b replace v2 w = v3",
        &[2, 3],
    );
    bad(
        "a create x = v1
         A end
         a bind v1 y z = v2
         b delete v2 = deleted",
        &[2, 3],
    );
}

#[test]
fn a_last_will_that_is_not_executed_is_caught() {
    bad(
        "a create x = v1
         A end
         a bind v1 y z = v2
         A = ended
         b read = y v2",
        &[1, 3],
    );
    // Nor may it be executed before the session can have ended, or twice.
    bad(
        "a create x = v1
         a bind v1 y z = v2
         b read = z v3
         A end",
        &[2],
    );
    bad(
        "a create x = v1
         A end
         a bind v1 y z = v2
         b read = z v3
         b replace v3 y = v4
         b read = z v5",
        &[4, 5],
    );
}
