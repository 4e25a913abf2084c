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

use super::host::{Hosted, Hosting};
use super::run::{RunContext, Runs, StopLevel};
use super::shared::Shared;
use crate::clock;
use crate::drive::{Environment, Flow};
use crate::error::StoreError;
use crate::store::caller::{Calls, WatchUpdate};
use crate::store::{Page, Register, Selector, Store, Written};

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

impl From<WatchUpdate> for Input {
    fn from(update: WatchUpdate) -> Self {
        match update {
            WatchUpdate::Seen(key, register) => Self::Seen { key, register },
            WatchUpdate::WatchUp(up) => Self::WatchUp(up),
        }
    }
}

/// The environment of one node.
pub(super) struct NodeEnvironment {
    calls: Calls<Input>,
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
        let (who, store) = (view.as_str().to_owned(), Arc::clone(&run_context.store));
        let selectors = [Selector::Key(view), Selector::Prefix(beats)];
        Self {
            calls: Calls::new(store, who, selectors),
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
        let (store, calls) = (self.calls.store(), &mut self.calls);
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
            Output::Read { call, key, within } => {
                let reading = move |within| async move { store.read(&key, within).await };
                calls.begin(within, reading, move |result| Input::Read { call, result });
            }
            Output::List {
                call,
                prefix,
                within,
            } => {
                let list = move |within| async move { list(store.as_ref(), &prefix, within).await };
                let listed = move |result| Input::Listed { call, result };
                calls.begin(within, list, listed);
            }
            Output::Page {
                call,
                prefix,
                after,
                within,
            } => {
                let page =
                    move |within| async move { store.list(&prefix, after.as_ref(), within).await };
                let paged = move |page: Result<Page, _>| Input::Paged {
                    call,
                    result: page.map(keys),
                };
                calls.begin(within, page, paged);
            }
            Output::Write {
                call,
                write,
                within,
            } => {
                let written =
                    move |within| async move { store.compare_and_swap(write, within).await };
                let wrote = move |written: Result<Written, _>| Input::Wrote {
                    call,
                    result: written.map(|it| it.version),
                };
                calls.begin(within, written, wrote);
            }
            Output::Delete {
                call,
                key,
                version,
                within,
            } => {
                let delete =
                    move |within| async move { store.delete(&key, &version, within).await };
                let deleted = move |result| Input::Deleted { call, result };
                calls.begin(within, delete, deleted);
            }
        }
        Flow::On
    }

    async fn next(&mut self) -> Input {
        tokio::select! {
            input = self.calls.next() => input,
            input = self.works.next() => input,
            input = self.shared.mailbox.next() => input,
        }
    }
}

fn keys(page: Page) -> KeyPage {
    let registers = page.registers.into_iter();
    let registers = registers.map(|(key, register)| (key, register.version));
    KeyPage {
        registers: registers.collect(),
        more: page.more_after.is_some(),
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
