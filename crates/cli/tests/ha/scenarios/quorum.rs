//! Quorums, and who counts for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::StoreError;
use tenure::ha::Event;
use tenure::store::{Store, Write, Written};

use super::{deployed, has};
use crate::intercepted::{Answer, Intercepted, Interceptor};
use crate::town::{Town, heard, joined, sees, soon, work};

pub(super) async fn quorum_awaited(town: Town) {
    let a = town.voter("a", 2).await;
    let mut deploying = Box::pin(a.deploy(work("one")));
    // It is in the view, and yet it does not run.
    tokio::select! {
        deployed = &mut deploying => panic!("it runs without the quorum: {deployed:?}"),
        _ = sees(&a, |group_state| {
            let view = group_state.view.as_ref();
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

pub(super) async fn quorum_lost_then_regained(town: Town) {
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

pub(super) async fn quorum_counted_per_group(town: Town) {
    let voter = async |group: &str, name: &str| {
        joined(town.builder(town.store().await, group, name).quorum(2)).await
    };
    let (a, b) = (voter("alpha", "a").await, voter("alpha", "b").await);
    let (c, d) = (voter("beta", "c").await, voter("beta", "d").await);
    deployed(&a, work("of-alpha")).await;
    deployed(&c, work("of-beta")).await;
    let (mut alphas, mut betas) = (a.events(), c.events());
    drop(d);
    let lost = |event: &Event| matches!(event, Event::QuorumLost { .. });
    heard(&mut betas, lost).await;
    town.ledger.until("of-beta", None).await;
    // Four nodes were alive, three still are: and yet.
    assert_eq!(town.ledger.place("of-alpha").as_deref(), Some("a"));
    let e = voter("beta", "e").await;
    town.ledger.until("of-beta", Some("c")).await;
    soon("leaving", b.leave()).await;
    let before = heard(&mut alphas, lost).await;
    let died = |event: &Event| matches!(event, Event::NodeDied { .. });
    assert!(!before.iter().any(died), "{before:?}");
    assert_eq!(town.ledger.stays("of-alpha").len(), 1);
    town.close([a, c, e]).await;
}

/// Does not let a node into the view.
#[derive(Debug, Default)]
struct Doorkeeper(AtomicBool);

impl Interceptor for Doorkeeper {
    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        if write.key.as_str().ends_with("/view") && !self.0.load(Ordering::SeqCst) {
            let refused = StoreError::unavailable("the door is shut");
            return Box::pin(std::future::ready(Err(refused)));
        }
        store.compare_and_swap(write, within)
    }
}

pub(super) async fn node_info_that_arrives_late_still_attains_quorum(town: Town) {
    let a = town.voter("a", 2).await;
    let door = Intercepted::new(town.store().await, Doorkeeper::default());
    let line = Arc::clone(&door) as Arc<dyn Store>;
    let b = town.builder(line, "alpha", "b").quorum(2);
    let b = b.start().expect("a node");
    let mut events = b.events();
    let mut deploying = Box::pin(a.deploy(work("one")));
    // It beats, and has found that it cannot be written into the view.
    tokio::select! {
        deployed = &mut deploying => panic!("it runs without the quorum: {deployed:?}"),
        _ = heard(&mut events, |event| matches!(event, Event::Trouble { .. })) => {}
    }
    let view = sees(&a, |group_state| group_state.view.is_some())
        .await
        .view;
    assert_eq!(view.map(|view| view.members.len()), Some(1));
    assert_eq!(town.ledger.stays("one").len(), 0);
    door.interceptor.0.store(true, Ordering::SeqCst);
    soon("deploying", deploying).await.expect("it runs");
    assert_eq!(town.ledger.place("one").as_deref(), Some("a"));
    town.close([a, b]).await;
}
