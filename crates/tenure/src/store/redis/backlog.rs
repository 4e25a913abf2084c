//! Messages of a channel that have come and were not taken yet.
//!
//! The library puts what it hears into a queue without a bound. So the stream of a
//! connection that listens is read no further while too many messages wait there: the
//! server, or its system, has to keep the others, or drop the connection.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// How many messages may wait; those of one reading of the socket come on top. A hint has
/// some 600 bytes at most.
const MESSAGES_MAX: usize = 1_024;

#[derive(Default)]
pub(super) struct Backlog(Mutex<State>);

#[derive(Default)]
struct State {
    messages: usize,
    /// What waits for room.
    reader: Option<Waker>,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for messages.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.messages < MESSAGES_MAX {
            return Poll::Ready(());
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }

    /// One has come.
    pub(super) fn come(&self) {
        self.lock().messages += 1;
    }

    /// One was taken.
    pub(super) fn taken(&self) {
        self.leave(|messages| messages.saturating_sub(1));
    }

    /// None waits: what has come was no message, or was taken.
    pub(super) fn clear(&self) {
        self.leave(|_| 0);
    }

    fn leave(&self, left: impl FnOnce(usize) -> usize) {
        let mut state = self.lock();
        state.messages = left(state.messages);
        // Not with each of them: reading costs a call of the system.
        let reader = match state.messages {
            ..=512 => state.reader.take(),
            _ => None,
        };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::super::frames::AnswerFrames;
    use super::*;
    use crate::store::limited_stream::LimitedStream;

    #[tokio::test]
    async fn nothing_is_read_while_too_many_messages_wait() {
        const MESSAGE: &[u8] = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n";
        let (mut server, ours) = tokio::io::duplex(1024 * 1024);
        for _ in 0..=MESSAGES_MAX {
            server.write_all(MESSAGE).await.expect("to write");
        }
        let backlog = Arc::<Backlog>::default();
        let frames = AnswerFrames::listening(Arc::clone(&backlog));
        let mut stream = LimitedStream::new(ours, frames);
        let mut message = [0; MESSAGE.len()];
        for _ in 0..MESSAGES_MAX {
            stream.read_exact(&mut message).await.expect("a message");
        }
        let mut next = tokio::spawn(async move { stream.read_exact(&mut message).await });
        let waits = timeout(Duration::from_millis(50), &mut next).await;
        assert!(waits.is_err(), "one more was read");
        (0..MESSAGES_MAX / 2).for_each(|_| backlog.taken());
        next.await.expect("a task").expect("a message");
    }
}
