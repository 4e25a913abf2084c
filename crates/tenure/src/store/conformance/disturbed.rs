//! Cases that need more than one store: another handle of it, or a server that the
//! test can hang or restart.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::{WITHIN, count_of, count_up, create, key, read, register, state, write};
use crate::clock;
use crate::error::StoreError;
use crate::store::{Expect, Key, Selector, Sighting, Store, Version};

/// How long a call may take while the server hangs.
const IMPATIENT: Duration = Duration::from_millis(400);
/// How much later it may end on a machine that is busy.
const LATE: Duration = Duration::from_secs(2);

/// What one handle has written another one reads at once, and neither loses what the
/// other counts. They are two connections of one process, or more.
///
/// # Panics
/// If not.
pub async fn shares_registers_between_handles(handles: &[Arc<dyn Store>], prefix: &str) {
    let shared = key(prefix, "shared");
    let mut expect = Expect::Absent;
    for (number, writer) in handles.iter().cycle().take(30).enumerate() {
        let value = number.to_be_bytes();
        let written = write(writer, &shared, expect, &value).await;
        let version = written.expect("to write").version;
        for reader in handles {
            let found = register(reader, &shared).await;
            assert_eq!((&*found.value, &found.version), (&value[..], &version));
        }
        expect = Expect::Version(version);
    }
    let counter = key(prefix, "shared-counter");
    let mut counters = JoinSet::new();
    for handle in handles.iter().cycle().take(8) {
        let (handle, counter) = (Arc::clone(handle), counter.clone());
        counters.spawn(async move { count_up(&handle, &counter, 10).await });
    }
    counters.join_all().await;
    for handle in handles {
        assert_eq!(count_of(&register(handle, &counter).await), 80);
    }
}

/// Calls end in time while the server hangs, and say what is known: a read is
/// unavailable, a write unknown unless it was certainly not sent. What became of the
/// write a read settles when the server goes on.
///
/// # Panics
/// If not.
pub async fn keeps_its_time_while_the_server_hangs(
    store: &Arc<dyn Store>,
    prefix: &str,
    hang: impl FnOnce(),
    go_on: impl FnOnce(),
) {
    let (changed, deleted) = (key(prefix, "hung"), key(prefix, "hung-deleted"));
    let before = create(store, &changed, b"before").await;
    let there = create(store, &deleted, b"there").await;
    hang();
    let reading = in_time(store.read(&changed, IMPATIENT)).await;
    assert!(
        matches!(reading, Err(StoreError::Unavailable(_))),
        "a read of a server that hangs: {reading:?}"
    );
    let page = in_time(store.list(prefix, None, IMPATIENT)).await;
    assert!(
        matches!(page, Err(StoreError::Unavailable(_))),
        "a listing of a server that hangs: {page:?}"
    );
    let write = super::Write {
        key: changed.clone(),
        expect: Expect::Version(before.clone()),
        value: b"after".as_slice().into(),
        stamp: super::Stamp::Now,
    };
    let written = in_time(store.compare_and_swap(write, IMPATIENT)).await;
    let was_sent = is_uncertain(&written, "a write to a server that hangs");
    let gone = in_time(store.delete(&deleted, &there, IMPATIENT)).await;
    is_uncertain(&gone, "a deletion at a server that hangs");
    go_on();
    settle(store, &changed, &before, was_sent).await;
    let left = back(store, &deleted).await;
    assert!(
        left.is_none_or(|version| version == there),
        "another version"
    );
}

/// What a call comes to, which must end in time.
async fn in_time<T>(call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let began = clock::boot();
    let result = call.await;
    let took = clock::boot().since(began);
    assert!(
        took < IMPATIENT + LATE,
        "a call with {IMPATIENT:?} took {took:?}"
    );
    result
}

/// Whether a change may have been carried out; it cannot be known that it was.
fn is_uncertain<T: std::fmt::Debug>(result: &Result<T, StoreError>, what: &str) -> bool {
    match result {
        Err(StoreError::Unknown(_)) => true,
        Err(StoreError::Unavailable(_)) => false,
        other => panic!("{what}: expected unknown or unavailable, found {other:?}"),
    }
}

/// The version that a register has when the server answers again.
async fn back(store: &Arc<dyn Store>, key: &Key) -> Option<Version> {
    let until = clock::boot().after(WITHIN);
    loop {
        match store.read(key, WITHIN).await {
            Err(StoreError::Unavailable(_)) if clock::boot() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            found => return found.expect("a read").register.map(|held| held.version),
        }
    }
}

/// Writes over what is there, until that holds; nothing older comes after it.
async fn settle(store: &Arc<dyn Store>, key: &Key, before: &Version, was_sent: bool) {
    for _ in 0..10 {
        let version = back(store, key).await.expect("a register");
        let held = read(store, key).await.register.expect("a register");
        if held.version != *before {
            assert!(
                was_sent,
                "a write that was certainly not sent was carried out"
            );
            assert!(
                [&b"after"[..], b"settled"].contains(&&*held.value),
                "{held:?}"
            );
        }
        let expect = Expect::Version(version);
        match write(store, key, expect, b"settled").await {
            Ok(written) => {
                let last = register(store, key).await;
                assert_eq!(
                    (&*last.value, last.version),
                    (&b"settled"[..], written.version)
                );
                return;
            }
            // The one from before came first, or a connection has ended meanwhile.
            Err(StoreError::Conflict | StoreError::Unknown(_) | StoreError::Unavailable(_)) => {}
            Err(error) => panic!("expected to write over what is there: {error}"),
        }
    }
    panic!("a register that nobody else writes could not be written");
}

/// After a restart of the server everything that was acknowledged is there, no version
/// comes again, and a watch goes on.
///
/// # Panics
/// If not.
pub async fn goes_on_after_a_restart(
    store: &Arc<dyn Store>,
    prefix: &str,
    restart: impl AsyncFnOnce(),
) {
    let (kept, deleted) = (key(prefix, "kept"), key(prefix, "restart-deleted"));
    let version = create(store, &kept, b"kept").await;
    let gone = create(store, &deleted, b"same").await;
    store
        .delete(&deleted, &gone, WITHIN)
        .await
        .expect("to delete");
    let mut watch = store.watch(Selector::Key(kept.clone()));
    while watch.next().await != Sighting::Live {}
    restart().await;
    assert_eq!(back(store, &kept).await, Some(version.clone()));
    assert_eq!(back(store, &deleted).await, None);
    settle(store, &kept, &version, true).await;
    loop {
        let shown = state(&mut watch, &kept).await.expect("a register");
        if *shown.value == *b"settled" {
            break;
        }
        assert_eq!(*shown.value, *b"kept");
    }
    let again = create(store, &deleted, b"same").await;
    assert_ne!(again, gone, "a version was used twice");
}
