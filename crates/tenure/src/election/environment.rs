//! What surrounds an election machine in production: a store and its
//! watches on one side, the application on the other.
//!
//! Store calls are carried out in no particular order and with no retries;
//! what came of them is handed back. There is no `if` about terms or leases
//! here: a driver that decides is a second protocol that is not checked.

use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::Machine;
use tenure_core::ids::Key;
use tenure_core::time::Instant;
use tenure_election::{Command, Event, Failure, FailureClass, Input, Output};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::drive::{Environment, Flow};
use crate::store::caller::{Caller, MachineWatches, WatchUpdate};
use crate::store::{Hold, Selector, Store};

/// What an application tells a running machine. It holds at most one command
/// (a stop beats what came before; otherwise the last one counts), one note
/// that work has ended and one of the latest grant that work goes by, so it
/// cannot grow.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    drained: bool,
    command: Option<Command>,
    confirmed: Option<Instant>,
}

impl Mailbox {
    /// Leaves a command.
    pub(super) fn command(&self, command: Command) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.command != Some(Command::Stop) {
            pending.command = Some(command);
        }
        drop(pending);
        self.changed.notify_one();
    }

    /// Notes that the application's work goes by the grant of this start.
    pub(super) fn work_confirmed(&self, start: Instant) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.confirmed = pending.confirmed.max(Some(start));
        drop(pending);
        self.changed.notify_one();
    }

    /// Notes that the application's work has ended.
    pub(super) fn drained(&self) {
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drained = true;
        self.changed.notify_one();
    }

    async fn next(&self) -> Input {
        loop {
            if let Some(input) = self.take() {
                return input;
            }
            self.changed().await;
        }
    }

    /// Waits until something was left since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(super) fn take(&self) -> Option<Input> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // The command first: who stops and drops the work in one breath
        // should not be heard to resign and stand again.
        if let Some(command) = pending.command.take() {
            return Some(Input::Command(command));
        }
        if let Some(start) = pending.confirmed.take() {
            return Some(Input::WorkConfirmed { start });
        }
        std::mem::take(&mut pending.drained).then_some(Input::Drained)
    }
}

/// The environment of one election machine: a store, its watches, and the
/// application.
pub(super) struct ElectionEnvironment<F> {
    store: Arc<dyn Store>,
    /// By which the election is held, if a session is to hold it.
    hold: Option<Arc<dyn Hold>>,
    watches: MachineWatches,
    caller: Caller,
    calls: JoinSet<Input>,
    mailbox: Arc<Mailbox>,
    on_event: F,
}

impl<F> ElectionEnvironment<F>
where
    F: FnMut(Event) -> Flow,
{
    /// `keys` are the registers to watch; `on_event` hears every event, on
    /// the background thread, and must not block.
    pub(super) fn new(
        store: Arc<dyn Store>,
        keys: Vec<Key>,
        mailbox: Arc<Mailbox>,
        on_event: F,
    ) -> Self {
        let who = keys.first().map_or("", Key::as_str).to_owned();
        let watches = MachineWatches::new(store.as_ref(), keys.into_iter().map(Selector::Key));
        Self {
            store,
            hold: None,
            watches,
            caller: Caller::new(who),
            calls: JoinSet::new(),
            mailbox,
            on_event,
        }
    }

    /// The same with an election that a session holds.
    pub(super) fn holding(self, hold: Option<Arc<dyn Hold>>) -> Self {
        Self { hold, ..self }
    }

    /// Begins to carry out a call. What goes to a session is sent here and
    /// now, not when somebody first asks for the answer: its order counts.
    fn call(&mut self, output: Output) {
        let caller = self.caller.clone();
        match (output, &self.hold) {
            (
                Output::Write {
                    call,
                    write,
                    bind,
                    within,
                },
                Some(hold),
            ) => {
                let asked = hold.write(write, bind, within);
                self.calls.spawn(async move {
                    let written = caller.with_timeout(within, asked).await;
                    let result = written.map(|written| written.version);
                    Input::Wrote { call, result }
                });
            }
            (
                Output::Confirm {
                    call,
                    since,
                    within,
                },
                Some(hold),
            ) => {
                let asked = hold.confirm(since, within);
                self.calls.spawn(async move {
                    let result = caller.with_timeout(within, asked).await;
                    Input::Confirmed { call, result }
                });
            }
            (Output::Release, Some(hold)) => hold.release(),
            (output, _) => {
                let store = Arc::clone(&self.store);
                self.calls.spawn(carry_out(caller, store, output));
            }
        }
    }
}

impl<M, F> Environment<M> for ElectionEnvironment<F>
where
    M: Machine<Input = Input, Output = Output>,
    F: FnMut(Event) -> Flow + Send,
{
    fn carry_out(&mut self, output: Output) -> Flow {
        match output {
            Output::Event(event) => return (self.on_event)(event),
            output => self.call(output),
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
                news = self.watches.next() => return match news {
                    WatchUpdate::Seen(key, register) => Input::Seen { key, register },
                    WatchUpdate::WatchUp(up) => Input::WatchUp(up),
                },
                input = self.mailbox.next() => return input,
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
        Output::Write {
            call,
            write,
            within,
            ..
        } => {
            let swapped = store.compare_and_swap(write, within);
            let written = caller.with_timeout(within, swapped).await;
            Input::Wrote {
                call,
                result: written.map(|written| written.version),
            }
        }
        // Only a campaign that was given a hold asks for more.
        Output::Confirm { call, .. } => Input::Confirmed {
            call,
            result: Err(Failure::new(FailureClass::Broken, "there is no session")),
        },
        Output::Release | Output::Event(_) => unreachable!("neither is a call"),
    }
}
