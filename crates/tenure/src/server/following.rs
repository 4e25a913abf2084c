//! What waits for one follower of registers, and the end of its patience.
//!
//! The owner of the machine puts news in and never waits; the follower's
//! stream takes them out when its connection has room. When too much waits,
//! all of it is thrown away at once, whether the follower reads or not, and
//! what it reads next is that it was cut off: one that never reads must cost
//! no more than one that does.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tenure_core::cas::Change;
use tokio_stream::Stream;

use super::account::{Place, Reserved};
use super::watchers::News;

/// How many messages may wait, beside those with which a watch begins.
const WAITING_MAX: usize = 256;
/// How many bytes of values may wait in more than one message: a client that is
/// further behind could not go on from where it is either.
const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// How many may wait in any case; then there has to be room for more.
const WAITING_FREE: usize = 16;
/// What a change that waits counts for. Its value does not: it is shared with
/// the state, and by all who follow it.
const CHANGE_BYTES: usize = 128;

/// Why nothing could be put into a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// Its follower has gone.
    Gone,
    /// Its follower does not read, and was cut off.
    CutOff,
}

#[derive(Debug)]
struct Queue {
    news: VecDeque<Waiting>,
    most: usize,
    /// Of values that wait.
    bytes: usize,
    counted: Arc<Place>,
    state: State,
    reader: Option<Waker>,
}

/// A message that waits.
#[derive(Debug)]
struct Waiting {
    news: News,
    bytes: usize,
    _reserved: Reserved,
}

impl Waiting {
    fn new(news: News, counted: &Arc<Place>) -> Self {
        let changes: &[_] = match &news {
            News::Changes(changes, _) => changes,
            News::Initial(..) | News::Gap(_) => &[],
        };
        let value = |it: &Change| it.register.as_ref().map_or(0, |it| it.value.len());
        Self {
            bytes: changes.iter().map(value).sum(),
            _reserved: counted.reserve((1 + changes.len()) * CHANGE_BYTES),
            news,
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
    /// That was read, or nobody reads any more.
    Over,
}

impl Queue {
    fn is_full(&self) -> bool {
        let waiting = self.news.len();
        waiting >= self.most
            || (waiting > 0 && self.bytes >= WAITING_BYTES)
            || (waiting >= WAITING_FREE && self.counted.may_reserve().is_err())
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end that is put into. Dropping it ends the watch after what waits.
#[derive(Debug)]
pub(super) struct Telling(Arc<Mutex<Queue>>);

/// The end that is read from.
#[derive(Debug)]
pub(super) struct Following(Arc<Mutex<Queue>>);

/// A follower was cut off because it did not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CutOff;

/// A queue with what a watch begins with.
pub(super) fn queue(first: Vec<News>, counted: Arc<Place>) -> (Telling, Following) {
    let first = first.into_iter().map(|it| Waiting::new(it, &counted));
    let news: VecDeque<_> = first.collect();
    let queue = Arc::new(Mutex::new(Queue {
        most: news.len() + WAITING_MAX,
        bytes: news.iter().map(|it| it.bytes).sum(),
        news,
        counted,
        state: State::Open,
        reader: None,
    }));
    (Telling(Arc::clone(&queue)), Following(queue))
}

impl Telling {
    /// Puts news in.
    pub(super) fn tell(&self, news: News) -> Result<(), Full> {
        let mut queue = lock(&self.0);
        if queue.state != State::Open {
            return Err(Full::Gone);
        }
        let full = queue.is_full();
        let mut thrown = VecDeque::new();
        if full {
            queue.state = State::CutOff;
            thrown = std::mem::take(&mut queue.news);
        } else {
            let news = Waiting::new(news, &queue.counted);
            queue.bytes += news.bytes;
            queue.news.push_back(news);
        }
        let reader = queue.reader.take();
        drop(queue);
        drop(thrown);
        if let Some(reader) = reader {
            reader.wake();
        }
        if full { Err(Full::CutOff) } else { Ok(()) }
    }

    /// Whether the follower has gone.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.0).state == State::Over
    }
}

impl Drop for Telling {
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

impl Stream for Following {
    type Item = Result<News, CutOff>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut queue = lock(&self.0);
        if queue.state == State::CutOff {
            queue.state = State::Over;
            return Poll::Ready(Some(Err(CutOff)));
        }
        if let Some(waiting) = queue.news.pop_front() {
            queue.bytes -= waiting.bytes;
            return Poll::Ready(Some(Ok(waiting.news)));
        }
        if queue.state != State::Open {
            return Poll::Ready(None);
        }
        queue.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut queue = lock(&self.0);
        queue.state = State::Over;
        queue.news = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::family::Family;
    use tokio_stream::StreamExt as _;

    use super::super::account::Account;
    use super::*;

    fn counted() -> Arc<Place> {
        let here = std::net::Ipv4Addr::LOCALHOST.into();
        Account::new(Family::default()).connection(here).alone()
    }

    fn news() -> News {
        News::Changes([].into(), 1)
    }

    #[tokio::test]
    async fn what_waits_is_read_and_then_the_end() {
        let (telling, mut following) = queue(vec![news(), news()], counted());
        assert_eq!(telling.tell(news()), Ok(()));
        drop(telling);
        for _ in 0..3 {
            assert!(matches!(
                following.next().await,
                Some(Ok(News::Changes(..)))
            ));
        }
        assert!(following.next().await.is_none());
    }

    #[tokio::test]
    async fn one_that_does_not_read_is_cut_off_at_once_and_told_so() {
        let (telling, mut following) = queue(vec![news()], counted());
        for _ in 0..WAITING_MAX {
            assert_eq!(telling.tell(news()), Ok(()));
        }
        assert_eq!(telling.tell(news()), Err(Full::CutOff));
        assert!(lock(&following.0).news.is_empty(), "nothing waits any more");
        assert_eq!(telling.tell(news()), Err(Full::Gone));
        assert!(matches!(following.next().await, Some(Err(CutOff))));
        assert!(following.next().await.is_none());
    }

    #[tokio::test]
    async fn one_that_has_gone_is_seen_to_have() {
        let (telling, following) = queue(Vec::new(), counted());
        assert!(!telling.is_over());
        drop(following);
        assert!(telling.is_over());
        assert_eq!(telling.tell(news()), Err(Full::Gone));
    }
}
