//! What every store must do, as cases that anybody can run against theirs.
//!
//! ```no_run
//! # async fn demo(store: std::sync::Arc<dyn tenure::store::Store>) {
//! tenure::store::conformance::all(&store, "try-1/").await;
//! # }
//! ```
//!
//! A case panics with what was expected and what was found. Each works under
//! a prefix of its own below the one it is given, so a store can be used
//! again; registers stay behind.
//!
//! [`all`] needs the store alone. Other cases need another handle of it
//! ([`shares_registers_between_handles`]), or hang or restart its server
//! ([`keeps_its_time_while_the_server_hangs`], [`goes_on_after_a_restart`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

mod disturbed;

pub use disturbed::{
    goes_on_after_a_restart, keeps_its_time_while_the_server_hangs,
    shares_registers_between_handles,
};

use super::{
    Bind, Bytes, Clock, Expect, Key, MAX_VALUE_BYTES, PAGE_MAX, Reading, Register, Selector,
    Sighting, Stamp, Store, Version, Watch, Write, Written,
};
use crate::clock;
use crate::error::StoreError;

/// How long any single call may take.
const WITHIN: Duration = Duration::from_secs(20);

/// Runs every case.
///
/// # Panics
/// If a case fails.
pub async fn all(store: &Arc<dyn Store>, prefix: &str) {
    reads_what_was_written(store, prefix).await;
    refuses_what_was_not_expected(store, prefix).await;
    changes_the_version_with_equal_bytes(store, prefix).await;
    never_uses_a_version_twice(store, prefix).await;
    gives_versions_that_grow(store, prefix).await;
    takes_values_up_to_the_limit(store, prefix).await;
    keeps_the_stamp_when_asked(store, prefix).await;
    takes_any_key(store, prefix).await;
    lists_in_order(store, prefix).await;
    lists_in_pages(store, prefix).await;
    has_one_winner_of_a_create_race(store, prefix).await;
    loses_no_update_in_a_race(store, prefix).await;
    tells_followers_of_changes(store, prefix).await;
    tells_followers_of_a_prefix(store, prefix).await;
    tells_many_followers_of_one_key(store, prefix).await;
    shows_a_slow_follower_the_last_state(store, prefix).await;
    holds_what_a_session_was_bound_to(store, prefix).await;
}

fn key(prefix: &str, name: &str) -> Key {
    Key::new(&format!("{prefix}{name}")).expect("a key")
}

async fn read(store: &Arc<dyn Store>, key: &Key) -> Reading {
    store.read(key, WITHIN).await.expect("a read")
}

async fn register(store: &Arc<dyn Store>, key: &Key) -> Register {
    read(store, key).await.register.expect("a register")
}

async fn write(
    store: &Arc<dyn Store>,
    key: &Key,
    expect: Expect,
    value: &[u8],
) -> Result<Written, StoreError> {
    let write = Write {
        key: key.clone(),
        expect,
        value: value.into(),
        stamp: Stamp::Now,
    };
    store.compare_and_swap(write, WITHIN).await
}

async fn create(store: &Arc<dyn Store>, key: &Key, value: &[u8]) -> Version {
    write(store, key, Expect::Absent, value)
        .await
        .expect("to create")
        .version
}

async fn update(store: &Arc<dyn Store>, key: &Key, version: &Version, value: &[u8]) -> Version {
    let expect = Expect::Version(version.clone());
    write(store, key, expect, value)
        .await
        .expect("to update")
        .version
}

fn assert_conflict<T: std::fmt::Debug>(result: Result<T, StoreError>, what: &str) {
    assert!(
        matches!(result, Err(StoreError::Conflict)),
        "{what}: {result:?}"
    );
}

