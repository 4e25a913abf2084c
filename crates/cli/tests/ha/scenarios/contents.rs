//! Content of workloads (`docs/design/groups.md` §1.11): what no workload needs is deleted
//! from the store, and a deploy of the same content always works.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure::ha::{Keys, Manager};
use tenure::store::{Key, Selector, Store, Watch};

use super::{CONFIG, deployed};
use crate::town::{Town, joined, soon, work};

const WITHIN: Duration = Duration::from_secs(5);

/// How often one workload is deployed and undeployed.
const ROUNDS: usize = 24;

fn keys() -> Keys {
    Keys::of(tenure::core::ids::Name::new("alpha").expect("a name"))
}

/// The contents that a store has, and a watch that says when to look again.
struct Published {
    store: Arc<dyn Store>,
    watch: Watch,
}

impl Published {
    async fn of(town: &Town) -> Self {
        let store = town.store().await;
        let watch = store.watch(Selector::Prefix(keys().contents()));
        Self { store, watch }
    }

    async fn contents(&self) -> BTreeSet<Key> {
        let prefix = keys().contents();
        let page = self.store.list(&prefix, None, WITHIN).await;
        let registers = page.expect("a page").registers.into_iter();
        registers.map(|(key, _)| key).collect()
    }

    /// Waits until the contents fit; gives them.
    async fn until(&mut self, what: &str, fits: impl Fn(&BTreeSet<Key>) -> bool) -> BTreeSet<Key> {
        let seen = async {
            loop {
                let contents = self.contents().await;
                if fits(&contents) {
                    return contents;
                }
                self.watch.next().await;
            }
        };
        soon(what, seen).await
    }
}

async fn undeployed(node: &Manager, name: &str) {
    let undeployed = soon("undeploying", node.undeploy(name)).await;
    undeployed.expect("it is undeployed");
}

pub(super) async fn undeployed_content_goes(town: Town) {
    let (a, b) = (town.node("a").await, town.node("b").await);
    let mut shown = Published::of(&town).await;
    deployed(&a, work("one").config(CONFIG)).await;
    deployed(&b, work("same").config(CONFIG)).await;
    deployed(&b, work("other").config("other")).await;
    let all = shown.contents().await;
    assert_eq!(all.len(), 2, "two of them are the same");
    undeployed(&a, "other").await;
    undeployed(&a, "one").await;
    let left = shown.until("collecting", |contents| contents.len() == 1);
    let left = left.await;
    // What another workload needs is there, and can be started from.
    let left = left.first().expect("one is left");
    let read = shown.store.read(left, WITHIN).await;
    let read = read.expect("an answer").register.expect("it is there");
    assert!(read.value.ends_with(CONFIG), "the wrong one went");
    undeployed(&b, "same").await;
    shown.until("collecting", BTreeSet::is_empty).await;
    // And all of it may come back.
    deployed(&b, work("other").config("other")).await;
    deployed(&a, work("one").config(CONFIG)).await;
    assert_eq!(shown.contents().await, all, "the same is back");
    town.close([a, b]).await;
}

/// Content is collected as soon as no workload needs it, and deployed again
/// at the same time, on the node that collects and on the other one.
pub(super) async fn redeploying_works_while_content_is_collected(town: Town) {
    let soonest = |name: &str, store| town.builder(store, "alpha", name).keep(Duration::ZERO);
    let a = joined(soonest("a", town.store().await)).await;
    let b = joined(soonest("b", town.store().await)).await;
    let mut shown = Published::of(&town).await;
    for round in 0..ROUNDS {
        let (one, other) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        deployed(one, work("one").config(CONFIG)).await;
        undeployed(other, "one").await;
        // Now and then it has gone before it comes again.
        if round % 8 == 7 {
            shown.until("collecting", BTreeSet::is_empty).await;
        }
    }
    let stays = town.ledger.stays("one");
    assert_eq!(stays.len(), ROUNDS, "each has run once");
    assert!(stays.iter().all(|stay| stay.config == CONFIG));
    town.close([a, b]).await;
}
