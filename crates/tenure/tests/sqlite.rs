//! SQLite files that somebody else has had hands on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use rusqlite::Connection;
use tenure::store::{Expect, Key, Selector, Sighting, Sqlite, Stamp, Store, Version, Watch, Write};
use tenure::{Election, Name, StoreError, election};

const WITHIN: Duration = Duration::from_secs(20);

fn file(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("tenure.db")
}

fn key(name: &str) -> Key {
    Key::new(name).expect("a key")
}

async fn put(store: &Sqlite, key: &Key, expect: Expect, value: &[u8]) -> Version {
    let write = Write {
        key: key.clone(),
        expect,
        value: value.into(),
        stamp: Stamp::Now,
    };
    let written = store.compare_and_swap(write, WITHIN).await;
    written.expect("a write").version
}

/// What somebody does with another program.
fn by_hand(file: &Path, statements: &str) {
    let connection = Connection::open(file).expect("to open it");
    connection.execute_batch(statements).expect("statements");
}

/// Waits until a watch shows this value.
async fn shown(watch: &mut Watch, value: &[u8]) {
    let showing = async {
        loop {
            match watch.next().await {
                Sighting::State(_, Some(held)) if *held.value == *value => return,
                Sighting::Down(why) => panic!("the watch went down: {why}"),
                _ => {}
            }
        }
    };
    let shown = tokio::time::timeout(WITHIN, showing).await;
    shown.unwrap_or_else(|_| panic!("it never showed {value:?}"));
}

#[tokio::test]
async fn a_row_edited_by_hand_troubles_only_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let keys = ["elections/a", "elections/b", "elections/c"].map(key);
    let mut versions = Vec::new();
    for key in &keys {
        versions.push(put(&store, key, Expect::Absent, b"text").await);
    }
    by_hand(
        &file(&directory),
        "UPDATE tenure_register SET value = 'text', stamp_ns = 'soon' WHERE key = 'elections/a';
         UPDATE tenure_register SET value = 42 WHERE key = 'elections/b';
         INSERT INTO tenure_register (key, value) VALUES (x'ff', 1.5);",
    );
    let mut watches = keys
        .clone()
        .map(|key| store.watch(Selector::Key(key)))
        .into_iter();
    for value in [b"text".as_slice(), b"42", b"text"] {
        shown(&mut watches.next().expect("a watch"), value).await;
    }
    let page = store.list("", None, WITHIN).await.expect("a list");
    let values: Vec<_> = page
        .registers
        .iter()
        .map(|(_, held)| &*held.value)
        .collect();
    assert_eq!(values, [b"text".as_slice(), b"42", b"text"]);
    let expect = Expect::Version(versions[2].clone());
    put(&store, &keys[2], expect, b"next").await;
    let name = Name::new("b").expect("a name");
    let looked = election::leader(Arc::new(store), &name, WITHIN).await;
    assert!(matches!(looked, Err(StoreError::Broken(_))), "{looked:?}");
}

#[tokio::test]
async fn a_follower_hears_on_after_versions_went_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (store, other) = (
        Sqlite::open(file(&directory)).expect("a store"),
        Sqlite::open(file(&directory)).expect("a store"),
    );
    let key = key("elections/payroll");
    let mut version = put(&store, &key, Expect::Absent, b"0").await;
    let mut watch = other.watch(Selector::Key(key.clone()));
    for value in [b"1", b"2", b"3"] {
        version = put(&store, &key, Expect::Version(version), value).await;
    }
    shown(&mut watch, b"3").await;
    // What restoring a backup amounts to.
    by_hand(
        &file(&directory),
        "UPDATE tenure_register SET version = 1, value = x'72';
         UPDATE sqlite_sequence SET seq = 1 WHERE name = 'tenure_register';",
    );
    shown(&mut watch, b"r").await;
    let first = Expect::Version(Version::from_u64(1));
    put(&store, &key, first, b"s").await;
    shown(&mut watch, b"s").await;
}

/// Waits on this thread, without any runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn no_runtime_of_the_application_is_needed() {
    let directory = tempfile::tempdir().expect("a directory");
    let url = format!("sqlite://{}", file(&directory).display());
    let name = Name::new("payroll").expect("a name");
    block_on(async {
        let store = tenure::store::open(&url).await.expect("a store");
        let builder = Election::builder(Arc::clone(&store), "payroll");
        let mut election = builder.start().expect("a candidate");
        let reign = election.elected().await.expect("an office");
        let (seen, _) = election::leader(Arc::clone(&store), &name, WITHIN)
            .await
            .expect("a look");
        assert_eq!(seen.term, reign.term());
        let confirmed = election::leader_confirmed(store, &name, WITHIN).await;
        assert!(confirmed.is_ok());
        drop(reign);
        election.stop().await;
    });
}
