//! One interface to every backend: a store of compare-and-swap registers.
//!
//! Everything above (elections and groups) is built on the trait [`Store`]. A
//! backend must read, compare-and-swap, delete, list and watch registers. It
//! may offer more: a clock ([`Features`]), sessions that hold a register
//! ([`Store::hold`]), a list of candidates ([`Store::candidates`]), the length
//! of a round trip ([`Store::round_trip`]). What the operations mean is written
//! down as code in [`tenure_core::cas`]; the suite in `conformance` holds a
//! backend to it.
//!
//! # Contract
//!
//! * One register is linearizable: a read sees every write acknowledged
//!   before the read began.
//! * An acknowledged write is not lost. Where a backend can be configured to
//!   lose it, the store asks for the safe setting per statement.
//! * A version is never used twice for one key, deletion included.
//! * Versions of one key grow, as [`Version`]s are compared, as long as it is
//!   not deleted. Elections and groups ask only whether two are equal, so
//!   nothing safe depends on this. Watches use the order to drop a report that
//!   arrives after a newer one: where versions do not grow, a watch may show an
//!   older state after a newer one, and shows what this process wrote only after
//!   the next look at the store.
//! * Every call returns within `within`, as nearly as the scheduler allows.
//!   A write that runs out of time is [`StoreError::Unknown`], never
//!   [`StoreError::Unavailable`], unless it was certainly not sent.
//! * A store never retries a write by itself.
//! * A value above [`MAX_VALUE_BYTES`] is refused as
//!   [`StoreError::Broken`] before anything is sent.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use tenure_core::cas::{Bytes, Expect, MAX_VALUE_BYTES, Reading, Register, Stamp, Write};
use tenure_core::ids::Name;
pub use tenure_core::ids::{Key, Version};
use tenure_core::time::{Instant, StoreTime};
pub use tenure_election::Bind;

use crate::error::StoreError;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "redis"))]
mod addresses;
mod backend;
#[cfg(any(feature = "consul", feature = "kubernetes"))]
mod bounded_json;
pub(crate) mod caller;
#[cfg(any(feature = "consul", feature = "kubernetes", feature = "nats"))]
mod causes;
pub mod conformance;
#[cfg(feature = "consul")]
mod consul;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
mod dial;
pub mod envelope;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "file")]
mod file;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod file_mode;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod file_notices;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod heartbeats;
mod hub;
#[cfg(feature = "kubernetes")]
mod kubernetes;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod limited_stream;
mod memory;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "azure", feature = "file", feature = "gcs", feature = "s3"))]
mod names;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "azure", feature = "gcs", feature = "s3"))]
mod object;
mod open;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod pace;
mod panics;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis"
))]
mod password;
#[cfg(any(feature = "consul", feature = "nats"))]
mod paths;
#[cfg(any(feature = "etcd", feature = "mysql", feature = "postgres"))]
mod pem_files;
mod polled;
mod polling;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(
    feature = "azure",
    feature = "consul",
    feature = "gcs",
    feature = "kubernetes",
    feature = "s3"
))]
mod resolver;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "file", feature = "sqlite"))]
mod symlinks;
#[cfg(any(
    feature = "azure",
    feature = "consul",
    feature = "etcd",
    feature = "gcs",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis",
    feature = "s3"
))]
mod system_authorities;
#[cfg(feature = "cluster")]
mod tenure;
#[cfg(any(
    feature = "consul",
    feature = "etcd",
    feature = "file",
    feature = "kubernetes",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod url_options;
mod watch;
mod watcher;

pub use crate::round_trip::{LEASE_TRIPS, lease_for};
pub use backend::Backend;
#[cfg(feature = "etcd")]
pub use etcd::Etcd;
#[cfg(any(feature = "file", feature = "sqlite"))]
pub use file_mode::FileMode;
pub use memory::Memory;
pub use open::{IfMissing, Opened, Registry, default_url, open, open_existing};
pub use polled::Polled;
pub use polling::PollTimes;
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
#[cfg(feature = "redis")]
pub use redis::Redis;
#[cfg(feature = "sqlite")]
pub use sqlite::Sqlite;
#[cfg(feature = "cluster")]
pub use tenure::Tenure;
pub use watch::{Feed, Selector, Sighting, Watch};

/// How a store that was lost names what an operator can do: the text has the
/// name of the election and the highest term that is remembered in place of
/// the words in capitals, where they are known.
pub const REPAIR: &str = "tenure repair ELECTION --create --term-above N";

/// What is said where a store is only looked at, and there is none.
#[cfg(any(
    feature = "file",
    feature = "mysql",
    feature = "nats",
    feature = "postgres",
    feature = "sqlite"
))]
fn no_store(found: impl fmt::Display) -> String {
    format!("no store there; `tenure run` makes it ({found})")
}

/// Refuses a value that no store takes, before anything is sent.
fn refuse_oversized(write: &Write) -> Result<(), StoreError> {
    if write.value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(StoreError::broken(format!(
        "expected a value of at most {MAX_VALUE_BYTES} bytes for {}, found {}",
        write.key,
        write.value.len()
    )))
}

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a successful compare-and-swap says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    /// The version to expect next.
    pub version: Version,
    /// The store's time when the write took effect, for stores with a clock.
    pub now: Option<StoreTime>,
}

