//! Nodes in this process, over one store, with one ledger.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::StoreError;
use tenure::ha::{Builder, Deployment, Event, Events, Manager, Sight};
use tenure::store::{
    BoxFuture, Features, Key, Memory, Page, Reading, Selector, Store, Version, Watch, Write,
    Written,
};

use super::ledger::{Ledger, PATIENCE, Work};

/// See the [module](self).
pub(crate) struct Town {
    memory: Arc<dyn Store>,
    /// Where the file is, if it is one.
    directory: Option<tempfile::TempDir>,
    pub(crate) ledger: Arc<Ledger>,
}

/// The workload of this name that every node knows how to make.
pub(crate) fn work(name: &str) -> Deployment {
    Deployment::new(name, "work")
}

impl Town {
    pub(crate) fn memory() -> Self {
        Self {
            memory: Arc::new(Memory::new()),
            directory: None,
            ledger: Ledger::new(),
        }
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn sqlite() -> Self {
        Self {
            directory: Some(tempfile::tempdir().expect("a directory")),
            ..Self::memory()
        }
    }

    /// The store, as another process would open it.
    pub(crate) async fn store(&self) -> Arc<dyn Store> {
        let Some(directory) = &self.directory else {
            return Arc::clone(&self.memory);
        };
        let url = format!("sqlite://{}", directory.path().join("town.db").display());
        tenure::store::open(&url).await.expect("a store")
    }

    /// A node that is to join `group`, over `store`.
    pub(crate) fn builder(&self, store: Arc<dyn Store>, group: &str, name: &str) -> Builder {
        let (ledger, node) = (Arc::clone(&self.ledger), name.to_owned());
        Manager::builder(store, group)
            .name(name)
            .lease(Duration::from_secs(2))
            .grace(Duration::from_millis(300))
            .workload("work", move || Work {
                ledger: Arc::clone(&ledger),
                node: node.clone(),
                stay: None,
            })
    }

    /// A node of the group `alpha` that has joined.
    pub(crate) async fn node(&self, name: &str) -> Manager {
        let store = self.store().await;
        joined(self.builder(store, "alpha", name)).await
    }

    /// The same in a group that needs so many.
    pub(crate) async fn voter(&self, name: &str, quorum: u32) -> Manager {
        let store = self.store().await;
        joined(self.builder(store, "alpha", name).quorum(quorum)).await
    }

    /// Everybody leaves in good order, and the ledger has seen nothing wrong.
    pub(crate) async fn close(self, nodes: impl IntoIterator<Item = Manager>) {
        for node in nodes {
            soon("leaving", node.leave()).await;
        }
        assert_eq!(self.ledger.wrong(), Vec::<String>::new());
    }
}

/// Starts a node and waits until it is in the view.
pub(crate) async fn joined(builder: Builder) -> Manager {
    let node = builder.start().expect("a node");
    soon("joining", node.joined()).await.expect("it joins");
    node
}

/// What is waited for, but not for ever.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(PATIENCE, future).await;
    ended.unwrap_or_else(|_| panic!("{what} took longer than {PATIENCE:?}"))
}

/// Waits for an event; gives those before it as well.
pub(crate) async fn heard(events: &mut Events, fits: impl Fn(&Event) -> bool) -> Vec<Event> {
    let mut before = Vec::new();
    let until = async {
        while let Some(event) = events.next().await {
            before.push(event);
            if before.last().is_some_and(&fits) {
                return true;
            }
        }
        false
    };
    let found = tokio::time::timeout(PATIENCE, until).await;
    assert_eq!(found, Ok(true), "only heard: {before:?}");
    before
}

/// Waits until a node sees its group like that.
pub(crate) async fn sees(node: &Manager, fits: impl Fn(&Sight) -> bool) -> Sight {
    let mut sight = node.sight();
    let seen = tokio::time::timeout(PATIENCE, sight.wait_for(fits)).await;
    let seen = seen.map(|seen| seen.expect("the node goes on").clone());
    seen.unwrap_or_else(|_| panic!("it only sees {:?}", *node.sight().borrow()))
}

/// A line to a store that can be cut.
#[derive(Debug)]
pub(crate) struct Line {
    store: Arc<dyn Store>,
    cut: AtomicBool,
}

impl Line {
    pub(crate) fn to(store: Arc<dyn Store>) -> Arc<Self> {
        let cut = AtomicBool::new(false);
        Arc::new(Self { store, cut })
    }

    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.cut.load(Ordering::SeqCst) {
            return Err(StoreError::unavailable("the line is cut"));
        }
        Ok(())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line to {}", self.store)
    }
}

impl Store for Line {
    fn features(&self) -> Features {
        self.store.features()
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        Box::pin(async move {
            self.check()?;
            self.store.read(key, within).await
        })
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        Box::pin(async move {
            self.check()?;
            self.store.compare_and_swap(write, within).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            self.check()?;
            self.store.delete(key, expected, within).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        Box::pin(async move {
            self.check()?;
            self.store.list(prefix, after, within).await
        })
    }

    /// It never comes up, so that whoever has this line polls.
    fn watch(&self, selector: Selector) -> Watch {
        Watch::new(selector).1
    }
}
