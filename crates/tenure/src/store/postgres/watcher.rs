//! Noticing what other processes write: LISTEN, or polling.
//!
//! Every write notifies in its own transaction, and a small value travels in
//! the notification, so a follower needs no read. Whether notifications get
//! through is not taken on trust: behind a transaction-pooling proxy LISTEN
//! succeeds and nothing ever arrives. So the listener is *proven* by a
//! notification with a token, sent over the other connection (over its own it
//! could arrive by luck), at first and then every few seconds. If the proof
//! does not come, we poll: one statement for all that is followed. Now and
//! then we listen again, because one proof may also come late on a bad day.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::line::{Connected, Line, Notice};
use super::settings::{Noticing, Settings};
use super::sql;
use crate::clock;
use crate::error::StoreError;
use crate::store::hub::Hub;
use crate::store::watcher::{Tie, Watcher};
use crate::store::{Key, Register, Version};

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
        let opened = timeout(FETCH_WITHIN, self.line.connect()).await;
        let (connected, mut notices) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return End::Broken(error.to_string()),
            Err(_) => return End::Broken("no connection in time".into()),
        };
        match self.begin(&connected, &mut notices).await {
            Ok(true) => {}
            Ok(false) => return End::Deaf,
            Err(error) => return End::Broken(error.to_string()),
        }
        *pause = PAUSE_MIN;
        loop {
            tokio::select! {
                notice = notices.recv() => match notice {
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
                    if let Err(error) = self.fetch().await {
                        return End::Broken(error.to_string());
                    }
                }
                () = tokio::time::sleep(PROVE_EVERY) => {
                    if self.hub.is_idle() {
                        return End::Idle;
                    }
                    match self.prove(&mut notices).await {
                        Ok(true) => {}
                        Ok(false) => return End::Broken("a proof did not come".into()),
                        Err(error) => return End::Broken(error.to_string()),
                    }
                }
            }
        }
    }

    /// Listens, proves, fetches; whether notifications get through.
    async fn begin(
        &self,
        connected: &Connected,
        notices: &mut mpsc::Receiver<Notice>,
    ) -> Result<bool, StoreError> {
        // Over the line first, so that the table is there.
        self.line.read("SELECT 1", FETCH_WITHIN).await?;
        let listen = format!("LISTEN {}", self.settings.table.channel());
        connected
            .ask(&listen)
            .await
            .map_err(StoreError::unavailable)?;
        if !self.prove(notices).await? {
            return Ok(false);
        }
        self.fetch().await?;
        self.hub.up();
        Ok(true)
    }

    /// Sends a token round; whether it came back.
    async fn prove(&self, notices: &mut mpsc::Receiver<Notice>) -> Result<bool, StoreError> {
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let payload = format!("proof {token:016x}");
        let notify = format!("NOTIFY {}, '{payload}'", self.settings.table.channel());
        self.line.read(&notify, FETCH_WITHIN).await?;
        let came = async {
            while let Some(notice) = notices.recv().await {
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
                let told = match news {
                    News::Written(register) => self.hub.publish(&key, register),
                    News::Gone(version) => self.hub.publish_gone(&key, version),
                    News::TooLong => false,
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
        let table = &self.settings.table;
        if let Some(statement) = sql::changed(table, &interest) {
            let mut untold: Vec<&Key> = interest
                .keys
                .iter()
                .filter(|key| !key.told)
                .map(|known| &known.key)
                .collect();
            for row in self.line.read(&statement, FETCH_WITHIN).await? {
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
                let statement = sql::list(table, prefix, after.as_ref());
                let page = sql::page(&self.line.read(&statement, FETCH_WITHIN).await?)?;
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
    /// It was written; the value was too long to travel along.
    TooLong,
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
        return Some((key, News::TooLong));
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
