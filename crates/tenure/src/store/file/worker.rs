//! The two threads that use the directory, one for writes, one for reads: a read needs
//! no lock, and does not wait for another process that has it.
//!
//! Writes that queue up meanwhile go under the lock together, and share the sync of
//! the directory. Each has a sync of its own file.
//!
//! The store's clock is read before the files that it is compared with: a thread that
//! is paused between the two would otherwise show a grant as over that was renewed
//! meanwhile. A write notes the time when it has the lock, for from then on no other
//! process writes.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tenure_core::time::{Instant, StoreTime};

use super::call::Call;
use super::directory::{Directory, Opened, Place};
use super::registers::Registers;
use super::synced_states::SyncedStates;
use crate::clock;
use crate::error::StoreError;
use crate::store::hub::Hub;
use crate::store::{Key, Page, Reading, Register, Version, Write, Written};

/// How many calls may wait; more are refused as unavailable.
const QUEUE_MAX: usize = 1_024;
/// How many writes go under one lock. Others wait for it meanwhile, a few
/// milliseconds for each on most disks.
const BATCH_MAX: usize = 16;
/// How long to wait for the lock of another process at most.
const LOCK_WITHIN: Duration = Duration::from_secs(5);

/// What changes a register.
#[derive(Debug)]
pub(super) enum Change {
    Write(Write, Call<Written>),
    Delete(Key, Version, Call<()>),
}

/// What looks at registers.
#[derive(Debug)]
pub(super) enum Look {
    Read(Key, Call<Reading>),
    List(String, Option<Key>, Call<Page>),
}

/// A handle to the threads. Dropping it ends them after the calls that are under way.
#[derive(Debug)]
pub(super) struct Worker {
    changes: SyncSender<Change>,
    looks: SyncSender<Look>,
}

impl Worker {
    /// Begins to serve; `writer` is the directory for writes, which need not be open.
    pub(super) fn start(
        place: &Arc<Place>,
        writer: Directory,
        settled: &Arc<SyncedStates>,
        hub: &Arc<Hub>,
    ) -> Result<Self, StoreError> {
        let thread = |directory| WorkerThread {
            place: Arc::clone(place),
            directory,
            settled: Arc::clone(settled),
            hub: Arc::clone(hub),
        };
        let (mut writes, mut reads) = (thread(writer), thread(Directory::new(place)));
        let (changes, received) = sync_channel(QUEUE_MAX);
        spawn("tenure-file", move || writes.serve_changes(&received))?;
        let (looks, received) = sync_channel(QUEUE_MAX);
        spawn("tenure-file-r", move || reads.serve_looks(&received))?;
        Ok(Self { changes, looks })
    }

    pub(super) fn change(&self, change: Change) -> Result<(), StoreError> {
        self.changes.try_send(change).map_err(refused)
    }

    pub(super) fn look(&self, look: Look) -> Result<(), StoreError> {
        self.looks.try_send(look).map_err(refused)
    }
}

fn spawn(name: &str, serve: impl FnOnce() + Send + 'static) -> Result<(), StoreError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(serve);
    thread.map(drop).map_err(StoreError::unavailable)
}

#[expect(clippy::needless_pass_by_value, reason = "as errors are mapped")]
fn refused<T>(error: TrySendError<T>) -> StoreError {
    match error {
        TrySendError::Full(_) => {
            StoreError::unavailable(format!("{QUEUE_MAX} calls are waiting already"))
        }
        TrySendError::Disconnected(_) => StoreError::unavailable("the store's thread has ended"),
    }
}

struct WorkerThread {
    place: Arc<Place>,
    directory: Directory,
    settled: Arc<SyncedStates>,
    hub: Arc<Hub>,
}

/// A change that was carried out under the lock, and is not answered yet.
enum Done {
    Written(
        Key,
        Result<Register, StoreError>,
        Option<StoreTime>,
        Call<Written>,
    ),
    Deleted(Key, Version, Result<(), StoreError>, Call<()>),
}

impl WorkerThread {
    fn serve_changes(&mut self, changes: &Receiver<Change>) {
        while let Ok(first) = changes.recv() {
            let more = changes.try_iter().take(BATCH_MAX - 1);
            let batch: Vec<_> = std::iter::once(first).chain(more).collect();
            let now = clock::boot();
            let longest = batch.iter().map(|it| it.until().since(now)).max();
            // A little less than the callers wait, so that they hear that another
            // process has the lock.
            let within = longest.unwrap_or_default().min(LOCK_WITHIN);
            self.carry_out(batch, now.after(within - within / 8));
        }
    }

    fn carry_out(&mut self, batch: Vec<Change>, lock_until: Instant) {
        let mut done = Vec::with_capacity(batch.len());
        let synced = match self.directory.locked(lock_until) {
            Err(error) => {
                batch.into_iter().for_each(|change| change.refuse(&error));
                return;
            }
            Ok(locked) => {
                let now = clock::shared();
                let registers = Registers {
                    place: &self.place,
                    directory: locked.opened,
                };
                done.extend(
                    batch
                        .into_iter()
                        .filter_map(|it| it.carry_out(registers, now)),
                );
                if done.iter().any(Done::may_have_changed) {
                    locked.opened.file.sync_all()
                } else {
                    Ok(())
                }
            }
        };
        let sure = match self.directory.still_current() {
            Some(opened) => synced.map(|()| opened),
            None => Err(io::Error::other(
                "the directory was deleted or replaced while it was written",
            )),
        };
        let sure = sure.map_err(|error| format!("{}: {error}", self.place.path().display()));
        for done in done {
            done.answer(&sure, &self.settled, &self.hub);
        }
    }

