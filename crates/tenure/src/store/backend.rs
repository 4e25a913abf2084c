//! What differs from store to store: the calls of its system.
//!
//! [`Backend`] is how a register is read, written, deleted and listed;
//! [`Polled`](super::Polled) makes a store of it.

use std::fmt;
use std::time::Duration;

use super::{Clock, Durability, Features, Key, Page, Reading, Version, Write, Written};
use crate::error::StoreError;

/// The calls of one system, for [`Polled`](super::Polled). The contract is that of a
/// [store](crate::store#contract), but for the time that a call may take.
///
/// Calls run on the library's own thread, and are dropped when their time is over:
/// dropping one must not make a later call wait for it.
///
/// **Nothing here may block that thread.** It is one thread for all elections, groups and
/// stores of the process. While a call blocks it, no leader of this process renews: each
/// is over at its deadline, though its store is well, and no other call ends in time.
/// A call that waits with [`blocking::wait`](crate::blocking::wait) for another store of
/// this library may wait for ever, since that store needs the thread. What blocks (a
/// driver without `async`, a file, a long computation) belongs on a thread of one's own:
/// `tokio::task::spawn_blocking`, which may be called here, and an `await` of its answer.
///
/// An error of a write says what is known: [`StoreError::Unavailable`] only if it was
/// certainly not carried out. A call that panics has failed: of a write nothing is known.
pub trait Backend: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// What it offers. Without a clock unless it says otherwise.
    fn features(&self) -> Features {
        Features {
            clock: Clock::None,
            judge_by_store_clock: false,
        }
    }

    /// Whether the system may lose what it has acknowledged, as far as it has told.
    fn durability(&self) -> Durability {
        Durability::Untold
    }

    /// As [`Store::max_clock_skew`](super::Store::max_clock_skew) says.
    fn max_clock_skew(&self) -> Option<Duration> {
        None
    }

    /// As [`Store::max_lease`](super::Store::max_lease) says.
    fn max_lease(&self) -> Option<Duration> {
        None
    }

    /// Reads one register.
    fn read(&self, key: &Key) -> impl Future<Output = Result<Reading, StoreError>> + Send;

    /// Writes one register if it is as expected. The value is not too large.
    /// Versions of one key must grow, as [`Version`]s are compared, as long as it
    /// is not deleted: [the contract](crate::store#contract) says what happens if
    /// they do not.
    fn compare_and_swap(
        &self,
        write: &Write,
    ) -> impl Future<Output = Result<Written, StoreError>> + Send;

    /// Deletes one register if it has exactly this version.
    fn delete(
        &self,
        key: &Key,
        expected: &Version,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Waits until registers may have changed, where the system tells of changes by
    /// itself: their keys, and the version that each was told to have. Nothing is
    /// believed of them; they are read. This is dropped and called again at any
    /// time, which must lose none. Without it, changes are found by looking.
    ///
    /// It has to wait: the next call comes after this one has returned, at most 100
    /// times a second. Hints that are always there cost as many reads. None is asked
    /// for while there is no watch, nor after the store was dropped.
    fn hints(&self) -> impl Future<Output = Vec<(Key, Option<Version>)>> + Send {
        std::future::pending()
    }

    /// A page, as [`Store::list`](super::Store::list) says.
    fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
    ) -> impl Future<Output = Result<Page, StoreError>> + Send;
}
