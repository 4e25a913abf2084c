//! What becomes of the work of a node that died.

use tenure::ha::{Event, Events, Manager, Place};
use tokio::select;

use super::{CONFIG, deployed, has};
use crate::town::{Town, heard, joined, sees, soon, work};

pub(super) async fn simple_failover(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    let mut events = b.events();
    deployed(&a, work("one").config(CONFIG).instances(3)).await;
    let dead = a.id();
    drop(a);
    let died = |event: &Event| matches!(event, Event::NodeDied { id, .. } if *id == dead);
    heard(&mut events, died).await;
    let begun = Event::FailoverBegun {
        from: dead,
        workloads: 1,
    };
    heard(&mut events, |event| *event == begun).await;
    let completed = Event::FailoverCompleted { from: dead };
    heard(&mut events, |event| *event == completed).await;
    assert_eq!(town.ledger.place("one").as_deref(), Some("b"));
    let stays = town.ledger.stays("one");
    assert_eq!(stays.len(), 2, "{stays:?}");
    for stay in &stays {
        assert_eq!((stay.config.as_slice(), stay.instances), (CONFIG, 3));
    }
    assert!(stays[0].fence < stays[1].fence, "{stays:?}");
    town.close([b]).await;
}

pub(super) async fn failure_in_failover_then_success(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    deployed(&a, work("one")).await;
    town.ledger.refuse("b", 1);
    let mut events = b.events();
    drop(a);
    let failed = |event: &Event| matches!(event, Event::FailoverFailed { .. });
    heard(&mut events, failed).await;
    let why = |event: &Event| matches!(event, Event::StartFailed { why, .. } if why.contains("told to refuse"));
    heard(&mut events, why).await;
    let completed = |event: &Event| matches!(event, Event::FailoverCompleted { .. });
    heard(&mut events, completed).await;
    assert_eq!(town.ledger.place("one").as_deref(), Some("b"));
    town.close([b]).await;
}

pub(super) async fn groups_kept_apart(town: Town) {
    let a = joined(town.builder(town.store().await, "alpha", "a").quorum(1)).await;
    let b = joined(town.builder(town.store().await, "beta", "b").quorum(1)).await;
    let c = joined(town.builder(town.store().await, "beta", "c").quorum(1)).await;
    deployed(&a, work("of-alpha")).await;
    deployed(&b, work("of-beta")).await;
    let epoch = |node: &Manager| {
        let group_state = node.group_state();
        group_state.borrow().view.as_ref().map(|view| view.epoch)
    };
    let before = epoch(&a);
    drop(b);
    town.ledger.until("of-beta", Some("c")).await;
    assert_eq!(epoch(&a), before, "nothing has happened in the other group");
    drop(c);
    let d = joined(town.builder(town.store().await, "beta", "d").quorum(1)).await;
    town.ledger.until("of-beta", Some("d")).await;
    assert_eq!(town.ledger.stays("of-alpha").len(), 1);
    assert!(!has(&a, "of-beta") && !has(&d, "of-alpha"));
    town.close([a, d]).await;
}

pub(super) async fn no_failover_to_a_non_ha_node(town: Town) {
    let a = town.node("a").await;
    let b = joined(town.builder(town.store().await, "alpha", "b").ha(false)).await;
    deployed(&a, work("one")).await;
    drop(a);
    sees(&b, |group_state| {
        let view = group_state.view.as_ref();
        let one = view.and_then(|view| view.workloads.get("one"));
        one.is_some_and(|one| one.place == Place::Waiting)
    })
    .await;
    assert_eq!(town.ledger.place("one"), None);
    let c = town.node("c").await;
    town.ledger.until("one", Some("c")).await;
    assert_eq!(town.ledger.stays("one").len(), 2);
    town.close([b, c]).await;
}

pub(super) async fn non_ha_workload_not_failed_over(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    deployed(&a, work("one")).await;
    deployed(&a, work("mortal").ha(false)).await;
    drop(a);
    town.ledger.until("one", Some("b")).await;
    assert!(!has(&b, "mortal"), "it died with its node");
    assert_eq!(town.ledger.stays("mortal").len(), 1);
    assert_eq!(town.ledger.place("mortal"), None);
    town.close([b]).await;
}

pub(super) async fn a_closed_node_takes_no_part(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    let c = town.node("c").await;
    deployed(&a, work("one")).await;
    soon("leaving", b.leave()).await;
    let mut events = c.events();
    drop(a);
    // Whichever of the two would have been the successor.
    heard(&mut events, |event| {
        matches!(event, Event::FailoverCompleted { .. })
    })
    .await;
    assert_eq!(town.ledger.place("one").as_deref(), Some("c"));
    assert_eq!(town.ledger.stays("one").len(), 2);
    town.close([c]).await;
}

/// Waits until one of these begins to take over; says which.
async fn successor(events: &mut [Events; 3]) -> usize {
    let begun = |event: &Event| matches!(event, Event::FailoverBegun { .. });
    let [one, two, three] = events;
    select! {
        _ = heard(one, begun) => 0,
        _ = heard(two, begun) => 1,
        _ = heard(three, begun) => 2,
    }
}

pub(super) async fn the_chosen_node_dies_in_mid_take_over(town: Town) {
    let a = town.node("a").await;
    let names = ["w0", "w1", "w2"];
    for name in names {
        deployed(&a, work(name).config(CONFIG)).await;
    }
    let mut others: Vec<Manager> = Vec::new();
    for name in ["b", "c", "d"] {
        let node = town.node(name).await;
        deployed(&node, work(&format!("own-{name}"))).await;
        others.push(node);
    }
    let mut events = [0, 1, 2].map(|other: usize| others[other].events());
    // The first does not come up, so the take-over cannot be completed.
    town.ledger.stall("w0", true);
    drop(a);
    let first = soon("taking over", successor(&mut events)).await;
    let successor = others.remove(first);
    let own = format!("own-{}", successor.config().name);
    let gone = successor.config().name.to_string();
    town.ledger.until("w1", Some(&gone)).await;
    drop(successor);
    town.ledger.stall("w0", false);
    for name in names.into_iter().chain([own.as_str()]) {
        town.ledger
            .until_that(name, |node| node != "a" && node != gone)
            .await;
        let last = town.ledger.stays(name).pop().expect("it runs");
        assert!(name == own || last.config == CONFIG, "{last:?}");
    }
    // What the others had was not disturbed.
    for other in &others {
        let own = format!("own-{}", other.config().name);
        assert_eq!(town.ledger.stays(&own).len(), 1);
    }
    town.close(others).await;
}
