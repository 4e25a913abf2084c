//! What the application tells a running node.
//!
//! At most [`COMMANDS_MAX`] requests wait here, one word to drain or leave,
//! the last status, and one note per workload that has started, so it cannot
//! grow.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_group::{COMMANDS_MAX, Command, Input, Request, Run};
use tokio::sync::Notify;

use crate::store::Bytes;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pending: Mutex<Pending>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Pending {
    requests: VecDeque<(u64, Request)>,
    drain: bool,
    leave: bool,
    status: Option<Bytes>,
    started: VecDeque<Run>,
}

impl Mailbox {
    /// Leaves a request, unless too many wait.
    pub(super) fn push_request(&self, ticket: u64, request: Request) -> bool {
        let mut pending = self.lock();
        if pending.requests.len() >= COMMANDS_MAX {
            return false;
        }
        pending.requests.push_back((ticket, request));
        drop(pending);
        self.changed.notify_one();
        true
    }

    pub(super) fn status(&self, status: Bytes) {
        self.lock().status = Some(status);
        self.changed.notify_one();
    }

    pub(super) fn drain(&self) {
        self.lock().drain = true;
        self.changed.notify_one();
    }

    pub(super) fn leave(&self) {
        self.lock().leave = true;
        self.changed.notify_one();
    }

    /// Notes that a workload runs.
    pub(super) fn started(&self, run: Run) {
        self.lock().started.push_back(run);
        self.changed.notify_one();
    }

    /// The next letter. Cancelling this loses nothing.
    pub(super) async fn next(&self) -> Input {
        loop {
            let news = self.changed.notified();
            if let Some(input) = self.take() {
                return input;
            }
            news.await;
        }
    }

    fn take(&self) -> Option<Input> {
        let mut pending = self.lock();
        if let Some(run) = pending.started.pop_front() {
            return Some(Input::Started { run });
        }
        if std::mem::take(&mut pending.drain) {
            return Some(Input::Command(Command::Drain));
        }
        if std::mem::take(&mut pending.leave) {
            return Some(Input::Command(Command::Leave));
        }
        if let Some(status) = pending.status.take() {
            return Some(Input::Command(Command::Status(status)));
        }
        let (ticket, request) = pending.requests.pop_front()?;
        Some(Input::Command(Command::Ask { ticket, request }))
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
