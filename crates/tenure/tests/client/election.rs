//! Elections on a cluster: nothing about them knows that it is one.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Election, Name, clock, election};

use crate::servers::{SOON, Servers};

#[tokio::test]
async fn a_successor_takes_over_at_once_and_servers_may_go() {
    let mut servers = Servers::start(3);
    let stand = |name: &str| {
        let (url, name) = (servers.url(), name.to_owned());
        async move {
            let store = tenure::store::open(&url).await.expect("a store");
            let builder = Election::builder(store, "payroll").name(name);
            let builder = builder.lease(Duration::from_secs(5));
            builder.start().expect("a candidate")
        }
    };
    let mut first = stand("first").await;
    let reign = first.elected().await.expect("an office");
    let mut second = stand("second").await;
    // The watch has to be up before it can be quick.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let asked = clock::boot();
    drop(reign);
    first.stop().await;
    let successor = tokio::time::timeout(SOON, second.elected()).await;
    let successor = successor.expect("in time").expect("an office");
    let took = clock::boot().since(asked);
    println!("taken over after {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(successor.term().get(), 2);
    for number in 1..=3 {
        servers.stop(number).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        servers.run(number);
    }
    assert!(
        successor.is_valid(),
        "an office outlives its servers' restarts"
    );
    let store = tenure::store::open(&servers.url()).await.expect("a store");
    let name = Name::new("payroll").expect("a name");
    let (seen, _) = election::leader(Arc::clone(&store), &name, SOON)
        .await
        .expect("a look");
    assert_eq!(seen.term, successor.term());
}
