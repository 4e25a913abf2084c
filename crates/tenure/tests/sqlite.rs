//! SQLite files that somebody else has had hands on, that are locked, moved,
//! replaced, linked, or left by an older release.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use rusqlite::Connection;
use tenure::store::conformance;
use tenure::store::{
    Expect, Key, MAX_VALUE_BYTES, REPAIR, Selector, Sighting, Sqlite, Stamp, Store, Version, Watch,
    Write,
};
use tenure::{Election, Name, StoreError, clock, election};

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

async fn value(store: &Sqlite, key: &Key) -> Option<Vec<u8>> {
    let reading = store.read(key, WITHIN).await.expect("a read");
    reading.register.map(|held| held.value.to_vec())
}

fn write(key: &Key, expect: Expect, value: &[u8]) -> Write {
    Write {
        key: key.clone(),
        expect,
        value: value.into(),
        stamp: Stamp::Now,
    }
}

/// Lets others do something for so long.
async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
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
async fn it_conforms() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = tenure::store::open(&format!("sqlite://{}", file(&directory).display())).await;
    conformance::all(&store.expect("a store"), "try/").await;
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

/// Memory is not the price of a row that somebody made by hand.
#[tokio::test]
async fn a_value_that_is_too_long_is_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let long = vec![b'x'; MAX_VALUE_BYTES];
    put(&store, &key("a"), Expect::Absent, &long).await;
    by_hand(
        &file(&directory),
        "INSERT INTO tenure_register (key, value) SELECT 'b', value || x'78' FROM tenure_register;
         INSERT INTO tenure_register (key, value) VALUES ('c', zeroblob(300000000));",
    );
    let page = store.list("", None, WITHIN).await.expect("a list");
    let lengths = page.registers.iter().map(|(_, held)| held.value.len());
    assert_eq!(lengths.collect::<Vec<_>>(), [MAX_VALUE_BYTES, 24, 24]);
    assert_eq!(value(&store, &key("c")).await.expect("one").len(), 24);
    shown(
        &mut store.watch(Selector::Key(key("c"))),
        b"a value that is too long",
    )
    .await;
}

const TABLE: &str = "CREATE TABLE tenure_register (version INTEGER PRIMARY KEY AUTOINCREMENT, \
                     key TEXT NOT NULL UNIQUE, value BLOB NOT NULL, stamp_boot INTEGER, \
                     stamp_namespace INTEGER, stamp_ns INTEGER)";

/// In such a table a version may come again, and each candidate finds the one that it
/// expects; or a write is dropped.
#[test]
fn only_the_table_as_it_is_made_is_used() {
    let instead = |from: &str, to: &str| TABLE.replace(from, to);
    let view = TABLE.replace("tenure_register", "other");
    let refused = [
        instead(" AUTOINCREMENT", ""),
        instead("INTEGER PRIMARY KEY AUTOINCREMENT", "INT PRIMARY KEY"),
        instead(" UNIQUE", ""),
        instead("UNIQUE", "UNIQUE ON CONFLICT IGNORE"),
        instead("NOT NULL UNIQUE", "NOT NULL COLLATE NOCASE UNIQUE"),
        instead(" BLOB NOT NULL", " BLOB NOT NULL CHECK (length(value) < 9)"),
        // A comment hides nothing.
        instead(" AUTOINCREMENT", " /* AUTOINCREMENT */"),
        format!("{view}; CREATE VIEW tenure_register AS SELECT * FROM other"),
        format!(
            "{TABLE}; CREATE TRIGGER counts AFTER INSERT ON tenure_register BEGIN UPDATE \
             tenure_register SET version = 1; END"
        ),
    ];
    for made in refused {
        let directory = tempfile::tempdir().expect("a directory");
        by_hand(&file(&directory), &made);
        let found = Sqlite::open(file(&directory)).expect_err(&made);
        assert!(matches!(found, StoreError::Broken(_)), "{made}: {found:?}");
        assert!(found.to_string().contains("found"), "{found}");
    }
    let by_another_hand = instead(" AUTOINCREMENT,", "\n autoincrement, -- never reused\n");
    let renamed = "ALTER TABLE other RENAME TO tenure_register";
    for made in [by_another_hand, format!("{view}; {renamed}")] {
        let directory = tempfile::tempdir().expect("a directory");
        by_hand(&file(&directory), &made);
        Sqlite::open(file(&directory)).expect(&made);
    }
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
        let leadership = election.elected().await.expect("a leadership");
        let (seen, _) = election::leader(Arc::clone(&store), &name, WITHIN)
            .await
            .expect("a look");
        assert_eq!(seen.term, leadership.term());
        let confirmed = election::leader_confirmed(store, &name, WITHIN).await;
        assert!(confirmed.is_ok());
        drop(leadership);
        election.stop().await;
    });
}

