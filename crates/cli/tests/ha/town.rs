//! Nodes in this process, over one store, with one ledger.

use std::sync::Arc;
use std::time::Duration;

use tenure::ha::{Builder, Deployment, Event, Events, GroupState, Manager};
use tenure::store::{Memory, Store};

use super::ledger::{Ledger, PATIENCE, Work};
use super::postgres::Postgres;
use super::servers::Servers;

/// What the nodes share.
enum RunContext {
    Memory(Arc<dyn Store>),
    Sqlite(tempfile::TempDir),
    Cluster(Box<Servers>),
    Postgres(Box<Postgres>),
}

/// See the [module](self).
pub(crate) struct Town {
    run_context: RunContext,
    pub(crate) ledger: Arc<Ledger>,
}

/// The workload of this name that every node knows how to make.
pub(crate) fn work(name: &str) -> Deployment {
    Deployment::new(name, "work")
}

impl Town {
    fn on(run_context: RunContext) -> Self {
        Self {
            run_context,
            ledger: Ledger::new(),
        }
    }

    pub(crate) fn memory() -> Self {
        Self::on(RunContext::Memory(Arc::new(Memory::new())))
    }

    pub(crate) fn sqlite() -> Self {
        // In memory, where that can be: a disk that others keep busy for
        // seconds must not fence the nodes of a test of something else.
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::on(RunContext::Sqlite(directory.expect("a directory")))
    }

    /// Three servers in this process.
    pub(crate) fn cluster() -> Self {
        Self::on(RunContext::Cluster(Box::new(Servers::start(3))))
    }

    /// A private server.
    pub(crate) fn postgres() -> Self {
        Self::on(RunContext::Postgres(Box::new(Postgres::start())))
    }

    /// The store, as another process would open it.
    pub(crate) async fn store(&self) -> Arc<dyn Store> {
        match &self.run_context {
            RunContext::Memory(store) => Arc::clone(store),
            RunContext::Sqlite(directory) => {
                opened(&format!(
                    "sqlite://{}",
                    directory.path().join("town.db").display()
                ))
                .await
            }
            RunContext::Cluster(servers) => opened(&servers.url()).await,
            RunContext::Postgres(server) => opened(&server.url()).await,
        }
    }

    /// How long a node may be silent: longer where a disk must answer.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(match self.run_context {
            RunContext::Memory(_) => 2,
            RunContext::Sqlite(_) => 3,
            RunContext::Cluster(_) => 4,
            RunContext::Postgres(_) => 4,
        })
    }

    /// A node that is to join `group`, over `store`.
    pub(crate) fn builder(&self, store: Arc<dyn Store>, group: &str, name: &str) -> Builder {
        let (ledger, node) = (Arc::clone(&self.ledger), name.to_owned());
        Manager::builder(store, group)
            .name(name)
            .lease(self.lease())
            .grace(Duration::from_millis(300))
            .workload("work", move || Work {
                ledger: Arc::clone(&ledger),
                node: node.clone(),
                stay: None,
            })
    }

    /// A node of the group `alpha` that has joined.
    pub(crate) async fn node(&self, name: &str) -> Manager {
        self.node_by(self.store().await, name).await
    }

    /// The same in a group that needs so many.
    pub(crate) async fn voter(&self, name: &str, quorum: u32) -> Manager {
        let store = self.store().await;
        joined(self.builder(store, "alpha", name).quorum(quorum)).await
    }

    /// A node of the group `alpha` that has joined, by such a line.
    pub(crate) async fn node_by(&self, store: Arc<dyn Store>, name: &str) -> Manager {
        joined(self.builder(store, "alpha", name)).await
    }

    /// Everybody leaves in good order, and the ledger has seen nothing wrong.
    pub(crate) async fn close(self, nodes: impl IntoIterator<Item = Manager>) {
        for node in nodes {
            soon("leaving", node.leave()).await;
        }
        assert_eq!(self.ledger.wrong(), Vec::<String>::new());
    }
}

async fn opened(url: &str) -> Arc<dyn Store> {
    tenure::store::open(url).await.expect("a store")
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
pub(crate) async fn sees(node: &Manager, fits: impl Fn(&GroupState) -> bool) -> GroupState {
    let mut group_state = node.group_state();
    let seen = tokio::time::timeout(PATIENCE, group_state.wait_for(fits)).await;
    let seen = seen.map(|seen| seen.expect("the node goes on").clone());
    seen.unwrap_or_else(|_| panic!("it only sees {:?}", *node.group_state().borrow()))
}
