//! Making the table, when several do at once and when others are in the way.

use super::*;

/// Anybody who may connect can take any advisory lock, and keep it.
#[tokio::test]
async fn no_lock_that_anybody_can_take_keeps_the_table_from_being_made() {
    let server = Postgres::start();
    server.sql("CREATE ROLE stranger LOGIN");
    let take = "SET LOCAL ROLE stranger; SELECT pg_advisory_lock(hashtext('tenure_register'))";
    let _held = server.hold(take, WITHIN * 10);
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    says(&server, held, "1").await;
    // Of several at once one makes it, and all use that one.
    let several = (0..8).map(|at| {
        let url = server.url();
        tokio::spawn(async move {
            let store = opened(&url).await;
            put(&store, &key(&format!("some/{at}")), Expect::Absent, b"x").await;
        })
    });
    for one in several.collect::<Vec<_>>() {
        one.await.expect("it has the table");
    }
    let found = "SELECT count(*) FROM tenure_register";
    assert_eq!(server.sql(found), "8");
}

/// The process that makes the table can be slow at it: that is said, and its
/// table is used when it is there.
#[tokio::test]
async fn a_table_that_another_is_making_is_waited_for() {
    let server = Postgres::start();
    let make = tenure::store::postgres::migration("tenure_register");
    let _making = server.hold(&make, WITHIN * 10);
    is_begun(&server).await;
    let store = opened(&server.url()).await;
    let waiting = store.read(&key("key"), WITHIN).await;
    let Err(StoreError::Unavailable(why)) = waiting else {
        panic!("{waiting:?}");
    };
    let why = why.to_string();
    for words in ["making the table tenure_register", "55P03"] {
        assert!(why.contains(words), "{words}: {why}");
    }
}

/// The transaction that makes the table commits while a call waits for it.
#[tokio::test]
async fn a_table_that_another_has_made_meanwhile_is_used() {
    let server = Postgres::start();
    let make = tenure::store::postgres::migration("tenure_register");
    let making = server.hold(&make, WITHIN / 10);
    is_begun(&server).await;
    let store = opened(&server.url()).await;
    put(&store, &key("key"), Expect::Absent, b"x").await;
    // Only one of them can have made it.
    making.wait();
}

/// Waits until a transaction has made a table, and has not committed.
async fn is_begun(server: &Postgres) {
    let made = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted";
    let give_up = clock::boot().after(WITHIN);
    while server.sql(made) == "0" {
        assert!(clock::boot() < give_up, "it was not begun");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
