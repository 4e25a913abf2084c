//! The output of an instance that is not on disk yet: a queue between the thread
//! that reads its pipe and the thread that writes its log.

use std::collections::VecDeque;
use std::io::{self, Read as _};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::clock;

use crate::stall::StallDetector;

/// How many bytes are read from an instance at once.
pub(super) const CHUNK: usize = 64 << 10;
/// How many bytes of an instance may wait for the disk.
pub(super) const QUEUE_MAX: usize = 4 * CHUNK;
/// How often the thread that reads checks whether the disk still moves.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The output of an instance that is not on disk yet.
#[derive(Default)]
pub(super) struct OutputQueue {
    state: Mutex<QueueState>,
    /// There is something to write, or nothing more comes.
    not_empty: Condvar,
    /// Something has been written.
    not_full: Condvar,
}

struct QueueState {
    /// Each with how many bytes were dropped before it.
    chunks: VecDeque<(u64, Vec<u8>)>,
    /// Of the chunks above, and of the one that is being written.
    bytes: usize,
    /// The length of the one that is being written.
    writing: usize,
    stall: StallDetector,
    dropped: u64,
    ended: bool,
}

impl Default for QueueState {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            bytes: 0,
            writing: 0,
            stall: StallDetector::NONE,
            dropped: 0,
            ended: false,
        }
    }
}

impl QueueState {
    fn push(&mut self, chunk: &[u8]) {
        if self.bytes == 0 {
            self.stall = StallDetector::at(clock::boot(), None);
        }
        self.bytes += chunk.len();
        let dropped = std::mem::take(&mut self.dropped);
        match self.chunks.back_mut() {
            // An instance that writes byte by byte must not cost an allocation
            // for each.
            Some((_, last)) if dropped == 0 && last.len() + chunk.len() <= CHUNK => {
                last.extend_from_slice(chunk);
            }
            _ => self.chunks.push_back((dropped, chunk.to_vec())),
        }
    }
}

impl OutputQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the output of an instance until it has closed its end.
    pub(super) fn read(&self, mut from: io::PipeReader) {
        let mut bytes = vec![0; CHUNK];
        loop {
            match from.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let mut state = self.lock();
        if state.dropped > 0 {
            // An empty chunk carries how much is missing.
            state.push(&[]);
        }
        state.ended = true;
        self.not_empty.notify_one();
    }

    /// Waits for room while the disk moves.
    fn push(&self, chunk: &[u8]) {
        let mut state = self.lock();
        while state.bytes > 0 && state.bytes + chunk.len() > QUEUE_MAX {
            if state.stall.is_stalled(clock::boot(), || None) {
                state.dropped += chunk.len() as u64;
                return;
            }
            let waited = self.not_full.wait_timeout(state, POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.push(chunk);
        self.not_empty.notify_one();
    }

    /// The next piece to write, and how many bytes were dropped before it.
    /// `None` at the end. The call also says that the piece before is written.
    pub(super) fn next(&self) -> Option<(u64, Vec<u8>)> {
        let mut state = self.lock();
        if state.writing > 0 {
            state.bytes -= std::mem::take(&mut state.writing);
            state.stall = StallDetector::at(clock::boot(), None);
            self.not_full.notify_one();
        }
        loop {
            if let Some((dropped, chunk)) = state.chunks.pop_front() {
                state.writing = chunk.len();
                return Some((dropped, chunk));
            }
            if state.ended {
                return None;
            }
            let waited = self.not_empty.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_small_pieces_is_put_together() {
        let mut waiting = QueueState::default();
        for _ in 0..CHUNK {
            waiting.push(b"x");
        }
        assert_eq!((waiting.chunks.len(), waiting.bytes), (1, CHUNK));
        waiting.push(b"y");
        waiting.dropped = 3;
        waiting.push(b"z");
        let dropped: Vec<_> = waiting.chunks.iter().map(|(dropped, _)| *dropped).collect();
        assert_eq!(dropped, [0, 0, 3], "each number stands where it belongs");
    }
}
