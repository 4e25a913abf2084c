//! Work that moves although nobody has died, and nodes that come again.

use tenure::ha::Event;

use super::{CONFIG, deployed, has};
use crate::town::{Town, heard, soon, work};

pub(super) async fn clean_close_no_failover(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    deployed(&a, work("one")).await;
    deployed(&b, work("other")).await;
    let mut events = b.events();
    let gone = a.id();
    soon("leaving", a.leave()).await;
    let before = heard(
        &mut events,
        |event| matches!(event, Event::NodeLeft { id, .. } if *id == gone),
    );
    let before = before.await;
    let died = |event: &Event| matches!(event, Event::NodeDied { .. });
    assert!(!before.iter().any(died), "{before:?}");
    assert!(!has(&b, "one"), "it took it along");
    assert_eq!(town.ledger.place("one"), None);
    assert_eq!(town.ledger.stays("one").len(), 1);
    assert_eq!(town.ledger.place("other").as_deref(), Some("b"));
    town.close([b]).await;
}

pub(super) async fn drain_never_runs_a_workload_twice(town: Town) {
    let a = town.node("a").await;
    for name in ["one", "two", "three"] {
        deployed(&a, work(name).config(CONFIG)).await;
    }
    let b = town.node("b").await;
    soon("draining", a.drain()).await;
    for name in ["one", "two", "three"] {
        town.ledger.until(name, Some("b")).await;
        let stays = town.ledger.stays(name);
        assert_eq!(stays.len(), 2, "{stays:?}");
        assert!(stays[0].to <= Some(stays[1].from), "{stays:?}");
        assert_eq!(stays[1].config, CONFIG);
    }
    let mut events = b.events();
    let gone = a.id();
    heard(
        &mut events,
        |event| matches!(event, Event::NodeLeft { id, .. } if *id == gone),
    )
    .await;
    town.close([b]).await;
}

pub(super) async fn undeployed_work_ends_and_its_name_is_free(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    let first = deployed(&a, work("one")).await;
    // Any node may ask: here it is not the one that runs it.
    soon("undeploying", b.undeploy("one"))
        .await
        .expect("it is undeployed");
    assert_eq!(town.ledger.place("one"), None);
    let second = deployed(&b, work("one")).await;
    assert!(first < second);
    town.close([a, b]).await;
}

pub(super) async fn restarted_node_is_a_new_node(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    let first = deployed(&a, work("one")).await;
    let (old, mut events) = (a.id(), b.events());
    drop(a);
    let again = town.node("a").await;
    assert_ne!(again.id(), old, "an id is used once");
    let died = |event: &Event| matches!(event, Event::NodeDied { id, .. } if *id == old);
    heard(&mut events, died).await;
    town.ledger.until_that("one", |_| true).await;
    let stays = town.ledger.stays("one");
    assert_eq!(stays.len(), 2, "{stays:?}");
    assert!(stays[1].fence > first, "nothing is adopted: {stays:?}");
    town.close([again, b]).await;
}
