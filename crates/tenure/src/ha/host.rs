//! Workloads that live outside this process: a [`Host`] runs them.
//!
//! A [`Workload`](super::Workload) is a value of this program, and ends at the
//! latest when it is dropped. A process does not: it ends when the kernel has
//! reaped it, and it may outlive the program that looks after it. So a node
//! whose workloads are processes hands every start, stop and kill to a host,
//! as the machine orders them, and believes that something has ended only
//! when the host says so. A host that is not sure says nothing.
//!
//! Every confirmed beat is passed on, so that a guardian beside the processes
//! can keep the times by itself ([`Host::extend`]). After a restart the host
//! may still have what ran before; then the node goes on under its old id
//! ([`Builder::resume`](super::Builder::resume)).
//!
//! Left out on purpose: hosts beside workloads of this program. A node has
//! the one or the others.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use tenure_core::ids::Name;
use tenure_election::Grant;
use tenure_group::{Digest, Event, Input, NodeId, Order, Run};
use tokio::task::{AbortHandle, JoinSet};

use super::content::Content;
use super::run::{RunContext, StopLevel};
use crate::store::{BoxFuture, Bytes};

/// What a host is to start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The incarnation of the node that wants it.
    pub id: NodeId,
    /// Names this start; no two of one incarnation have the same.
    pub run: Run,
    /// The workload's name, unique in its group.
    pub name: Name,
    /// Names its kind and config.
    pub digest: Digest,
    /// What it was deployed with, as it was.
    pub config: Bytes,
    /// How many of it.
    pub instances: u32,
    /// What to attach to every effect outside.
    pub fence: u64,
    /// Until when it may run if no later beat is told.
    pub grant: Grant,
}

/// What a host tells.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Report {
    /// The workload runs.
    Started(Run),
    /// Nothing of it is left.
    Ended {
        /// Which start.
        run: Run,
        /// Why, if not because it was told to.
        failed: Option<Arc<str>>,
    },
}

/// Runs workloads for a [`Manager`](super::Manager). Called on the background
/// thread: nothing here may block.
pub trait Host: Send + 'static {
    /// Starts this; answered by [`Report::Started`], if that succeeds, and in
    /// any case by one [`Report::Ended`]. It must end by `grant.kill_at`
    /// unless that is moved, whatever becomes of this process.
    fn begin(&mut self, start: Start);

    /// A beat of the node, which is known by this id, was confirmed: what runs
    /// may run for longer.
    fn extend(&mut self, id: NodeId, grant: Grant);

    /// Stops it in good order, in the node's grace.
    fn stop(&mut self, run: Run);

    /// Kills it.
    fn kill(&mut self, run: Run);

    /// The next report. Cancelling this must lose nothing.
    fn next(&mut self) -> impl Future<Output = Report> + Send;
}

/// A [`Host`] of any type.
pub(super) trait AnyHost: Send {
    fn begin(&mut self, start: Start);
    fn extend(&mut self, id: NodeId, grant: Grant);
    fn stop(&mut self, run: Run);
    fn kill(&mut self, run: Run);
    fn next(&mut self) -> BoxFuture<'_, Report>;
}

impl<H: Host> AnyHost for H {
    fn begin(&mut self, start: Start) {
        Host::begin(self, start);
    }

    fn extend(&mut self, id: NodeId, grant: Grant) {
        Host::extend(self, id, grant);
    }

    fn stop(&mut self, run: Run) {
        Host::stop(self, run);
    }

    fn kill(&mut self, run: Run) {
        Host::kill(self, run);
    }

    fn next(&mut self) -> BoxFuture<'_, Report> {
        Box::pin(Host::next(self))
    }
}

/// The host of a node, and the kind of workloads that it runs.
pub(super) struct Hosting {
    pub(super) kind: String,
    pub(super) host: Box<dyn AnyHost>,
}

impl fmt::Debug for Hosting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hosting")
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}

