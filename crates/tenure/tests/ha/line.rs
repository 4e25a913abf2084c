//! A line to a store that a test can do something to.
//!
//! Calls pass through a [`Censor`], who may refuse them, answer with something
//! old, or do something of its own first; what it says nothing about passes as
//! it is. There is no watch on such a line unless the censor has one, so its
//! user polls.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::StoreError;
use tenure::store::{
    BoxFuture, Features, Key, Page, Reading, Selector, Store, Version, Watch, Write, Written,
};

pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// What happens on a line.
pub(crate) trait Censor: fmt::Debug + Send + Sync + 'static {
    fn read<'a>(
        &'a self,
        to: &'a dyn Store,
        key: &'a Key,
        within: Duration,
    ) -> Answer<'a, Reading> {
        to.read(key, within)
    }

    fn swap<'a>(
        &'a self,
        to: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        to.compare_and_swap(write, within)
    }

    fn list<'a>(
        &'a self,
        to: &'a dyn Store,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> Answer<'a, Page> {
        to.list(prefix, after, within)
    }

    /// One that never comes up.
    fn watch(&self, selector: Selector) -> Watch {
        Watch::new(selector).1
    }

    /// Whether nothing passes at all.
    fn is_cut(&self) -> bool {
        false
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Line<C> {
    store: Arc<dyn Store>,
    pub(crate) censor: C,
}

impl<C: Censor> Line<C> {
    pub(crate) fn to(store: Arc<dyn Store>, censor: C) -> Arc<Self> {
        Arc::new(Self { store, censor })
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.censor.is_cut() {
            return Err(StoreError::unavailable("the line is cut"));
        }
        Ok(())
    }
}

impl<C: Censor> fmt::Display for Line<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a line to {}", self.store)
    }
}

impl<C: Censor> Store for Line<C> {
    fn features(&self) -> Features {
        self.store.features()
    }

    fn read<'a>(&'a self, key: &'a Key, within: Duration) -> Answer<'a, Reading> {
        Box::pin(async move {
            self.check()?;
            self.censor.read(self.store.as_ref(), key, within).await
        })
    }

    fn compare_and_swap(&self, write: Write, within: Duration) -> Answer<'_, Written> {
        Box::pin(async move {
            self.check()?;
            self.censor.swap(self.store.as_ref(), write, within).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            self.check()?;
            self.store.delete(key, expected, within).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> Answer<'a, Page> {
        Box::pin(async move {
            self.check()?;
            let store = self.store.as_ref();
            self.censor.list(store, prefix, after, within).await
        })
    }

    fn watch(&self, selector: Selector) -> Watch {
        self.censor.watch(selector)
    }
}

/// A line that can be cut.
#[derive(Debug, Default)]
pub(crate) struct Scissors(AtomicBool);

impl Scissors {
    pub(crate) fn cut(&self, cut: bool) {
        self.0.store(cut, Ordering::SeqCst);
    }
}

impl Censor for Scissors {
    fn is_cut(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
