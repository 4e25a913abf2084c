//! What is tried with every server that stands in for another.

use std::time::Duration;

use tenure::store::{Expect, Key, Selector, Sighting};
use tenure::{StoreError, clock};

use super::calls::{WITHIN, held, opened, put, shows, until, write};
use super::stand_in::{Service, StandIn};

/// A server that does not serve yet comes later, goes, and comes back with what it had.
pub(crate) async fn comes_and_goes<S: Service>(server: &StandIn<S>, url: &str, key: &Key) {
    let store = opened(url).await;
    let refused = store
        .compare_and_swap(write(key, Expect::Absent, b"before"), WITHIN)
        .await;
    let Err(StoreError::Unavailable(why)) = refused else {
        panic!("{refused:?}");
    };
    assert!(why.to_string().contains("refused"), "{why}");
    let mut watch = store.watch(Selector::Key(key.clone()));
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;

    server.launch();
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    let version = put(&store, key, Expect::Absent, b"before").await;
    until(&mut watch, shows(&version)).await;

    server.stop();
    until(&mut watch, |seen| matches!(seen, Sighting::Down(_))).await;
    // The first may find its connection ended.
    let mut unknown = 0;
    loop {
        let change = write(key, Expect::Version(version.clone()), b"x");
        match store.compare_and_swap(change, WITHIN).await {
            Err(StoreError::Unavailable(_)) => break,
            Err(StoreError::Unknown(_)) if unknown == 0 => unknown += 1,
            other => panic!("{other:?}"),
        }
    }

    server.launch();
    until(&mut watch, |seen| *seen == Sighting::Live).await;
    assert_eq!(&*held(&store, key).await.expect("it").value, b"before");
    let version = put(&store, key, Expect::Version(version), b"after").await;
    until(&mut watch, shows(&version)).await;
    let other = opened(url).await;
    let version = put(&other, key, Expect::Version(version), b"more").await;
    until(&mut watch, shows(&version)).await;
}

/// A write without an answer is unknown, and was sent once, as `writes` counts it.
pub(crate) async fn sends_once<S: Service>(
    server: &StandIn<S>,
    url: &str,
    key: &Key,
    writes: impl Fn() -> u64,
) {
    let store = opened(url).await;
    let version = put(&store, key, Expect::Absent, b"before").await;
    // It is carried out, and the connection ends.
    server.lose_answers(true);
    let before = writes();
    let change = write(key, Expect::Version(version.clone()), b"after");
    let lost = store.compare_and_swap(change.clone(), WITHIN).await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    assert_eq!(writes(), before + 1);
    server.lose_answers(false);
    let found = held(&store, key).await.expect("it");
    assert_eq!(&*found.value, b"after");
    let again = store.compare_and_swap(change, WITHIN).await;
    assert!(matches!(again, Err(StoreError::Conflict)), "{again:?}");
    // It is taken, and nothing is said.
    server.keep_silent(true);
    let short = Duration::from_millis(200);
    let change = write(key, Expect::Version(found.version), b"late");
    let late = store.compare_and_swap(change, short).await;
    assert!(matches!(late, Err(StoreError::Unknown(_))), "{late:?}");
    let read = store.read(key, short).await;
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    server.keep_silent(false);
    let give_up = clock::boot().after(WITHIN);
    while held(&store, key)
        .await
        .is_none_or(|it| *it.value != *b"late")
    {
        assert!(
            clock::boot() < give_up,
            "the write that was taken is carried out"
        );
    }
}
