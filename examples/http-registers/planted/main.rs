//! The command line with stores that break the contract on purpose, each in one way:
//! `tenure check` has to find every one of them (`tests/check.rs`).
//!
//! Each scheme is `etags` with something in between, in each process by itself. The
//! faults of servers are in the server of that test.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::StoreError;
use tenure::clock;
use tenure::core::time::{ClockId, StoreTime};
use tenure::store::{
    BoxFuture, Clock, Features, Key, Opened, Page, Reading, Registry, Selector, Store, Version,
    Watch, Write, Written,
};

fn main() -> ExitCode {
    tenure_cli::main_with(registry())
}

fn registry() -> Registry {
    http_registers::registry()
        .with("steady", "steady://host:port", |url, _| {
            planted(url, Fault::None)
        })
        .with("jumpy", "jumpy://host:port", |url, _| {
            planted(url, Fault::Jumps)
        })
        .with("denying", "denying://host:port", |url, _| {
            planted(url, Fault::Denies)
        })
        .with("refusing", "refusing://host:port", |url, _| {
            planted(url, Fault::Refuses)
        })
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Nothing: it has a clock that cannot step.
    None,
    /// The clock jumps by a minute after 50 readings.
    Jumps,
    /// A write of which no answer came counts as certainly not done.
    Denies,
    /// None in the server: the store has found it unfit by itself.
    Refuses,
}

fn planted(url: &str, fault: Fault) -> BoxFuture<'static, Opened> {
    let address = url.split_once("://").map_or("", |(_, address)| address);
    let url = format!("etags://{address}");
    Box::pin(async move {
        let inner = http_registers::registry().open(&url).await?;
        let readings = AtomicU64::new(0);
        let store = Planted {
            inner,
            fault,
            readings,
        };
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

/// A store with a fault.
#[derive(Debug)]
struct Planted {
    inner: Arc<dyn Store>,
    fault: Fault,
    readings: AtomicU64,
}

impl Planted {
    /// This machine's clock, as a server may have it that is set forward.
    fn now(&self) -> Option<StoreTime> {
        const MINUTE: u64 = 60_000_000_000;
        let readings = self.readings.fetch_add(1, Ordering::Relaxed);
        let ahead = match self.fault {
            Fault::Jumps if readings > 50 => MINUTE,
            _ => 0,
        };
        (self.fault != Fault::Denies).then(|| StoreTime {
            clock: ClockId::default(),
            nanos: clock::boot().as_nanos() + ahead,
        })
    }

    fn told(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Unknown(why) if self.fault == Fault::Denies => StoreError::Unavailable(why),
            other => other,
        }
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {:?}", self.inner, self.fault)
    }
}

impl Store for Planted {
    fn features(&self) -> Features {
        let clock = match self.fault {
            Fault::Denies => Clock::None,
            _ => Clock::CannotStep,
        };
        Features {
            clock,
            judge_by_store_clock: false,
        }
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        Box::pin(async move {
            let mut reading = self.inner.read(key, within).await?;
            reading.now = self.now();
            Ok(reading)
        })
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        Box::pin(async move {
            if self.fault == Fault::Refuses {
                return Err(StoreError::unfit("the server ignores conditions"));
            }
            let written = self.inner.compare_and_swap(write, within).await;
            written.map_err(|error| self.told(error))
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.delete(key, expected, within)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> BoxFuture<'a, Result<Page, StoreError>> {
        self.inner.list(prefix, after, within)
    }

    fn watch(&self, selector: Selector) -> Watch {
        self.inner.watch(selector)
    }
}
