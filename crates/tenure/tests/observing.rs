//! Looking at elections and asking leaders to go, over stores in memory that
//! may go wrong.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{Faulty, garble};
use crate::common::intercepted::{Answer, Intercepted, Interceptor};
use tenure::core::election::{Holder, Occupancy, Record};
use tenure::core::ids::LeaderId;
use tenure::election::{Certainty, Event, FailureClass, RepairError};
use tenure::store::{Expect, Key, Memory, Reading, Stamp, Store, Write};
use tenure::{Election, Name, StoreError, Term, election};

const WITHIN: Duration = Duration::from_secs(20);

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A candidate that leads, and its proof.
async fn leading(store: Arc<dyn Store>, election: &str) -> (Election, tenure::Leadership) {
    let builder = Election::builder(store, election).name("web-1");
    // Four fifths of it a busy machine may keep the leader waiting.
    let builder = builder.lease(Duration::from_secs(4));
    let mut election = builder.start().expect("a candidate");
    let leadership = election.elected().await.expect("a leadership");
    (election, leadership)
}

/// Writes what a register holds already, which changes its version.
async fn write_again(store: &dyn Store, election: &str) {
    let key = Key::of_election(&name(election));
    let found = store.read(&key, WITHIN).await.expect("a read").register;
    let found = found.expect("a register");
    let write = Write {
        key,
        expect: Expect::Version(found.version),
        value: found.value,
        stamp: Stamp::Keep,
    };
    let written = store.compare_and_swap(write, WITHIN).await;
    written.expect("nobody wrote in between");
}

/// Puts what one key holds under another, as a careless restore would.
async fn copy(store: &dyn Store, from: &str, to: &str) {
    let from = Key::of_election(&name(from));
    let found = store.read(&from, WITHIN).await.expect("a read").register;
    let write = Write {
        key: Key::of_election(&name(to)),
        expect: Expect::Absent,
        value: found.expect("a register").value,
        stamp: Stamp::Now,
    };
    store
        .compare_and_swap(write, WITHIN)
        .await
        .expect("a write");
}

fn broken(found: Option<StoreError>) -> String {
    match found {
        Some(StoreError::Broken(why)) => why.to_string(),
        other => panic!("expected a store that is broken, found {other:?}"),
    }
}

#[tokio::test]
async fn the_record_of_another_election_is_nobodys_vacancy() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let _leading = leading(Arc::clone(&store), "payroll").await;
    copy(store.as_ref(), "payroll", "billing").await;
    let looked = election::leader(Arc::clone(&store), &name("billing"), WITHIN).await;
    let why = broken(looked.err());
    assert!(
        why.contains("expected the record of billing, found that of payroll"),
        "{why}"
    );
    let listed = election::list(store, WITHIN).await.expect("a list");
    let states: Vec<_> = listed.iter().map(|(_, seen)| seen.is_ok()).collect();
    assert_eq!(states, [false, true]);
}

/// A store that garbles the answers whose numbers, from zero, fit.
fn garbling(inner: &Memory, fits: fn(usize) -> bool) -> Arc<dyn Store> {
    let answers = AtomicUsize::new(0);
    let faulty = Faulty::new(move |reading| {
        let number = answers.fetch_add(1, Ordering::Relaxed);
        Ok(if fits(number) {
            garble(reading)
        } else {
            reading
        })
    });
    faulty.over(inner.clone())
}

#[tokio::test]
async fn one_garbled_answer_is_asked_for_again() {
    let memory = Memory::new();
    let (_election, leadership) = leading(Arc::new(memory.clone()), "payroll").await;
    let payroll = name("payroll");
    let once = garbling(&memory, |number| number == 0);
    let (seen, record) = election::leader(once, &payroll, WITHIN)
        .await
        .expect("a look");
    assert_eq!(
        seen.leader.map(|leader| leader.id),
        Some(leadership.fence().leader)
    );
    assert!(record.is_some());
    let always = garbling(&memory, |_| true);
    let looked = election::leader(always, &payroll, WITHIN).await;
    let why = broken(looked.err());
    assert!(why.contains("expected an election's register"), "{why}");
}

