//! Does this server still lead?
//!
//! A leader that is cut off, or whose followers have gone, learns it only from
//! their silence, an election timeout later: until then it shows itself as it
//! was. A client that looks at how a cluster stands asks it to make sure: it
//! reads nothing, as every read does, from a majority that confirms it (with
//! `lease_reads` on the strength of its lease, which is not older than a
//! timeout either).

use std::time::Duration;

use tenure_alpo::{Answer, ClientRequest, Query, Refusal, Status};
use tokio::time::{sleep, timeout};

use super::handle::ServerHandle;

/// The longest that a server waits for a majority before it says how it
/// stands, however long it was asked to.
const CONFIRM_MAX: Duration = Duration::from_secs(10);
/// The pause before an overloaded server is asked again.
const PAUSE: Duration = Duration::from_millis(20);

impl ServerHandle {
    /// Whether a majority confirms within so many milliseconds that this
    /// server leads; `None` if it does not lead, or 0 were given.
    pub(super) async fn confirm(&self, millis: u32) -> Option<bool> {
        let leads = self.inspect(|node| node.status() == Status::Leader).await;
        if millis == 0 || leads != Ok(true) {
            return None;
        }
        let within = Duration::from_millis(millis.into()).min(CONFIRM_MAX);
        timeout(within, self.barrier()).await.unwrap_or(Some(false))
    }

    /// The same, however long it takes.
    async fn barrier(&self) -> Option<bool> {
        loop {
            match self
                .submit(ClientRequest::Read(Query::Barrier))
                .await
                .answer
            {
                Answer::Read(_) => return Some(true),
                Answer::Refused(Refusal::NotLeader { .. }) => return None,
                Answer::Refused(Refusal::Busy) => sleep(PAUSE).await,
                _ => return Some(false),
            }
        }
    }
}
