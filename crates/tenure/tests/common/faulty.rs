//! A store in memory that goes wrong where a test wants it to.
//!
//! What is read passes through a function that may damage it, refuse it or
//! panic; everything else is [`Memory`]'s own.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fmt;
use std::time::Duration;

use tenure::StoreError;
use tenure::store::{
    BoxFuture, Clock, Features, Key, Memory, Page, Reading, Selector, Store, Version, Watch, Write,
    Written,
};

type OnRead = dyn Fn(Reading) -> Result<Reading, StoreError> + Send + Sync;
type OnWrite = dyn Fn(Duration) + Send + Sync;

/// See the [module](self).
pub(crate) struct Faulty {
    inner: Memory,
    on_read: Box<OnRead>,
    on_write: Box<OnWrite>,
    clock: Clock,
    panics: bool,
    refuses: bool,
    read_delay: Duration,
    write_delay: Duration,
}

impl Faulty {
    /// A store that shows what `on_read` makes of what `inner` holds.
    pub(crate) fn new(
        inner: Memory,
        on_read: impl Fn(Reading) -> Result<Reading, StoreError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            clock: inner.features().clock,
            inner,
            on_read: Box::new(on_read),
            on_write: Box::new(|_| ()),
            panics: false,
            refuses: false,
            read_delay: Duration::ZERO,
            write_delay: Duration::ZERO,
        }
    }

    /// The same with a mistake in it: a caller that watches a register panics.
    pub(crate) fn panicking(self) -> Self {
        let panics = true;
        Self { panics, ..self }
    }

    /// The same that answers every write with a conflict, as one does whose
    /// register is bound to another's session, or whose table keeps its rows.
    pub(crate) fn refusing(self) -> Self {
        let refuses = true;
        Self { refuses, ..self }
    }

    /// The same with a look at how long each write may take.
    pub(crate) fn timing(self, on_write: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        let on_write = Box::new(on_write);
        Self { on_write, ..self }
    }

    /// The same from afar: each read and each write arrives so much later.
    pub(crate) fn far_away(self, read_delay: Duration, write_delay: Duration) -> Self {
        Self {
            read_delay,
            write_delay,
            ..self
        }
    }

    /// The same without a clock, so that grants are judged by silence.
    pub(crate) fn without_clock(self) -> Self {
        let clock = Clock::None;
        Self { clock, ..self }
    }
}

/// The answer as a line that garbles would bring it.
pub(crate) fn garble(mut reading: Reading) -> Reading {
    if let Some(register) = &mut reading.register {
        register.value = b"gar?led".as_slice().into();
    }
    reading
}

async fn arriving(delay: Duration) {
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty:")
    }
}

impl Store for Faulty {
    fn features(&self) -> Features {
        Features {
            clock: self.clock,
            ..self.inner.features()
        }
    }

    fn read<'a>(
        &'a self,
        key: &'a Key,
        within: Duration,
    ) -> BoxFuture<'a, Result<Reading, StoreError>> {
        Box::pin(async move {
            arriving(self.read_delay).await;
            (self.on_read)(self.inner.read(key, within).await?)
        })
    }

    fn compare_and_swap(
        &self,
        write: Write,
        within: Duration,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        (self.on_write)(within);
        Box::pin(async move {
            arriving(self.write_delay).await;
            if self.refuses {
                return Err(StoreError::Conflict);
            }
            self.inner.compare_and_swap(write, within).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        if self.refuses {
            return Box::pin(async { Err(StoreError::Conflict) });
        }
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
        assert!(!self.panics, "a mistake in a store");
        self.inner.watch(selector)
    }
}