#[tokio::test]
async fn a_leader_keeps_its_election_through_a_garbled_answer() {
    let memory = Memory::new();
    let armed = Arc::new(AtomicBool::new(false));
    let arm = Arc::clone(&armed);
    let store = Faulty::new(move |reading| {
        let garbled = armed.swap(false, Ordering::Relaxed);
        Ok(if garbled { garble(reading) } else { reading })
    });
    let (election, leadership) = leading(store.over(memory.clone()), "payroll").await;
    let mut events = election.events();
    // A stranger's write makes the next renewal a conflict, which the leader
    // settles by a read: the one that is garbled.
    arm.store(true, Ordering::Relaxed);
    write_again(&memory, "payroll").await;
    let mut renewals = 0;
    while renewals < 2 {
        match events.next().await.expect("an event") {
            Event::Renewed { .. } => renewals += 1,
            Event::Draining { why, .. } | Event::Ousted { why, .. } => {
                panic!("the leadership was given up: {why}")
            }
            Event::Trouble { failure, .. } => assert_ne!(failure.class, FailureClass::Broken),
            _ => {}
        }
    }
    assert!(!arm.load(Ordering::Relaxed), "nothing was garbled");
    assert!(leadership.is_valid());
    drop(leadership);
    election.stop().await;
}

/// A store that tries until its time is over, and says then why it could not.
struct Trying;

impl Interceptor for Trying {
    fn read<'a>(&'a self, _: &'a dyn Store, _: &'a Key, within: Duration) -> Answer<'a, Reading> {
        Box::pin(async move {
            tokio::time::sleep(within).await;
            Err(StoreError::unavailable("nobody listens at h:1"))
        })
    }
}

#[tokio::test]
async fn what_a_store_says_at_the_end_of_its_time_is_told() {
    let store = Intercepted::new(Arc::new(Memory::new()), Trying);
    let builder = Election::builder(store, "payroll").lease(Duration::from_secs(3));
    let election = builder.start().expect("a candidate");
    let mut events = election.events();
    let mut told = Vec::new();
    while told.len() < 3 {
        if let Event::Trouble { failure, .. } = events.next().await.expect("an event") {
            told.push(failure.why);
        }
    }
    // A busy machine may be late for one.
    let words = |why: &&Arc<str>| why.contains("nobody listens at h:1");
    assert!(told.iter().filter(words).count() >= 2, "{told:?}");
}

#[tokio::test]
async fn a_leader_is_confirmed_by_its_renewal_or_by_its_silence() {
    let memory = Memory::new();
    let clockless = || Faulty::new(Ok).without_clock().over(memory.clone());
    let payroll = name("payroll");
    let (election, leadership) = leading(clockless(), "payroll").await;
    let confirmed = election::leader_confirmed(clockless(), &payroll, WITHIN).await;
    let (seen, record) = confirmed.expect("an answer");
    assert_eq!(seen.certainty, Certainty::Proven);
    assert_eq!(
        seen.leader.map(|leader| leader.id),
        Some(leadership.fence().leader)
    );
    let renewal = record.expect("the record that was seen").renewal;
    assert!(renewal > 1, "it was not a renewal that proved it");
    drop(leadership);
    election.stop().await;
}

#[tokio::test]
async fn confirming_ends_when_the_store_goes_away() {
    let memory = Memory::new();
    let (_election, _reign) = leading(Arc::new(memory.clone()), "payroll").await;
    let answers = AtomicUsize::new(0);
    let gone = Faulty::new(
        move |reading| match answers.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(reading),
            _ => Err(StoreError::unavailable("gone")),
        },
    );
    let gone = gone.without_clock().over(memory);
    let patience = Duration::from_millis(200);
    let payroll = name("payroll");
    let confirming = election::leader_confirmed(gone, &payroll, patience);
    let confirmed = tokio::time::timeout(WITHIN, confirming).await;
    let confirmed = confirmed.expect("an end");
    assert!(
        matches!(confirmed, Err(StoreError::Unavailable(_))),
        "{confirmed:?}"
    );
}

