//! Listening to what the scripts tell of changes.
//!
//! A second connection, opened when something is first watched, is subscribed to the
//! channel of the store's prefix. What it hears is a key and a version, and nothing
//! is believed of either. While it is not there (no right to subscribe, a server that
//! is away) nothing is lost but time: changes are looked for all the same.
//!
//! Limits: [`HINTS_MAX`] keys wait to be looked at; those beyond are found by looking.
//! The connection is read no faster than its messages are taken (`backlog.rs`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;

use super::connect::Subscription;
use super::opening;
use super::registers::{KeySpace, hint};
use super::settings::Settings;
use crate::drive;
use crate::store::dial::HANDSHAKE_WITHIN;
use crate::store::{Key, Version};

/// How many keys may wait to be looked at.
const HINTS_MAX: usize = 1_024;
/// How long a silent connection is believed to live before it is asked.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// How long it may take to say so.
const PING_WITHIN: Duration = Duration::from_secs(5);
/// When to try again to listen.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What listens, once it is asked for hints.
pub(super) struct Listener {
    settings: Arc<Settings>,
    inbox: Arc<Inbox>,
    task: OnceLock<ListenerTask>,
}

#[derive(Default)]
struct Inbox {
    hints: Mutex<BTreeMap<Key, Option<Version>>>,
    filled: Notify,
}

/// Ends the task when it is dropped.
struct ListenerTask(JoinHandle<()>);

impl Drop for ListenerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.settings)
    }
}

impl Listener {
    pub(super) fn new(settings: &Arc<Settings>) -> Self {
        Self {
            settings: Arc::clone(settings),
            inbox: Arc::default(),
            task: OnceLock::new(),
        }
    }

    /// Waits for hints; all that have come.
    pub(super) async fn hints(&self) -> Vec<(Key, Option<Version>)> {
        self.task.get_or_init(|| {
            let (settings, inbox) = (Arc::clone(&self.settings), Arc::clone(&self.inbox));
            ListenerTask(drive::background().spawn(async move { serve(&settings, &inbox).await }))
        });
        loop {
            let hints = std::mem::take(&mut *self.inbox.lock());
            if !hints.is_empty() {
                return hints.into_iter().collect();
            }
            self.inbox.filled.notified().await;
        }
    }
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Option<Version>>> {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: Key, version: Option<Version>) {
        let mut hints = self.lock();
        if hints.len() < HINTS_MAX || hints.contains_key(&key) {
            hints.insert(key, version);
            self.filled.notify_one();
        }
    }
}

/// Listens for as long as the store is there.
async fn serve(settings: &Settings, inbox: &Inbox) {
    let prefix = settings.prefix.as_str();
    let channel = KeySpace { prefix }.changes();
    loop {
        let subscribing = opening::subscribe(settings, channel.clone());
        match timeout(HANDSHAKE_WITHIN, subscribing).await {
            Ok(Ok(listening)) => listen(listening, inbox).await,
            Ok(Err(error)) => tracing::debug!("{settings}: no hints of changes: {error}"),
            Err(_) => tracing::debug!("{settings}: no hints of changes: no answer"),
        }
        sleep(AGAIN_AFTER).await;
    }
}

/// Listens for as long as the connection lives.
async fn listen(listening: Subscription, inbox: &Inbox) {
    let backlog = listening.backlog;
    let (mut sink, mut messages) = listening.messages.split();
    loop {
        match timeout(SILENCE_MAX, messages.next()).await {
            Ok(Some(message)) => {
                backlog.taken();
                if let Some((key, version)) = hint(message.get_payload_bytes()) {
                    inbox.put(key, version);
                }
                // A flood of them leaves the thread to others in between.
                tokio::task::consume_budget().await;
            }
            Ok(None) => return,
            Err(_) => {
                let ping = timeout(PING_WITHIN, sink.ping::<::redis::Value>()).await;
                if !matches!(ping, Ok(Ok(_))) {
                    return;
                }
                // The answer is no message.
                backlog.clear();
            }
        }
    }
}