/// One page of a listing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    /// Keys and registers, sorted by key.
    pub registers: Vec<(Key, Register)>,
    /// Where to go on, if there is more.
    pub more_after: Option<Key>,
    /// The store's time when the page was read, for stores with a clock.
    pub now: Option<StoreTime>,
}

/// The most registers that one [`Store::list`] call returns.
pub const PAGE_MAX: usize = 500;

/// By which clock a grant in this store may be judged over
/// (`docs/design/election.md`, clause 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// The store has none that can be trusted: judge by observed silence.
    None,
    /// The store's clock may step (a database server's): judge by silence,
    /// or by it if the user asks.
    MayStep,
    /// The store's clock cannot step and is the same for all: the machine's
    /// boot-time clock, or the time of a log.
    CannotStep,
}

/// Whether the system may lose what it has acknowledged, as it is set up.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Durability {
    /// The store was not told.
    #[default]
    Untold,
    /// It does not, by what it told when it was connected to last.
    Kept,
    /// It may: what was expected and what was found.
    Lossy(String),
}

/// What a store offers beyond the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// Its clock.
    pub clock: Clock,
    /// Whether the user asked that grants be judged by the store's clock
    /// although it may step (`?expiry=store-clock`).
    pub judge_by_store_clock: bool,
}

/// A candidate's entry in a store's list of those who stand; dropping it takes
/// it out.
pub type CandidateRegistration = Box<dyn Any + Send>;

/// A set of named registers. See the [module](self) for the contract.
pub trait Store: fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// What this store offers.
    fn features(&self) -> Features;

    /// Whether the system may lose what it has acknowledged, as far as the store was
    /// told since it was opened.
    fn durability(&self) -> Durability {
        Durability::Untold
    }

    /// The bound on clock skew, of a store whose elections are shared with programs that
    /// judge leases by wall clocks. Candidates then judge by them too, and their own
    /// settings do not count. `None`: the settings of the candidate decide.
    fn max_clock_skew(&self) -> Option<Duration> {
        None
    }

    /// The longest lease with which a candidate may stand here: other programs, which
    /// share the elections, take them over after that. `None` if there are no others.
    fn max_lease(&self) -> Option<Duration> {
        None
    }

    /// Takes note that a candidate of this name stands in this election, until
    /// what it returns is dropped; `None` where nobody keeps a list.
    fn register_candidate(&self, election: &Name, name: &Name) -> Option<CandidateRegistration> {
        let _ = (election, name);
        None
    }

    /// The names of all who stand in this election, by
    /// [`register_candidate`](Self::register_candidate); `None` where that cannot
    /// be known.
    fn candidates(&self, election: &Name) -> Option<BTreeSet<Name>> {
        let _ = election;
        None
    }

    /// Reads one register.
    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>>;

    /// Writes one register if it is as expected.
    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>>;

    /// Deletes one register if it has exactly this version. Deleting what is
    /// not there is a [`StoreError::Conflict`].
    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// A page of at most [`PAGE_MAX`] registers whose keys begin with
    /// `prefix`, sorted by key, from the first one greater than `after`.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>>;

    /// Measures one round trip to a store that may be far away. `None` if the store is
    /// local or does not answer `within` this time. It opens the connection too, so the
    /// first call does not wait for one.
    fn round_trip(&self, within: Duration) -> BoxFuture<'_, Option<Duration>> {
        let _ = within;
        Box::pin(std::future::ready(None))
    }

    /// Watches one register, or all with a prefix. Watches of one process share
    /// their cost: a register is fetched once per change, however many watches
    /// select it.
    fn watch(&self, selector: Selector) -> Watch;

    /// The means to hold the register `key` by a session for `lease` at a
    /// time, for one campaign; `None` if this store has none, or is not asked
    /// to use them: then the campaign renews what it holds.
    fn hold(&self, key: &Key, lease: Duration) -> Option<Arc<dyn Hold>> {
        let _ = (key, lease);
        None
    }
}

/// The hold that one campaign has on one register by a session of the store,
/// while it has one (`docs/design/election.md`, clause 4.12).
///
/// # Contract
///
/// * A register that was bound is written by nobody else until its session
///   ends, and then by the store, with the on-expiry value.
/// * A session lives for the `ttl` of its bindings after each keep-alive that
///   is confirmed, on the store's clock.
/// * What is asked takes effect in the order of the calls, not of the polls.
/// * Two holds of one register never share a session; dropping a hold
///   releases it, once nobody can believe in it any more.
pub trait Hold: fmt::Debug + Send + Sync {
    /// Writes the register if it is as expected; with `bind`, bound to a
    /// session that lives, else bound no more.
    fn write(
        &self,
        write: Write,
        bind: Option<Bind>,
        within: Duration,
    ) -> BoxFuture<'static, Result<Written, StoreError>>;

    /// Has the session confirmed to which the register was last bound; when the
    /// keep-alive was sent, on the boot-time clock: at `since` or later. Many
    /// holds share one. [`StoreError::Conflict`] says that the session is over.
    fn confirm(
        &self,
        since: Instant,
        within: Duration,
    ) -> BoxFuture<'static, Result<Instant, StoreError>>;

    /// Gives up this hold. A register that it has bound, or that a write still under
    /// way may bind, belongs to no campaign any more; the store vacates it in the
    /// background.
    fn release(&self);
}
