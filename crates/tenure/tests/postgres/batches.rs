//! Writes that go to the server in one transaction.

use std::future::poll_fn;
use std::task::Poll;

use super::*;

/// Does all of these at the same time.
async fn all(
    store: &Arc<dyn Store>,
    writes: impl Iterator<Item = Write>,
    within: Duration,
) -> Vec<Result<Version, StoreError>> {
    let one = |write| {
        let store = Arc::clone(store);
        tokio::spawn(async move { store.compare_and_swap(write, within).await })
    };
    let mut results = Vec::new();
    for done in writes.map(one).collect::<Vec<_>>() {
        results.push(done.await.expect("no panic").map(|it| it.version));
    }
    results
}

/// Makes so many registers at the same time; their keys and versions.
async fn made(store: &Arc<dyn Store>, count: usize) -> (Vec<Key>, Vec<Version>) {
    let keys: Vec<_> = (0..count).map(|at| key(&format!("many/{at}"))).collect();
    let new = keys.iter().map(|it| write(it, Expect::Absent, b"new"));
    let versions = all(store, new, WITHIN).await.into_iter();
    let versions = versions.map(|it| it.expect("it was made")).collect();
    (keys, versions)
}

#[tokio::test]
async fn writes_that_go_together_have_outcomes_of_their_own() {
    const COUNT: usize = 400;
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    let (keys, versions) = made(&store, COUNT).await;
    let transactions = server.sql("SELECT count(DISTINCT xmin::text) FROM tenure_register");
    let transactions: usize = transactions.parse().expect("a number");
    assert!(transactions < COUNT / 2, "{transactions} transactions");
    // Each third expects what is not there.
    let expected = |at: usize| match at % 3 {
        0 => Expect::Version(Version::from_u64(1 << 40)),
        _ => Expect::Version(versions[at].clone()),
    };
    let numbered = keys.iter().enumerate();
    let changes = numbered.map(|(at, it)| write(it, expected(at), format!("{at}").as_bytes()));
    let results = all(&store, changes, WITHIN).await;
    for (at, result) in results.iter().enumerate() {
        let wanted = match at % 3 {
            0 => {
                assert!(matches!(result, Err(StoreError::Conflict)), "{result:?}");
                "new".to_owned()
            }
            _ => at.to_string(),
        };
        let reading = store.read(&keys[at], WITHIN).await.expect("a read");
        let held = reading.register.expect("a register");
        assert_eq!(held.value.to_vec(), wanted.as_bytes());
        if let Ok(version) = result {
            assert_eq!(&held.version, version);
        }
    }
}

#[tokio::test]
async fn a_write_that_fails_costs_those_beside_it_nothing() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    let (keys, versions) = made(&store, 40).await;
    let row = "SELECT FROM tenure_register WHERE key = 'many/7' FOR UPDATE";
    let _holding = server.hold(row, WITHIN * 2);
    let held = "SELECT count(*) FROM pg_locks WHERE mode = 'RowShareLock' AND granted \
                AND relation = 'tenure_register'::regclass";
    says(&server, held, "1").await;
    let changes = keys.iter().zip(versions);
    let changes = changes.map(|(it, version)| write(it, Expect::Version(version), b"changed"));
    let results = all(&store, changes, Duration::from_secs(4)).await;
    for (at, result) in results.iter().enumerate() {
        let is_held = matches!(result, Err(StoreError::Unavailable(_)));
        assert!(
            if at == 7 { is_held } else { result.is_ok() },
            "{at}: {result:?}"
        );
    }
    assert_eq!(value(&store, &keys[7]).await.as_deref(), Some(&b"new"[..]));
}

/// What is read then would be changed behind the reader.
#[tokio::test]
async fn a_write_whose_caller_has_left_is_not_sent_any_more() {
    let server = Postgres::start();
    let store = opened(&server.url()).await;
    let (keys, versions) = made(&store, 3).await;
    let _holding = server.hold("LOCK TABLE tenure_register", WITHIN * 2);
    let held = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted";
    says(&server, held, "1").await;
    let change = |at: usize| {
        let (key, version) = (keys[at].clone(), versions[at].clone());
        write(&key, Expect::Version(version), b"changed")
    };
    // Two are under way; the second is behind the first.
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let mut under_way = Vec::new();
    for at in [0, 1] {
        let mut one = store.compare_and_swap(change(at), WITHIN);
        poll_fn(|context| {
            assert!(one.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        under_way.push(one);
        says(&server, waits, "1").await;
    }
    let late = store.compare_and_swap(change(2), Duration::from_millis(300));
    let late = late.await.expect_err("it waits").to_string();
    assert!(late.contains("the write was not sent"), "{late}");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE mode = 'AccessExclusiveLock'");
    for one in under_way {
        one.await.expect("a write");
    }
    let reading = store.read(&keys[2], WITHIN).await.expect("a read");
    assert_eq!(reading.register.expect("it").version, versions[2]);
    put(&store, &keys[2], Expect::Version(versions[2].clone()), b"x").await;
}
