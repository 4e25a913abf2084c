//! `tenure://` against the conformance suite of stores.

use std::sync::Arc;

use tenure::store::conformance;
use tenure::store::{Key, Selector, Sighting};

use crate::servers::{SOON, Servers};

#[tokio::test]
async fn a_cluster_of_three_conforms() {
    let servers = Servers::start(3);
    let store = tenure::store::open(&servers.url()).await.expect("a store");
    conformance::all(&store, "try/").await;
    let wide = format!("{}?connections=4&ttl=10s", servers.url());
    let store = tenure::store::open(&wide).await.expect("a store");
    conformance::all(&store, "wide/").await;
}

#[tokio::test]
async fn many_followed_registers_share_a_watch() {
    let servers = Servers::start(1);
    let store = tenure::store::open(&servers.url()).await.expect("a store");
    let key = |number: u32| Key::new(&format!("many/{number}")).expect("a key");
    let mut watches: Vec<_> = (0..100)
        .map(|number| store.watch(Selector::Key(key(number))))
        .collect();
    let other = tenure::store::open(&servers.url()).await.expect("a store");
    let value: tenure::store::Bytes = b"news".as_slice().into();
    for number in (0..100).rev() {
        let write = tenure::store::Write {
            key: key(number),
            expect: tenure::store::Expect::Absent,
            value: Arc::clone(&value),
            stamp: tenure::store::Stamp::Now,
        };
        other.compare_and_swap(write, SOON).await.expect("written");
    }
    for (number, watch) in watches.iter_mut().enumerate() {
        let heard = async {
            loop {
                if let Sighting::State(_, Some(held)) = watch.next().await {
                    return held;
                }
            }
        };
        let held = tokio::time::timeout(SOON, heard).await;
        let held = held.unwrap_or_else(|_| panic!("register {number} was never told"));
        assert_eq!(held.value, value);
    }
}

#[tokio::test]
async fn a_watch_goes_on_after_a_server_has_gone() {
    let mut servers = Servers::start(3);
    let store = tenure::store::open(&servers.url()).await.expect("a store");
    let key = Key::new("followed").expect("a key");
    let mut watch = store.watch(Selector::Key(key.clone()));
    let mut expect = tenure::store::Expect::Absent;
    for number in 0..9_u64 {
        // Whichever server the watch is on, it goes sooner or later.
        if number % 3 == 2 {
            servers.stop(number / 3 + 1).await;
        }
        let write = tenure::store::Write {
            key: key.clone(),
            expect,
            value: number.to_be_bytes().as_slice().into(),
            stamp: tenure::store::Stamp::Now,
        };
        let written = store.compare_and_swap(write, SOON).await.expect("written");
        expect = tenure::store::Expect::Version(written.version.clone());
        let heard = async {
            loop {
                if let Sighting::State(_, Some(held)) = watch.next().await
                    && held.version == written.version
                {
                    return;
                }
            }
        };
        let heard = tokio::time::timeout(SOON, heard).await;
        heard.unwrap_or_else(|_| panic!("write {number} was never told"));
        if number % 3 == 2 {
            servers.run(number / 3 + 1);
        }
    }
}
