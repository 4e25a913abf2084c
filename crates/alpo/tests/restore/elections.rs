//! What becomes of elections: who is held, for how long, in which term.

use core::time::Duration;

use tenure_alpo::{JUMP, Restoring, TERM_STEP};
use tenure_core::ids::{LeaderId, Term};
use tenure_election::Record;

use super::{Log, bytes, held, key, record, restoring};

#[test]
fn an_election_is_held_for_the_longest_lease_in_a_raised_term() {
    let mut log = Log::new();
    let vacant = record("idle", 7, 10, None);
    let led = record("pay", 9, 30, Some(1));
    log.put("elections/idle", vacant.encode());
    log.bind("elections/pay", led.encode(), vacant.encode());
    log.put("elections/notes", bytes("no record"));
    // A record of another election is none of this one.
    log.put("elections/other", led.encode());
    let before: Vec<_> = ["idle", "pay"]
        .map(|it| {
            let held = log.state.registers().read(&key(&format!("elections/{it}")));
            held.expect("it is there").version.clone()
        })
        .into();
    let restored = log.restored();
    assert_eq!((restored.elections, restored.groups), (2, 0));
    assert_eq!(restored.lease, Duration::from_secs(30));
    let unread = ["elections/notes", "elections/other"].map(key);
    assert_eq!(restored.unread, unread);
    let state = restored.state;
    for (index, (election, term)) in [("idle", 7), ("pay", 9)].into_iter().enumerate() {
        let at = format!("elections/{election}");
        let record = held(&state, &at);
        let holder = record.holder().expect("held");
        assert_eq!(record.term.get(), term + TERM_STEP);
        assert_eq!(holder.id, LeaderId::from_u128(0xabc));
        assert_eq!(record.lease, Duration::from_secs(30));
        assert!(record.sequence >= 17 + JUMP && record.renewal == record.sequence);
        let register = state.registers().read(&key(&at)).expect("a register");
        // As young as it can be, and of a version that nobody knows.
        assert_eq!(register.stamp, Some(state.store_time()));
        assert!(register.version.to_u64() > before[index].to_u64().map(|it| it + JUMP / 2));
        assert_eq!(state.bound(&key(&at)), None, "bound to no session");
    }
    let how = Restoring {
        longest_lease: Some(Duration::from_secs(90)),
        ..restoring()
    };
    let longer = log.restored_by(&how).expect("restorable").state;
    let lease = held(&longer, "elections/idle").lease;
    assert_eq!(lease, Duration::from_secs(90));
    // One that nobody can have set is not read, and counts for nothing.
    log.put(
        "elections/odd",
        record("odd", 1, u64::MAX >> 35, None).encode(),
    );
    let restored = log.restored();
    assert_eq!(restored.lease, Duration::from_secs(30));
    assert_eq!(restored.elections, 2);
    assert!(restored.unread.contains(&key("elections/odd")));
}

#[test]
fn one_election_keeps_no_other_from_being_restored_or_led() {
    let mut log = Log::new();
    log.put("elections/idle", record("idle", 7, 10, None).encode());
    log.put("elections/pay", record("pay", 9, 30, Some(1)).encode());
    // Who may write one election keeps nobody else waiting, if the operator
    // knows better; and the one itself is held as long as it says.
    let week = Duration::from_secs(7 * 86_400);
    log.put(
        "elections/slow",
        record("slow", 1, 7 * 86_400, None).encode(),
    );
    let restored = log.restored();
    assert_eq!(restored.lease, week);
    assert_eq!(restored.longest, Some((key("elections/slow"), week)));
    let how = Restoring {
        longest_lease: Some(Duration::from_secs(5)),
        ..restoring()
    };
    let shorter = log.restored_by(&how).expect("restorable").state;
    for (election, lease) in [("idle", 10), ("pay", 30), ("slow", 7 * 86_400)] {
        let held = held(&shorter, &format!("elections/{election}"));
        assert_eq!(held.lease, Duration::from_secs(lease), "{election}");
    }
    // One whose term cannot be raised keeps no other from being restored.
    let highest = Record {
        term: Term::MAX,
        ..record("full", 1, 1, None)
    };
    log.put("elections/full", highest.encode());
    let restored = log.restored();
    assert_eq!(restored.spent, [key("elections/full")]);
    assert_eq!(restored.elections, 4);
    let full = held(&restored.state, "elections/full");
    assert_eq!((full.term, full.term.next()), (Term::MAX, None));
    let pay = held(&restored.state, "elections/pay");
    assert_eq!(pay.term.get(), 9 + TERM_STEP);
}