#[tokio::test]
async fn a_request_gives_each_call_its_own_time() {
    let memory = Memory::new();
    let (_election, _reign) = leading(Arc::new(memory.clone()), "payroll").await;
    let given = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&given);
    let faulty = Faulty::new(Ok).timing(move |within| noted.lock().expect("no panic").push(within));
    let store = faulty.over(memory);
    let (within, patience) = (Duration::from_millis(700), Duration::from_millis(100));
    let resigned = election::ask_to_resign(store, &name("payroll"), None, within, patience).await;
    // The leadership is never dropped, so nobody goes.
    let waited = resigned.expect_err("it cannot go");
    assert!(
        matches!(&waited, election::LeaderRequestError::Unheard { waited } if *waited == patience),
        "{waited:?}"
    );
    assert_eq!(*given.lock().expect("no panic"), [within]);
}

/// A conflict though nobody wrote is no race: it is told as what it is, and is
/// not repeated as fast as the store answers.
#[tokio::test]
async fn what_a_store_refuses_is_told_and_not_hammered() {
    let memory = Memory::new();
    let writes = Arc::new(Mutex::new(0));
    let count = Arc::clone(&writes);
    let faulty = Faulty::new(Ok).refusing().timing(move |_| {
        *count.lock().expect("no panic") += 1;
    });
    let store = faulty.over(memory.clone());
    let payroll = name("payroll");
    let (election, leadership) = leading(Arc::new(memory.clone()), "payroll").await;
    let request = election::ask_to_resign(Arc::clone(&store), &payroll, None, WITHIN, WITHIN);
    let asked = request.await.expect_err("it cannot be asked").to_string();
    drop(leadership);
    election.stop().await;

    let above = Term::new(7).expect("a term");
    let patience = Duration::from_millis(300);
    let before = *writes.lock().expect("no panic");
    let repair = election::repair(Arc::clone(&store), &payroll, above, WITHIN, patience);
    let repaired = repair.await.expect_err("it cannot be raised").to_string();
    let raced = *writes.lock().expect("no panic") - before;
    assert!((1..=4).contains(&raced), "{raced} races in {patience:?}");
    let forgotten = election::forget(store, &payroll, WITHIN).await;
    let forgotten = forgotten.expect_err("it cannot be deleted").to_string();
    for said in [asked, repaired, forgotten] {
        let told = said.contains("elections/payroll") && said.contains("found it refused");
        assert!(told, "{said}");
    }
}

/// What a stolen token has written: a term or a sequence after which there is
/// none. The next leader is above nothing then, as there is none.
#[tokio::test]
async fn a_record_above_which_no_candidate_stands_is_not_repaired_but_forgotten() {
    let term = |term| Term::new(term).expect("a term");
    let most = (1 << 63) - 1;
    let half = 1 << 62;
    for (in_term, sequence, vacant) in [(most, 7, false), (half, half, false), (most, 7, true)] {
        let memory = Memory::new();
        let store: Arc<dyn Store> = Arc::new(memory);
        let (stand, leadership) = leading(Arc::clone(&store), "payroll").await;
        drop(leadership);
        stand.stop().await;
        let key = Key::of_election(&name("payroll"));
        let found = store.read(&key, WITHIN).await.expect("a read").register;
        let found = found.expect("a register");
        let mut record = Record::decode(&found.value).expect("a record");
        (record.term, record.sequence) = (term(in_term), sequence);
        if !vacant {
            record.occupancy = Occupancy::Held(holder());
        }
        let write = Write {
            key,
            expect: Expect::Version(found.version),
            value: record.encode(),
            stamp: Stamp::Now,
        };
        let written = store.compare_and_swap(write, WITHIN).await;
        written.expect("nobody wrote in between");

        let (payroll, above) = (name("payroll"), term(100));
        let repair = || election::repair(Arc::clone(&store), &payroll, above, WITHIN, WITHIN);
        let why = repair().await.expect_err("nobody follows").to_string();
        assert!(
            why.contains("`tenure forget payroll --holder-is-gone`"),
            "{why}"
        );
        let within = Duration::from_millis(100);
        let forgotten = election::forget_abandoned(Arc::clone(&store), &payroll, within).await;
        assert_eq!(forgotten.expect("nobody renews").get(), in_term);
        assert_eq!(repair().await.expect("a term").get(), 101);
    }
}

