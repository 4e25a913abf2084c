//! What a program that uses the library builds on: views of a leadership,
//! streams, plain threads, and elections that a test decides.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tenure::blocking::{events, leaderships, wait};
use tenure::election::{Event, Why};
use tenure::store::Memory;
use tenure::test::FakeElection;
use tenure::{Election, Name};
use tokio_stream::StreamExt as _;

fn memory() -> Arc<dyn tenure::Store> {
    Arc::new(Memory::new())
}

/// On a plain thread, without any runtime.
#[test]
fn a_thread_leads_and_a_view_of_it_holds_nothing() {
    let store = memory();
    let begin = |name| {
        Election::builder(Arc::clone(&store), "payroll")
            .name(name)
            .start()
    };
    let mut first = begin("a").expect("a candidate");
    let leadership = leaderships(&mut first).next().expect("a leadership");
    let view = leadership.view();
    let asks = view.clone();
    let seen = std::thread::spawn(move || (asks.is_valid(), asks.term()));
    assert_eq!(seen.join().expect("no panic"), (true, leadership.term()));

    let mut second = begin("b").expect("a candidate");
    drop(leadership);
    // At once, whether or not anything was written yet; and for good.
    assert!(!view.is_valid() && view.remaining().is_zero(), "{view:?}");
    let next = leaderships(&mut second).next().expect("a leadership");
    assert!(next.is_valid() && next.term() > view.term());
    assert!(!view.is_valid(), "{view:?}");
    assert_eq!(wait(view.cancelled()), Why::Resigned);

    let mut heard = second.events();
    drop(next);
    wait(second.stop());
    let terms = events(&mut heard).filter(|event| matches!(event, Event::Elected { .. }));
    assert_eq!(terms.count(), 1);
    assert!(leaderships(&mut first).next().is_some());
}

#[tokio::test]
async fn events_and_sightings_are_streams() {
    let store = memory();
    let payroll = Name::new("payroll").expect("a name");
    let sightings = tenure::election::watch(Arc::clone(&store), payroll, false);
    let candidate = Election::builder(store, "payroll").name("a").start();
    let mut candidate = candidate.expect("a candidate");
    let heard = candidate.events();
    let leadership = candidate.elected().await.expect("a leadership");
    let leaders = sightings.filter_map(|event| match event {
        Event::LeaderChanged(seen) => seen.leader,
        _ => None,
    });
    let seen = leaders.take(1).collect::<Vec<_>>().await;
    assert_eq!(seen[0].term, leadership.term());
    drop(leadership);
    candidate.stop().await;
    let last = heard.fold(None, |_, event| Some(event)).await;
    assert_eq!(last, Some(Event::Stopped));
}

#[tokio::test]
async fn a_test_decides_who_leads_and_what_time_it_is() {
    let (fake, mut election) = FakeElection::new("payroll").expect("a name");
    let mut events = election.events();
    let first = fake.elect();
    let leadership = election.elected().await.expect("a leadership");
    assert_eq!(leadership.fence(), first);
    let grant = leadership.grant();

    // A renewal counts from now, also for work that is guarded.
    fake.advance(Duration::from_secs(3));
    fake.renew();
    assert_eq!(leadership.remaining(), grant.valid_until.since(grant.start));
    let works = leadership.clone();
    let work = tokio::spawn(async move { works.guard(pending::<()>()).await });
    let drains = leadership.grant().drain_at.since(fake.now());
    fake.advance(drains.saturating_sub(Duration::from_nanos(1)));
    assert!(!work.is_finished());
    fake.advance(Duration::from_nanos(1));
    let deposed = work.await.expect("no panic").expect_err("it is over");
    assert_eq!(deposed.0, Why::Unconfirmed);
    // The work has to stop, and nobody else leads yet.
    assert!(leadership.is_valid());
    fake.advance(leadership.remaining());
    assert!(!leadership.is_valid());
    let mut told = Vec::new();
    while told.last() != Some(&"ousted") {
        told.push(match events.next().await.expect("an event") {
            Event::Elected { .. } => "elected",
            Event::Renewed { .. } => "renewed",
            Event::Draining { .. } => "draining",
            Event::Kill { .. } => "kill",
            Event::Ousted { .. } => "ousted",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(told, ["elected", "renewed", "draining", "kill", "ousted"]);

    // Nobody stands while the work of the last leadership may go on.
    let again = std::panic::catch_unwind(|| fake.elect());
    assert!(again.is_err());
    drop(leadership);
    let second = fake.elect();
    assert!(second.term > first.term);
    let leadership = election.elected().await.expect("a leadership");
    fake.depose();
    assert!(!leadership.is_valid());
    assert_eq!(leadership.cancelled().await, Why::Replaced);
    drop(leadership);

    let third = fake.elect();
    assert_eq!(third.term.get(), second.term.get() + 2);
    let leadership = election.elected().await.expect("a leadership");
    election.resign();
    assert_eq!(leadership.cancelled().await, Why::Resigned);
    assert!(leadership.is_valid());
    let ends = tokio::spawn(election.stop());
    drop(leadership);
    ends.await.expect("it stops");
}
