//! The queue of one watcher of registers, of a bounded length.
//!
//! The task that dispatches puts changes in and never waits; the watcher's stream takes them
//! out when its connection has room. When too much waits,
//! all of it is thrown away at once, whether the watcher reads or not, and
//! what it reads next is that it was cut off: one that never reads must cost
//! no more than one that does.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tenure_core::cas::Change;
use tokio_stream::Stream;

use super::account::{CallerAccount, Reserved, Unreserved};

/// Changes that are told in one message; all who watch the same share it.
#[derive(Debug)]
pub(super) struct ChangeBatch {
    pub(super) changes: Vec<Arc<Change>>,
    /// Up to which revision that is all.
    pub(super) revision: u64,
    /// Of the values.
    bytes: usize,
    /// Counts the values of the whole batch. Its parts share this, so that they count once.
    counted: Arc<CountedValues>,
}

/// The bytes of the values of all messages to watchers that are there. A message keeps its
/// values although the registers have others meanwhile.
pub(super) type HeldValues = Arc<AtomicUsize>;

/// The values of a batch, counted until the batch and all parts of it are gone.
#[derive(Debug)]
struct CountedValues {
    bytes: usize,
    held: HeldValues,
}

impl CountedValues {
    fn new(bytes: usize, held: &HeldValues) -> Self {
        held.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            held: Arc::clone(held),
        }
    }
}

impl Drop for CountedValues {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What a watcher is sent.
#[derive(Clone, Debug)]
pub(super) enum WatchMessage {
    /// Changes in the order of effect.
    Changes(Arc<ChangeBatch>),
    /// Revisions are missing: it must begin again, at this one.
    Gap(u64),
}

impl ChangeBatch {
    /// These changes, in the order of effect.
    pub(super) fn new(changes: Vec<Arc<Change>>, revision: u64, held: &HeldValues) -> Self {
        let bytes = changes.iter().map(|it| it.bytes()).sum();
        Self {
            bytes,
            changes,
            revision,
            counted: Arc::new(CountedValues::new(bytes, held)),
        }
    }

    /// What of it is new to one who knows all up to `since`, if anything is.
    pub(super) fn after(batch: &Arc<Self>, since: u64) -> Option<Arc<Self>> {
        let is_new = |it: &&Arc<Change>| it.revision > since;
        if batch.changes.first().is_some_and(|it| is_new(&it)) {
            return Some(Arc::clone(batch));
        }
        let new: Vec<_> = batch.changes.iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return None;
        }
        Some(Arc::new(Self {
            bytes: new.iter().map(|it| it.bytes()).sum(),
            changes: new,
            revision: batch.revision,
            counted: Arc::clone(&batch.counted),
        }))
    }
}

/// How many messages may wait.
const WAITING_MAX: usize = 256;
/// How many bytes of values may wait in more than one message: a client that is
/// further behind could not go on from where it is either.
const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// What may wait for a watch without room for its values in the account: one message of any
/// size, or so many messages, changes and bytes of values. Such a message is counted with
/// [`CHANGE_BYTES`] alone: one commit may tell thousands of watches of thousands of changes,
/// which they share, and those must not fill the account that calls are refused by. Any
/// other message is counted with its changes and values, as a request is, or is refused.
///
/// A message keeps values that their registers no longer have. So while the values of all
/// messages exceed [`HELD_VALUES_MAX`], a caller may have at most [`UNRESERVED_MAX`] bytes
/// without room in the account.
const UNRESERVED_PER_WATCH: [usize; 3] = [16, 256, 256 * 1024];
/// In bytes. If the values of all messages exceed this, [`UNRESERVED_MAX`] applies to each
/// caller.
const HELD_VALUES_MAX: usize = 64 * 1024 * 1024;
/// How many bytes of values may wait for one caller then without room in the account.
const UNRESERVED_MAX: usize = 1024 * 1024;
/// What a message counts, and what a change does beside its value.
const CHANGE_BYTES: usize = 128;

