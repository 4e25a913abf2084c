//! Noticing what other processes write: LISTEN, or polling.
//!
//! Every write is followed by a notification, which is a hint that a key has
//! changed (`hints.rs`): the listener reads from the table what is hinted at,
//! all in one statement, and tells of nothing else. While it reads the next
//! hints gather, so one reading is under way at a time.
//!
//! A change is hinted at on the channel of its key, to which only those listen
//! who follow it or its neighbours (`table.rs`), and once more on a channel
//! that is common to all keys. Followers of prefixes that span several channels
//! listen to that one. So do, for one release, all others as well: processes
//! of the release before tell of their writes nowhere else.
//!
//! Whether notifications get through is not taken on trust: behind a
//! transaction-pooling proxy LISTEN succeeds and nothing ever arrives. So the
//! listener is *proven* by a notification on a channel of its own, sent over
//! the other connection (over its own it could arrive by luck), at first and
//! then every few seconds. Its payload is drawn at random each time, and nobody
//! else can send it. If the proof does not come, we poll: one statement
//! for all that is followed. Now and then we listen again, because one proof
//! may also come late on a bad day.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::time::timeout;

use super::classify;
use super::connect::Connected;
use super::hints::{Came, Hints};
use super::line::Line;
use super::lost;
use super::settings::{Noticing, Settings};
use super::sql;
use crate::clock;
use crate::error::StoreError;
use crate::store::hub::{Hub, Interest};
use crate::store::watcher::{Tie, Watcher};
use crate::store::{Key, Selector};

/// How long nothing at all may come while a proof is due.
const PROOF_WITHIN: Duration = Duration::from_secs(1);
/// How long a proof may take behind other notifications.
const PROOF_BEHIND: Duration = Duration::from_secs(5);
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
        // At a fixed time: hints, which anybody can send, put it off no more.
        let mut prove_at = clock::boot().after(PROVE_EVERY);
        loop {
            tokio::select! {
                came = listener.connected.inbox.next() => {
                    if let Err(error) = self.heed(came).await {
                        return End::Broken(error.to_string());
                    }
                }
                () = self.store.rung() => {
                    if self.hub.is_idle() || self.store.is_over() {
                        return End::Idle;
                    }
                    if let Err(error) = self.look(&mut listener).await {
                        return End::Broken(error.to_string());
                    }
                }
                () = tokio::time::sleep(prove_at.since(clock::boot())) => {
                    if self.hub.is_idle() {
                        return End::Idle;
                    }
                    match self.prove(&listener).await {
                        Ok(true) => prove_at = clock::boot().after(PROVE_EVERY),
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
        connected.inbox.open(&self.hub);
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let mut listener = Listener {
            connected,
            own: format!("tenure_proof_{token:016x}"),
            channels: BTreeSet::new(),
        };
        listener.on(&self.wanted(&listener.own)?).await?;
        if !self.prove(&listener).await? {
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
    async fn prove(&self, listener: &Listener) -> Result<bool, StoreError> {
        let token = getrandom::u64().map_err(StoreError::unavailable)?;
        let payload = format!("proof {token:016x}");
        let notify = sql::proof(&listener.own, &payload);
        let Connected { inbox, heard, .. } = &listener.connected;
        inbox.expect(payload);
        match self.line.read(|_| notify, FETCH_WITHIN).await {
            // Others hold the lock of all notifications. That says nothing of
            // this line; what is told late meanwhile is read at once.
            Err(StoreError::Unavailable(why)) if why.to_string().contains(lost::LATE) => {
                tracing::debug!("{why}");
                self.fetch().await?;
                return Ok(true);
            }
            read => drop(read?),
        }
        let last = clock::boot().after(PROOF_BEHIND);
        loop {
            let before = heard.messages();
            let within = PROOF_WITHIN.min(last.since(clock::boot()));
            match timeout(within, inbox.next()).await {
                Ok(Came::Proof) => return Ok(true),
                Ok(other) => self.heed(other).await?,
                // A flood of others goes before it, and is no sign of a mute
                // line; but nor does it prove anything.
                Err(_) if heard.messages() != before && clock::boot() < last => {}
                Err(_) => return Ok(false),
            }
        }
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

    /// Reads what is hinted at.
    async fn heed(&self, came: Came) -> Result<(), StoreError> {
        let keys = match came {
            // One that came late.
            Came::Proof => return Ok(()),
            Came::End => return Err(StoreError::unavailable("the connection has ended")),
            Came::Hints(Hints::All) => return self.fetch().await,
            Came::Hints(Hints::Keys(keys)) => keys,
        };
        for _ in 0..FETCHES_MAX {
            let interest = self.hub.interest_in(&keys);
            if self.fetch_keys(&interest).await?.settled {
                break;
            }
        }
        Ok(())
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

    /// One statement for these keys.
    async fn fetch_keys<'a>(&self, interest: &'a Interest) -> Result<Fetched<'a>, StoreError> {
        let untold = interest.keys.iter().filter(|key| !key.told);
        let mut fetched = Fetched {
            settled: true,
            absent: untold.map(|known| &known.key).collect(),
        };
        if interest.keys.is_empty() {
            return Ok(fetched);
        }
        let changed = |table: &_| sql::changed(table, interest);
        for row in self.line.read(changed, FETCH_WITHIN).await? {
            let key = sql::key(&row)?;
            fetched.absent.retain(|other| **other != key);
            fetched.settled &= self.hub.fetched(interest, &key, sql::register(&row)?);
        }
        Ok(fetched)
    }
}

/// What came of fetching keys.
struct Fetched<'a> {
    /// Nothing was told meanwhile that contradicts it.
    settled: bool,
    /// Those that do not exist, of which nobody has been told yet. Whoever
    /// follows such a key has to be told once; of one that is merely hinted at
    /// there is nothing to tell.
    absent: Vec<&'a Key>,
}
