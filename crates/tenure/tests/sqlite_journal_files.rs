//! What lies beside a SQLite file: a journal of a process that died is rolled
//! back, and what somebody else put there is not believed.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tenure::StoreError;
use tenure::store::{Expect, Key, Sqlite, Stamp, Store, Version, Write};

const WITHIN: Duration = Duration::from_secs(20);

fn key() -> Key {
    Key::new("elections/payroll").expect("a key")
}

fn write(expect: Expect, value: &[u8]) -> Write {
    Write {
        key: key(),
        expect,
        value: value.into(),
        stamp: Stamp::Now,
    }
}

async fn put(store: &Sqlite, value: &[u8]) -> Version {
    let write = write(Expect::Absent, value);
    let written = store.compare_and_swap(write, WITHIN).await;
    written.expect("a write").version
}

async fn value(store: &Sqlite) -> Option<Vec<u8>> {
    let reading = store.read(&key(), WITHIN).await.expect("a read");
    reading.register.map(|held| held.value.to_vec())
}

/// A copy of a database beside its journal, as a process leaves it that dies
/// in the middle of a write: some pages are new, and the journal has the old.
fn cut_off(from: &Path, to: &Path) {
    let writer = Connection::open(from).expect("to open it");
    writer
        .execute_batch(
            "PRAGMA journal_mode = PERSIST; PRAGMA cache_size = 1; BEGIN IMMEDIATE;
             UPDATE tenure_register SET value = 'new';
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)
             INSERT INTO tenure_register (key, value) SELECT 'k' || i, zeroblob(1000) FROM n;",
        )
        .expect("half a write");
    for end in ["", "-journal"] {
        let name = |path: &Path| format!("{}{end}", path.display());
        std::fs::copy(name(from), name(to)).expect("a copy");
    }
}

#[tokio::test]
async fn a_write_that_was_cut_off_is_taken_back_unless_another_user_left_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(directory.path().join("tenure.db")).expect("a store");
    put(&store, b"old").await;
    drop(store);
    let copy = directory.path().join("copy.db");
    let journal = directory.path().join("copy.db-journal");
    cut_off(&directory.path().join("tenure.db"), &copy);
    let half = std::fs::read(&copy).expect("a copy");
    // Only root can give files away.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&journal, Some(65_534), None).expect("given away");
        let refused = Sqlite::open(&copy).expect_err("a journal of another user");
        assert!(matches!(refused, StoreError::Broken(_)), "{refused}");
        let told = refused.to_string();
        assert!(told.contains("chown it to user 0"), "{told}");
        assert_eq!(std::fs::read(&copy).expect("a copy"), half, "nothing done");
        std::os::unix::fs::chown(&journal, Some(0), None).expect("taken back");
    }
    let store = Sqlite::open(&copy).expect("a store");
    assert_eq!(value(&store).await.as_deref(), Some(&b"old"[..]));
    assert_ne!(std::fs::read(&copy).expect("a copy"), half, "it was mended");
}

#[tokio::test]
async fn a_log_that_others_put_beside_a_file_in_use_is_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(directory.path().join("tenure.db")).expect("a store");
    let version = put(&store, b"0").await;
    let log = directory.path().join("tenure.db-wal");
    std::fs::write(&log, "something").expect("a file");
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&log, anybody).expect("a mode");
    let refused = store.read(&key(), WITHIN).await.map(drop);
    let next = write(Expect::Version(version), b"1");
    let unwritten = store.compare_and_swap(next.clone(), WITHIN).await.map(drop);
    for refused in [refused, unwritten] {
        let told = refused.expect_err("it is not read").to_string();
        assert!(told.contains("tenure.db-wal to be a plain file"), "{told}");
    }
    std::fs::remove_file(&log).expect("it goes");
    let written = store.compare_and_swap(next, WITHIN).await;
    written.expect("a write, as nothing happened before");
    assert_eq!(value(&store).await.as_deref(), Some(&b"1"[..]));
}

/// A link that leads to nothing yet: what is made is made as any database.
#[tokio::test]
async fn a_database_made_through_a_link_is_its_owners_alone() {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    let directory = tempfile::tempdir().expect("a directory");
    let (link, file) = (directory.path().join("link"), directory.path().join("file"));
    symlink("file", &link).expect("a link");
    let store = Sqlite::open(&link).expect("a store");
    put(&store, b"one").await;
    let found = std::fs::symlink_metadata(&file).expect("it was made");
    assert_eq!(found.mode() & 0o7777, 0o600);
}

#[tokio::test]
async fn a_database_that_is_locked_is_said_to_be_locked() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tenure.db");
    drop(Sqlite::open(&path).expect("a store"));
    let other = Connection::open(&path).expect("to open it");
    other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    let refused = Sqlite::open(&path).expect_err("it is locked").to_string();
    assert!(refused.contains("locked"), "{refused}");
    assert!(!refused.contains("WAL"), "{refused}");
}
