//! The calls of a test to a store: each has 20 seconds, and each but [`write`] expects
//! that it succeeds.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Expect, Key, Register, Sighting, Stamp, Store, Version, Watch, Write, open};
use tenure::{StoreError, clock};

/// How long a call may take.
pub(crate) const WITHIN: Duration = Duration::from_secs(20);

/// The variable with the URL of the store in which a child process counts.
const COUNTER: &str = "TENURE_TEST_COUNTER";

pub(crate) async fn opened(url: &str) -> Arc<dyn Store> {
    open(url).await.expect("a store")
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

pub(crate) fn write(key: &Key, expect: Expect, value: &[u8]) -> Write {
    Write {
        key: key.clone(),
        expect,
        value: value.into(),
        stamp: Stamp::Now,
    }
}

/// Writes, and returns the new version.
pub(crate) async fn put(
    store: &Arc<dyn Store>,
    key: &Key,
    expect: Expect,
    value: &[u8],
) -> Version {
    let write = write(key, expect, value);
    let written = store.compare_and_swap(write, WITHIN).await;
    written.expect("a write").version
}

/// The register; `None` if there is none.
pub(crate) async fn held(store: &Arc<dyn Store>, key: &Key) -> Option<Register> {
    store.read(key, WITHIN).await.expect("a read").register
}

pub(crate) async fn value(store: &Arc<dyn Store>, key: &Key) -> Option<Vec<u8>> {
    held(store, key).await.map(|it| it.value.to_vec())
}

/// Waits until the watch shows what is `wanted`.
pub(crate) async fn until(watch: &mut Watch, mut wanted: impl FnMut(&Sighting) -> bool) {
    let seen = async { while !wanted(&watch.next().await) {} };
    let seen = tokio::time::timeout(WITHIN, seen).await;
    seen.expect("to hear of it");
}

/// Whether a sighting is of this version.
pub(crate) fn shows(version: &Version) -> impl Fn(&Sighting) -> bool {
    move |seen| match seen {
        Sighting::State(_, Some(held)) => held.version == *version,
        _ => false,
    }
}

/// What an operator must do, in the error of a read.
pub(crate) async fn broken(url: &str) -> String {
    let read = opened(url).await.read(&key("key"), WITHIN).await;
    let Err(StoreError::Broken(why)) = &read else {
        panic!("{url}: {read:?}");
    };
    why.to_string()
}

pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

pub(crate) fn millis_since(began: tenure::core::time::Instant) -> f64 {
    clock::boot().since(began).as_secs_f64() * 1_000.0
}

/// The name of a test as this program lists it; `module` is the `module_path!()` of the
/// test. A program that is asked for a test by another name runs none and ends well.
pub(crate) fn test_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Starts this test program so many times with the test `child_counts` of `module` alone
/// (the `module_path!()` of the caller), for the store of `url`, and waits until all have
/// ended well. `environment` is what they need besides.
pub(crate) fn count_in_processes(
    module: &str,
    processes: u8,
    url: &str,
    environment: &[(&str, &str)],
) {
    let test = test_name(module, "child_counts");
    let program = std::env::current_exe().expect("this program");
    let start = |_| {
        let mut child = Command::new(&program);
        child
            .args(["--exact", &test, "--nocapture"])
            .env(COUNTER, url)
            .envs(environment.iter().copied())
            .stdout(Stdio::null());
        child.spawn().expect("a child")
    };
    let mut children: Vec<_> = (0..processes).map(start).collect();
    for child in &mut children {
        assert!(child.wait().expect("it ends").success());
    }
}

/// The store of a process that [`count_in_processes`] has started; `None` in another.
pub(crate) async fn store_to_count_in() -> Option<Arc<dyn Store>> {
    let url = std::env::var(COUNTER).ok()?;
    Some(opened(&url).await)
}
