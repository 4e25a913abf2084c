//! Noticing what other processes write: a stream of changes.
//!
//! What is watched here is first read, at some revision, and then watched at
//! etcd from the revision after it, so that nothing falls in between. One
//! stream carries the watches of a whole process: one for each watched prefix,
//! and one for each watched key that no prefix covers. When the stream breaks,
//! everything is read again; so what a restored backup took back is noticed,
//! and a revision that the server has forgotten is never asked for twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::bounded::Answer as _;
use super::client::EtcdClient;
use super::connection::EtcdConnection;
use super::kv::{self, KeySpace};
use super::settings::Settings;
use super::wire::{
    Event, RANGE, RangeResponse, TXN, TxnResponse, WatchCancel, WatchCreate, WatchRequest,
    WatchResponse,
};
use crate::clock;
use crate::error::{StoreError, quoted};
use crate::store::hub::{Hub, Interest};
use crate::store::pace::Pace;
use crate::store::watcher::{StoreSignals, Watcher};
use crate::store::{Key, Selector};

/// How long a fetch may take, and opening the stream.
const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// How often to look whether watches were dropped.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How many keys one call reads; etcd takes 128 steps in a transaction.
const BATCH: usize = 100;
/// How many requests wait to go out on the stream, beside those that wait here.
const REQUESTS_MAX: usize = 64;
/// The pauses between attempts to open the stream again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Starts the task.
pub(super) fn start(settings: Arc<Settings>, client: Arc<EtcdClient>, hub: Arc<Hub>) -> Watcher {
    Watcher::start(|store| {
        let task = EtcdWatchTask {
            settings,
            client,
            hub,
            store,
            pace: Pace::default(),
        };
        task.serve()
    })
}

struct EtcdWatchTask {
    settings: Arc<Settings>,
    client: Arc<EtcdClient>,
    hub: Arc<Hub>,
    store: StoreSignals,
    pace: Pace,
}

/// The watches of one stream, by what they watch.
#[derive(Default)]
struct Watches {
    numbers: BTreeMap<Selector, i64>,
    last: i64,
}

impl Watches {
    /// What has to be asked for so that exactly `wanted` is watched.
    fn change(
        &mut self,
        wanted: BTreeMap<Selector, i64>,
        keyspace: KeySpace<'_>,
    ) -> Vec<WatchRequest> {
        let mut requests = Vec::new();
        self.numbers.retain(|selector, number| {
            let keep = wanted.contains_key(selector);
            if !keep {
                requests.push(WatchRequest {
                    create: None,
                    cancel: Some(WatchCancel { watch_id: *number }),
                });
            }
            keep
        });
        for (selector, seen) in wanted {
            if self.numbers.contains_key(&selector) {
                continue;
            }
            self.last += 1;
            let (key, range_end) = keyspace.range(&selector);
            let create = WatchCreate {
                key,
                range_end,
                start_revision: seen + 1,
                watch_id: self.last,
                fragment: true,
            };
            requests.push(WatchRequest {
                create: Some(create),
                cancel: None,
            });
            self.numbers.insert(selector, self.last);
        }
        requests
    }

    fn has(&self, number: i64) -> bool {
        self.numbers.values().any(|other| *other == number)
    }
}

/// A stream that is open.
struct OpenStream {
    connection: EtcdConnection,
    answers: Streaming<WatchResponse>,
    requests: mpsc::Sender<WatchRequest>,
    /// What has yet to be asked for. It is sent while answers are read: a server
    /// reads no more requests when nobody reads what it answers, and it answers
    /// each.
    unsent: VecDeque<WatchRequest>,
    watches: Watches,
}

