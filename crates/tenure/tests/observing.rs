//! Looking at elections and asking leaders to go, over stores in memory that
//! may go wrong.

use std::sync::Arc;
use std::time::Duration;

use tenure::store::{Expect, Key, Memory, Stamp, Store, Write};
use tenure::{Election, Name, StoreError, election};

const WITHIN: Duration = Duration::from_secs(5);

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// A candidate that leads, and its proof.
async fn leading(store: Arc<dyn Store>, election: &str) -> (Election, tenure::Reign) {
    let builder = Election::builder(store, election).name("web-1");
    let mut election = builder.start().expect("a candidate");
    let reign = election.elected().await.expect("an office");
    (election, reign)
}

/// Puts what one key holds under another, as a careless restore would.
async fn copy(store: &dyn Store, from: &str, to: &str) {
    let from = Key::of_election(&name(from));
    let found = store.read(&from, WITHIN).await.expect("a read").register;
    let write = Write {
        key: Key::of_election(&name(to)),
        expect: Expect::Absent,
        value: found.expect("a register").value,
        stamp: Stamp::Now,
    };
    store
        .compare_and_swap(write, WITHIN)
        .await
        .expect("a write");
}

fn broken(found: Option<StoreError>) -> String {
    match found {
        Some(StoreError::Broken(why)) => why.to_string(),
        other => panic!("expected a store that is broken, found {other:?}"),
    }
}

#[tokio::test]
async fn the_record_of_another_election_is_nobodys_vacancy() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let _leading = leading(Arc::clone(&store), "payroll").await;
    copy(store.as_ref(), "payroll", "billing").await;
    let looked = election::leader(Arc::clone(&store), &name("billing"), WITHIN).await;
    let why = broken(looked.err());
    assert!(
        why.contains("expected the record of billing, found that of payroll"),
        "{why}"
    );
    let listed = election::list(store, WITHIN).await.expect("a list");
    let states: Vec<_> = listed.iter().map(|(_, seen)| seen.is_ok()).collect();
    assert_eq!(states, [false, true]);
}
