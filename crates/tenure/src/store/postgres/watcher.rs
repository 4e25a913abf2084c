//! Noticing what other processes write: LISTEN, or polling.
//!
//! Every write is followed by a notification, which is a hint that a key has
//! changed (`hints.rs`): the listener reads from the table what is hinted at,
//! all in one statement, and publishes nothing else. While it reads the next
//! hints gather, so one reading is under way at a time.
//!
//! A change is hinted at on the channel of its key, to which only processes
//! listen that watch it or its neighbours (`table.rs`), and once more on a
//! channel that is common to all keys. Processes that watch prefixes of several
//! channels listen to that one. So do, for one release, all others as well:
//! processes of the release before tell of their writes nowhere else.
//!
//! Whether notifications get through is not taken on trust: behind a
//! transaction-pooling proxy LISTEN succeeds and nothing ever arrives. So the
//! listener is *probed* by a notification on a channel of its own, sent over
//! the other connection (over its own it could arrive by luck), at first and
//! then every few seconds. Its payload is drawn at random each time, and no
//! other process can send it.
//!
//! If the probe does not come, we poll: one statement for all that is watched.
//! Now and then we listen again, because one probe may also come late on a bad
//! day.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::time::timeout;

use super::client::PgClient;
use super::connect::PgConnection;
use super::error_text;
use super::hints::{Hints, ListenEvent};
use super::settings::{Settings, WatchMode};
use super::sql;
use super::unsent_notifications;
use crate::clock;
use crate::error::StoreError;
use crate::store::hub::{Hub, Interest};
use crate::store::watcher::{StoreSignals, Watcher};
use crate::store::{Key, Selector};

/// How long nothing at all may come while a probe is due.
const PROBE_WITHIN: Duration = Duration::from_secs(1);
/// How long a probe may take behind other notifications.
const PROBE_BEHIND_OTHERS: Duration = Duration::from_secs(5);
/// How long to poll before listening is tried again. Behind a proxy each try
/// costs a second in which nothing is noticed.
const LISTEN_AGAIN: Duration = Duration::from_secs(300);
/// How often a fetch is begun anew because something was published meanwhile.
const FETCHES_MAX: usize = 3;
/// How often the listener is probed again.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// How long a fetch may take.
const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// How many channels are listened to; a process that watches more listens to
/// the common one alone.
const CHANNELS_MAX: usize = 1_024;
/// The pauses between attempts to connect again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Starts the task.
pub(super) fn start(settings: Arc<Settings>, client: Arc<PgClient>, hub: Arc<Hub>) -> Watcher {
    Watcher::start(|store| {
        let task = PgWatchTask {
            settings,
            client,
            hub,
            store,
        };
        task.serve()
    })
}

struct PgWatchTask {
    settings: Arc<Settings>,
    client: Arc<PgClient>,
    hub: Arc<Hub>,
    store: StoreSignals,
}

/// A connection that listens.
struct Listener {
    connected: PgConnection,
    /// The channel on which it is probed.
    probe_channel: String,
    channels: BTreeSet<String>,
}

impl Listener {
    /// Listens to exactly these channels.
    async fn listen_to(&mut self, wanted: &BTreeSet<String>) -> Result<(), StoreError> {
        let begun = wanted.difference(&self.channels);
        let ended = self.channels.difference(wanted);
        let begun = begun.map(|channel| format!("LISTEN {channel}"));
        let all: Vec<_> = begun
            .chain(ended.map(|channel| format!("UNLISTEN {channel}")))
            .collect();
        if !all.is_empty() {
            let all = all.join("; ");
            let asked = self.connected.query(&all);
            let late = |_| StoreError::unavailable("no answer to LISTEN in time");
            let listening = timeout(FETCH_WITHIN, asked).await.map_err(late)?;
            listening.map_err(|error| StoreError::unavailable(error_text::text(&error)))?;
            self.channels.clone_from(wanted);
        }
        Ok(())
    }
}

/// How a way of noticing came to its end.
enum WatchEnd {
    /// Notifications do not get through.
    NoNotifications,
    /// The connection broke, or never opened.
    Broken(String),
    /// There is no watch any more, or the store is gone.
    Idle,
    /// It has been polled for long enough to listen again.
    PolledLongEnough,
}