/// A holder that never was.
fn holder() -> Holder {
    Holder {
        id: LeaderId::from_u128(7),
        name: name("thief"),
        addresses: Vec::new().into(),
        params: [].as_slice().into(),
        request: None,
    }
}

/// Who may read and not write is told so, and soon: nothing mends it.
#[tokio::test]
async fn a_repair_that_is_refused_ends_long_before_its_patience() {
    let memory = Memory::new();
    let store = Faulty::new(Ok).refusing().over(memory);
    let (within, patience) = (Duration::from_millis(300), Duration::from_secs(3_600));
    let above = Term::new(7).expect("a term");
    let payroll = name("payroll");
    let repair = election::repair(store, &payroll, above, within, patience);
    let repaired = tokio::time::timeout(WITHIN, repair).await.expect("an end");
    let error = repaired.expect_err("it cannot be raised");
    let is_broken = matches!(error, RepairError::Store(StoreError::Broken(_)));
    assert!(is_broken, "{error:?}");
    let said = error.to_string();
    assert!(said.contains("found it refused"), "{said}");
    assert!(!said.contains("3600s"), "{said}");
}

/// The leader renews every 800 ms: a write that takes longer is never in time.
#[tokio::test]
async fn a_request_that_renewals_outrun_ends_in_time_and_says_why() {
    let memory = Memory::new();
    let (_election, leadership) = leading(Arc::new(memory.clone()), "payroll").await;
    let ms = Duration::from_millis;
    let far = || {
        Faulty::new(Ok)
            .far_away(ms(0), ms(1_000))
            .over(memory.clone())
    };
    let (payroll, within) = (name("payroll"), ms(2_500));
    let term = |above| Term::new(above).expect("a term");
    let asked = election::ask_to_resign(far(), &payroll, None, within, WITHIN);
    let repaired = election::repair(far(), &payroll, term(7), within, WITHIN);
    let both = async { tokio::join!(asked, repaired) };
    let ended = tokio::time::timeout(Duration::from_secs(15), both).await;
    let (asked, repaired) = ended.expect("an end");
    let why = asked.expect_err("it is too far").to_string();
    for words in ["a round trip to the store takes", "--timeout"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    // As it was seen, on a machine that may have been busy.
    let every = why.split("renews every ").nth(1);
    let millis = every.and_then(|it| it.split("ms").next()?.parse::<f64>().ok());
    assert!(
        millis.is_some_and(|it| (790.0..2_000.0).contains(&it)) || why.contains("renews every 1."),
        "{why}"
    );
    let why = repaired.expect_err("it is too far").to_string();
    assert!(why.contains("nothing was asked"), "{why}");
    assert!(leadership.is_valid());
}

/// A read and a write take longer than the leader's interval (800 ms), and a
/// write alone more than half of it: one that is sent right after a renewal is
/// in time.
#[tokio::test]
async fn a_request_from_afar_is_written_right_after_a_renewal() {
    let memory = Memory::new();
    let (_election, leadership) = leading(Arc::new(memory.clone()), "payroll").await;
    let ms = Duration::from_millis;
    let far = Faulty::new(Ok).far_away(ms(400), ms(500)).over(memory);
    let (payroll, within) = (name("payroll"), Duration::from_secs(10));
    let going = async move {
        leadership.cancelled().await;
        drop(leadership);
    };
    let asked = election::ask_to_resign(far, &payroll, None, within, WITHIN);
    let both = async { tokio::join!(asked, going) };
    let gone = tokio::time::timeout(WITHIN, both).await;
    let (asked, ()) = gone.expect("it was asked in time");
    asked.expect("it has gone");
}

#[tokio::test]
async fn a_transfer_to_the_leader_changes_nothing() {
    let memory = Memory::new();
    let store: Arc<dyn Store> = Arc::new(memory.clone());
    let (_election, leadership) = leading(Arc::clone(&store), "payroll").await;
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&writes);
    let faulty = Faulty::new(Ok).timing(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let store = faulty.over(memory);
    let (payroll, to) = (name("payroll"), name("web-1"));
    let seen = election::ask_to_transfer(store, &payroll, to, WITHIN, WITHIN).await;
    let (_, seen) = seen.expect("an answer");
    let leader = seen.leader;
    assert_eq!(
        leader.map(|leader| leader.id),
        Some(leadership.fence().leader)
    );
    assert_eq!(writes.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_transfer_to_nobody_is_refused_where_the_store_knows_who_stands() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (_election, leadership) = leading(Arc::clone(&store), "payroll").await;
    let request = |to: &str| {
        let (store, payroll, to) = (Arc::clone(&store), name("payroll"), name(to));
        async move { election::ask_to_transfer(store, &payroll, to, WITHIN, WITHIN).await }
    };
    let refused = request("web-2").await.expect_err("nobody of that name");
    assert!(refused.to_string().contains("found web-2"), "{refused}");
    assert!(refused.to_string().contains("web-1 stand"), "{refused}");
    // Nothing was written, and the leader goes on.
    let key = Key::of_election(&name("payroll"));
    let found = store.read(&key, WITHIN).await.expect("a read").register;
    let record = found.map(|it| Record::decode(&it.value));
    let record = record.expect("a register").expect("a record");
    assert_eq!(record.holder().expect("a holder").request, None);
    assert!(leadership.is_valid());

    // One that stands is obeyed, and one that has stopped stands no more.
    let builder = Election::builder(Arc::clone(&store), "payroll").name("web-2");
    let other = builder
        .lease(Duration::from_secs(4))
        .start()
        .expect("a candidate");
    let handing_over = async {
        leadership.cancelled().await;
        drop(leadership);
    };
    let (asked, ()) = tokio::join!(request("web-2"), handing_over);
    let (before, seen) = asked.expect("it takes over");
    assert_eq!(before.name, name("web-1"));
    assert_eq!(seen.leader.expect("a leader").name, name("web-2"));
    other.stop().await;
    let stands = || store.candidates(&name("payroll")).expect("a list");
    while stands().contains(&name("web-2")) {
        tokio::task::yield_now().await;
    }
    let refused = request("web-2").await.expect_err("it has stopped");
    assert!(refused.to_string().contains("found web-2"), "{refused}");
}

#[tokio::test]
async fn a_store_that_panics_ends_the_election_and_the_watch() {
    let store = Faulty::new(Ok).panicking().over(Memory::new());
    let builder = Election::builder(Arc::clone(&store), "payroll");
    let mut standing = builder.start().expect("a candidate");
    let elected = tokio::time::timeout(WITHIN, standing.elected()).await;
    assert!(elected.expect("an end").is_none());
    let mut watcher = election::watch(store, name("payroll"), false);
    let last = tokio::time::timeout(WITHIN, watcher.next()).await;
    assert!(matches!(last.expect("an end"), None | Some(Event::Stopped)));
}

#[tokio::test]
async fn whoever_listens_late_still_hears_who_won() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    // It has won before anybody asks for its events.
    let (election, leadership) = leading(store, "payroll").await;
    let mut events = election.events();
    let won = async {
        while let Some(event) = events.next().await {
            if matches!(event, Event::Elected { .. }) {
                return true;
            }
        }
        false
    };
    assert!(tokio::time::timeout(WITHIN, won).await == Ok(true));
    drop(leadership);
}