/// What runs at a host, from the order on: the content must be fetched first.
pub(super) struct Hosted {
    run_context: RunContext,
    hosting: Hosting,
    fetching: JoinSet<(Run, Result<Content, Arc<str>>)>,
    orders: BTreeMap<Run, (NodeId, Order, AbortHandle)>,
    /// What never came as far as the host.
    ended: VecDeque<Input>,
    /// Of the last beat of this incarnation.
    grant: Option<Grant>,
}

impl Hosted {
    pub(super) fn new(run_context: RunContext, hosting: Hosting, grant: Option<Grant>) -> Self {
        Self {
            run_context,
            hosting,
            fetching: JoinSet::new(),
            orders: BTreeMap::new(),
            ended: VecDeque::new(),
            grant,
        }
    }

    /// What an event of the node, known by this id, means for the host.
    pub(super) fn follow(&mut self, id: NodeId, event: &Event) {
        match event {
            Event::Beat { grant } => {
                self.grant = Some(*grant);
                self.hosting.host.extend(id, *grant);
            }
            // What is fetched too late is not begun.
            Event::Fenced { .. } => self.grant = None,
            _ => {}
        }
    }

    pub(super) fn begin(&mut self, id: NodeId, order: Order) {
        let (run, digest) = (order.run, order.digest.clone());
        let (store, keys) = (
            Arc::clone(&self.run_context.store),
            self.run_context.keys.clone(),
        );
        let within = self.run_context.within;
        let fetch = self.fetching.spawn(async move {
            let fetched = Content::fetch(store.as_ref(), &keys, &digest, within).await;
            (run, fetched.map_err(|error| error.to_string().into()))
        });
        self.orders.insert(run, (id, order, fetch));
    }

    pub(super) fn pull(&mut self, run: Run, word: StopLevel) {
        if let Some((_, _, fetch)) = self.orders.remove(&run) {
            fetch.abort();
            self.ended.push_back(Input::Ended { run, failed: None });
            return;
        }
        match word {
            StopLevel::Run => {}
            StopLevel::Stop => self.hosting.host.stop(run),
            StopLevel::Kill => self.hosting.host.kill(run),
        }
    }

    /// What becomes of a run; pending while nothing does. Cancelling this
    /// loses nothing.
    pub(super) async fn next(&mut self) -> Input {
        loop {
            if let Some(ended) = self.ended.pop_front() {
                return ended;
            }
            tokio::select! {
                Some(fetched) = self.fetching.join_next(), if !self.fetching.is_empty() => {
                    match fetched {
                        Ok((run, content)) => self.fetched(run, content),
                        Err(error) => self.panicked(error.id()),
                    }
                }
                report = self.hosting.host.next() => return match report {
                    Report::Started(run) => Input::Started { run },
                    Report::Ended { run, failed } => Input::Ended { run, failed },
                },
            }
        }
    }

    fn fetched(&mut self, run: Run, content: Result<Content, Arc<str>>) {
        // Pulled back meanwhile.
        let Some((id, order, _)) = self.orders.remove(&run) else {
            return;
        };
        let begun = content.and_then(|content| {
            let expected = &self.hosting.kind;
            if content.kind.as_str() != expected {
                return Err(format!(
                    "expected a workload of kind {expected}, which is what this node runs, found \
                     one of kind {}; keep programs and agents in groups of their own",
                    content.kind
                )
                .into());
            }
            let grant = self.grant.ok_or("the node's lease is over")?;
            Ok((content, grant))
        });
        match begun {
            Ok((content, grant)) => self.hosting.host.begin(Start {
                id,
                run,
                name: order.name,
                digest: order.digest,
                config: content.config,
                instances: order.instances,
                fence: order.fence,
                grant,
            }),
            Err(why) => self.ended.push_back(Input::Ended {
                run,
                failed: Some(why),
            }),
        }
    }

    /// A task has ended without a word: aborted, or by a store that panicked.
    fn panicked(&mut self, task: tokio::task::Id) {
        let found = self.orders.iter().find(|(_, (_, _, it))| it.id() == task);
        if let Some(run) = found.map(|(run, _)| *run) {
            self.orders.remove(&run);
            let failed = Some("the store has panicked".into());
            self.ended.push_back(Input::Ended { run, failed });
        }
    }
}