#[tokio::test]
async fn what_is_acknowledged_is_in_the_file_itself() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let key = key("elections/payroll");
    put(&store, &key, Expect::Absent, b"written").await;
    // All that a process can see that finds the file alone.
    let copy = directory.path().join("copy.db");
    std::fs::copy(file(&directory), &copy).expect("a copy");
    let copied = Sqlite::open(&copy).expect("a store");
    assert_eq!(
        value(&copied, &key).await.as_deref(),
        Some(b"written".as_slice())
    );
    for log in ["tenure.db-wal", "tenure.db-shm"] {
        assert!(!directory.path().join(log).exists(), "{log}");
    }
}

#[tokio::test]
async fn a_second_name_is_refused_at_the_start_and_let_pass_later() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, other) = (file(&directory), directory.path().join("other.db"));
    let store = Sqlite::open(file(&directory)).expect("a store");
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"0").await;
    std::fs::hard_link(file(&directory), &other).expect("a link");
    // A backup may have made it: who leads goes on.
    put(&store, &key, Expect::Version(version), b"1").await;
    for name in [&other, &path] {
        let refused = Sqlite::open(name).expect_err("a second name");
        assert!(matches!(refused, StoreError::Broken(_)), "{refused:?}");
        assert!(refused.to_string().contains("2 hard links"), "{refused}");
        let looked = Sqlite::existing(name).expect("nothing opened yet");
        let looked = looked.read(&key, WITHIN).await;
        assert!(matches!(looked, Err(StoreError::Broken(_))), "{looked:?}");
    }
    std::fs::remove_file(&other).expect("to remove it");
    Sqlite::open(file(&directory)).expect("one name");
}

/// A file as a release that had write-ahead logs left it when it was killed.
fn left_behind(directory: &tempfile::TempDir) {
    let before = directory.path().join("before.db");
    let old = Connection::open(&before).expect("a file");
    old.execute_batch(
        "PRAGMA journal_mode = WAL;
         CREATE TABLE tenure_register (
           version INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE,
           value BLOB NOT NULL, stamp_boot INTEGER, stamp_namespace INTEGER, stamp_ns INTEGER);
         INSERT INTO tenure_register (key, value) VALUES ('elections/payroll', x'6f6c64');",
    )
    .expect("statements");
    for end in ["", "-wal"] {
        let from = directory.path().join(format!("before.db{end}"));
        let to = directory.path().join(format!("tenure.db{end}"));
        std::fs::copy(from, to).expect("a copy");
    }
}

#[tokio::test]
async fn a_write_ahead_log_is_brought_into_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    left_behind(&directory);
    let store = Sqlite::open(file(&directory)).expect("a store");
    let key = key("elections/payroll");
    assert_eq!(
        value(&store, &key).await.as_deref(),
        Some(b"old".as_slice())
    );
    assert!(!directory.path().join("tenure.db-wal").exists());
    let mode = Connection::open(file(&directory)).expect("to open it");
    let mode = mode.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0));
    assert_ne!(mode.expect("a mode"), "wal");
}

