//! Noticing what other processes write: LISTEN, or polling.
//!
//! Every write is followed by a notification, and a small value travels along,
//! so a follower needs no read. It is told on the channel of its key, to which
//! only those listen who follow it or its neighbours (`table.rs`), and once
//! more, by key and version alone, on a channel that is common to all keys.
//! Followers of prefixes that span several channels listen to that one. So do,
//! for one release, all others as well: processes of the release before tell
//! of their writes nowhere else. What is told there and known already is
//! passed over.
//!
//! Whether notifications get through is not taken on trust: behind a
//! transaction-pooling proxy LISTEN succeeds and nothing ever arrives. So the
//! listener is *proven* by a notification on a channel of its own, sent over
//! the other connection (over its own it could arrive by luck), at first and
//! then every few seconds. If the proof does not come, we poll: one statement
//! for all that is followed. Now and then we listen again, because one proof
//! may also come late on a bad day.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::classify;
use super::connect::{Connected, Notice};
use super::line::Line;
use super::settings::{Noticing, Settings};
use super::sql;
use crate::clock;
use crate::error::StoreError;
use crate::store::hub::Hub;
use crate::store::watcher::{Tie, Watcher};
use crate::store::{Key, Register, Selector, Version};

/// How long a proof may take.
const PROOF_WITHIN: Duration = Duration::from_secs(1);
/// How long to poll before listening is tried again. Behind a proxy each try
/// costs a second in which nothing is noticed.
const LISTEN_AGAIN: Duration = Duration::from_secs(300);
/// How often a fetch is begun anew because something was told meanwhile.
const FETCHES_MAX: usize = 3;
/// How often the line is proven again.
const PROVE_EVERY: Duration = Duration::from_secs(5);
/// How long a fetch may take.
const FETCH_WITHIN: Duration = Duration::from_secs(5);
/// How many channels are listened to; whoever follows more listens to the
/// common one alone.
const CHANNELS_MAX: usize = 1_024;
/// The pauses between attempts to open the line again.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Starts the task.
pub(super) fn start(settings: Arc<Settings>, line: Arc<Line>, hub: Arc<Hub>) -> Watcher {
    Watcher::start(|store| {
        let desk = Desk {
            settings,
            line,
            hub,
            store,
        };
        desk.serve()
    })
}

struct Desk {
    settings: Arc<Settings>,
    line: Arc<Line>,
    hub: Arc<Hub>,
    store: Tie,
}

/// A connection that listens.
struct Listener {
    connected: Connected,
    notices: mpsc::Receiver<Notice>,
    /// The channel on which it is proven.
    own: String,
    channels: BTreeSet<String>,
}

impl Listener {
    /// Listens to exactly these channels.
    async fn on(&mut self, wanted: &BTreeSet<String>) -> Result<(), StoreError> {
        let begun = wanted.difference(&self.channels);
        let ended = self.channels.difference(wanted);
        let begun = begun.map(|channel| format!("LISTEN {channel}"));
        let all: Vec<_> = begun
            .chain(ended.map(|channel| format!("UNLISTEN {channel}")))
            .collect();
        if !all.is_empty() {
            let all = all.join("; ");
            let asked = self.connected.ask(&all);
            let late = |_| StoreError::unavailable("no answer to LISTEN in time");
            let listening = timeout(FETCH_WITHIN, asked).await.map_err(late)?;
            listening.map_err(|error| StoreError::unavailable(classify::text(&error)))?;
            self.channels.clone_from(wanted);
        }
        Ok(())
    }
}

/// How a way of noticing came to its end.
enum End {
    /// Notifications do not get through.
    Deaf,
    /// The line broke, or never opened.
    Broken(String),
    /// Nobody follows anything any more, or the store is gone.
    Idle,
    /// It has been polled for long enough to listen again.
    Polled,
}