/// A read sees the write before it, and an absent register is none.
///
/// # Panics
/// If not.
pub async fn reads_what_was_written(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "read");
    assert_eq!(read(store, &key).await.register, None);
    let first = create(store, &key, b"one").await;
    let found = register(store, &key).await;
    assert_eq!((&*found.value, &found.version), (&b"one"[..], &first));
    let second = update(store, &key, &first, b"").await;
    let found = register(store, &key).await;
    assert_eq!((&*found.value, &found.version), (&b""[..], &second));
}

/// A write or deletion that expects another state is a conflict and changes
/// nothing.
///
/// # Panics
/// If not.
pub async fn refuses_what_was_not_expected(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "refuse");
    let stranger = Version::from_bytes(b"no such version");
    let expect = |version: &Version| Expect::Version(version.clone());
    assert_conflict(
        write(store, &key, expect(&stranger), b"x").await,
        "update of nothing",
    );
    assert_conflict(
        store.delete(&key, &stranger, WITHIN).await,
        "deletion of nothing",
    );
    let old = create(store, &key, b"1").await;
    assert_conflict(
        write(store, &key, Expect::Absent, b"x").await,
        "creating what is there",
    );
    let new = update(store, &key, &old, b"2").await;
    assert_conflict(
        write(store, &key, expect(&old), b"x").await,
        "update of an old version",
    );
    assert_conflict(
        write(store, &key, expect(&stranger), b"x").await,
        "update of a stranger",
    );
    assert_conflict(
        store.delete(&key, &old, WITHIN).await,
        "deletion of an old version",
    );
    let found = register(store, &key).await;
    assert_eq!((&*found.value, &found.version), (&b"2"[..], &new));
    store.delete(&key, &new, WITHIN).await.expect("to delete");
    assert_eq!(read(store, &key).await.register, None);
}

/// Writing the same bytes again is a change.
///
/// # Panics
/// If not.
pub async fn changes_the_version_with_equal_bytes(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "equal");
    let first = create(store, &key, b"same").await;
    let second = update(store, &key, &first, b"same").await;
    assert_ne!(first, second, "two writes have one version");
}

/// A version is never used twice for one key, deletion included.
///
/// # Panics
/// If not.
pub async fn never_uses_a_version_twice(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "reuse");
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        let first = create(store, &key, b"again").await;
        let second = update(store, &key, &first, b"again").await;
        assert!(seen.insert(first), "a version was used twice");
        store
            .delete(&key, &second, WITHIN)
            .await
            .expect("to delete");
        assert!(seen.insert(second), "a version was used twice");
    }
}

/// Versions of one key grow as long as it is not deleted. Watches use their order to drop
/// a report that arrives after a newer one.
///
/// # Panics
/// If not.
pub async fn gives_versions_that_grow(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "grow");
    let mut last = create(store, &key, &[0]).await;
    for number in 1..10_u8 {
        let next = update(store, &key, &last, &[number]).await;
        assert!(
            next > last,
            "expected versions of one key that grow, found {next} written after {last}"
        );
        last = next;
    }
}

/// A value of 256 KiB of any bytes is taken, one more byte is refused before
/// anything is sent.
///
/// # Panics
/// If not.
pub async fn takes_values_up_to_the_limit(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "large");
    let value: Vec<u8> = (0..=255).cycle().take(MAX_VALUE_BYTES + 1).collect();
    let (fits, _) = value.split_at(MAX_VALUE_BYTES);
    let refused = write(store, &key, Expect::Absent, &value).await;
    assert!(matches!(refused, Err(StoreError::Broken(_))), "{refused:?}");
    assert_eq!(read(store, &key).await.register, None);
    create(store, &key, fits).await;
    assert_eq!(*register(store, &key).await.value, *fits);
}