#[test]
fn a_file_that_an_older_process_has_open_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    left_behind(&directory);
    let older = Connection::open(file(&directory)).expect("to open it");
    let count = "SELECT count(*) FROM tenure_register";
    let rows: i64 = older.query_row(count, [], |row| row.get(0)).expect("rows");
    assert_eq!(rows, 1);
    let refused = Sqlite::open(file(&directory)).expect_err("it is in use");
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    assert!(
        refused.to_string().contains("end that process"),
        "{refused}"
    );
    drop(older);
    Sqlite::open(file(&directory)).expect("it was let go");
}

#[tokio::test]
async fn an_older_process_that_comes_later_stops_the_newer_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"0").await;
    let older = Connection::open(file(&directory)).expect("to open it");
    older.busy_timeout(WITHIN).expect("a setting");
    older
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             UPDATE tenure_register SET value = x'31';",
        )
        .expect("statements");
    let refused = store
        .compare_and_swap(write(&key, Expect::Version(version.clone()), b"2"), WITHIN)
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
    let said = refused.expect_err("it was refused").to_string();
    assert!(said.contains("end that process"), "{said}");
    // To look is allowed, and keeps nobody from mending it.
    assert_eq!(value(&store, &key).await.as_deref(), Some(b"1".as_slice()));
    drop(older);
    put(&store, &key, Expect::Version(version), b"3").await;
    assert_eq!(value(&store, &key).await.as_deref(), Some(b"3".as_slice()));
}

#[tokio::test]
async fn a_file_that_goes_missing_is_not_made_again_and_may_come_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, away) = (file(&directory), directory.path().join("away.db"));
    let store = Sqlite::open(&path).expect("a store");
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"0").await;
    let mut watch = store.watch(Selector::Key(key.clone()));
    shown(&mut watch, b"0").await;
    std::fs::rename(&path, &away).expect("to move it");
    let gone = async || {
        let expect = Expect::Version(version.clone());
        let wrote = store
            .compare_and_swap(write(&key, expect, b"1"), WITHIN)
            .await;
        let read = store.read(&key, WITHIN).await;
        for error in [wrote.expect_err("no file"), read.expect_err("no file")] {
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
            let said = error.to_string();
            assert!(
                said.contains("deleted or replaced") && said.contains(REPAIR),
                "{said}"
            );
        }
    };
    gone().await;
    assert!(!path.exists(), "it was made again");
    // One that somebody made, and that is not ours yet.
    Connection::open(&path)
        .expect("a file")
        .execute_batch("CREATE TABLE t (a)")
        .expect("a table");
    gone().await;
    std::fs::rename(&away, &path).expect("to move it back");
    let version = put(&store, &key, Expect::Version(version.clone()), b"1").await;
    shown_in_time(&mut watch, b"1").await;
    // What an operator makes is used as it is.
    std::fs::remove_file(&path).expect("to remove it");
    let made = Sqlite::open(&path).expect("another file");
    put(&made, &key, Expect::Absent, b"made").await;
    shown_in_time(&mut watch, b"made").await;
    let late = store.compare_and_swap(write(&key, Expect::Version(version), b"2"), WITHIN);
    assert!(matches!(late.await, Err(StoreError::Conflict)));
}

/// Whichever notices first that it is late: the caller, or the thread.
#[tokio::test]
async fn a_read_that_is_late_is_no_uncertain_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    // One that is answered before a timer runs out is not late.
    let mut late = 0;
    for _ in 0..10_000 {
        match store.read(&key("key"), Duration::from_nanos(1)).await {
            Ok(_) => {}
            Err(StoreError::Unavailable(_)) => late += 1,
            other => panic!("{other:?}"),
        }
        if late == 20 {
            return;
        }
    }
    panic!("only {late} were late");
}

