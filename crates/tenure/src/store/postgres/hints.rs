//! What notifications say, and how little of it is believed.
//!
//! A user who may connect to a database may notify on any channel and listen to
//! any, without a right on any table. So a notification is a *hint* that a key
//! has changed, and nothing else: what is published is read from the table.
//! Nothing of a value travels along either.
//!
//! A payload is the key, as hexadecimal, and the version that was written, or
//! 0 for a deletion. (The release before reads when it is told this. Its own
//! payloads go on with a time and a value, which are passed over.) By the
//! version alone no state is told or forgotten. But a hint of the version that
//! is known is skipped, or each write of this process would cost it a reading.
//! A forged one of that kind does nothing, and takes no other hint along.
//!
//! What is hinted at while a reading is under way is collected as a set of
//! keys, of those alone that a watch selects, and of [`KEYS_MAX`] at most; with
//! more of them everything that is watched is read. So a flood of notifications
//! costs one reading after the other, and no memory.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::sql;
use crate::store::hub::Hub;
use crate::store::{Key, Version};

/// How many keys are read one by one.
const KEYS_MAX: usize = 1_024;

/// What is to be read.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Hints {
    /// These keys may have changed.
    Keys(BTreeSet<Key>),
    /// Too many to name.
    All,
}

/// What a listener has to act on.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ListenEvent {
    Hints(Hints),
    /// The probe that was expected.
    Probe,
    /// The connection has ended.
    Ended,
}

/// What has come over a connection that listens, until the listener takes it.
/// Of one that does not listen nothing is kept.
#[derive(Default, Debug)]
pub(super) struct NotificationInbox {
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default, Debug)]
struct State {
    hub: Option<Arc<Hub>>,
    hints: Option<Hints>,
    /// The payload that proves that notifications get through, until it has
    /// come.
    expected_probe: Option<String>,
    probe_received: bool,
    has_ended: bool,
}

impl NotificationInbox {
    /// Keeps from here on what the watches of `hub` may need.
    pub(super) fn open(&self, hub: &Arc<Hub>) {
        self.lock().hub = Some(Arc::clone(hub));
    }

    /// Waits from here on for a probe: a payload that cannot be guessed.
    pub(super) fn expect_probe(&self, probe: String) {
        let mut state = self.lock();
        state.expected_probe = Some(probe);
        state.probe_received = false;
    }

    /// A notification.
    pub(super) fn put(&self, payload: &str) {
        let mut state = self.lock();
        let Some(hub) = state.hub.clone() else {
            return;
        };
        if state.expected_probe.as_deref() == Some(payload) {
            state.expected_probe = None;
            state.probe_received = true;
        } else {
            // Or a probe that came late, or a stranger on the channel.
            let Some((key, version)) = parse(payload) else {
                return;
            };
            if !hub.concerns(&key, &version) {
                return;
            }
            state.hint(key);
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Nothing more will come.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.arrived.notify_one();
    }

    /// Waits for the next of them. Cancelling it loses nothing.
    pub(super) async fn next(&self) -> ListenEvent {
        loop {
            let arrived = self.arrived.notified();
            if let Some(event) = self.lock().take() {
                return event;
            }
            arrived.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hint(&mut self, key: Key) {
        match self
            .hints
            .get_or_insert_with(|| Hints::Keys(BTreeSet::new()))
        {
            Hints::Keys(keys) if keys.len() < KEYS_MAX || keys.contains(&key) => {
                keys.insert(key);
            }
            more => *more = Hints::All,
        }
    }

    fn take(&mut self) -> Option<ListenEvent> {
        if std::mem::take(&mut self.probe_received) {
            return Some(ListenEvent::Probe);
        }
        let hints = self.hints.take().map(ListenEvent::Hints);
        hints.or_else(|| self.has_ended.then_some(ListenEvent::Ended))
    }
}

/// The key of a notification, and the version that it names.
fn parse(payload: &str) -> Option<(Key, Version)> {
    let (key, rest) = payload.split_once(' ')?;
    let key = sql::unhex(key)?;
    let key = Key::new(std::str::from_utf8(&key).ok()?).ok()?;
    // Of a deletion the release before says "gone"; no register has version 0.
    let version = rest.split(' ').next().and_then(|word| word.parse().ok());
    Some((key, Version::from_u64(version.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Register, Selector};

    fn payload(key: &str, rest: &str) -> String {
        let key: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("{key} {rest}")
    }

    fn key(text: &str) -> Key {
        Key::new(text).expect("a key")
    }

    fn keys(inbox: &NotificationInbox) -> Option<BTreeSet<Key>> {
        match inbox.lock().take() {
            Some(ListenEvent::Hints(Hints::Keys(keys))) => Some(keys),
            None => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_flood_is_kept_as_the_keys_that_are_followed_or_as_everything() {
        let hub = Arc::new(Hub::default());
        let _watches = [
            hub.subscribe(Selector::Key(key("a/b"))),
            hub.subscribe(Selector::Prefix("beats/".into())),
        ];
        let inbox = NotificationInbox::default();
        inbox.put(&payload("a/b", "1"));
        assert_eq!(keys(&inbox), None, "it does not listen yet");
        inbox.open(&hub);
        for version in 0..100_000 {
            inbox.put(&payload("a/b", &format!("{version} - 00")));
            inbox.put(&payload(&format!("a/{version}"), "1"));
            inbox.put("zz 1");
            inbox.put("proof 1");
        }
        assert_eq!(keys(&inbox), Some([key("a/b")].into()));
        for at in 0..KEYS_MAX {
            inbox.put(&payload(&format!("beats/{at}"), "7"));
            inbox.put(&payload(&format!("beats/{at}"), "8"));
        }
        assert_eq!(keys(&inbox).map(|keys| keys.len()), Some(KEYS_MAX));
        for at in 0..100_000 {
            inbox.put(&payload(&format!("beats/{at}"), "7"));
        }
        let all = inbox.lock().take();
        assert_eq!(all, Some(ListenEvent::Hints(Hints::All)));
        assert_eq!(keys(&inbox), None);
    }

    #[test]
    fn of_what_is_known_no_reading_is_due() {
        let hub = Arc::new(Hub::default());
        let _watch = hub.subscribe(Selector::Key(key("a")));
        let inbox = NotificationInbox::default();
        inbox.open(&hub);
        let register = Register {
            value: b"value".as_slice().into(),
            version: Version::from_u64(5),
            stamp: None,
        };
        assert!(hub.publish(&key("a"), register));
        inbox.put(&payload("a", "5"));
        assert_eq!(keys(&inbox), None);
        // A deletion, one of the release before, and versions that went back.
        for rest in ["0", "gone 5", "4", "6", "x", ""] {
            inbox.put(&payload("a", rest));
            assert_eq!(keys(&inbox), Some([key("a")].into()), "{rest}");
        }
    }

    #[test]
    fn a_proof_is_the_one_that_was_drawn_and_goes_before_hints() {
        let hub = Arc::new(Hub::default());
        let _watch = hub.subscribe(Selector::Key(key("a")));
        let inbox = NotificationInbox::default();
        inbox.open(&hub);
        inbox.expect_probe("proof 1".into());
        inbox.put("proof 2");
        inbox.put(&payload("a", "1"));
        inbox.put("proof 1");
        assert_eq!(inbox.lock().take(), Some(ListenEvent::Probe));
        assert_eq!(keys(&inbox), Some([key("a")].into()));
        inbox.put("proof 1");
        inbox.end();
        assert_eq!(inbox.lock().take(), Some(ListenEvent::Ended));
    }
}
