//! A store that goes wrong where a test wants it to.
//!
//! What is read passes through a function that may damage it, refuse it or
//! panic; a test chooses what else goes wrong.

use std::sync::Arc;
use std::time::Duration;

use tenure::StoreError;
use tenure::store::{
    Clock, Features, Key, Memory, Reading, Selector, Store, Version, Watch, Write, Written,
};

use super::intercepted::{Answer, Intercepted, Interceptor};

type OnRead = dyn Fn(Reading) -> Result<Reading, StoreError> + Send + Sync;
type OnWrite = dyn Fn(Duration) + Send + Sync;

/// See the [module](self).
pub(crate) struct Faulty {
    on_read: Box<OnRead>,
    on_write: Box<OnWrite>,
    clockless: bool,
    panics: bool,
    refuses: bool,
    read_delay: Duration,
    write_delay: Duration,
}

impl Faulty {
    /// Shows what `on_read` makes of what a store holds.
    pub(crate) fn new(
        on_read: impl Fn(Reading) -> Result<Reading, StoreError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            on_read: Box::new(on_read),
            on_write: Box::new(|_| ()),
            clockless: false,
            panics: false,
            refuses: false,
            read_delay: Duration::ZERO,
            write_delay: Duration::ZERO,
        }
    }

    /// Between this store and its user.
    pub(crate) fn over(self, store: Memory) -> Arc<dyn Store> {
        Intercepted::new(Arc::new(store), self)
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
        let clockless = true;
        Self { clockless, ..self }
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

impl Interceptor for Faulty {
    fn features(&self, store: &dyn Store) -> Features {
        let mut features = store.features();
        if self.clockless {
            features.clock = Clock::None;
        }
        features
    }

    fn read<'a>(
        &'a self,
        store: &'a dyn Store,
        key: &'a Key,
        within: Duration,
    ) -> Answer<'a, Reading> {
        Box::pin(async move {
            arriving(self.read_delay).await;
            (self.on_read)(store.read(key, within).await?)
        })
    }

    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        (self.on_write)(within);
        Box::pin(async move {
            arriving(self.write_delay).await;
            if self.refuses {
                return Err(StoreError::Conflict);
            }
            store.compare_and_swap(write, within).await
        })
    }

    fn delete<'a>(
        &'a self,
        store: &'a dyn Store,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> Answer<'a, ()> {
        if self.refuses {
            return Box::pin(async { Err(StoreError::Conflict) });
        }
        store.delete(key, expected, within)
    }

    fn watch(&self, store: &dyn Store, selector: Selector) -> Watch {
        assert!(!self.panics, "a mistake in a store");
        store.watch(selector)
    }
}
