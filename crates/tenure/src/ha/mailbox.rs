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
    letters: Mutex<Pending>,
    news: Notify,
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
    pub(super) fn ask(&self, ticket: u64, request: Request) -> bool {
        let mut letters = self.lock();
        if letters.requests.len() >= COMMANDS_MAX {
            return false;
        }
        letters.requests.push_back((ticket, request));
        drop(letters);
        self.news.notify_one();
        true
    }

    pub(super) fn status(&self, status: Bytes) {
        self.lock().status = Some(status);
        self.news.notify_one();
    }

    pub(super) fn drain(&self) {
        self.lock().drain = true;
        self.news.notify_one();
    }

    pub(super) fn leave(&self) {
        self.lock().leave = true;
        self.news.notify_one();
    }

    /// Notes that a workload runs.
    pub(super) fn started(&self, run: Run) {
        self.lock().started.push_back(run);
        self.news.notify_one();
    }

    /// The next letter. Cancelling this loses nothing.
    pub(super) async fn next(&self) -> Input {
        loop {
            let news = self.news.notified();
            if let Some(input) = self.take() {
                return input;
            }
            news.await;
        }
    }

    fn take(&self) -> Option<Input> {
        let mut letters = self.lock();
        if let Some(run) = letters.started.pop_front() {
            return Some(Input::Started { run });
        }
        if std::mem::take(&mut letters.drain) {
            return Some(Input::Command(Command::Drain));
        }
        if std::mem::take(&mut letters.leave) {
            return Some(Input::Command(Command::Leave));
        }
        if let Some(status) = letters.status.take() {
            return Some(Input::Command(Command::Status(status)));
        }
        let (ticket, request) = letters.requests.pop_front()?;
        Some(Input::Command(Command::Ask { ticket, request }))
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
