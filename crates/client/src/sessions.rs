//! The sessions of a cluster, for its operators.

use super::error::{of_ending, of_reading};
use super::{Client, Error};
use tenure_api::v1::{self, sessions_client::SessionsClient};

impl Client {
    /// All sessions, in the order in which they were opened. Takes the right
    /// admin where the cluster has tokens.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nobody leads in time.
    pub async fn sessions(&self) -> Result<Vec<v1::SessionInfo>, Error> {
        let mut all: Vec<v1::SessionInfo> = Vec::new();
        loop {
            let after = all.last().map_or(0, |last| last.session);
            let page = self.to_leader(of_reading, move |channel| {
                let request = v1::ListSessionsRequest { after, limit: 0 };
                let mut client = SessionsClient::new(channel);
                Box::pin(async move { client.list(request).await })
            });
            let page = page.await?;
            let more = page.more && !page.sessions.is_empty();
            all.extend(page.sessions);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Ends a session in place of its owner: what it has not done is not done,
    /// and what it holds gets its on-expiry values. Takes the right admin where
    /// the cluster has tokens.
    ///
    /// `holder_is_gone`: the process that holds registers by this session has
    /// ended. Without that a session that holds some is refused: its holder may
    /// be stopped or cut off, and would believe in them beside the next one.
    ///
    /// # Errors
    /// [`Error::Refused`] with `HELD` if it holds registers, and with
    /// `SESSION_EXPIRED` if there is no such session (any more);
    /// [`Error::Unavailable`] if nobody leads in
    /// time; [`Error::Unknown`] if it may have ended.
    pub async fn end_session(&self, session: u64, holder_is_gone: bool) -> Result<(), Error> {
        let ended = self.to_leader(of_ending, move |channel| {
            let request = v1::EndSessionRequest {
                session,
                holder_is_gone,
            };
            let mut client = SessionsClient::new(channel);
            Box::pin(async move { client.end(request).await })
        });
        ended.await.map(drop)
    }
}