/// Why nothing could be put into a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendError {
    /// Its watcher has gone.
    Gone,
    /// Its watcher does not read, and was cut off.
    CutOff,
}

#[derive(Debug)]
struct Queue {
    news: VecDeque<Waiting>,
    /// Changes that wait, and the bytes of their values.
    changes: usize,
    bytes: usize,
    counted: Arc<CallerAccount>,
    state: State,
    reader: Option<Waker>,
}

/// A message that waits.
#[derive(Debug)]
struct Waiting {
    news: WatchMessage,
    _counted: (Reserved, Option<Unreserved>),
}

impl WatchMessage {
    /// How many changes it has, and the bytes of their values.
    fn size(&self) -> (usize, usize) {
        match self {
            Self::Changes(batch) => (batch.changes.len(), batch.bytes),
            Self::Gap(_) => (0, 0),
        }
    }

    /// The bytes of the values of all messages.
    fn held_values(&self) -> usize {
        match self {
            Self::Changes(batch) => batch.counted.held.load(Ordering::Relaxed),
            Self::Gap(_) => 0,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// There may be more.
    Open,
    /// What waits is all.
    Ended,
    /// Too much was waiting.
    CutOff,
    /// That was read, or the reader has gone.
    Over,
}

impl Queue {
    /// Puts news in; `false` if there is no room for them.
    fn put(&mut self, news: WatchMessage) -> bool {
        let (changes, bytes) = news.size();
        let waiting = self.news.len();
        if waiting >= WAITING_MAX || (waiting > 0 && self.bytes >= WAITING_BYTES) {
            return false;
        }
        let all = [waiting + 1, self.changes + changes, self.bytes + bytes];
        let is_short = waiting == 0
            || all
                .iter()
                .zip(UNRESERVED_PER_WATCH)
                .all(|(it, most)| *it <= most);
        let place = &self.counted;
        let fits = || {
            news.held_values() <= HELD_VALUES_MAX || place.unreserved() + bytes <= UNRESERVED_MAX
        };
        let counted = if is_short && fits() {
            let unreserved = place.count_unreserved(bytes);
            Some((place.reserve(CHANGE_BYTES), Some(unreserved)))
        } else {
            let cost = (1 + changes) * CHANGE_BYTES + bytes;
            place.reserve_for_watch(cost).map(|it| (it, None))
        };
        let Some(counted) = counted else {
            return false;
        };
        self.changes += changes;
        self.bytes += bytes;
        self.news.push_back(Waiting {
            news,
            _counted: counted,
        });
        true
    }

    fn take(&mut self) -> Option<WatchMessage> {
        let news = self.news.pop_front()?.news;
        let (changes, bytes) = news.size();
        self.changes -= changes;
        self.bytes -= bytes;
        Some(news)
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end that is put into. Dropping it ends the watch after what waits.
#[derive(Debug)]
pub(super) struct WatchSender(Arc<Mutex<Queue>>);

/// The end that is read from.
#[derive(Debug)]
pub(super) struct WatchReceiver(Arc<Mutex<Queue>>);

/// A watcher was cut off because it did not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CutOff;

/// An empty queue.
pub(super) fn queue(counted: Arc<CallerAccount>) -> (WatchSender, WatchReceiver) {
    let queue = Arc::new(Mutex::new(Queue {
        changes: 0,
        bytes: 0,
        news: VecDeque::new(),
        counted,
        state: State::Open,
        reader: None,
    }));
    (WatchSender(Arc::clone(&queue)), WatchReceiver(queue))
}

impl WatchSender {
    /// Puts news in.
    pub(super) fn send(&self, news: WatchMessage) -> Result<(), SendError> {
        let mut queue = lock(&self.0);
        if queue.state != State::Open {
            return Err(SendError::Gone);
        }
        let full = !queue.put(news);
        let mut thrown = VecDeque::new();
        if full {
            queue.state = State::CutOff;
            thrown = std::mem::take(&mut queue.news);
        }
        let reader = queue.reader.take();
        drop(queue);
        drop(thrown);
        if let Some(reader) = reader {
            reader.wake();
        }
        if full { Err(SendError::CutOff) } else { Ok(()) }
    }
}

impl Drop for WatchSender {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        if queue.state == State::Open {
            queue.state = State::Ended;
        }
        let reader = queue.reader.take();
        drop(queue);
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

impl Stream for WatchReceiver {
    type Item = Result<WatchMessage, CutOff>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut queue = lock(&self.0);
        if queue.state == State::CutOff {
            queue.state = State::Over;
            return Poll::Ready(Some(Err(CutOff)));
        }
        if let Some(news) = queue.take() {
            return Poll::Ready(Some(Ok(news)));
        }
        if queue.state != State::Open {
            return Poll::Ready(None);
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for WatchReceiver {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.state = State::Over;
        queue.news = VecDeque::new();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use prometheus_client::metrics::family::Family;
    use tenure_core::cas::Register;
    use tenure_core::ids::Version;
    use tokio_stream::StreamExt as _;

    use super::super::account::Account;
    use super::*;

    /// Where a watcher is counted.
    pub(in super::super) fn counted() -> Arc<CallerAccount> {
        let here = std::net::Ipv4Addr::LOCALHOST.into();
        Account::new(Family::default(), false)
            .connection(here)
            .alone()
    }

    fn news() -> WatchMessage {
        changes(0)
    }

    #[tokio::test]
    async fn what_waits_is_read_and_then_the_end() {
        let (sender, mut receiver) = queue(counted());
        for _ in 0..3 {
            assert_eq!(sender.send(news()), Ok(()));
        }
        drop(sender);
        for _ in 0..3 {
            assert!(matches!(
                receiver.next().await,
                Some(Ok(WatchMessage::Changes(..)))
            ));
        }
        assert!(receiver.next().await.is_none());
    }

    #[tokio::test]
    async fn one_that_does_not_read_is_cut_off_at_once_and_told_so() {
        let (sender, mut receiver) = queue(counted());
        for _ in 0..WAITING_MAX {
            assert_eq!(sender.send(news()), Ok(()));
        }
        assert_eq!(sender.send(news()), Err(SendError::CutOff));
        assert!(lock(&receiver.0).news.is_empty(), "nothing waits any more");
        assert_eq!(sender.send(news()), Err(SendError::Gone));
        assert!(matches!(receiver.next().await, Some(Err(CutOff))));
        assert!(receiver.next().await.is_none());
    }

    /// A change of a register, without a value.
    fn change(revision: u64) -> Arc<Change> {
        Arc::new(Change {
            revision,
            key: tenure_core::ids::Key::new("k").expect("a key"),
            register: None,
            grown: 0,
            created: false,
        })
    }

    fn changes(count: u64) -> WatchMessage {
        message((1..=count).map(change).collect(), &HeldValues::default())
    }

    fn message(changes: Vec<Arc<Change>>, held: &HeldValues) -> WatchMessage {
        let revision = changes.last().map_or(1, |it| it.revision);
        WatchMessage::Changes(Arc::new(ChangeBatch::new(changes, revision, held)))
    }

    /// A change of a register, whose value only this change has.
    fn large(bytes: usize) -> Arc<Change> {
        let register = Register {
            value: vec![7; bytes].into(),
            version: Version::from_bytes(b"1"),
            stamp: None,
        };
        let register = Some(register);
        let small = (*change(1)).clone();
        Arc::new(Change { register, ..small })
    }

    #[test]
    fn parts_of_a_batch_count_its_values_once() {
        let all = HeldValues::default();
        let at = |revision| {
            Arc::new(Change {
                revision,
                ..(*large(100)).clone()
            })
        };
        let batch = Arc::new(ChangeBatch::new((1..=2).map(at).collect(), 2, &all));
        let parts: Vec<_> = (0..10).map(|_| ChangeBatch::after(&batch, 1)).collect();
        assert!(parts.iter().flatten().all(|part| part.bytes == 100));
        drop(batch);
        assert_eq!(all.load(Ordering::Relaxed), 200);
        drop(parts);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    /// Two callers have a watch each of thousands of registers, and read none. Each register
    /// gets a large value once. A third caller reads, and is told.
    #[tokio::test]
    async fn watches_that_are_not_read_keep_few_values_that_registers_no_longer_have() {
        let all = HeldValues::default();
        let account = Account::new(Family::default(), false);
        let place = |last| account.connection([127, 0, 0, last].into()).alone();
        let greedy = [1, 2].map(place);
        let queues = (0..2_000).flat_map(|_| greedy.clone()).map(queue);
        let watches: Vec<_> = queues.collect();
        let (bytes, mut cut_off) = (250_000, 0);
        for (sender, _) in &watches {
            let sent = sender.send(message(vec![large(bytes)], &all));
            cut_off += usize::from(sent == Err(SendError::CutOff));
        }
        let kept = (watches.len() - cut_off) * bytes;
        assert_eq!(all.load(Ordering::Relaxed), kept);
        // Half of what a caller's calls may hold.
        let room = 2 * (UNRESERVED_MAX + 26 * 1024 * 1024);
        assert!(
            (HELD_VALUES_MAX..HELD_VALUES_MAX + room).contains(&kept),
            "{kept}"
        );

        let (sender, mut reader) = queue(place(3));
        for _ in 0..20 {
            assert_eq!(sender.send(message(vec![large(bytes)], &all)), Ok(()));
            assert!(matches!(reader.next().await, Some(Ok(_))));
        }
        drop(watches);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }

    /// One caller has as many watches as it may have, and reads none. Commits change
    /// many registers. Calls still find room.
    #[tokio::test]
    async fn watches_that_are_not_read_leave_room_for_calls() {
        let counted = counted();
        let watches: Vec<_> = (0..4_500).map(|_| queue(Arc::clone(&counted))).collect();
        let told = changes(200);
        for _ in 0..40 {
            for (sender, _) in &watches {
                let _ = sender.send(told.clone());
            }
            assert!(counted.may_reserve().is_ok());
        }
        // Small ones in any case; and large ones where there is room.
        let (sender, mut alone) = queue(counted);
        for _ in 0..UNRESERVED_PER_WATCH[0] {
            assert_eq!(sender.send(changes(1)), Ok(()));
        }
        drop(watches);
        for _ in 0..UNRESERVED_PER_WATCH[0] {
            assert_eq!(sender.send(told.clone()), Ok(()));
        }
        assert!(matches!(alone.next().await, Some(Ok(_))));
    }

    #[tokio::test]
    async fn one_that_has_gone_is_seen_to_have() {
        let (sender, receiver) = queue(counted());
        drop(receiver);
        assert_eq!(sender.send(news()), Err(SendError::Gone));
    }

    #[test]
    fn one_is_told_what_it_does_not_know() {
        let changes = [3, 5, 8].map(change).into();
        let batch = Arc::new(ChangeBatch::new(changes, 9, &HeldValues::default()));
        for (since, wanted) in [
            (0, &[3, 5, 8][..]),
            (2, &[3, 5, 8]),
            (3, &[5, 8]),
            (7, &[8]),
            (8, &[]),
            (100, &[]),
        ] {
            let told = ChangeBatch::after(&batch, since);
            let told = told.map(|it| {
                (
                    it.changes.iter().map(|it| it.revision).collect(),
                    it.revision,
                )
            });
            let wanted = (!wanted.is_empty()).then(|| (wanted.to_vec(), 9));
            assert_eq!(told, wanted, "after {since}");
        }
    }
}
