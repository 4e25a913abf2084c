//! Writes that wait for their connection, and go in one transaction.
//!
//! A connection carries out one transaction after the other, and the commit of each
//! waits for the disk. So [`SENDERS_MAX`] are under way over a connection, and what
//! comes meanwhile is sent together: one commit for up to [`WRITES_MAX`] writes.
//!
//! *Each write has an outcome of its own.* One that finds another version changes
//! nothing, and that is no error. If the server answers one with an error, it has rolled
//! back all of them; then each goes again, by itself.
//!
//! *A write whose caller has left is not sent any more.* The caller reads, to learn
//! what came of it, and a write that came behind that reading would change what it
//! has found. So a write is sent under the same lock under which its caller leaves.
//!
//! The writes of a transaction are in the order of their registers: two processes that
//! lock the same registers would wait for each other otherwise.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::answers::{Answer, InFlightGuard};
use super::sql::Change;
use crate::store::Key;

/// How many transactions of one connection are under way. The second is on its way
/// while the first commits.
const SENDERS_MAX: usize = 2;
/// How many writes one transaction has at most, and how many bytes of statements.
const WRITES_MAX: usize = 32;
const BYTES_MAX: usize = 256 * 1024;

/// A write that was not sent yet.
pub(super) struct QueuedWrite {
    pub(super) key: Key,
    pub(super) change: Change,
    /// The answer, or why nothing was sent.
    pub(super) answer: oneshot::Sender<Result<Answer, String>>,
    /// Closed when its notification was answered too.
    pub(super) ended: oneshot::Sender<()>,
    pub(super) in_flight: InFlightGuard,
    /// One that was sent with it has failed.
    pub(super) is_alone: bool,
}

/// The writes of one connection that were not sent yet.
#[derive(Default)]
pub(super) struct WriteQueue(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// By number: the oldest first.
    writes: BTreeMap<u64, QueuedWrite>,
    next: u64,
    senders: usize,
}

impl std::fmt::Debug for WriteQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WriteQueue({})", self.lock().writes.len())
    }
}

impl WriteQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a write in: its number, and whether a sender has to begin.
    pub(super) fn push(&self, write: QueuedWrite) -> (u64, bool) {
        let mut queue = self.lock();
        let number = queue.next;
        queue.next += 1;
        queue.writes.insert(number, write);
        let begins = queue.senders < SENDERS_MAX;
        queue.senders += usize::from(begins);
        (number, begins)
    }

    /// Takes in again what the server has rolled back, to be sent one by one.
    pub(super) fn put_back(&self, writes: Vec<(u64, QueuedWrite)>) {
        let mut queue = self.lock();
        for (number, mut write) in writes {
            // Its caller may have left while it was under way.
            if !write.answer.is_closed() {
                write.is_alone = true;
                queue.writes.insert(number, write);
            }
        }
    }

    /// The caller of this write leaves. Whether it was not sent, and never will be.
    pub(super) fn leave(&self, number: u64) -> bool {
        self.lock().writes.remove(&number).is_some()
    }

    /// Whether there is something to send. If not, the sender that asks has ended.
    pub(super) fn goes_on(&self) -> bool {
        let mut queue = self.lock();
        let is_empty = queue.writes.is_empty();
        queue.senders -= usize::from(is_empty);
        !is_empty
    }

    /// Sends the next writes with `send`, which begins that and does not wait.
    pub(super) fn send_next<T>(
        &self,
        send: impl FnOnce(&[(u64, QueuedWrite)]) -> T,
    ) -> Option<(Vec<(u64, QueuedWrite)>, T)> {
        let mut queue = self.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(next) = queue.writes.first_entry() {
            bytes += next.get().change.statement.len();
            let is_alone = next.get().is_alone;
            let fits = batch.len() < WRITES_MAX && bytes <= BYTES_MAX && !is_alone;
            if !batch.is_empty() && !fits {
                break;
            }
            batch.push(next.remove_entry());
            if is_alone {
                break;
            }
        }
        if batch.is_empty() {
            return None;
        }
        batch.sort_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        let sent = send(&batch);
        Some((batch, sent))
    }

    /// Takes out all, to be answered with an error.
    pub(super) fn drain(&self) -> Vec<QueuedWrite> {
        std::mem::take(&mut self.lock().writes)
            .into_values()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Takes in a write of so many bytes; its number.
    fn push(queue: &WriteQueue, key: &str, bytes: usize) -> (u64, oneshot::Receiver<Reply>) {
        let (answer, asked) = oneshot::channel();
        let write = QueuedWrite {
            key: Key::new(key).expect("a key"),
            change: Change {
                statement: "x".repeat(bytes),
                notification: String::new(),
            },
            answer,
            ended: oneshot::channel().0,
            in_flight: InFlightGuard::of(&Arc::default()).expect("room"),
            is_alone: false,
        };
        (queue.push(write).0, asked)
    }

    type Reply = Result<Answer, String>;

    fn next(queue: &WriteQueue) -> Vec<(u64, QueuedWrite)> {
        queue
            .send_next(|_| ())
            .map_or_else(Vec::new, |(batch, ())| batch)
    }

    fn keys(batch: &[(u64, QueuedWrite)]) -> Vec<&str> {
        batch.iter().map(|(_, it)| it.key.as_str()).collect()
    }

    #[test]
    fn a_transaction_is_bounded_and_in_the_order_of_registers() {
        let queue = WriteQueue::default();
        let _calls = ["c", "a", "b"].map(|key| push(&queue, key, 1));
        assert_eq!(keys(&next(&queue)), ["a", "b", "c"]);
        // A long one goes, by itself.
        let _calls = [("a", BYTES_MAX + 1), ("b", 1)].map(|(key, bytes)| push(&queue, key, bytes));
        assert_eq!(keys(&next(&queue)), ["a"]);
        assert_eq!(keys(&next(&queue)), ["b"]);
        let calls: Vec<_> = (0..=WRITES_MAX).map(|_| push(&queue, "a", 1)).collect();
        let numbers: Vec<_> = next(&queue).iter().map(|(number, _)| *number).collect();
        assert!(
            numbers
                .iter()
                .eq(calls.iter().take(WRITES_MAX).map(|(number, _)| number))
        );
        assert_eq!(next(&queue).len(), 1);
        assert!(next(&queue).is_empty());
    }

    #[test]
    fn what_was_rolled_back_goes_alone_unless_its_caller_has_left() {
        let queue = WriteQueue::default();
        let mut calls = ["a", "b", "c"].map(|key| Some(push(&queue, key, 1)));
        let batch = next(&queue);
        assert!(!queue.leave(0), "it is under way");
        calls[0] = None;
        queue.put_back(batch);
        let _last = push(&queue, "d", 1);
        assert_eq!(keys(&next(&queue)), ["b"]);
        assert!(queue.leave(2), "it was rolled back, and waits");
        assert_eq!(keys(&next(&queue)), ["d"]);
    }
}
