//! A store behind an interceptor: a test counts, delays, refuses or changes
//! what goes to another store and what comes back.
//!
//! An [`Interceptor`] has a method for each call of a store; what it does not
//! override passes as it is. A watch would go round it. So there is none unless
//! the interceptor has one, and the user of the store polls.

#![allow(dead_code, reason = "each user takes a part of it")]

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure::StoreError;
use tenure::store::{
    BoxFuture, Features, Key, Page, Reading, Selector, Store, Version, Watch, Write, Written,
};

pub(crate) type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// What happens between a store and its user. Each call is first [checked](Self::check).
pub(crate) trait Interceptor: Send + Sync + 'static {
    /// Refuses a call before anything is done. `write` is there if it is a
    /// compare-and-swap.
    fn check(&self, write: Option<&Write>) -> Result<(), StoreError> {
        let _ = write;
        Ok(())
    }

    fn features(&self, store: &dyn Store) -> Features {
        store.features()
    }

    fn read<'a>(
        &'a self,
        store: &'a dyn Store,
        key: &'a Key,
        within: Duration,
    ) -> Answer<'a, Reading> {
        store.read(key, within)
    }

    fn swap<'a>(
        &'a self,
        store: &'a dyn Store,
        write: Write,
        within: Duration,
    ) -> Answer<'a, Written> {
        store.compare_and_swap(write, within)
    }

    fn delete<'a>(
        &'a self,
        store: &'a dyn Store,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> Answer<'a, ()> {
        store.delete(key, expected, within)
    }

    fn list<'a>(
        &'a self,
        store: &'a dyn Store,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> Answer<'a, Page> {
        store.list(prefix, after, within)
    }

    /// One that never comes up.
    fn watch(&self, store: &dyn Store, selector: Selector) -> Watch {
        let _ = store;
        Watch::new(selector).1
    }
}

/// See the [module](self).
pub(crate) struct Intercepted<I> {
    store: Arc<dyn Store>,
    pub(crate) interceptor: I,
}

impl<I: Interceptor> Intercepted<I> {
    pub(crate) fn new(store: Arc<dyn Store>, interceptor: I) -> Arc<Self> {
        Arc::new(Self { store, interceptor })
    }
}

impl<I> fmt::Debug for Intercepted<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Intercepted({:?})", self.store)
    }
}

impl<I> fmt::Display for Intercepted<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl<I: Interceptor> Store for Intercepted<I> {
    fn features(&self) -> Features {
        self.interceptor.features(&*self.store)
    }

    fn max_clock_skew(&self) -> Option<Duration> {
        self.store.max_clock_skew()
    }

    fn read<'a>(&'a self, key: &'a Key, within: Duration) -> Answer<'a, Reading> {
        Box::pin(async move {
            self.interceptor.check(None)?;
            self.interceptor.read(&*self.store, key, within).await
        })
    }

    fn compare_and_swap(&self, write: Write, within: Duration) -> Answer<'_, Written> {
        Box::pin(async move {
            self.interceptor.check(Some(&write))?;
            self.interceptor.swap(&*self.store, write, within).await
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        expected: &'a Version,
        within: Duration,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            self.interceptor.check(None)?;
            let store = &*self.store;
            self.interceptor.delete(store, key, expected, within).await
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a Key>,
        within: Duration,
    ) -> Answer<'a, Page> {
        Box::pin(async move {
            self.interceptor.check(None)?;
            let store = &*self.store;
            self.interceptor.list(store, prefix, after, within).await
        })
    }

    fn watch(&self, selector: Selector) -> Watch {
        self.interceptor.watch(&*self.store, selector)
    }
}
