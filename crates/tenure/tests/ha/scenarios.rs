//! The scenarios, each once on the memory store and once on SQLite. A node
//! that is dropped dies suddenly; one that leaves is told to.

use std::sync::Arc;

use tenure::ha::{Event, Manager, Place};

use super::town::{Line, Town, heard, joined, sees, soon, work};

/// Each scenario as a test of its own, per store.
macro_rules! on_each_store {
    ($($scenario:ident)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Town::memory()).await;
            })*
        }

        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test]
            async fn $scenario() {
                super::$scenario(super::Town::sqlite()).await;
            })*
        }
    };
}

on_each_store! {
    simple_failover
    quorum_awaited
    quorum_lost_then_regained
    clean_close_no_failover
    groups_kept_apart
    non_ha_workload_not_failed_over
    no_failover_to_a_non_ha_node
    drain_never_runs_a_workload_twice
    failure_in_failover_then_success
    partitioned_node_stops_its_work_before_the_heir_starts_it
    undeployed_work_ends_and_its_name_is_free
}

const CONFIG: &[u8] = br#"{"every": "minute"}"#;

async fn deployed(node: &Manager, deployment: tenure::ha::Deployment) -> u64 {
    let deployed = soon("deploying", node.deploy(deployment)).await;
    deployed.expect("it is deployed")
}

/// Whether the view of `node` has that workload.
fn has(node: &Manager, workload: &str) -> bool {
    let sight = node.sight();
    let view = sight.borrow().view.clone().expect("it has looked");
    view.workloads.contains_key(workload)
}

async fn simple_failover(town: Town) {
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

async fn quorum_awaited(town: Town) {
    let a = town.voter("a", 2).await;
    let mut deploying = Box::pin(a.deploy(work("one")));
    // It is in the view, and yet it does not run.
    tokio::select! {
        deployed = &mut deploying => panic!("it runs without the quorum: {deployed:?}"),
        _ = sees(&a, |sight| {
            let view = sight.view.as_ref();
            view.is_some_and(|view| view.workloads.contains_key("one"))
        }) => {}
    }
    assert_eq!(town.ledger.stays("one").len(), 0);
    let mut events = a.events();
    let b = town.voter("b", 2).await;
    soon("deploying", deploying).await.expect("it runs");
    let attained = |event: &Event| matches!(event, Event::QuorumAttained { quorum: 2, .. });
    heard(&mut events, attained).await;
    assert_eq!(town.ledger.place("one").as_deref(), Some("a"));
    town.close([a, b]).await;
}

async fn quorum_lost_then_regained(town: Town) {
    let (a, b) = (town.voter("a", 2).await, town.voter("b", 2).await);
    deployed(&a, work("one")).await;
    deployed(&a, work("free").ha(false)).await;
    let mut events = a.events();
    drop(b);
    heard(&mut events, |event| {
        matches!(
            event,
            Event::QuorumLost {
                nodes: 1,
                quorum: 2
            }
        )
    })
    .await;
    town.ledger.until("one", None).await;
    assert!(has(&a, "one"), "it keeps its place");
    let c = town.voter("c", 2).await;
    heard(&mut events, |event| {
        matches!(event, Event::QuorumAttained { .. })
    })
    .await;
    town.ledger.until("one", Some("a")).await;
    // What is not HA has nothing to do with it.
    assert_eq!(town.ledger.stays("free").len(), 1);
    town.close([a, c]).await;
}

async fn clean_close_no_failover(town: Town) {
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

async fn groups_kept_apart(town: Town) {
    let a = joined(town.builder(town.store().await, "alpha", "a").quorum(1)).await;
    let b = joined(town.builder(town.store().await, "beta", "b").quorum(1)).await;
    let c = joined(town.builder(town.store().await, "beta", "c").quorum(1)).await;
    deployed(&a, work("of-alpha")).await;
    deployed(&b, work("of-beta")).await;
    let epoch = |node: &Manager| {
        let sight = node.sight();
        sight.borrow().view.as_ref().map(|view| view.epoch)
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

async fn non_ha_workload_not_failed_over(town: Town) {
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

async fn no_failover_to_a_non_ha_node(town: Town) {
    let a = town.node("a").await;
    let b = joined(town.builder(town.store().await, "alpha", "b").ha(false)).await;
    deployed(&a, work("one")).await;
    drop(a);
    sees(&b, |sight| {
        let view = sight.view.as_ref();
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

async fn drain_never_runs_a_workload_twice(town: Town) {
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

async fn failure_in_failover_then_success(town: Town) {
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

async fn partitioned_node_stops_its_work_before_the_heir_starts_it(town: Town) {
    let line = Line::to(town.store().await);
    let a = joined(town.builder(Arc::<Line>::clone(&line), "alpha", "a")).await;
    let b = town.node("b").await;
    deployed(&a, work("one")).await;
    let (old, mut events) = (a.id(), a.events());
    line.cut(true);
    let fenced = |event: &Event| matches!(event, Event::Fenced { id, .. } if *id == old);
    heard(&mut events, fenced).await;
    town.ledger.until("one", Some("b")).await;
    let stays = town.ledger.stays("one");
    assert!(
        stays[0].to.is_some_and(|to| to < stays[1].from),
        "{stays:?}"
    );
    line.cut(false);
    // It comes back as another node.
    heard(
        &mut events,
        |event| matches!(event, Event::Joined { id, .. } if *id != old),
    )
    .await;
    assert_eq!(town.ledger.stays("one").len(), 2);
    town.close([a, b]).await;
}

async fn undeployed_work_ends_and_its_name_is_free(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    let first = deployed(&a, work("one")).await;
    // Whoever asks: here it is not the one that runs it.
    soon("undeploying", b.undeploy("one"))
        .await
        .expect("it is undeployed");
    assert_eq!(town.ledger.place("one"), None);
    let second = deployed(&b, work("one")).await;
    assert!(first < second);
    town.close([a, b]).await;
}