/// A store with a clock stamps a write with it, and leaves the stamp if
/// asked; its time does not run backwards here.
///
/// # Panics
/// If not.
pub async fn keeps_the_stamp_when_asked(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "stamp");
    let version = create(store, &key, b"1").await;
    let before = read(store, &key).await;
    let Register { stamp, .. } = before.register.expect("a register");
    if store.features().clock == Clock::None {
        return;
    }
    let stamp = stamp.expect("a stamp");
    let age = before.now.expect("a time").since(stamp).expect("one clock");
    assert!(age < WITHIN, "written {age:?} ago");
    let expect = Expect::Version(version);
    let keep = Write {
        key: key.clone(),
        expect,
        value: Bytes::from(*b"2"),
        stamp: Stamp::Keep,
    };
    let kept = store
        .compare_and_swap(keep, WITHIN)
        .await
        .expect("to write");
    let after = read(store, &key).await;
    assert_eq!(
        after.register.expect("a register").stamp,
        Some(stamp),
        "the stamp has moved"
    );
    assert!(after.now.expect("a time").since(stamp).expect("one clock") >= age);
    let moved = update(store, &key, &kept.version, b"3").await;
    let last = register(store, &key).await;
    assert_eq!(last.version, moved);
    assert!(
        last.stamp.expect("a stamp").nanos > stamp.nanos,
        "the stamp has not moved"
    );
}

/// Keys may hold anything but control characters.
///
/// # Panics
/// If not.
pub async fn takes_any_key(store: &Arc<dyn Store>, prefix: &str) {
    let long = "k".repeat(Key::MAX_BYTES - prefix.len());
    for name in [
        "%", "_", "'", "\\", "\"", "a b", "ä/ö", "🗝", "a;--", "../x", &long,
    ] {
        let key = key(prefix, name);
        let version = create(store, &key, name.as_bytes()).await;
        assert_eq!(*register(store, &key).await.value, *name.as_bytes());
        store
            .delete(&key, &version, WITHIN)
            .await
            .expect("to delete");
    }
}

/// A listing is sorted by bytes and keeps to its prefix.
///
/// # Panics
/// If not.
pub async fn lists_in_order(store: &Arc<dyn Store>, prefix: &str) {
    let below = format!("{prefix}list_%/");
    let mut names = ["b", "a", "B", "a/1", "ä", "_", "%"].map(|name| key(&below, name));
    for key in &names {
        create(store, key, b"").await;
    }
    create(store, &key(prefix, "listX%/no"), b"").await;
    create(store, &key(prefix, "LIST_%/no"), b"").await;
    names.sort();
    let page = store.list(&below, None, WITHIN).await.expect("a page");
    let found: Vec<_> = page.registers.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(found, names);
    assert_eq!(page.more_after, None);
    let after = store
        .list(&below, names.get(2), WITHIN)
        .await
        .expect("a page");
    assert_eq!(after.registers.first().map(|(key, _)| key), names.get(3));
}

/// A listing longer than a page says where to go on.
///
/// # Panics
/// If not.
pub async fn lists_in_pages(store: &Arc<dyn Store>, prefix: &str) {
    let below = format!("{prefix}pages/");
    let count = PAGE_MAX + 7;
    // A few at a time: how long one takes is not what is asked here.
    let mut writers = JoinSet::new();
    for first in 0..16 {
        let (store, below) = (Arc::clone(store), below.clone());
        writers.spawn(async move {
            for number in (first..count).step_by(16) {
                create(&store, &key(&below, &format!("{number:05}")), b"").await;
            }
        });
    }
    writers.join_all().await;
    let first = store.list(&below, None, WITHIN).await.expect("a page");
    assert_eq!(first.registers.len(), PAGE_MAX);
    let more = first.more_after.expect("more");
    let second = store
        .list(&below, Some(&more), WITHIN)
        .await
        .expect("a page");
    assert_eq!(
        (second.registers.len(), second.more_after),
        (count - PAGE_MAX, None)
    );
}

