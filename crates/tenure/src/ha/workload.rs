//! What a program brings along: workloads, and how to make them.
//!
//! A workload is made anew for every start, by the factory that every node of
//! the group has registered under the same *kind*. The view and the store
//! carry names, configs and numbers only; code never travels.
//!
//! Left out on purpose: handing state over. A workload that needs any keeps it
//! outside, and attaches its [`fence`](RunHandle::fence) to what it writes.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::ids::Name;

use super::run_deadline::RunDeadline;
use crate::clock;
use crate::error::Cause;
use crate::store::{BoxFuture, Bytes};

/// Something that runs on one node of a group at a time.
///
/// It runs on the runtime of the [`Manager`](super::Manager)'s starter, and
/// must not block its thread: a workload that cannot be dropped cannot be
/// killed in time, and then only its fence protects what it writes to.
pub trait Workload: Send + 'static {
    /// Starts it. When this returns it runs: on tasks that end when `self` is
    /// dropped, or that look at [`RunHandle::is_valid`]. Dropped unfinished if
    /// it must stop meanwhile, and then [`undeploy`](Self::undeploy) is called.
    ///
    /// # Errors
    /// Why it cannot run here. It is dropped and tried again, after a while or
    /// on another node.
    fn deploy(&mut self, run: &RunHandle) -> impl Future<Output = Result<(), Cause>> + Send;

    /// Stops it in good order; it is dropped after that. This gets the grace
    /// and never goes beyond `kill_at`: then it is dropped in the middle.
    fn undeploy(&mut self) -> impl Future<Output = ()> + Send;

    /// Waits until it has ended by itself, and says why; it is undeployed and
    /// started again. By default it never does.
    fn ended(&mut self) -> impl Future<Output = Cause> + Send {
        std::future::pending()
    }
}

/// One run of a workload on this node: its configuration, its fence, and whether it
/// may still run. Clones refer to the same run.
#[derive(Clone)]
pub struct RunHandle {
    facts: Arc<Facts>,
}

/// What a start is given.
pub(super) struct Facts {
    pub(super) name: Name,
    pub(super) kind: Name,
    pub(super) config: Bytes,
    pub(super) instances: u32,
    pub(super) fence: u64,
    pub(super) run_deadline: Arc<RunDeadline>,
    pub(super) over: AtomicBool,
}

impl RunHandle {
    pub(super) fn new(facts: Facts) -> Self {
        let facts = Arc::new(facts);
        Self { facts }
    }

    /// The name of the workload, unique in its group.
    pub fn name(&self) -> &Name {
        &self.facts.name
    }

    /// What factory made it.
    pub fn kind(&self) -> &Name {
        &self.facts.kind
    }

    /// What it was deployed with, as it was: opaque bytes, by custom JSON.
    pub fn config(&self) -> &[u8] {
        &self.facts.config
    }

    /// How many of it are to run, from 1 to
    /// [`INSTANCES_MAX`](super::INSTANCES_MAX); what that means is its own
    /// matter.
    pub fn instances(&self) -> u32 {
        self.facts.instances
    }

    /// What to attach to every effect outside this process. A node that runs
    /// the workload later has a higher one.
    pub fn fence(&self) -> u64 {
        self.facts.fence
    }

    /// Whether it may still run: an atomic load and a look at the boot-time
    /// clock. True means that nobody else can have started it yet; it may turn
    /// false right after.
    #[inline]
    pub fn is_valid(&self) -> bool {
        !self.facts.over.load(Ordering::Acquire) && self.facts.run_deadline.is_valid()
    }

    /// How long [`is_valid`](Self::is_valid) stays true if nothing more is
    /// confirmed.
    pub fn remaining(&self) -> Duration {
        if self.facts.over.load(Ordering::Acquire) {
            return Duration::ZERO;
        }
        self.facts.run_deadline.valid_until().since(clock::boot())
    }

    pub(super) async fn pulled(&self) {
        self.facts.run_deadline.pulled().await;
    }

    /// The workload has ended.
    pub(super) fn end(&self) {
        self.facts.over.store(true, Ordering::Release);
    }
}

impl fmt::Debug for RunHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandle")
            .field("name", self.name())
            .field("kind", self.kind())
            .field("instances", &self.instances())
            .field("fence", &self.fence())
            .field("is_valid", &self.is_valid())
            .finish_non_exhaustive()
    }
}

/// A [`Workload`] of any type.
pub(super) trait AnyWorkload: Send {
    fn deploy<'a>(&'a mut self, run: &'a RunHandle) -> BoxFuture<'a, Result<(), Cause>>;
    fn undeploy(&mut self) -> BoxFuture<'_, ()>;
    fn ended(&mut self) -> BoxFuture<'_, Cause>;
}

impl<W: Workload> AnyWorkload for W {
    fn deploy<'a>(&'a mut self, run: &'a RunHandle) -> BoxFuture<'a, Result<(), Cause>> {
        Box::pin(Workload::deploy(self, run))
    }

    fn undeploy(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(Workload::undeploy(self))
    }

    fn ended(&mut self) -> BoxFuture<'_, Cause> {
        Box::pin(Workload::ended(self))
    }
}

/// Makes a workload.
pub(super) type Factory = dyn Fn() -> Box<dyn AnyWorkload> + Send + Sync;

/// The factories of a node, by kind.
#[derive(Clone, Default)]
pub(super) struct Registry {
    factories: BTreeMap<String, Arc<Factory>>,
    /// What a host runs, if there is one.
    hosted: Option<String>,
}

impl Registry {
    /// Takes in how workloads of this kind are made; the last word counts.
    pub(super) fn add<W: Workload>(
        &mut self,
        kind: String,
        make: impl Fn() -> W + Send + Sync + 'static,
    ) {
        let factory = move || -> Box<dyn AnyWorkload> { Box::new(make()) };
        self.factories.insert(kind, Arc::new(factory));
    }

    /// Takes in what kind a host runs.
    pub(super) fn host(&mut self, kind: String) {
        self.hosted = Some(kind);
    }

    /// Whether workloads of this kind can run here.
    pub(super) fn knows(&self, kind: &str) -> bool {
        self.kinds().any(|known| known == kind)
    }

    pub(super) fn get(&self, kind: &str) -> Option<Arc<Factory>> {
        self.factories.get(kind).cloned()
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = &str> {
        let own = self.factories.keys().map(String::as_str);
        let own = own.filter(|_| self.hosted.is_none());
        own.chain(self.hosted.as_deref())
    }

    /// The kinds there are, for people.
    pub(super) fn described(&self) -> String {
        let kinds: Vec<&str> = self.kinds().collect();
        match kinds.as_slice() {
            [] => "none".to_owned(),
            kinds => kinds.join(", "),
        }
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kinds()).finish()
    }
}
