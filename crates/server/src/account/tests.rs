//! Who may hold how much, and who is woken.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize as Count;
use std::task::Wake;

use super::*;

#[derive(Default)]
struct Woken(Count);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn account() -> Arc<Account> {
    Account::new(Family::default(), false)
}

fn place(account: &Arc<Account>, from: u8) -> Arc<CallerAccount> {
    let address = Ipv4Addr::new(10, 0, 0, from).into();
    account.connection(address).alone()
}

fn polled(room: &mut FlowControl, woken: &Arc<Woken>) -> bool {
    let waker = Arc::clone(woken).into();
    room.poll(&Context::from_waker(&waker)).is_ready()
}

#[test]
fn each_fills_its_own_part_and_is_named() {
    let account = account();
    let connection = account.connection(Ipv4Addr::LOCALHOST.into());
    let one = connection.alone();
    let _full = one.charge(ANSWERS.connection + 1, None);
    let refused = one.room(false).expect_err("its connection is full");
    assert_eq!(refused.cause(), Cause::Busy);
    assert!(refused.message.contains("found 5"), "{}", refused.message);
    assert!(refused.message.contains("for this connection"));
    assert!(one.room(true).is_ok(), "there is room that is kept");
    let beside = account.connection(Ipv4Addr::LOCALHOST.into()).alone();
    assert!(beside.room(false).is_ok(), "another connection of the same");
    let more: Vec<_> = (0..5)
        .map(|_| {
            let connection = account.connection(Ipv4Addr::LOCALHOST.into());
            connection.alone().charge(ANSWERS.connection, None)
        })
        .collect();
    let refused = beside.room(false).expect_err("its caller is full");
    assert!(refused.message.contains("the address 127.0.0.1"));
    assert!(place(&account, 2).room(false).is_ok(), "another caller");
    drop(more);
    assert!(beside.room(false).is_ok());
    let many: Vec<_> = (1..=15)
        .map(|it| place(&account, it).charge(4 * MIB, None))
        .collect();
    let refused = place(&account, 77).room(false).expect_err("all are full");
    assert!(refused.message.contains("all clients"));
    drop(many);
    assert_eq!(account.held(), [0, ANSWERS.connection + 1]);
}

#[test]
fn requests_are_counted_until_they_are_over() {
    let account = account();
    let place = place(&account, 1);
    let begin = || RequestCharge::begin(Arc::clone(&place), 100, false);
    let one = begin().expect("room");
    one.take(15 * MIB, true).expect("room");
    let refused = one.take(2 * MIB, true).expect_err("too much");
    assert_eq!(refused.cause(), Cause::Busy);
    let small = begin().expect("small calls get through");
    small.take(9_000, false).expect("and so do their bodies");
    one.give(2 * MIB);
    drop((one, small));
    assert_eq!(account.held(), [0, 0]);
}

/// However many they are; and what is let in by the room that is kept finds it
/// for its body too.
#[test]
fn strangers_leave_room_for_those_who_have_tokens_and_their_calls_for_operators() {
    let account = Account::new(Family::default(), true);
    let fill = |kept| {
        let mut held = Vec::new();
        for from in 0..=u8::MAX {
            let place = place(&account, from);
            while let Ok(one) = RequestCharge::begin(Arc::clone(&place), 60_000, kept) {
                held.push(one);
            }
        }
        held
    };
    let _calls = fill(false);
    assert!(account.held()[0] <= STRANGERS.all + MIB);
    let known = |key| {
        let known = CallerId::Token([key; 32], "clerk".into());
        Arc::new(CallerAccount {
            connection: Arc::default(),
            unsent: Arc::default(),
            caller: account.caller(&known),
            account: Arc::clone(&account),
            caller_id: known,
        })
    };
    let work = RequestCharge::begin(known(7), 0, false).expect("it finds room");
    work.take(15 * MIB, true).expect("for a large body too");
    drop(work);
    let probes = fill(true);
    let prober = place(&account, 1);
    let mut unread = Vec::new();
    while let Ok(one) = RequestCharge::begin_probe(Arc::clone(&prober), 100) {
        unread.push(one);
    }
    assert!((2..=8).contains(&unread.len()), "{}", unread.len());
    drop(unread);
    assert!(account.held()[0] <= STRANGERS_KEPT.all + MIB);
    let mut works = Vec::new();
    for key in 0..=u8::MAX {
        let known = known(key);
        while let Ok(one) = RequestCharge::begin(Arc::clone(&known), 60_000, false) {
            works.push(one);
        }
    }
    assert!(account.held()[0] > CALLS.all - MIB, "work has the rest");
    drop(probes);
    assert!(!fill(true).is_empty(), "it leaves room for probes");
    let large = RequestCharge::begin(known(7), 2 * MIB, false);
    assert!(large.is_err(), "work waits");
    let operator = RequestCharge::begin(known(7), 0, true).expect("room is kept");
    operator.take(100, false).expect("for its body too");
}