/// Of sixteen who create at once, one wins.
///
/// # Panics
/// If not.
pub async fn has_one_winner_of_a_create_race(store: &Arc<dyn Store>, prefix: &str) {
    for round in 0..5 {
        let key = key(prefix, &format!("race-{round}"));
        let mut racers = JoinSet::new();
        for racer in 0..16u8 {
            let (store, key) = (Arc::clone(store), key.clone());
            racers.spawn(async move { write(&store, &key, Expect::Absent, &[racer]).await });
        }
        let mut winners = 0;
        for result in racers.join_all().await {
            match result {
                Ok(_) => winners += 1,
                Err(StoreError::Conflict) => {}
                Err(other) => panic!("a race must end in success or conflict: {other}"),
            }
        }
        assert_eq!(winners, 1, "winners of a create race");
    }
}

/// Adds `times` to a counter by compare-and-swap, retrying conflicts.
///
/// # Panics
/// If the store fails otherwise.
pub async fn count_up(store: &Arc<dyn Store>, key: &Key, times: u64) {
    for _ in 0..times {
        loop {
            let found = read(store, key).await.register;
            let count = found.as_ref().map_or(0, count_of);
            let expect = found.map_or(Expect::Absent, |held| Expect::Version(held.version));
            match write(store, key, expect, &(count + 1).to_be_bytes()).await {
                Ok(_) => break,
                Err(StoreError::Conflict) => {}
                Err(other) => panic!("expected success or conflict: {other}"),
            }
        }
    }
}

/// What [`count_up`] has counted to.
pub fn count_of(register: &Register) -> u64 {
    register
        .value
        .as_ref()
        .try_into()
        .map(u64::from_be_bytes)
        .unwrap_or_default()
}

/// Eight who count in one register lose nothing.
///
/// # Panics
/// If not.
pub async fn loses_no_update_in_a_race(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "counter");
    let mut counters = JoinSet::new();
    for _ in 0..8 {
        let (store, key) = (Arc::clone(store), key.clone());
        counters.spawn(async move { count_up(&store, &key, 10).await });
    }
    counters.join_all().await;
    assert_eq!(count_of(&register(store, &key).await), 80);
}

/// The next state of `key` that a watch shows, past reports that it is up or
/// down.
async fn state(watch: &mut Watch, key: &Key) -> Option<Register> {
    loop {
        let seen = tokio::time::timeout(WITHIN, watch.next())
            .await
            .expect("news in time");
        if let Sighting::State(found, register) = seen
            && found == *key
        {
            return register;
        }
    }
}

/// A watch shows the first state, changes and deletion, in order.
///
/// # Panics
/// If not.
pub async fn tells_followers_of_changes(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "watched");
    let mut watch = store.watch(Selector::Key(key.clone()));
    assert_eq!(state(&mut watch, &key).await, None);
    let mut version = create(store, &key, &[0]).await;
    assert_eq!(
        state(&mut watch, &key).await.map(|held| held.version),
        Some(version.clone())
    );
    for number in 1..20u8 {
        version = update(store, &key, &version, &[number]).await;
    }
    // States may be skipped, never shown out of order, and the last one comes.
    let mut last = 0;
    while last < 19 {
        let shown = state(&mut watch, &key).await.expect("a register");
        let number = shown.value.first().copied().expect("a byte");
        assert!(number > last, "{number} after {last}");
        last = number;
    }
    store
        .delete(&key, &version, WITHIN)
        .await
        .expect("to delete");
    assert_eq!(state(&mut watch, &key).await, None);
}

/// A watch of a prefix shows what was there, what comes, and what goes.
///
/// # Panics
/// If not.
pub async fn tells_followers_of_a_prefix(store: &Arc<dyn Store>, prefix: &str) {
    let below = format!("{prefix}family/");
    let (old, new) = (key(&below, "old"), key(&below, "new"));
    let version = create(store, &old, b"1").await;
    let mut watch = store.watch(Selector::Prefix(below));
    assert_eq!(
        state(&mut watch, &old).await.map(|held| held.version),
        Some(version.clone())
    );
    create(store, &key(prefix, "stranger"), b"").await;
    let created = create(store, &new, b"2").await;
    assert_eq!(
        state(&mut watch, &new).await.map(|held| held.version),
        Some(created)
    );
    store
        .delete(&old, &version, WITHIN)
        .await
        .expect("to delete");
    assert_eq!(state(&mut watch, &old).await, None);
}