    fn serve_looks(&mut self, looks: &Receiver<Look>) {
        while let Ok(look) = looks.recv() {
            match look {
                Look::Read(key, call) if call.begin() => call.answer(self.read(&key)),
                Look::List(prefix, after, call) if call.begin() => {
                    call.answer(self.list(&prefix, after.as_ref()));
                }
                Look::Read(..) | Look::List(..) => {}
            }
        }
    }

    fn read(&mut self, key: &Key) -> Result<Reading, StoreError> {
        let now = clock::shared();
        let register = self.look(|registers, settled| {
            let record = registers.read(key)?;
            let register = record.map(|record| record.register());
            let read = std::iter::once((key, register.as_ref()));
            let settled = settled.settle(registers.directory, read);
            settled.map_err(|error| registers.unavailable(&error))?;
            Ok(register)
        })?;
        Ok(Reading {
            register,
            now,
            bound: None,
        })
    }

    fn list(&mut self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let now = clock::shared();
        let mut page = self.look(|registers, settled| {
            let page = registers.list(prefix, after)?;
            let read = page.registers.iter();
            let read = read.map(|(key, register)| (key, Some(register)));
            let settled = settled.settle(registers.directory, read);
            settled.map_err(|error| registers.unavailable(&error))?;
            Ok(page)
        })?;
        page.now = now;
        Ok(page)
    }

    /// Looks at the directory that the path leads to, before and after it.
    fn look<T>(
        &mut self,
        look: impl FnOnce(Registers<'_>, &SyncedStates) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let registers = Registers {
            place: &self.place,
            directory: self.directory.current()?,
        };
        let found = look(registers, &self.settled)?;
        match self.directory.still_current() {
            Some(_) => Ok(found),
            None => Err(self.place.replaced()),
        }
    }
}

impl Change {
    fn until(&self) -> Instant {
        match self {
            Self::Write(_, call) => call.until,
            Self::Delete(_, _, call) => call.until,
        }
    }

    /// Carries it out, unless its caller has given it up.
    fn carry_out(self, registers: Registers<'_>, now: Option<StoreTime>) -> Option<Done> {
        match self {
            Self::Write(write, call) => call.begin().then(|| {
                let written = registers.write(&write, now);
                Done::Written(write.key, written, now, call)
            }),
            Self::Delete(key, version, call) => call.begin().then(|| {
                let deleted = registers.delete(&key, &version);
                Done::Deleted(key, version, deleted, call)
            }),
        }
    }

    fn refuse(self, error: &StoreError) {
        match self {
            Self::Write(_, call) => call.answer(Err(once_more(error))),
            Self::Delete(_, _, call) => call.answer(Err(once_more(error))),
        }
    }
}

/// The same error of what was not begun, for each call.
fn once_more(error: &StoreError) -> StoreError {
    match error {
        StoreError::Broken(why) => StoreError::broken(why),
        StoreError::Conflict | StoreError::Unavailable(_) | StoreError::Unknown(_) => {
            StoreError::unavailable(error_text(error))
        }
    }
}

fn error_text(error: &StoreError) -> String {
    match error {
        StoreError::Conflict => error.to_string(),
        StoreError::Unavailable(why) | StoreError::Unknown(why) | StoreError::Broken(why) => {
            why.to_string()
        }
    }
}

impl Done {
    /// Whether anything was renamed or removed, as far as is known.
    fn may_have_changed(&self) -> bool {
        let failed = match self {
            Self::Written(_, written, ..) => written.as_ref().err(),
            Self::Deleted(_, _, deleted, _) => deleted.as_ref().err(),
        };
        failed.is_none_or(|error| matches!(error, StoreError::Unknown(_)))
    }

    /// Answers the caller. What was changed is acknowledged if that is sure.
    fn answer(self, sure: &Result<&Opened, String>, settled: &SyncedStates, hub: &Hub) {
        match (self, sure) {
            (Self::Written(_, Ok(_), _, call), Err(why)) => {
                call.answer(Err(StoreError::unknown(why)));
            }
            (Self::Deleted(_, _, Ok(()), call), Err(why)) => {
                call.answer(Err(StoreError::unknown(why)));
            }
            (Self::Written(key, Ok(register), now, call), Ok(directory)) => {
                settled.note(directory, &key, Some(&register));
                let written = Written {
                    version: register.version.clone(),
                    now,
                };
                hub.publish(&key, register);
                call.answer(Ok(written));
            }
            (Self::Deleted(key, version, Ok(()), call), Ok(directory)) => {
                settled.note(directory, &key, None);
                hub.publish_gone(&key, version);
                call.answer(Ok(()));
            }
            (Self::Written(_, Err(error), _, call), _) => call.answer(Err(error)),
            (Self::Deleted(_, _, Err(error), call), _) => call.answer(Err(error)),
        }
    }
}