impl PgWatchTask {
    async fn serve(self) {
        let mut pause = PAUSE_MIN;
        // Until when to poll, if at all.
        let mut poll_until = match self.settings.watch_mode {
            WatchMode::Poll => Some(Instant::MAX),
            WatchMode::Auto | WatchMode::Listen => None,
        };
        while !self.store.is_closed() {
            if self.hub.is_idle() {
                self.store.woken().await;
                continue;
            }
            let end = match poll_until {
                Some(until) => self.poll(until).await,
                None => self.listen(&mut pause).await,
            };
            match end {
                WatchEnd::Idle => {}
                WatchEnd::PolledLongEnough => poll_until = None,
                WatchEnd::NoNotifications if self.settings.watch_mode == WatchMode::Auto => {
                    tracing::info!("{}: no notifications get through; polling", self.settings);
                    poll_until = Some(clock::boot().after(LISTEN_AGAIN));
                }
                WatchEnd::NoNotifications => {
                    self.report_down("notifications do not get through", &mut pause)
                        .await;
                }
                WatchEnd::Broken(why) => self.report_down(&why, &mut pause).await,
            }
        }
    }

    async fn report_down(&self, why: &str, pause: &mut Duration) {
        self.hub.mark_down(why);
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    async fn listen(&self, pause: &mut Duration) -> WatchEnd {
        let mut listener = match self.start_listening().await {
            Ok(Some(listener)) => listener,
            Ok(None) => return WatchEnd::NoNotifications,
            Err(error) => return WatchEnd::Broken(error.to_string()),
        };
        *pause = PAUSE_MIN;
        // At a fixed time: hints, which anybody can send, put it off no more.
        let mut probe_at = clock::boot().after(PROBE_EVERY);
        loop {
            tokio::select! {
                event = listener.connected.inbox.next() => {
                    if let Err(error) = self.handle(event).await {
                        return WatchEnd::Broken(error.to_string());
                    }
                }
                () = self.store.woken() => {
                    if self.hub.is_idle() || self.store.is_closed() {
                        return WatchEnd::Idle;
                    }
                    if let Err(error) = self.refresh(&mut listener).await {
                        return WatchEnd::Broken(error.to_string());
                    }
                }
                () = tokio::time::sleep(probe_at.since(clock::boot())) => {
                    if self.hub.is_idle() {
                        return WatchEnd::Idle;
                    }
                    match self.probe(&listener).await {
                        Ok(true) => probe_at = clock::boot().after(PROBE_EVERY),
                        Ok(false) => return WatchEnd::Broken("a proof did not come".into()),
                        Err(error) => return WatchEnd::Broken(error.to_string()),
                    }
                }
            }
        }
    }

    /// Listens, probes, fetches; `None` if notifications do not get through.
    async fn start_listening(&self) -> Result<Option<Listener>, StoreError> {
        // Over the client's connection first, so that the table is there.
        self.client
            .read(|_| "SELECT 1".into(), FETCH_WITHIN)
            .await?;
        let connected = self.client.dedicated().await?;
        connected.inbox.open(&self.hub);
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let mut listener = Listener {
            connected,
            probe_channel: format!("tenure_proof_{token:016x}"),
            channels: BTreeSet::new(),
        };
        listener
            .listen_to(&self.wanted(&listener.probe_channel)?)
            .await?;
        if !self.probe(&listener).await? {
            return Ok(None);
        }
        self.fetch().await?;
        self.hub.mark_up();
        Ok(Some(listener))
    }

    /// The interest may have changed. First listens, then fetches, so that
    /// nothing falls in between.
    async fn refresh(&self, listener: &mut Listener) -> Result<(), StoreError> {
        listener
            .listen_to(&self.wanted(&listener.probe_channel)?)
            .await?;
        self.fetch().await
    }

    /// The channels on which changes of all that is watched are told, and our
    /// own.
    fn wanted(&self, probe_channel: &str) -> Result<BTreeSet<String>, StoreError> {
        let table = self.client.table()?;
        let interest = self.hub.interest();
        let keys = interest
            .keys
            .iter()
            .map(|known| table.channel_of(&known.key));
        let below = |prefix: &String| table.channel_for(&Selector::Prefix(prefix.clone()));
        let mut wanted: BTreeSet<_> = keys.chain(interest.prefixes.iter().map(below)).collect();
        if wanted.len() > CHANNELS_MAX {
            wanted.clear();
        }
        wanted.extend([probe_channel.to_owned(), table.channel.clone()]);
        Ok(wanted)
    }

    /// Sends a token round; whether it came back.
    async fn probe(&self, listener: &Listener) -> Result<bool, StoreError> {
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let payload = format!("proof {token:016x}");
        let notify = sql::probe(&listener.probe_channel, &payload);
        let PgConnection {
            inbox, received, ..
        } = &listener.connected;
        inbox.expect_probe(payload);
        match self.client.read(|_| notify, FETCH_WITHIN).await {
            // Others hold the lock of all notifications. That says nothing of
            // this listener; what is told late meanwhile is read at once.
            Err(StoreError::Unavailable(why))
                if why.to_string().contains(unsent_notifications::LOCK_TIMEOUT) =>
            {
                tracing::debug!("{why}");
                self.fetch().await?;
                return Ok(true);
            }
            read => drop(read?),
        }
        let last = clock::boot().after(PROBE_BEHIND_OTHERS);
        loop {
            let before = received.messages();
            let within = PROBE_WITHIN.min(last.since(clock::boot()));
            match timeout(within, inbox.next()).await {
                Ok(ListenEvent::Probe) => return Ok(true),
                Ok(other) => self.handle(other).await?,
                // A flood of others goes before it. It is no sign of a mute
                // connection, and no proof of the opposite.
                Err(_) if received.messages() != before && clock::boot() < last => {}
                Err(_) => return Ok(false),
            }
        }
    }

    async fn poll(&self, until: Instant) -> WatchEnd {
        while clock::boot() < until {
            match self.fetch().await {
                Ok(()) => self.hub.mark_up(),
                Err(error) => return WatchEnd::Broken(error.to_string()),
            }
            // News of interest is fetched at once.
            let _ = timeout(self.settings.poll_every, self.store.woken()).await;
            if self.hub.is_idle() || self.store.is_closed() {
                return WatchEnd::Idle;
            }
        }
        WatchEnd::PolledLongEnough
    }

    /// Reads what is hinted at.
    async fn handle(&self, event: ListenEvent) -> Result<(), StoreError> {
        let keys = match event {
            // One that came late.
            ListenEvent::Probe => return Ok(()),
            ListenEvent::Ended => return Err(StoreError::unavailable("the connection has ended")),
            ListenEvent::Hints(Hints::All) => return self.fetch().await,
            ListenEvent::Hints(Hints::Keys(keys)) => keys,
        };
        for _ in 0..FETCHES_MAX {
            let interest = self.hub.interest_in(&keys);
            if self.fetch_keys(&interest).await?.settled {
                break;
            }
        }
        Ok(())
    }

    /// Fetches until nothing is published meanwhile that might be newer; for
    /// lack of a quiet moment the next notification or poll goes on.
    async fn fetch(&self) -> Result<(), StoreError> {
        for _ in 0..FETCHES_MAX {
            if self.fetch_once().await? {
                break;
            }
        }
        Ok(())
    }

    /// One statement for all watched keys, and one for each prefix. Whether
    /// nothing was published meanwhile that contradicts it.
    async fn fetch_once(&self) -> Result<bool, StoreError> {
        let interest = self.hub.interest();
        let Fetched {
            mut settled,
            absent,
        } = self.fetch_keys(&interest).await?;
        for key in absent {
            settled &= self.hub.fetched(&interest, key, None);
        }
        for prefix in &interest.prefixes {
            let mut after: Option<Key> = None;
            loop {
                let list = |table: &_| sql::list(table, prefix, after.as_ref());
                let page = sql::page(&self.client.read(list, FETCH_WITHIN).await?)?;
                for (key, register) in page.registers {
                    settled &= self.hub.fetched(&interest, &key, Some(register));
                }
                after = page.more_after;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(settled)
    }

    /// One statement for these keys.
    async fn fetch_keys<'a>(&self, interest: &'a Interest) -> Result<Fetched<'a>, StoreError> {
        let unreported = interest.keys.iter().filter(|key| !key.reported);
        let mut fetched = Fetched {
            settled: true,
            absent: unreported.map(|known| &known.key).collect(),
        };
        if interest.keys.is_empty() {
            return Ok(fetched);
        }
        let changed = |table: &_| sql::changed(table, interest);
        for row in self.client.read(changed, FETCH_WITHIN).await? {
            let key = sql::key(&row)?;
            fetched.absent.retain(|other| **other != key);
            fetched.settled &= self.hub.fetched(interest, &key, sql::register(&row)?);
        }
        Ok(fetched)
    }
}

/// What came of fetching keys.
struct Fetched<'a> {
    /// Nothing was published meanwhile that contradicts it.
    settled: bool,
    /// Those that do not exist, of which no state was published yet. A watch of
    /// such a key has to report that once; of one that is merely hinted at
    /// there is nothing to report.
    absent: Vec<&'a Key>,
}