/// Fifty watches of one key all show the change; one that was dropped is no
/// hindrance.
///
/// # Panics
/// If not.
pub async fn tells_many_followers_of_one_key(store: &Arc<dyn Store>, prefix: &str) {
    let key = key(prefix, "popular");
    let follow = || store.watch(Selector::Key(key.clone()));
    let mut watches: Vec<Watch> = (0..50).map(|_| follow()).collect();
    drop(follow());
    for watch in &mut watches {
        assert_eq!(state(watch, &key).await, None);
    }
    let version = create(store, &key, b"news").await;
    for watch in &mut watches {
        assert_eq!(
            state(watch, &key).await.map(|held| held.version),
            Some(version.clone())
        );
    }
}

/// A follower that does not look while a register changes, disappears and comes
/// again is shown states in their order, and the last one, however many there were.
///
/// # Panics
/// If not.
pub async fn shows_a_slow_follower_the_last_state(store: &Arc<dyn Store>, prefix: &str) {
    const CHANGES: u64 = 300;
    let key = key(prefix, "slowly");
    let mut watch = store.watch(Selector::Key(key.clone()));
    assert_eq!(state(&mut watch, &key).await, None);
    let mut version = create(store, &key, &1_u64.to_be_bytes()).await;
    for number in 2..=CHANGES {
        if number == CHANGES / 2 {
            store
                .delete(&key, &version, WITHIN)
                .await
                .expect("to delete");
            version = create(store, &key, &number.to_be_bytes()).await;
        } else {
            version = update(store, &key, &version, &number.to_be_bytes()).await;
        }
    }
    let mut last = 0;
    while last < CHANGES {
        let Some(shown) = state(&mut watch, &key).await else {
            assert!(last < CHANGES / 2, "gone after {last}");
            continue;
        };
        let number = count_of(&shown);
        assert!(number > last, "{number} after {last}");
        last = number;
    }
}

/// A store that holds registers by sessions ([`Store::hold`]) lets nobody else write
/// what it holds, and leaves the on-expiry value when it is released. One that does
/// not is not tried.
///
/// # Panics
/// If not.
pub async fn holds_what_a_session_was_bound_to(store: &Arc<dyn Store>, prefix: &str) {
    const LEASE: Duration = Duration::from_secs(5);
    let key = key(prefix, "held");
    let Some(hold) = store.hold(&key, LEASE) else {
        return;
    };
    let free = create(store, &key, b"free").await;
    let bound = Write {
        key: key.clone(),
        expect: Expect::Version(free),
        value: Bytes::from(*b"held"),
        stamp: Stamp::Now,
    };
    let bind = Bind {
        last: Bytes::from(*b"vacant"),
        ttl: LEASE,
    };
    let held = hold
        .write(bound, Some(bind), WITHIN)
        .await
        .expect("to bind");
    let since = clock::boot();
    let confirmed = hold.confirm(since, WITHIN).await.expect("to confirm");
    assert!(
        confirmed >= since,
        "a keep-alive from before it was asked for"
    );
    let expect = Expect::Version(held.version.clone());
    assert_conflict(
        write(store, &key, expect, b"stolen").await,
        "a write of what a session holds",
    );
    assert_conflict(
        store.delete(&key, &held.version, WITHIN).await,
        "a deletion of what a session holds",
    );
    let mut watch = store.watch(Selector::Key(key.clone()));
    hold.release();
    loop {
        let shown = state(&mut watch, &key).await.expect("a register");
        if *shown.value == *b"vacant" {
            break;
        }
        assert_eq!(*shown.value, *b"held");
    }
    let vacant = register(store, &key).await.version;
    update(store, &key, &vacant, b"free").await;
}
