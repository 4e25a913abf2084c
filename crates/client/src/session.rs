//! A session of its own, for registers that are to be bound to it.
//!
//! The sessions of a [`Client`](super::Client)'s calls come and go unseen: when
//! one is over, what was not done goes on under another. What is *bound* to a
//! session ends with it, so a caller that binds has to know which one it is,
//! and is told when it is over. It is never replaced: take another.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tenure_api::v1::{self, answer, command};
use tenure_core::cas::{Bytes, MAX_VALUE_BYTES, Write};
use tenure_runtime::clock;
use tokio::sync::oneshot;

use super::connection::Connection;
use super::error::{gone, oversized, strange};
use super::pipeline::{Outcome, PendingRequest, Reply, RequestKind};
use super::wire::swapped;
use super::{Error, Swapped, wire};

/// A session of a cluster that is never replaced by another. What is asked of
/// it takes effect in the order of the calls, each once. Dropping it ends it,
/// and what is bound to it gets its on-expiry values; so does its time to live
/// without a command.
pub struct Session {
    connection: Connection,
}

impl Session {
    pub(super) const fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Whether it is known to be over. It may be over without that being
    /// known here.
    pub fn is_over(&self) -> bool {
        self.connection.is_over()
    }

    /// Its number in the cluster, from its opening to its end.
    pub fn number(&self) -> Option<u64> {
        self.connection.session()
    }

    fn submit(
        &self,
        what: command::Operation,
        within: Duration,
    ) -> impl Future<Output = Outcome> + Send + use<> {
        let (waiter, answer) = oneshot::channel();
        self.connection.submit(PendingRequest {
            what: RequestKind::Change(what),
            deadline: clock::boot().after(within),
            reply: Reply::One(waiter),
        });
        async { answer.await.unwrap_or_else(|_| Err(gone())) }
    }

    /// Writes one register if it is as expected, and binds it: at the
    /// session's end it holds `last`. Without `last` it is bound no more. The
    /// place among the calls is that of this call, not that of the first poll.
    ///
    /// # Errors
    /// [`Error::Conflict`] if it is not as expected, or bound to another
    /// session; [`Error::Unavailable`] if it was certainly not done, the
    /// session being over perhaps; [`Error::Unknown`] if it may have been.
    pub fn swap(
        &self,
        write: Write,
        last: Option<Bytes>,
        within: Duration,
    ) -> impl Future<Output = Result<Swapped, Error>> + Send + use<> {
        let too_large = last.as_ref().map_or(0, |last| last.len()) > MAX_VALUE_BYTES
            || write.value.len() > MAX_VALUE_BYTES;
        let asked = if too_large {
            Err(oversized(&write))
        } else {
            // A version that no cluster gave is not what is there.
            wire::swap(write).ok_or(Error::Conflict)
        };
        let asked = asked.map(|swap| {
            let at_end = last.map(|last| v1::AtEnd {
                value: bytes::Bytes::from_owner(last),
            });
            let swap = v1::Swap { at_end, ..swap };
            self.submit(command::Operation::Swap(swap), within)
        });
        async { swapped(asked?.await?) }
    }

    /// Gives a keep-alive, and has it confirmed: the session lived at some time
    /// after this call, and lives for its time to live from then.
    ///
    /// # Errors
    /// Nothing is confirmed. Whether the session is known to be over says
    /// [`is_over`](Self::is_over).
    pub fn keep_alive(
        &self,
        within: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let asked = self.submit(command::Operation::KeepAlive(true), within);
        async {
            match asked.await? {
                answer::What::Alive(_) => Ok(()),
                _ => Err(strange()),
            }
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("number", &self.number())
            .field("is_over", &self.is_over())
            .finish()
    }
}