impl Desk {
    async fn serve(self) {
        let mut pause = PAUSE_MIN;
        // Until when to poll, if at all.
        let mut deaf = match self.settings.noticing {
            Noticing::Poll => Some(Instant::MAX),
            Noticing::Auto | Noticing::Listen => None,
        };
        while !self.store.is_over() {
            if self.hub.is_idle() {
                self.store.rung().await;
                continue;
            }
            let end = match deaf {
                Some(until) => self.poll(until).await,
                None => self.listen(&mut pause).await,
            };
            match end {
                End::Idle => {}
                End::Polled => deaf = None,
                End::Deaf if self.settings.noticing == Noticing::Auto => {
                    tracing::info!("{}: no notifications get through; polling", self.settings);
                    deaf = Some(clock::boot().after(LISTEN_AGAIN));
                }
                End::Deaf => {
                    self.trouble("notifications do not get through", &mut pause)
                        .await;
                }
                End::Broken(why) => self.trouble(&why, &mut pause).await,
            }
        }
    }

    async fn trouble(&self, why: &str, pause: &mut Duration) {
        self.hub.down(why);
        tokio::time::sleep(*pause).await;
        *pause = (*pause * 2).min(PAUSE_MAX);
    }

    async fn listen(&self, pause: &mut Duration) -> End {
        let mut listener = match self.begin().await {
            Ok(Some(listener)) => listener,
            Ok(None) => return End::Deaf,
            Err(error) => return End::Broken(error.to_string()),
        };
        *pause = PAUSE_MIN;
        loop {
            tokio::select! {
                notice = listener.notices.recv() => match notice {
                    Some(notice) => {
                        if let Err(error) = self.take(&notice).await {
                            return End::Broken(error.to_string());
                        }
                    }
                    None => return End::Broken("the connection has ended".into()),
                },
                () = self.store.rung() => {
                    if self.hub.is_idle() || self.store.is_over() {
                        return End::Idle;
                    }
                    if let Err(error) = self.look(&mut listener).await {
                        return End::Broken(error.to_string());
                    }
                }
                () = tokio::time::sleep(PROVE_EVERY) => {
                    if self.hub.is_idle() {
                        return End::Idle;
                    }
                    match self.prove(&mut listener).await {
                        Ok(true) => {}
                        Ok(false) => return End::Broken("a proof did not come".into()),
                        Err(error) => return End::Broken(error.to_string()),
                    }
                }
            }
        }
    }

    /// Listens, proves, fetches; `None` if notifications do not get through.
    async fn begin(&self) -> Result<Option<Listener>, StoreError> {
        // Over the line first, so that the table is there.
        self.line.read(|_| "SELECT 1".into(), FETCH_WITHIN).await?;
        let connected = self.line.apart().await?;
        let notices = connected
            .notices()
            .ok_or_else(|| StoreError::unavailable("expected a connection of our own"))?;
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let mut listener = Listener {
            connected,
            notices,
            own: format!("tenure_proof_{token:016x}"),
            channels: BTreeSet::new(),
        };
        listener.on(&self.wanted(&listener.own)?).await?;
        if !self.prove(&mut listener).await? {
            return Ok(None);
        }
        self.fetch().await?;
        self.hub.up();
        Ok(Some(listener))
    }

    /// The interest may have changed. First listens, then fetches, so that
    /// nothing falls in between.
    async fn look(&self, listener: &mut Listener) -> Result<(), StoreError> {
        listener.on(&self.wanted(&listener.own)?).await?;
        self.fetch().await
    }

    /// The channels on which all that is followed is told of, and our own.
    fn wanted(&self, own: &str) -> Result<BTreeSet<String>, StoreError> {
        let table = self.line.table()?;
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
        wanted.extend([own.to_owned(), table.channel.clone()]);
        Ok(wanted)
    }

    /// Sends a token round; whether it came back.
    async fn prove(&self, listener: &mut Listener) -> Result<bool, StoreError> {
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let payload = format!("proof {token:016x}");
        let notify = format!("NOTIFY {}, '{payload}'", listener.own);
        self.line.read(|_| notify, FETCH_WITHIN).await?;
        let came = async {
            while let Some(notice) = listener.notices.recv().await {
                if notice.payload == payload {
                    return Ok(true);
                }
                self.take(&notice).await?;
            }
            Err(StoreError::unavailable("the connection has ended"))
        };
        timeout(PROOF_WITHIN, came).await.unwrap_or(Ok(false))
    }