/// The writer finds the file as it should be, begins its commit, waits for a
/// reader to let go, and commits to a file that nobody can find any more.
#[tokio::test]
async fn a_write_to_a_file_that_is_moved_away_meanwhile_is_unknown() {
    for attempt in 1..=20 {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, away) = (file(&directory), directory.path().join("away.db"));
        let store = Sqlite::open(&path).expect("a store");
        let key = key("elections/payroll");
        let lock = Connection::open(&path).expect("to open it");
        lock.execute_batch("BEGIN; SELECT count(*) FROM tenure_register")
            .expect("a lock");
        let (writer, write) = (store.clone(), write(&key, Expect::Absent, b"lost"));
        let writing = tokio::spawn(async move { writer.compare_and_swap(write, WITHIN).await });
        pause(50 * attempt).await;
        std::fs::rename(&path, &away).expect("to move it");
        lock.execute_batch("COMMIT").expect("to let go");
        let outcome = writing.await.expect("no panic");
        std::fs::rename(&away, &path).expect("to move it back");
        let landed = value(&store, &key).await.is_some();
        match outcome {
            // It began too late, and says that nothing has happened.
            Err(StoreError::Unavailable(_)) => assert!(!landed),
            Err(StoreError::Unknown(_)) if landed => return,
            _ => panic!("{outcome:?}, and it landed: {landed}"),
        }
    }
    panic!("it always began too late");
}

/// The same of a writer that waits before it begins: nothing has happened.
#[tokio::test]
async fn a_write_that_finds_its_file_replaced_does_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (path, away) = (file(&directory), directory.path().join("away.db"));
    let store = Sqlite::open(&path).expect("a store");
    let key = key("elections/payroll");
    let lock = Connection::open(&path).expect("to open it");
    lock.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let (writer, write) = (store.clone(), write(&key, Expect::Absent, b"lost"));
    let writing = tokio::spawn(async move { writer.compare_and_swap(write, WITHIN).await });
    pause(200).await;
    std::fs::rename(&path, &away).expect("to move it");
    drop(Sqlite::open(&path).expect("another file"));
    lock.execute_batch("COMMIT").expect("to let go");
    match writing.await.expect("no panic") {
        Err(StoreError::Unavailable(_)) => assert_eq!(value(&store, &key).await, None),
        // It began when the other file was there already.
        Ok(_) => assert!(value(&store, &key).await.is_some()),
        outcome => panic!("{outcome:?}"),
    }
    std::fs::rename(&away, &path).expect("to move it back");
    assert_eq!(
        value(&store, &key).await,
        None,
        "in the file that was replaced"
    );
}

#[tokio::test]
async fn a_read_does_not_wait_for_writes_that_wait_for_a_lock() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let key = key("elections/payroll");
    let version = put(&store, &key, Expect::Absent, b"0").await;
    let lock = Connection::open(file(&directory)).expect("to open it");
    lock.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    // The queue of writes is at a standstill behind these.
    let writing: Vec<_> = (0..3)
        .map(|_| {
            let expect = Expect::Version(version.clone());
            let (store, write) = (store.clone(), write(&key, expect, b"1"));
            tokio::spawn(async move { store.compare_and_swap(write, WITHIN).await })
        })
        .collect();
    for _ in 0..10 {
        pause(20).await;
        assert_eq!(value(&store, &key).await.as_deref(), Some(b"0".as_slice()));
        store
            .list("elections/", None, WITHIN)
            .await
            .expect("a list");
        assert!(!writing.iter().any(tokio::task::JoinHandle::is_finished));
    }
    lock.execute_batch("COMMIT").expect("to let go");
    let mut written = 0;
    for outcome in writing {
        written += usize::from(outcome.await.expect("no panic").is_ok());
    }
    assert_eq!(written, 1);
}

#[tokio::test]
async fn who_waits_for_a_foreign_lock_hears_that_nothing_has_happened() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let lock = Connection::open(file(&directory)).expect("to open it");
    lock.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let key = key("elections/payroll");
    let within = Duration::from_secs(2);
    let refused = store
        .compare_and_swap(write(&key, Expect::Absent, b"0"), within)
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable(_))),
        "{refused:?}"
    );
}

