//! What ran where, from when to when, as the workloads themselves tell it.
//!
//! The ledger is one for all nodes of a town, so it sees what no node can:
//! whether a workload ever ran twice at once, and whether its fence grew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::clock;
use tenure::core::time::Instant;
use tenure::error::Cause;
use tenure::ha::{RunHandle, Workload};
use tokio::sync::watch;

/// How long anything is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

/// One run of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Stay {
    pub(crate) name: String,
    pub(crate) node: String,
    pub(crate) fence: u64,
    pub(crate) config: Vec<u8>,
    pub(crate) instances: u32,
    pub(crate) from: Instant,
    pub(crate) to: Option<Instant>,
}

#[derive(Debug, Default)]
struct Pages {
    stays: Vec<Stay>,
    wrong: Vec<String>,
    /// How many more starts each node refuses.
    refusals: BTreeMap<String, u32>,
    /// The workloads that do not come up for now.
    stalled: BTreeSet<String>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Ledger {
    pages: Mutex<Pages>,
    news: watch::Sender<u64>,
}

impl Ledger {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pages: Mutex::default(),
            news: watch::Sender::new(0),
        })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A workload begins on `node`; says which stay it is.
    pub(crate) fn begin(&self, node: &str, name: &str, fence: u64) -> usize {
        let mut pages = self.pages();
        let stay = Stay {
            name: name.to_owned(),
            node: node.to_owned(),
            fence,
            config: Vec::new(),
            instances: 0,
            from: clock::boot(),
            to: None,
        };
        let before = pages.stays.iter().rev().find(|before| before.name == name);
        let wrong = match before {
            Some(before) if before.to.is_none() => {
                Some(format!("two at once: {before:?}, {stay:?}"))
            }
            Some(before) if before.node != node && before.fence >= fence => {
                Some(format!("the fence does not grow: {before:?}, {stay:?}"))
            }
            _ => None,
        };
        pages.wrong.extend(wrong);
        pages.stays.push(stay);
        let number = pages.stays.len() - 1;
        drop(pages);
        self.news.send_modify(|news| *news += 1);
        number
    }

    /// That stay is over.
    pub(crate) fn end(&self, stay: usize) {
        self.pages().stays[stay].to = Some(clock::boot());
        self.news.send_modify(|news| *news += 1);
    }

    /// The next so many starts on `node` fail.
    pub(crate) fn refuse(&self, node: &str, times: u32) {
        self.pages().refusals.insert(node.to_owned(), times);
    }

    fn refuses(&self, node: &str) -> bool {
        let mut pages = self.pages();
        let left = pages.refusals.get_mut(node);
        left.is_some_and(|left| {
            let refuses = *left > 0;
            *left = left.saturating_sub(1);
            refuses
        })
    }

    /// Starts of that workload take until this is taken back.
    pub(crate) fn stall(&self, name: &str, stalled: bool) {
        let mut pages = self.pages();
        if stalled {
            pages.stalled.insert(name.to_owned());
        } else {
            pages.stalled.remove(name);
        }
        drop(pages);
        self.news.send_modify(|news| *news += 1);
    }

    async fn comes_up(&self, name: &str) {
        let mut news = self.news.subscribe();
        let up = news.wait_for(|_| !self.pages().stalled.contains(name));
        // The sender is here.
        drop(up.await);
    }

    /// Every run of that workload, in order.
    pub(crate) fn stays(&self, name: &str) -> Vec<Stay> {
        let pages = self.pages();
        let stays = pages.stays.iter().filter(|stay| stay.name == name);
        stays.cloned().collect()
    }

    /// On which node it runs now.
    pub(crate) fn place(&self, name: &str) -> Option<String> {
        let last = self.stays(name).into_iter().next_back()?;
        last.to.is_none().then_some(last.node)
    }

    /// All that runs now, wherever; sorted.
    pub(crate) fn running(&self) -> Vec<String> {
        let pages = self.pages();
        let running = pages.stays.iter().filter(|stay| stay.to.is_none());
        let mut running: Vec<String> = running.map(|stay| stay.name.clone()).collect();
        running.sort();
        running
    }

    /// Waits until it runs there, or nowhere.
    pub(crate) async fn until(&self, name: &str, node: Option<&str>) {
        self.until_place(name, |place| place == node).await;
    }

    /// Waits until it runs on a node that fits.
    pub(crate) async fn until_that(&self, name: &str, fits: impl Fn(&str) -> bool) {
        self.until_place(name, |place| place.is_some_and(&fits))
            .await;
    }

    async fn until_place(&self, name: &str, fits: impl Fn(Option<&str>) -> bool) {
        let mut news = self.news.subscribe();
        let there = news.wait_for(|_| fits(self.place(name).as_deref()));
        let there = tokio::time::timeout(PATIENCE, there).await.is_ok();
        assert!(
            there,
            "{name} is not where it should be: {:?}",
            self.pages()
        );
    }

    /// What was wrong.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.pages().wrong.clone()
    }
}

/// A workload that writes in the ledger and does nothing else. When it is
/// dropped it has ended, as a process has that was killed.
pub(crate) struct Work {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) node: String,
    pub(crate) stay: Option<usize>,
}

impl Workload for Work {
    async fn deploy(&mut self, placement: &RunHandle) -> Result<(), Cause> {
        if self.ledger.refuses(&self.node) {
            return Err("it was told to refuse".into());
        }
        assert!(placement.is_valid(), "it was started too late");
        let name = placement.name().as_str();
        self.ledger.comes_up(name).await;
        let stay = self.ledger.begin(&self.node, name, placement.fence());
        {
            let mut pages = self.ledger.pages();
            let entry = &mut pages.stays[stay];
            entry.config = placement.config().to_vec();
            entry.instances = placement.instances();
        }
        self.stay = Some(stay);
        Ok(())
    }

    async fn undeploy(&mut self) {
        tokio::task::yield_now().await;
        if let Some(stay) = self.stay.take() {
            self.ledger.end(stay);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(stay) = self.stay.take() {
            self.ledger.end(stay);
        }
    }
}

#[test]
fn the_ledger_sees_two_at_once_and_a_fence_that_does_not_grow() {
    let ledger = Ledger::new();
    let first = ledger.begin("a", "one", 1);
    let second = ledger.begin("b", "one", 2);
    assert_eq!(ledger.wrong().len(), 1, "{:?}", ledger.wrong());
    ledger.end(first);
    ledger.end(second);
    ledger.begin("a", "one", 2);
    assert_eq!(ledger.wrong().len(), 2, "{:?}", ledger.wrong());
    ledger.begin("a", "two", 1);
    assert_eq!(ledger.wrong().len(), 2, "{:?}", ledger.wrong());
}