impl EtcdWatchTask {
    async fn serve(self) {
        let mut pause = PAUSE_MIN;
        while !self.store.is_closed() {
            if self.hub.is_idle() {
                self.store.woken().await;
                continue;
            }
            if let Err(error) = self.listen(&mut pause).await {
                self.hub.mark_down(&error.to_string());
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Publishes changes until there is no watch any more.
    async fn listen(&self, pause: &mut Duration) -> Result<(), StoreError> {
        let opening = timeout(FETCH_WITHIN, self.open_stream()).await;
        let late = || StoreError::unavailable(format!("{}: no stream in time", self.settings));
        let mut stream = opening.map_err(|_| late())??;
        self.hub.mark_up();
        *pause = PAUSE_MIN;
        let requests = stream.requests.clone();
        loop {
            tokio::select! {
                answer = stream.answers.message() => match answer {
                    Ok(Some(answer)) => {
                        let checked = stream.connection.check_cluster(answer.header());
                        checked.map_err(|it| self.client.stream_broke(&stream.connection, &it))?;
                        self.publish_events(&stream.watches, &answer)?;
                        // What is not asked for waits at the server.
                        for event in &answer.events {
                            self.pace.take(event.kv.as_ref().map_or(0, |kv| kv.value.len())).await;
                        }
                        self.pace.take(0).await;
                    }
                    Ok(None) => return Err(StoreError::unavailable("the stream has ended")),
                    Err(status) => {
                        return Err(self.client.stream_broke(&stream.connection, &status));
                    }
                },
                room = requests.reserve(), if !stream.unsent.is_empty() => {
                    let room = room.map_err(|_| StoreError::unavailable("the stream has ended"))?;
                    if let Some(request) = stream.unsent.pop_front() {
                        room.send(request);
                    }
                }
                () = self.store.woken() => {
                    if !self.refresh(&mut stream).await? {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep(LOOK_EVERY) => {
                    if !self.refresh(&mut stream).await? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads all that is watched here and watches it at etcd from there.
    async fn open_stream(&self) -> Result<OpenStream, StoreError> {
        let until = clock::boot().after(FETCH_WITHIN);
        let connection = self.client.connected(until).await?;
        let wanted = self.fetch(&Watches::default(), true).await?;
        let mut watches = Watches::default();
        let mut unsent = VecDeque::from(watches.change(wanted, self.keyspace()));
        let (requests, more) = mpsc::channel(REQUESTS_MAX);
        // The server answers the first request with the stream.
        if let Some(first) = unsent.pop_front() {
            let _ = requests.try_send(first);
        }
        let answers = self
            .client
            .watch(&connection, ReceiverStream::new(more))
            .await?;
        Ok(OpenStream {
            connection,
            answers,
            requests,
            unsent,
            watches,
        })
    }

    /// The interest may have changed; whether there still is any.
    async fn refresh(&self, stream: &mut OpenStream) -> Result<bool, StoreError> {
        if self.hub.is_idle() || self.store.is_closed() {
            return Ok(false);
        }
        let wanted = self.fetch(&stream.watches, false).await?;
        let requests = stream.watches.change(wanted, self.keyspace());
        stream.unsent.extend(requests);
        Ok(true)
    }

    fn keyspace(&self) -> KeySpace<'_> {
        KeySpace {
            prefix: &self.settings.prefix,
        }
    }

    /// Hands changes on.
    fn publish_events(&self, watches: &Watches, answer: &WatchResponse) -> Result<(), StoreError> {
        if answer.canceled && (answer.created || watches.has(answer.watch_id)) {
            // All is read again, so a forgotten revision does no harm.
            return Err(StoreError::unavailable(format!(
                "{}: the server ended a watch: {} (its first revision is {})",
                self.settings,
                quoted(&answer.cancel_reason),
                answer.compact_revision
            )));
        }
        for event in &answer.events {
            let Some(kv) = &event.kv else { continue };
            let Some(key) = self.keyspace().key(&kv.key) else {
                continue;
            };
            // Late news of what this process wrote itself is passed over:
            // revisions do not go back while a stream lasts.
            if event.kind == Event::DELETED {
                let at = kv::version_of(kv.mod_revision)?;
                self.hub.publish_gone(&key, at);
            } else {
                self.hub.publish(&key, kv::register(kv)?);
            }
        }
        Ok(())
    }

    /// Reads what was not published yet, or all of it, and says what to watch
    /// and up to which revision it has been read.
    async fn fetch(
        &self,
        watches: &Watches,
        all: bool,
    ) -> Result<BTreeMap<Selector, i64>, StoreError> {
        let interest = self.hub.interest();
        let mut wanted = BTreeMap::new();
        let covered = |key: &Key| {
            let mut prefixes = interest.prefixes.iter();
            prefixes.any(|prefix| key.as_str().starts_with(prefix))
        };
        let mut keys = Vec::new();
        for followed in &interest.keys {
            let selector = Selector::Key(followed.key.clone());
            let watched = covered(&followed.key) || watches.numbers.contains_key(&selector);
            if all || !followed.reported || !watched {
                keys.push(&followed.key);
            }
            if !covered(&followed.key) {
                wanted.insert(selector, 0);
            }
        }
        for batch in keys.chunks(BATCH) {
            let seen = self.fetch_keys(&interest, batch).await?;
            for key in batch {
                wanted
                    .entry(Selector::Key((*key).clone()))
                    .and_modify(|at| *at = seen);
            }
        }
        for prefix in &interest.prefixes {
            let selector = Selector::Prefix(prefix.clone());
            let mut seen = 0;
            if all || !watches.numbers.contains_key(&selector) {
                seen = self.fetch_prefix(&interest, prefix).await?;
            }
            wanted.insert(selector, seen);
        }
        Ok(wanted)
    }

    /// Reads some keys; the revision at which they were read.
    async fn fetch_keys(&self, interest: &Interest, keys: &[&Key]) -> Result<i64, StoreError> {
        let request = self.keyspace().read_all(keys.iter().copied());
        let answer: TxnResponse = self.client.read(TXN, request, FETCH_WITHIN).await?;
        let seen = kv::revision(answer.header.as_ref())?;
        let at = kv::version_of(seen)?;
        // What is refused is older than what was published meanwhile: the
        // watch, which begins here, brings the rest.
        for (key, answer) in keys.iter().zip(&answer.responses) {
            let found = answer.range.as_ref().and_then(|range| range.kvs.first());
            match found {
                Some(kv) => drop(self.hub.fetched(interest, key, Some(kv::register(kv)?))),
                None => self.hub.fetched_gone(interest, key, &at),
            }
        }
        Ok(seen)
    }

    /// Reads all below a prefix, in pages; the revision of the first, from
    /// which on to watch: later pages are newer, and so are told of twice.
    async fn fetch_prefix(&self, interest: &Interest, prefix: &str) -> Result<i64, StoreError> {
        let (mut first, mut after) = (None, None);
        loop {
            let request = self.keyspace().list(prefix, after.as_deref());
            let answer: RangeResponse = self.client.read(RANGE, request, FETCH_WITHIN).await?;
            let seen = kv::revision(answer.header.as_ref())?;
            let first = *first.get_or_insert(seen);
            for kv in &answer.kvs {
                if let Some(key) = self.keyspace().key(&kv.key) {
                    let _ = self.hub.fetched(interest, &key, Some(kv::register(kv)?));
                }
            }
            match answer.kvs.last().filter(|_| answer.more) {
                Some(last) => after = Some(last.key.clone()),
                None => return Ok(first),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_follow_the_interest() {
        let keyspace = KeySpace { prefix: "t/" };
        let a = Selector::Key(Key::new("a").expect("a key"));
        let below = Selector::Prefix("b/".into());
        let mut watches = Watches::default();
        let asked = watches.change(BTreeMap::from([(a.clone(), 7)]), keyspace);
        let [
            WatchRequest {
                create: Some(create),
                cancel: None,
            },
        ] = &asked[..]
        else {
            panic!("{asked:?}");
        };
        assert_eq!((create.start_revision, create.watch_id), (8, 1));
        assert_eq!((&create.key[..], create.range_end.len()), (&b"t/a"[..], 0));
        // What is watched already is not asked for again.
        assert_eq!(
            watches.change(BTreeMap::from([(a.clone(), 9)]), keyspace),
            []
        );
        let asked = watches.change(BTreeMap::from([(below, 9)]), keyspace);
        let cancelled = asked.iter().find_map(|request| request.cancel.as_ref());
        assert_eq!(cancelled.map(|cancel| cancel.watch_id), Some(1));
        assert!(watches.has(2) && !watches.has(1), "{:?}", watches.numbers);
    }
}