/// A read that waits between the two, here for a lock, must not show the row
/// older than it is.
#[tokio::test]
async fn the_clock_is_read_before_the_row() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Sqlite::open(file(&directory)).expect("a store");
    let key = key("elections/payroll");
    put(&store, &key, Expect::Absent, b"0").await;
    let lock = Connection::open(file(&directory)).expect("to open it");
    lock.busy_timeout(WITHIN).expect("a setting");
    for attempt in 1..=20 {
        lock.execute_batch("BEGIN EXCLUSIVE").expect("a lock");
        let (reader, read) = (store.clone(), key.clone());
        let reading = tokio::spawn(async move { reader.read(&read, WITHIN).await });
        pause(20 * attempt).await;
        let before = clock::shared().expect("a clock").nanos;
        lock.execute_batch("COMMIT").expect("to let go");
        let reading = reading.await.expect("no panic").expect("a read");
        // Or it began when the lock was gone: once more.
        if reading.now.expect("a clock").nanos < before {
            return;
        }
    }
    panic!("the clock is read after the row");
}

#[tokio::test]
async fn an_onlooker_makes_nothing_and_waits_for_what_others_make() {
    let directory = tempfile::tempdir().expect("a directory");
    let onlooker = Sqlite::existing(file(&directory)).expect("nothing opened yet");
    let key = key("elections/payroll");
    let mut watch = onlooker.watch(Selector::Key(key.clone()));
    let read = onlooker.read(&key, WITHIN).await.map(drop);
    let list = onlooker.list("", None, WITHIN).await.map(drop);
    let wrote = onlooker
        .compare_and_swap(write(&key, Expect::Absent, b"0"), WITHIN)
        .await;
    for missing in [read, list, wrote.map(drop)] {
        let said = missing.expect_err("there is none").to_string();
        assert!(
            said.contains("no store there; `tenure run` makes it"),
            "{said}"
        );
    }
    let made = std::fs::read_dir(directory.path())
        .expect("a directory")
        .count();
    assert_eq!(made, 0);
    // A file without the table is none either, and gets none.
    std::fs::write(file(&directory), "").expect("a file");
    let empty = onlooker.read(&key, WITHIN).await;
    assert!(
        matches!(empty, Err(StoreError::Unavailable(_))),
        "{empty:?}"
    );
    assert_eq!(
        std::fs::metadata(file(&directory)).expect("a file").len(),
        0
    );
    let store = Sqlite::open(file(&directory)).expect("a store");
    put(&store, &key, Expect::Absent, b"0").await;
    assert_eq!(
        value(&onlooker, &key).await.as_deref(),
        Some(b"0".as_slice())
    );
    shown_in_time(&mut watch, b"0").await;
}

/// The same as [`shown`] of a watch that may have been down before.
async fn shown_in_time(watch: &mut Watch, value: &[u8]) {
    let showing = async {
        loop {
            if let Sighting::State(_, Some(held)) = watch.next().await
                && *held.value == *value
            {
                return;
            }
        }
    };
    tokio::time::timeout(WITHIN, showing)
        .await
        .expect("it is shown");
}

/// In the process of the test below: the path of a file, which is to be read when no
/// file can be opened any more.
const READ_WITHOUT_DESCRIPTORS: &str = "TENURE_TEST_READ_WITHOUT_DESCRIPTORS";

fn read_without_descriptors(path: &std::ffi::OsStr) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let store = Sqlite::existing(path).expect("threads");
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    let refused = runtime.block_on(store.read(&key("a"), WITHIN));
    let refused = refused.expect_err("no descriptor is left");
    // Neither does a panic find any.
    drop(taken);
    let expected = "found as many files open as this process may have";
    assert!(refused.to_string().contains(expected), "{refused}");
    runtime
        .block_on(store.read(&key("a"), WITHIN))
        .expect("it goes on");
}

#[test]
fn a_limit_on_open_files_is_told_as_what_it_is_and_passes() {
    if let Some(path) = std::env::var_os(READ_WITHOUT_DESCRIPTORS) {
        return read_without_descriptors(&path);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = file(&directory);
    drop(Sqlite::open(&path).expect("a store"));
    let test = "sqlite::a_limit_on_open_files_is_told_as_what_it_is_and_passes";
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().expect("this test"))
        .arg(test)
        .env(READ_WITHOUT_DESCRIPTORS, &path)
        .output()
        .expect("a process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
