//! What all parts of a node share: its id, the time, and how it calls the store
//! and reports news. Nothing here decides anything.

use alloc::collections::VecDeque;
use core::time::Duration;

use tenure_core::call::{Calls, Failure, Pending};
use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now};

use super::types::{Event, Output};
use super::{Bug, Config, Keys, NodeId};

/// What all parts share.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) config: Config,
    pub(super) keys: Keys,
    pub(super) me: NodeId,
    pub(super) rng: Rng,
    /// The latest time seen; time never goes back.
    pub(super) now: Instant,
    /// Whether the store reports changes by itself at present.
    pub(super) watch_up: bool,
    /// Whether trouble was told, and not yet that it is over.
    pub(super) troubled: bool,
    calls: Calls,
    pub(super) outputs: VecDeque<Output>,
}

impl Context {
    pub(super) fn new(config: Config, mut rng: Rng, now: Now) -> Self {
        Self {
            keys: Keys::of(config.group.clone()),
            config,
            me: NodeId::from_u128(rng.next_u128()),
            rng,
            now: now.boot,
            watch_up: false,
            troubled: false,
            calls: Calls::default(),
            outputs: VecDeque::new(),
        }
    }

    pub(super) fn set_now(&mut self, now: Now) {
        self.now = self.now.max(now.boot);
    }

    /// The key of the group's view.
    pub(super) fn view_key(&self) -> Key {
        if self.config.plant.is(Bug::GroupsMixed) {
            return Key::new("ha/view").unwrap_or_else(|_| self.keys.view());
        }
        self.keys.view()
    }

    /// A call that is awaited for an interval. The store is given nine tenths
    /// of it: one that gives up says why, and that is heard in time.
    fn pending(&mut self) -> (Pending, Duration) {
        let interval = self.config.interval;
        let pending = self.calls.begin(self.now, interval);
        (pending, interval / 10 * 9)
    }

    pub(super) fn event(&mut self, event: Event) {
        self.outputs.push_back(Output::Event(event));
    }

    pub(super) fn read(&mut self, key: Key) -> Pending {
        let (pending, within) = self.pending();
        let call = pending.call;
        self.outputs.push_back(Output::Read { call, key, within });
        pending
    }

    pub(super) fn list(&mut self) -> Pending {
        let (pending, within) = self.pending();
        let call = pending.call;
        let prefix = self.keys.heartbeats();
        self.outputs.push_back(Output::List {
            call,
            prefix,
            within,
        });
        pending
    }

    /// A page of the registers of content, from the first after `after` on.
    pub(super) fn page(&mut self, after: Option<Key>) -> Pending {
        let (pending, within) = self.pending();
        let call = pending.call;
        let prefix = self.keys.contents();
        self.outputs.push_back(Output::Page {
            call,
            prefix,
            after,
            within,
        });
        pending
    }

    pub(super) fn write(&mut self, key: Key, expect: Expect, value: Bytes) -> Pending {
        let (pending, within) = self.pending();
        let call = pending.call;
        let stamp = Stamp::Now;
        let write = Write {
            key,
            expect,
            value,
            stamp,
        };
        self.outputs.push_back(Output::Write {
            call,
            write,
            within,
        });
        pending
    }

    pub(super) fn delete(&mut self, key: Key, version: Version) -> Pending {
        let (pending, within) = self.pending();
        let call = pending.call;
        self.outputs.push_back(Output::Delete {
            call,
            key,
            version,
            within,
        });
        pending
    }

    /// Tells of a failure and says how long to wait.
    pub(super) fn trouble(&mut self, failure: &Failure, in_a_row: u32) -> Duration {
        let pause = failure.pause(in_a_row, self.config.interval, self.config.lease);
        let failure = failure.clone();
        self.troubled = true;
        self.event(Event::Trouble { failure, in_a_row });
        pause
    }

    /// At most 10 % of the lease, so that nodes that judge do not stampede.
    pub(super) fn jitter(&mut self) -> Duration {
        self.rng.span(self.config.lease / 10)
    }

    /// When to look again: after `gap`, a tenth more or less.
    pub(super) fn after_about(&mut self, gap: Duration) -> Instant {
        let spread = self.rng.span(gap / 5);
        self.now.after(gap / 10 * 9 + spread)
    }
}
