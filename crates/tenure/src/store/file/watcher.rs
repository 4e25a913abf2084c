//! Noticing what other processes write.
//!
//! The kernel tells (inotify) of each rename and removal in the directory, and of one of
//! the directory itself, and then all that is watched is looked at. A slow look covers
//! a notice that was lost and a directory that was replaced by other means. Where the kernel does not tell (no inotify, or another
//! machine writes to a cluster file system) all is looked at every `poll`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::directory::{Directory, Place};
use super::registers::Registers;
use super::synced_states::SyncedStates;
use crate::error::StoreError;
use crate::store::file_notices::{Events, Notices, Signal, WakeUp};
use crate::store::hub::{Hub, Interest};
use crate::store::{Key, Register};

const POLL_SLOWLY: Duration = Duration::from_secs(1);
/// How soon to look again after a look that something overtook.
const POLL_AGAIN: Duration = Duration::from_millis(1);

/// A handle to the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Watcher {
    wake_signal: Arc<Signal>,
}

impl Watcher {
    pub(super) fn start(
        place: &Arc<Place>,
        settled: Arc<SyncedStates>,
        hub: Arc<Hub>,
    ) -> Result<Self, StoreError> {
        let wake_signal = Arc::new(Signal::new()?);
        let thread = WatchThread {
            place: Arc::clone(place),
            directory: Directory::new(place),
            times_opened: 0,
            notices: None,
            wake_signal: Arc::clone(&wake_signal),
            settled,
            hub,
        };
        std::thread::Builder::new()
            .name("tenure-file-w".into())
            .spawn(move || thread.serve())
            .map_err(StoreError::unavailable)?;
        Ok(Self { wake_signal })
    }

    /// The interest has changed: fetch what is new in it.
    pub(super) fn wake(&self) {
        self.wake_signal.wake();
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.wake_signal.end();
    }
}

struct WatchThread {
    place: Arc<Place>,
    directory: Directory,
    /// Which opening of the directory the notices are of.
    times_opened: u64,
    notices: Option<Notices>,
    wake_signal: Arc<Signal>,
    settled: Arc<SyncedStates>,
    hub: Arc<Hub>,
}

impl WatchThread {
    fn serve(mut self) {
        let mut wait = POLL_SLOWLY;
        loop {
            let wake_up = self.wake_signal.wait(self.notices.as_ref(), wait);
            if self.wake_signal.has_ended() {
                return;
            }
            wait = POLL_SLOWLY;
            if self.hub.is_idle() && wake_up != WakeUp::Signal {
                continue;
            }
            wait = match self.fetch() {
                Ok(settled) => {
                    self.hub.mark_up();
                    match &self.notices {
                        _ if !settled => POLL_AGAIN,
                        Some(_) if !self.place.settings.on_cluster => POLL_SLOWLY,
                        _ => self.place.settings.poll,
                    }
                }
                Err(error) => {
                    self.hub.mark_down(&error.to_string());
                    self.directory.close();
                    self.place.settings.poll
                }
            };
        }
    }

    /// Looks at all that is watched. Whether it is settled: if not, something was
    /// written here meanwhile, and another look is due.
    fn fetch(&mut self) -> Result<bool, StoreError> {
        self.directory.current()?;
        if self.directory.times_opened() != self.times_opened {
            self.times_opened = self.directory.times_opened();
            // Before the look, so that nothing comes between the two.
            self.notices = Notices::of(self.place.path(), Events::Names);
        }
        let interest = self.hub.interest();
        let directory = self.directory.current()?;
        let registers = Registers {
            place: &self.place,
            directory,
        };
        let news = news(&interest, registers)?;
        let read = news.iter().map(|(key, register)| (key, register.as_ref()));
        let settled = self.settled.settle(directory, read);
        settled.map_err(|error| registers.unavailable(&error))?;
        if !self.directory.is_current() {
            return Err(self.place.replaced());
        }
        let mut settled = true;
        for (key, register) in news {
            settled &= self.hub.fetched(&interest, &key, register);
        }
        Ok(settled)
    }
}

/// What is watched and differs from what is known of it.
fn news(
    interest: &Interest,
    registers: Registers<'_>,
) -> Result<BTreeMap<Key, Option<Register>>, StoreError> {
    let mut found = BTreeMap::new();
    for prefix in &interest.prefixes {
        let mut after: Option<Key> = None;
        loop {
            let page = registers.list(prefix, after.as_ref())?;
            let read = page.registers.into_iter();
            found.extend(read.map(|(key, register)| (key, Some(register))));
            after = page.more_after;
            if after.is_none() {
                break;
            }
        }
    }
    for watched in &interest.keys {
        if !found.contains_key(&watched.key) {
            let register = registers.shown(&watched.key);
            let register = register.map_err(|error| registers.unavailable(&error))?;
            found.insert(watched.key.clone(), register);
        }
        let version = found.get(&watched.key).and_then(Option::as_ref);
        let version = version.map(|register| &register.version);
        if watched.reported && watched.version.as_ref() == version {
            found.remove(&watched.key);
        }
    }
    Ok(found)
}
