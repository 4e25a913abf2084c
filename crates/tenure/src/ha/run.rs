//! Runs of workloads: each is begun by an order of the machine and ends once.
//!
//! ```text
//!  fetch the content ──> make ──> deploy ──> (runs) ──> undeploy ──> dropped
//!        │                │         │           │           │
//!        └──── an order to stop or to kill, or the end of the leash ───> dropped
//! ```
//!
//! A run has a task of its own on the application's runtime, and one on the
//! background thread that outlives it: whatever becomes of the workload, be it
//! a panic, the machine hears exactly one end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tenure_group::{Input, Keys, Order, Run};
use tokio::runtime::Handle;
use tokio::sync::watch as state;
use tokio::task::JoinSet;

use super::content::Content;
use super::leash::Leash;
use super::mailbox::Mailbox;
use super::workload::{Factory, Facts, Placement, Registry};
use crate::drive;
use crate::store::Store;

/// What a run is told; each word outdoes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rein {
    Run,
    Stop,
    Kill,
}

/// What every run of a node needs.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keys,
    pub(super) registry: Arc<Registry>,
    pub(super) runtime: Handle,
    pub(super) mailbox: Arc<Mailbox>,
    /// How long a read of the store may take.
    pub(super) within: Duration,
}

/// The runs of a node. Dropping it kills them all.
pub(super) struct Runs {
    ground: Ground,
    tasks: JoinSet<Input>,
    reins: BTreeMap<Run, state::Sender<Rein>>,
}

/// Why a run ended, if it was not told to.
type End = Option<Arc<str>>;

impl Runs {
    pub(super) fn new(ground: Ground) -> Self {
        Self {
            ground,
            tasks: JoinSet::new(),
            reins: BTreeMap::new(),
        }
    }

    /// Begins a run.
    pub(super) fn begin(&mut self, order: Order, leash: Arc<Leash>) {
        let (rein, reins) = state::channel(Rein::Run);
        let run = order.run;
        self.reins.insert(run, rein);
        let ground = self.ground.clone();
        self.tasks.spawn(async move {
            let failed = supervise(ground, order, leash, reins).await;
            Input::Ended { run, failed }
        });
    }

    /// Tells a run to stop, or kills it.
    pub(super) fn pull(&self, run: Run, word: Rein) {
        if let Some(rein) = self.reins.get(&run) {
            rein.send_if_modified(|rein| {
                let more = *rein < word;
                *rein = word.max(*rein);
                more
            });
        }
    }

    /// The end of a run; pending while nothing runs. Cancelling this loses
    /// nothing.
    pub(super) async fn next(&mut self) -> Input {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(input)) => {
                    if let Input::Ended { run, .. } = &input {
                        self.reins.remove(run);
                    }
                    return input;
                }
                Some(Err(error)) => tracing::error!(%error, "a run has no end"),
                None => std::future::pending().await,
            }
        }
    }
}

/// Waits until a run is told this, or more.
async fn told(reins: &mut state::Receiver<Rein>, word: Rein) {
    if reins.wait_for(|rein| *rein >= word).await.is_err() {
        // Whoever drives the node has gone, and drops this very task.
        std::future::pending::<()>().await;
    }
}

/// Carries a run from its order to its end. Runs on the background thread, and
/// runs nothing of the application's there.
async fn supervise(
    ground: Ground,
    order: Order,
    leash: Arc<Leash>,
    mut reins: state::Receiver<Rein>,
) -> End {
    let (store, keys, digest) = (ground.store, ground.keys, order.digest);
    let within = ground.within;
    let mut fetching = JoinSet::new();
    let fetch = async move { Content::fetch(store.as_ref(), &keys, &digest, within).await };
    fetching.spawn_on(fetch, drive::background());
    let fetched = tokio::select! {
        biased;
        () = told(&mut reins, Rein::Stop) => return None,
        fetched = fetching.join_next() => fetched,
    };
    let content = match fetched {
        Some(Ok(Ok(content))) => content,
        Some(Ok(Err(error))) => return Some(error.to_string().into()),
        Some(Err(_)) | None => return Some("the store has panicked".into()),
    };
    let Some(factory) = ground.registry.get(content.kind.as_str()) else {
        let found = ground.registry.described();
        let kind = content.kind;
        let why = format!(
            "expected a factory for workloads of kind {kind} on this node, found those for: \
             {found}; register it before the node starts"
        );
        return Some(why.into());
    };
    let run = order.run;
    let placement = Placement::new(Facts {
        name: order.name,
        kind: content.kind,
        config: content.config,
        instances: order.instances,
        fence: order.fence,
        leash,
        over: AtomicBool::new(false),
    });
    let mailbox = ground.mailbox;
    let started = move || mailbox.started(run);
    let mut task = JoinSet::new();
    let kept = keep(factory, placement, reins.clone(), started);
    task.spawn_on(kept, &ground.runtime);
    let ended = tokio::select! {
        biased;
        () = told(&mut reins, Rein::Kill) => None,
        ended = task.join_next() => Some(ended),
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            task.abort_all();
            // It has ended when it is dropped, and not before.
            task.join_next().await
        }
    };
    match ended {
        Some(Ok(end)) => end,
        Some(Err(error)) if error.is_panic() => Some("it has panicked".into()),
        Some(Err(_)) | None if *reins.borrow() == Rein::Kill => None,
        Some(Err(_)) | None => Some("the runtime that it ran on has ended".into()),
    }
}

/// Sees that whoever still looks at a placement is told that it is over,
/// however the run ends.
struct Over(Placement);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Keeps a workload on the leash, on the application's runtime.
async fn keep(
    factory: Arc<Factory>,
    placement: Placement,
    reins: state::Receiver<Rein>,
    started: impl FnOnce() + Send,
) -> End {
    let _over = Over(placement.clone());
    tokio::select! {
        biased;
        () = placement.pulled() => Some("its node could not confirm in time that it lives".into()),
        end = live(factory, &placement, reins, started) => end,
    }
}

async fn live(
    factory: Arc<Factory>,
    placement: &Placement,
    mut reins: state::Receiver<Rein>,
    started: impl FnOnce() + Send,
) -> End {
    let mut workload = factory();
    let deployed = tokio::select! {
        biased;
        () = told(&mut reins, Rein::Stop) => None,
        deployed = workload.deploy(placement) => Some(deployed),
    };
    let end = match deployed {
        Some(Err(cause)) => return Some(cause.to_string().into()),
        Some(Ok(())) => {
            started();
            tokio::select! {
                biased;
                () = told(&mut reins, Rein::Stop) => None,
                cause = workload.ended() => Some(cause.to_string().into()),
            }
        }
        None => None,
    };
    workload.undeploy().await;
    end
}