/// Without tokens one address may have every connection.
#[test]
fn probes_that_nobody_reads_leave_room_to_other_callers() {
    let account = account();
    let mut unread = Vec::new();
    for _ in 0..2_048 {
        let place = place(&account, 1);
        while let Ok(one) = RequestCharge::begin_probe(Arc::clone(&place), 100) {
            unread.push(one);
        }
    }
    let other = place(&account, 2);
    let held = account.held()[0] / MIB;
    RequestCharge::begin(Arc::clone(&other), 60_000, false)
        .unwrap_or_else(|why| panic!("{held} MiB are held: {}", why.message));
    RequestCharge::begin(Arc::clone(&other), 60_000, true).expect("for an operator");
    RequestCharge::begin_probe(other, 100).expect("for a probe");
    drop(unread);
    assert_eq!(account.held(), [0, 0]);
    assert_eq!(account.probes.load(Ordering::Relaxed), 0);
}

/// Of twenty that never give back what they hold each takes half of what is left, be it
/// with calls, or with those of operators.
#[test]
fn callers_that_hold_what_they_got_leave_room_to_those_who_hold_little() {
    for kept in [false, true] {
        let account = account();
        let mut held = Vec::new();
        let mut unread = Vec::new();
        for from in 1..=20 {
            let place = place(&account, from);
            while let Ok(one) = RequestCharge::begin(Arc::clone(&place), 100, kept) {
                held.push(one);
            }
            while place.room(false).is_ok() {
                unread.push(place.charge(10_000, None));
            }
        }
        for from in 100..200 {
            let place = place(&account, from);
            for kept in [false, false, true] {
                let one = RequestCharge::begin(Arc::clone(&place), 100, kept);
                held.push(one.unwrap_or_else(|why| panic!("{from}: {}", why.message)));
            }
            unread.push(place.charge(10_000, None));
        }
        let held_more = RequestCharge::begin(place(&account, 200), 60_000, false);
        assert!(held_more.is_err(), "they do not have it all");
    }
}

/// What is kept for callers that hold little is not for their large answers, and twenty that
/// ask for those leave it to others.
#[test]
fn large_answers_take_none_of_the_room_that_is_kept_for_little() {
    let account = account();
    let mut unread = Vec::new();
    for from in 1..=20 {
        let place = place(&account, from);
        while place.room(false).is_ok() && place.room_for_answer(MIB, false).is_ok() {
            unread.push(place.charge(MIB, None));
        }
    }
    let [_, held] = account.held();
    assert!((ANSWERS.all..=ANSWERS.all + MIB).contains(&held), "{held}");
    for from in 100..200 {
        let place = place(&account, from);
        assert!(place.room(false).is_ok(), "{from}");
        assert!(place.room_for_answer(10_000, false).is_ok(), "{from}");
        let refused = place.room_for_answer(MIB, false).expect_err("it is large");
        assert!(
            refused.message.contains("all clients"),
            "{}",
            refused.message
        );
        let mut exchange = FlowControl::new(&place, StreamKind::Answers);
        assert!(polled(&mut exchange, &Arc::default()), "{from}");
        unread.push(place.charge(10_000, None));
    }
    let operator = place(&account, 1);
    assert!(operator.room(true).is_ok() && operator.room_for_answer(MIB, true).is_ok());
}

/// A stream of a caller that holds little goes on before those that wait for others.
#[test]
fn a_stream_of_a_caller_that_holds_little_is_woken_beside_those_that_hold_much() {
    let account = account();
    let many: Vec<_> = (1..=20)
        .map(|it| place(&account, it).charge(2 * MIB, Some(StreamKind::News)))
        .collect();
    let (holds_much, holds_little) = (place(&account, 1), place(&account, 100));
    let [first, second] = [(); 2].map(|()| Arc::<Woken>::default());
    let mut much = FlowControl::new(&holds_much, StreamKind::News);
    let mut little = FlowControl::new(&holds_little, StreamKind::News);
    assert!(!polled(&mut much, &first), "no room for all");
    assert!(!polled(&mut little, &second), "nor for it");
    let mut many = many.into_iter();
    drop(many.next_back());
    assert_eq!(second.0.load(Ordering::SeqCst), 1);
    assert!(polled(&mut little, &second), "it finds room that is kept");
    assert!(!polled(&mut much, &first), "and the other does not");
    // Those of the log have less room, and keep no other from its turn.
    let mut bulk = FlowControl::new(&holds_little, StreamKind::Bulk);
    let full = place(&account, 101).charge(5 * MIB, Some(StreamKind::News));
    let third = Arc::<Woken>::default();
    assert!(!polled(&mut bulk, &third) && !polled(&mut little, &second));
    drop(full);
    assert_eq!(second.0.load(Ordering::SeqCst), 2);
}