    async fn poll(&self, until: Instant) -> End {
        while clock::boot() < until {
            match self.fetch().await {
                Ok(()) => self.hub.up(),
                Err(error) => return End::Broken(error.to_string()),
            }
            // News of interest is fetched at once.
            let _ = timeout(self.settings.poll_every, self.store.rung()).await;
            if self.hub.is_idle() || self.store.is_over() {
                return End::Idle;
            }
        }
        End::Polled
    }

    /// Hands a notification on; one without a value is fetched.
    async fn take(&self, notice: &Notice) -> Result<(), StoreError> {
        match parse(&notice.payload) {
            Some((key, news)) => {
                // What is told on the common channel was told on that of its
                // key before, if this process listens there.
                let is_common = self.line.table()?.channel == notice.channel;
                let told = match news {
                    News::Written(register) => self.hub.publish(&key, register),
                    News::Gone(version) => self.hub.publish_gone(&key, version),
                    News::Named(version) => is_common && self.hub.knows(&key, &version),
                };
                if told {
                    return Ok(());
                }
                // Late, or the versions have gone back: a read tells.
                self.fetch().await
            }
            // A proof that came late, or a stranger on the channel.
            None => Ok(()),
        }
    }

    /// Fetches until nothing is told meanwhile that might be newer; for lack
    /// of a quiet moment the next notification or poll goes on.
    async fn fetch(&self) -> Result<(), StoreError> {
        for _ in 0..FETCHES_MAX {
            if self.fetch_once().await? {
                break;
            }
        }
        Ok(())
    }

    /// One statement for all followed keys, and one for each prefix. Whether
    /// nothing was told meanwhile that contradicts it.
    async fn fetch_once(&self) -> Result<bool, StoreError> {
        let interest = self.hub.interest();
        let mut settled = true;
        if !interest.keys.is_empty() {
            let changed = |table: &_| sql::changed(table, &interest);
            let mut untold: Vec<&Key> = interest
                .keys
                .iter()
                .filter(|key| !key.told)
                .map(|known| &known.key)
                .collect();
            for row in self.line.read(changed, FETCH_WITHIN).await? {
                let key = sql::key(&row)?;
                untold.retain(|other| **other != key);
                settled &= self.hub.fetched(&interest, &key, sql::register(&row)?);
            }
            for key in untold {
                settled &= self.hub.fetched(&interest, key, None);
            }
        }
        for prefix in &interest.prefixes {
            let mut after: Option<Key> = None;
            loop {
                let list = |table: &_| sql::list(table, prefix, after.as_ref());
                let page = sql::page(&self.line.read(list, FETCH_WITHIN).await?)?;
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
}

/// What a notification tells of its key.
enum News {
    /// It was written, and is this now.
    Written(Register),
    /// It was deleted when it had this version.
    Gone(Version),
    /// It was written, and got this version; the value did not travel along.
    Named(Version),
}

/// The key of a notification, and what it tells.
fn parse(payload: &str) -> Option<(Key, News)> {
    let mut words = payload.split(' ');
    let key = sql::unhex(words.next()?)?;
    let key = Key::new(std::str::from_utf8(&key).ok()?).ok()?;
    let version = words.next()?;
    if version == "gone" {
        let version = words.next()?.parse().ok()?;
        return Some((key, News::Gone(Version::from_u64(version))));
    }
    let version = Version::from_u64(version.parse().ok()?);
    let (Some(stamp), Some(value)) = (words.next(), words.next()) else {
        return Some((key, News::Named(version)));
    };
    let stamp = stamp.parse().ok().map(sql::store_time);
    let value = sql::unhex(value)?.into();
    Some((
        key,
        News::Written(Register {
            value,
            version,
            stamp,
        }),
    ))
}
