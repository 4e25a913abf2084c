//! Tails of the user log, and what they have in common with watches.
//!
//! Any server tells them what it has applied. A client that comes without a
//! place is told nothing before a server that has just started has caught up:
//! it must not be older than what this very server told before.

use std::time::Duration;

use tenure_alpo::{Answer, Node, QueryResult};
use tenure_api::v1::{self, Cause};
use tokio::sync::watch;

use super::authorization::Authorized;
use super::errors::error;
use super::handle::ServerHandle;
use super::inbox::TimedAnswer;
use super::services::ApiResult;
use super::shared::Progress;
use super::steps::{Next, Step, Steps};
use super::translate;

/// How long a watch or a tail without a place waits for a server that has
/// just started.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(3);

impl ServerHandle {
    /// Follows the user log from `from` on; 0 for what is new.
    pub(super) async fn tail(&self, asked: Authorized<v1::TailRequest>) -> ApiResult<Steps<Tail>> {
        let progress = self.shared.progress.subscribe();
        let next = match asked.request().from {
            0 => {
                self.caught_up().await?;
                self.inspect(|node| node.state().user_log().next()).await?
            }
            from => from,
        };
        let handle = self.clone();
        Ok(Steps::from(Tail {
            handle,
            asked,
            progress,
            next,
            is_first: true,
        }))
    }

    /// Waits until the state has all that it had before the process started.
    /// What a watcher without a place is told must not be older
    /// than what this very server has told before.
    pub(super) async fn caught_up(&self) -> ApiResult<()> {
        let mut caught_up = self.shared.caught_up.subscribe();
        let wait = caught_up.wait_for(|caught_up| *caught_up);
        match tokio::time::timeout(CATCH_UP_WITHIN, wait).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(error(
                Cause::NotReady,
                "this server has started and has not yet heard from a leader how far the log is \
                 committed; ask another",
            )),
        }
    }

    /// Some entries of the user log that this server has applied.
    async fn some_of_log(&self, from: u64) -> ApiResult<v1::ReadLogResponse> {
        let inspect = move |node: &Node| {
            let user_log = node.state().user_log();
            if let Some(gap) = user_log.gap(from) {
                return QueryResult::Restored(gap.to);
            }
            let entries = user_log.read(from).map_err(|old| old.first);
            QueryResult::UserLog(entries.map(|entries| {
                let mut left = TAIL_BYTES;
                let fits = |(_, data): &(u64, &tenure_core::cas::Bytes)| {
                    let fits = left > 0;
                    left = left.saturating_sub(data.len() + 64);
                    fits
                };
                let entries = entries.take_while(fits);
                entries.map(|(number, it)| (number, it.clone())).collect()
            }))
        };
        let answer = Answer::Read(self.inspect_in_turn(inspect).await?);
        let told = TimedAnswer::from(answer);
        translate::found(told, &self.shared).map(translate::log_response)
    }
}

/// After how many bytes a message of a tail takes nothing more; the first
/// entry always fits.
const TAIL_BYTES: usize = 64 * 1024;

/// The user log from a place on.
pub(super) struct Tail {
    handle: ServerHandle,
    asked: Authorized<v1::TailRequest>,
    progress: watch::Receiver<Progress>,
    next: u64,
    /// Whether nothing was told yet.
    is_first: bool,
}

impl Step for Tail {
    type Message = v1::ReadLogResponse;

    async fn step(mut self) -> Next<Self> {
        loop {
            let mut read = match self.asked.still() {
                Ok(()) => self.handle.some_of_log(self.next).await,
                Err(barred) => Err(barred),
            };
            let Ok(response) = &mut read else {
                return Some((None, read));
            };
            let count = response.entries.len() as u64;
            if count > 0 {
                self.next += count;
                if std::mem::take(&mut self.is_first) {
                    response.cluster = self.handle.cluster();
                }
                return Some((Some(self), read));
            }
            self.progress.changed().await.ok()?;
        }
    }
}