#[test]
fn a_stream_that_waits_is_woken_in_its_turn_and_passes_it_on() {
    let account = account();
    let place = place(&account, 1);
    let [first, second, third] = [(); 3].map(|()| Arc::<Woken>::default());
    let count = |it: &Arc<Woken>| it.0.load(Ordering::SeqCst);
    let mut rooms = [(); 3].map(|()| FlowControl::new(&place, StreamKind::Bulk));
    let full = place.charge(BULK.connection, Some(StreamKind::Bulk));
    for (room, woken) in rooms.iter_mut().zip([&first, &second, &third]) {
        assert!(!polled(room, woken));
    }
    let [one, two, three] = &mut rooms;
    let mut news = FlowControl::new(&place, StreamKind::News);
    assert!(polled(&mut news, &first), "news have room of their own");
    drop(full);
    assert_eq!([&first, &second, &third].map(count), [1, 0, 0]);
    assert!(polled(one, &first), "it goes on");
    assert_eq!(
        [&first, &second, &third].map(count),
        [1, 1, 0],
        "and the next"
    );
    // One that ends instead of going on forgets nobody either.
    let gone = std::mem::replace(two, FlowControl::new(&place, StreamKind::Bulk));
    drop(gone);
    assert!(polled(three, &third));
    let full = place.charge(BULK.connection, Some(StreamKind::Bulk));
    assert!(!polled(two, &second) && !polled(three, &third));
    let before = count(&third);
    let gone = std::mem::replace(two, FlowControl::new(&place, StreamKind::Bulk));
    drop(gone);
    assert_eq!(count(&third), before + 1, "it looks for itself");
    drop(full);
}

#[test]
fn where_little_is_left_only_connections_with_nothing_unread_go_on() {
    let account = account();
    let charges: Vec<_> = (1..=2)
        .map(|it| place(&account, it).charge(SCARCE / 2, Some(StreamKind::Bulk)))
        .collect();
    let [reads, does_not] = [3, 4].map(|it| place(&account, it));
    let unread = does_not.charge(1, Some(StreamKind::Bulk));
    assert!(reads.full(StreamKind::Bulk).is_none());
    assert!(does_not.full(StreamKind::Bulk).is_some());
    drop(unread);
    assert!(does_not.full(StreamKind::Bulk).is_none());
    drop(charges);
}

#[test]
fn an_address_counts_and_of_ipv6_its_network_however_it_is_written() {
    let of = |text: &str| CallerId::address(text.parse().expect("an address"));
    assert_eq!(of("::ffff:10.1.2.3"), of("10.1.2.3"));
    assert_ne!(of("::ffff:10.1.2.4"), of("::ffff:10.1.2.3"));
    assert_eq!(of("2001:db8::1"), of("2001:db8::2"));
    assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
}

#[test]
fn callers_that_have_gone_are_forgotten() {
    let account = account();
    for number in 0..10 * CALLERS_MIN as u32 {
        let connection = account.connection(Ipv4Addr::from_bits(number).into());
        drop(connection.alone());
    }
    let callers = account.callers.lock().expect("whole");
    assert!(callers.known.len() <= CALLERS_MIN);
}

/// Over however many streams somebody asks: there are places for others, and
/// for calls beside exchanges.
#[test]
fn a_caller_leaves_as_many_places_for_requests_as_it_takes() {
    let account = account();
    let stream = |from| Pipelined::new(place(&account, from));
    let greedy: Vec<_> = (0..8).map(|_| stream(1)).collect();
    for exchange in &greedy {
        exchange.begin(exchange.left().min(8_192));
    }
    assert_eq!(greedy[7].left(), 0);
    let other = stream(2);
    assert_eq!(other.left(), PIPELINED / 4);
    other.begin(other.left());
    let third = stream(3);
    assert_eq!(third.left(), PIPELINED / 8);
    // What is answered makes room, and so does a stream that is over.
    greedy[0].end(800);
    assert_eq!(third.left(), PIPELINED / 8 + 400);
    drop(greedy);
    assert_eq!(third.left(), PIPELINED * 3 / 8);
    drop(other);
    let all = account.all.pipelined.load(Ordering::Relaxed);
    assert_eq!((all, third.left()), (0, PIPELINED / 2));
}
