//! Runs of workloads: each is begun by an order of the machine and ends once.
//!
//! ```text
//!  fetch the content ──> make ──> deploy ──> (runs) ──> undeploy ──> dropped
//!        │                │         │           │           │
//!        └──── an order to stop or to kill, or the deadline  ───> dropped
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
use super::mailbox::Mailbox;
use super::run_deadline::RunDeadline;
use super::workload::{Factory, Facts, Registry, RunHandle};
use crate::drive;
use crate::store::Store;

/// What a run is told; each word outdoes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum StopLevel {
    Run,
    Stop,
    Kill,
}

/// What every run of a node needs.
#[derive(Clone)]
pub(super) struct RunContext {
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
    run_context: RunContext,
    tasks: JoinSet<Input>,
    stop_levels: BTreeMap<Run, state::Sender<StopLevel>>,
}

/// Why a run ended, if it was not told to.
type End = Option<Arc<str>>;

impl Runs {
    pub(super) fn new(run_context: RunContext) -> Self {
        Self {
            run_context,
            tasks: JoinSet::new(),
            stop_levels: BTreeMap::new(),
        }
    }

    /// Begins a run.
    pub(super) fn begin(&mut self, order: Order, run_deadline: Arc<RunDeadline>) {
        let (stop_level, stop_levels) = state::channel(StopLevel::Run);
        let run = order.run;
        self.stop_levels.insert(run, stop_level);
        let run_context = self.run_context.clone();
        self.tasks.spawn(async move {
            let failed = supervise(run_context, order, run_deadline, stop_levels).await;
            Input::Ended { run, failed }
        });
    }

    /// Tells a run to stop, or kills it.
    pub(super) fn pull(&self, run: Run, word: StopLevel) {
        if let Some(stop_level) = self.stop_levels.get(&run) {
            stop_level.send_if_modified(|stop_level| {
                let more = *stop_level < word;
                *stop_level = word.max(*stop_level);
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
                        self.stop_levels.remove(run);
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
async fn told(stop_levels: &mut state::Receiver<StopLevel>, word: StopLevel) {
    if stop_levels
        .wait_for(|stop_level| *stop_level >= word)
        .await
        .is_err()
    {
        // The driver of the node has gone, and drops this very task.
        std::future::pending::<()>().await;
    }
}

/// Carries a run from its order to its end. Runs on the background thread, and
/// runs nothing of the application's there.
async fn supervise(
    run_context: RunContext,
    order: Order,
    run_deadline: Arc<RunDeadline>,
    mut stop_levels: state::Receiver<StopLevel>,
) -> End {
    let (store, keys, digest) = (run_context.store, run_context.keys, order.digest);
    let within = run_context.within;
    let mut fetching = JoinSet::new();
    let fetch = async move { Content::fetch(store.as_ref(), &keys, &digest, within).await };
    fetching.spawn_on(fetch, drive::background());
    let fetched = tokio::select! {
        biased;
        () = told(&mut stop_levels, StopLevel::Stop) => return None,
        fetched = fetching.join_next() => fetched,
    };
    let content = match fetched {
        Some(Ok(Ok(content))) => content,
        Some(Ok(Err(error))) => return Some(error.to_string().into()),
        Some(Err(_)) | None => return Some("the store has panicked".into()),
    };
    let Some(factory) = run_context.registry.get(content.kind.as_str()) else {
        let found = run_context.registry.described();
        let kind = content.kind;
        let why = format!(
            "expected a factory for workloads of kind {kind} on this node, found those for: \
             {found}; register it before the node starts"
        );
        return Some(why.into());
    };
    let run = order.run;
    let handle = RunHandle::new(Facts {
        name: order.name,
        kind: content.kind,
        config: content.config,
        instances: order.instances,
        fence: order.fence,
        run_deadline,
        over: AtomicBool::new(false),
    });
    let mailbox = run_context.mailbox;
    let started = move || mailbox.started(run);
    let mut task = JoinSet::new();
    let kept = keep(factory, handle, stop_levels.clone(), started);
    task.spawn_on(kept, &run_context.runtime);
    let ended = tokio::select! {
        biased;
        () = told(&mut stop_levels, StopLevel::Kill) => None,
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
        Some(Err(_)) | None if *stop_levels.borrow() == StopLevel::Kill => None,
        Some(Err(_)) | None => Some("the runtime that it ran on has ended".into()),
    }
}

/// Tells callers that still look at a run that it is over, however it ends.
struct EndOfRun(RunHandle);

impl Drop for EndOfRun {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Keeps a workload to its deadline, on the application's runtime.
async fn keep(
    factory: Arc<Factory>,
    handle: RunHandle,
    stop_levels: state::Receiver<StopLevel>,
    started: impl FnOnce() + Send,
) -> End {
    let _over = EndOfRun(handle.clone());
    tokio::select! {
        biased;
        () = handle.pulled() => Some("its node could not confirm in time that it lives".into()),
        end = live(factory, &handle, stop_levels, started) => end,
    }
}

async fn live(
    factory: Arc<Factory>,
    handle: &RunHandle,
    mut stop_levels: state::Receiver<StopLevel>,
    started: impl FnOnce() + Send,
) -> End {
    let mut workload = factory();
    let deployed = tokio::select! {
        biased;
        () = told(&mut stop_levels, StopLevel::Stop) => None,
        deployed = workload.deploy(handle) => Some(deployed),
    };
    let end = match deployed {
        Some(Err(cause)) => return Some(cause.to_string().into()),
        Some(Ok(())) => {
            started();
            tokio::select! {
                biased;
                () = told(&mut stop_levels, StopLevel::Stop) => None,
                cause = workload.ended() => Some(cause.to_string().into()),
            }
        }
        None => None,
    };
    workload.undeploy().await;
    end
}
