//! Elections on a cluster: nothing about them knows that it is one.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Election, Name, clock, election};

use crate::servers::{SOON, Servers};

/// Longer than all servers take to be started again, one after the other, on
/// a busy machine.
const LEASE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_successor_takes_over_at_once_and_servers_may_go() {
    let mut servers = Servers::start(3);
    let stand = |name: &str| {
        let (url, name) = (servers.url(), name.to_owned());
        async move {
            let store = tenure::store::open(&url).await.expect("a store");
            let builder = Election::builder(store, "payroll").name(name);
            let builder = builder.lease(LEASE);
            builder.start().expect("a candidate")
        }
    };
    let mut holder = stand("0").await;
    let mut leadership = holder.elected().await.expect("a leadership");
    // The watch has to be up before it can be quick, and when it is nobody
    // sees: one of several successors has to have it.
    let mut tries = 0;
    let took = loop {
        tries += 1;
        let mut next = stand(&tries.to_string()).await;
        while next.leader().is_none_or(|seen| seen.leader.is_none()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let asked = clock::boot();
        drop(leadership);
        holder.stop().await;
        let successor = tokio::time::timeout(SOON, next.elected()).await;
        leadership = successor.expect("in time").expect("a leadership");
        holder = next;
        let took = clock::boot().since(asked);
        println!("taken over after {took:?}");
        assert_eq!(leadership.term().get(), tries + 1);
        if took < Duration::from_secs(1) || tries == 8 {
            break took;
        }
    };
    assert!(took < Duration::from_secs(1), "{took:?}");
    let successor = leadership;
    for number in 1..=3 {
        servers.stop(number).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        servers.run(number);
    }
    assert!(
        successor.is_valid(),
        "an election outlives its servers' restarts"
    );
    let store = tenure::store::open(&servers.url()).await.expect("a store");
    let name = Name::new("payroll").expect("a name");
    let (seen, _) = election::leader(Arc::clone(&store), &name, SOON)
        .await
        .expect("a look");
    assert_eq!(seen.term, successor.term());
}
