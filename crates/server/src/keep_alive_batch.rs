//! Keep-alives that a leader proposes together.
//!
//! A keep-alive takes an entry, and each entry costs every server a message,
//! a write and a sync. It is not urgent: a session lives for many
//! times [`GATHER`], and its client counts from when it asked. So the first
//! one waits for others. A thousand sessions of 10 s then cost some 80 writes
//! a second in place of 300.
//!
//! The order of requests stays: all that is gathered goes before the next
//! request of another kind, which may be of the same session.

use std::time::Duration;

use tenure_alpo::{ClientRequest, Operation};
use tenure_core::time::Instant;

/// How long a keep-alive waits for others.
const GATHER: Duration = Duration::from_millis(10);

/// What waits, in the order in which it came.
#[derive(Debug, Default)]
pub(super) struct KeepAliveBatch {
    requests: Vec<(u64, ClientRequest)>,
    until: Option<Instant>,
}

impl KeepAliveBatch {
    /// Keeps `request` if it can wait, else gives it back. The clock is read only
    /// for what is kept.
    pub(super) fn keep(
        &mut self,
        now: impl FnOnce() -> Instant,
        token: u64,
        request: ClientRequest,
    ) -> Result<(), ClientRequest> {
        if !matches!(&request, ClientRequest::Command(it, _) if matches!(it.operation, Operation::KeepAlive))
        {
            return Err(request);
        }
        self.until.get_or_insert_with(|| now().after(GATHER));
        self.requests.push((token, request));
        Ok(())
    }

    /// When what is gathered is due; none if nothing is.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Takes all of it.
    pub(super) fn take(&mut self) -> Vec<(u64, ClientRequest)> {
        self.until = None;
        std::mem::take(&mut self.requests)
    }
}

#[cfg(test)]
mod tests {
    use tenure_alpo::{Command, OwnershipProof};

    use super::*;

    fn request(operation: Operation) -> ClientRequest {
        let command = Command {
            session: 1,
            serial: 1,
            outstanding: 1,
            operation,
        };
        ClientRequest::Command(command, OwnershipProof::of_secret([0; 16]))
    }

    #[test]
    fn keep_alives_wait_for_each_other_and_nothing_else_does() {
        let mut keep_alive_batch = KeepAliveBatch::default();
        let at = |ms| Instant::ZERO.after(Duration::from_millis(ms));
        assert!(
            keep_alive_batch
                .keep(|| at(1), 7, request(Operation::Close))
                .is_err()
        );
        assert_eq!(keep_alive_batch.due(), None);
        for (ms, token) in [(2, 8), (5, 9), (11, 10)] {
            assert!(
                keep_alive_batch
                    .keep(|| at(ms), token, request(Operation::KeepAlive))
                    .is_ok()
            );
        }
        assert_eq!(keep_alive_batch.due(), Some(at(12)), "the first one's time");
        let tokens: Vec<u64> = keep_alive_batch
            .take()
            .into_iter()
            .map(|(token, _)| token)
            .collect();
        assert_eq!(tokens, [8, 9, 10], "in their order");
        assert_eq!(keep_alive_batch.due(), None);
        assert!(keep_alive_batch.take().is_empty());
    }
}
