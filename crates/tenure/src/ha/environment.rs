//! What surrounds the machine of a node: a store and its watches on one side,
//! workloads and the application on the other.
//!
//! As around an election, nothing is decided here: calls of the store are
//! carried out in no particular order and with no retries, workloads are
//! started, stopped and killed as told, and what came of it is handed back.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Machine;
use tenure_core::ids::Key;
use tenure_core::time::{Instant, Now};
use tenure_election::Grant;
use tenure_group::{Input, KeyPage, Node, Output, Run};
use tokio::task::JoinSet;

use super::host::{Hosted, Hosting};
use super::run::{RunContext, Runs, StopLevel};
use super::shared::Shared;
use crate::clock;
use crate::drive::{Environment, Flow};
use crate::error::StoreError;
use crate::store::caller::{Caller, MachineWatches, WatchUpdate};
use crate::store::{Register, Selector, Store};

/// A node that lets the application see what it knows, after every step.
pub(super) struct Published {
    node: Node,
    shared: Arc<Shared>,
}

impl Published {
    pub(super) const fn new(node: Node, shared: Arc<Shared>) -> Self {
        Self { node, shared }
    }

    fn show(&self) {
        let (id, member) = (self.node.id(), self.node.is_member());
        self.shared.show(id, member, self.node.view());
    }
}

impl Machine for Published {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.node.handle(now, input);
        self.show();
    }

    fn tick(&mut self, now: Now) {
        self.node.tick(now);
        self.show();
    }

    fn poll(&mut self) -> Option<Output> {
        self.node.poll()
    }

    fn deadline(&self) -> Option<Instant> {
        self.node.deadline()
    }
}

/// What runs here: parts of this program, or what a host keeps outside.
enum WorkloadHost {
    Own(Runs),
    Hosted(Hosted),
}

impl WorkloadHost {
    fn pull(&mut self, run: Run, word: StopLevel) {
        match self {
            Self::Own(runs) => runs.pull(run, word),
            Self::Hosted(hosted) => hosted.pull(run, word),
        }
    }

    async fn next(&mut self) -> Input {
        match self {
            Self::Own(runs) => runs.next().await,
            Self::Hosted(hosted) => hosted.next().await,
        }
    }
}

/// The environment of one node.
pub(super) struct NodeEnvironment {
    store: Arc<dyn Store>,
    watches: MachineWatches,
    caller: Caller,
    calls: JoinSet<Input>,
    works: WorkloadHost,
    shared: Arc<Shared>,
}

impl NodeEnvironment {
    /// `keys` are the register and the prefix to watch.
    pub(super) fn new(
        keys: (Key, String),
        run_context: RunContext,
        hosting: Option<(Hosting, Option<Grant>)>,
        shared: Arc<Shared>,
    ) -> Self {
        let (view, beats) = keys;
        let caller = Caller::new(view.as_str());
        let selectors = [Selector::Key(view), Selector::Prefix(beats)];
        Self {
            watches: MachineWatches::new(run_context.store.as_ref(), selectors),
            store: Arc::clone(&run_context.store),
            caller,
            calls: JoinSet::new(),
            works: match hosting {
                Some((hosting, grant)) => {
                    WorkloadHost::Hosted(Hosted::new(run_context, hosting, grant))
                }
                None => WorkloadHost::Own(Runs::new(run_context)),
            },
            shared,
        }
    }
}

impl Environment<Published> for NodeEnvironment {
    fn carry_out(&mut self, output: Output) -> Flow {
        match output {
            Output::Event(event) => {
                if let WorkloadHost::Hosted(hosted) = &mut self.works {
                    hosted.follow(self.shared.group_state.borrow().id, &event);
                }
                return self.shared.on_event(event);
            }
            Output::Deploy(order) => match &mut self.works {
                WorkloadHost::Own(runs) => runs.begin(order, self.shared.run_deadline()),
                WorkloadHost::Hosted(hosted) => {
                    hosted.begin(self.shared.group_state.borrow().id, order);
                }
            },
            Output::Undeploy { run } => self.works.pull(run, StopLevel::Stop),
            Output::Kill { run } => self.works.pull(run, StopLevel::Kill),
            call => {
                let (caller, store) = (self.caller.clone(), Arc::clone(&self.store));
                self.calls.spawn(carry_out(caller, store, call));
            }
        }
        Flow::On
    }

    async fn next(&mut self) -> Input {
        loop {
            tokio::select! {
                // A store that panicked gives no input; the machine's
                // patience covers it.
                Some(ended) = self.calls.join_next(), if !self.calls.is_empty() => {
                    if let Ok(input) = ended {
                        return input;
                    }
                }
                news = self.works.next() => return news,
                news = self.watches.next() => return match news {
                    WatchUpdate::Seen(key, register) => Input::Seen { key, register },
                    WatchUpdate::WatchUp(up) => Input::WatchUp(up),
                },
                input = self.shared.mailbox.next() => return input,
            }
        }
    }
}

async fn carry_out(caller: Caller, store: Arc<dyn Store>, output: Output) -> Input {
    match output {
        Output::Read { call, key, within } => {
            let result = caller.with_timeout(within, store.read(&key, within)).await;
            Input::Read { call, result }
        }
        Output::List {
            call,
            prefix,
            within,
        } => {
            let result = caller
                .with_timeout(within, list(store.as_ref(), &prefix, within))
                .await;
            Input::Listed { call, result }
        }
        Output::Page {
            call,
            prefix,
            after,
            within,
        } => {
            let page = store.list(&prefix, after.as_ref(), within);
            let page = caller.with_timeout(within, page).await;
            let result = page.map(|page| {
                let keys = page.registers.into_iter();
                let keys = keys.map(|(key, register)| (key, register.version));
                KeyPage {
                    registers: keys.collect(),
                    more: page.more_after.is_some(),
                }
            });
            Input::Paged { call, result }
        }
        Output::Write {
            call,
            write,
            within,
        } => {
            let written = caller
                .with_timeout(within, store.compare_and_swap(write, within))
                .await;
            let result = written.map(|written| written.version);
            Input::Wrote { call, result }
        }
        Output::Delete {
            call,
            key,
            version,
            within,
        } => {
            let result = caller
                .with_timeout(within, store.delete(&key, &version, within))
                .await;
            Input::Deleted { call, result }
        }
        Output::Deploy(_) | Output::Undeploy { .. } | Output::Kill { .. } | Output::Event(_) => {
            unreachable!("these are not calls of the store")
        }
    }
}

/// All pages, in one call's time.
async fn list(
    store: &dyn Store,
    prefix: &str,
    within: Duration,
) -> Result<Vec<(Key, Register)>, StoreError> {
    let end = clock::boot().after(within);
    let (mut registers, mut after) = (Vec::new(), None);
    loop {
        let left = end.since(clock::boot());
        if left.is_zero() {
            return Err(StoreError::unavailable(
                "the list was too long for its time",
            ));
        }
        let page = store.list(prefix, after.as_ref(), left).await?;
        registers.extend(page.registers);
        after = page.more_after;
        if after.is_none() {
            return Ok(registers);
        }
    }
}
