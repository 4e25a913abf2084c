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
use tenure_election::{Command, Event, Input, Output};
use tokio::sync::Notify;

use super::write_times::{self, WriteTimer};
use crate::drive::{Environment, Flow};
use crate::error::StoreError;
use crate::store::caller::{Calls, WatchUpdate};
use crate::store::{Hold, Selector, Store, Written};

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

impl From<WatchUpdate> for Input {
    fn from(update: WatchUpdate) -> Self {
        match update {
            WatchUpdate::Seen(key, register) => Self::Seen { key, register },
            WatchUpdate::WatchUp(up) => Self::WatchUp(up),
        }
    }
}

/// The environment of one election machine: a store, its watches, and the
/// application.
pub(super) struct ElectionEnvironment<F> {
    calls: Calls<Input>,
    /// By which the election is held, if a session is to hold it.
    hold: Option<Arc<dyn Hold>>,
    mailbox: Arc<Mailbox>,
    /// Of a candidate: how long its writes take.
    timer: Option<Arc<WriteTimer>>,
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
        Self {
            calls: Calls::new(store, who, keys.into_iter().map(Selector::Key)),
            hold: None,
            mailbox,
            timer: None,
            on_event,
        }
    }

    /// The same with an election that a session holds.
    pub(super) fn holding(self, hold: Option<Arc<dyn Hold>>) -> Self {
        Self { hold, ..self }
    }

    /// The same, whose writes are timed.
    pub(super) fn timed(self, timer: Arc<WriteTimer>) -> Self {
        let timer = Some(timer);
        Self { timer, ..self }
    }
}

impl<M, F> Environment<M> for ElectionEnvironment<F>
where
    M: Machine<Input = Input, Output = Output>,
    F: FnMut(Event) -> Flow + Send,
{
    /// What goes to a session is sent here and now, not when somebody first
    /// asks for the answer: its order counts.
    fn carry_out(&mut self, output: Output) -> Flow {
        let stopwatch = write_times::stopwatch(self.timer.clone());
        let (store, calls) = (self.calls.store(), &mut self.calls);
        match (output, &self.hold) {
            (Output::Event(event), _) => return (self.on_event)(event),
            (Output::Read { call, key, within }, _) => {
                let reading = move |within| async move { store.read(&key, within).await };
                calls.begin(within, reading, move |result| Input::Read { call, result });
            }
            (
                Output::Write {
                    call,
                    write,
                    bind,
                    within,
                },
                hold,
            ) => {
                let written = |within| match hold {
                    Some(hold) => hold.write(write, bind, within),
                    None => Box::pin(async move { store.compare_and_swap(write, within).await }),
                };
                let wrote = move |written: Result<Written, _>| {
                    stopwatch(written.is_ok());
                    let result = written.map(|it| it.version);
                    Input::Wrote { call, result }
                };
                calls.begin(within, written, wrote);
            }
            (
                Output::Confirm {
                    call,
                    since,
                    within,
                },
                hold,
            ) => {
                let confirmed = move |result: Result<Instant, _>| {
                    stopwatch(result.is_ok());
                    Input::Confirmed { call, result }
                };
                let alive = |within| {
                    let alive = hold.as_ref().map(|hold| hold.confirm(since, within));
                    // Only a campaign that was given a hold asks for this.
                    alive.unwrap_or_else(|| {
                        let none = StoreError::broken("there is no session");
                        Box::pin(std::future::ready(Err(none)))
                    })
                };
                calls.begin(within, alive, confirmed);
            }
            (Output::Release, Some(hold)) => hold.release(),
            (Output::Release, None) => {}
        }
        Flow::On
    }

    async fn next(&mut self) -> Input {
        tokio::select! {
            input = self.calls.next() => input,
            input = self.mailbox.next() => input,
        }
    }
}
