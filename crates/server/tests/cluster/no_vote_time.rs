//! What a directory owes when settings have changed since it ran last.

use std::path::Path;
use std::time::Duration;

use tenure::clock;
use tenure_api::v1;
use tenure_server::Config;

use crate::servers::Servers;

/// Long, so that a lease of before outlives elections under the short one.
const LONG: Duration = Duration::from_secs(4);
const SHORT: Duration = Duration::from_millis(400);

fn by_lease(config: &mut Config) {
    config.node.election_timeout = LONG;
    config.node.heartbeat = LONG / 8;
    config.node.lease_reads = true;
    config.node.fast_detection = false;
}

fn at_once(config: &mut Config) {
    config.node.election_timeout = SHORT;
    config.node.heartbeat = SHORT / 8;
    config.node.lease_reads = false;
    config.node.fast_detection = true;
}

fn owed(data: &Path) -> Option<String> {
    std::fs::read_to_string(data.join("silence")).ok()
}

/// What server `number` says is in the log, if it says that it is current.
async fn current(servers: &Servers, number: u64) -> Option<Vec<String>> {
    let request = v1::ReadLogRequest {
        from: 1,
        limit: 0,
        stale: false,
    };
    let page = servers.log(number).await.read(request).await.ok()?;
    let entries = page.into_inner().entries.into_iter();
    Some(
        entries
            .map(|it| String::from_utf8_lossy(&it.data).into_owned())
            .collect(),
    )
}

/// Waits until one of two servers leads, and counts how often the leader of
/// before has answered meanwhile, as it may until its lease ends. It hears
/// nobody: servers with other settings do not talk.
async fn next_leader(servers: &Servers, before: u64, (one, two): (u64, u64)) -> (u64, u32) {
    let leads = async {
        tokio::select! {
            _ = servers.until(one, |it| it.leads) => one,
            _ = servers.until(two, |it| it.leads) => two,
        }
    };
    tokio::pin!(leads);
    let mut answered = 0;
    loop {
        tokio::select! {
            biased;
            leader = &mut leads => return (leader, answered),
            said = current(servers, before) => answered += u32::from(said.is_some()),
        }
    }
}

#[tokio::test]
async fn a_lease_of_before_is_owed_its_silence_under_new_settings() {
    let mut servers = Servers::found_with(3, 0, by_lease);
    let before = servers.leader().await;
    servers.append("old").await;
    let others: Vec<_> = (1..=3).filter(|number| *number != before).collect();
    let mut started = clock::boot();
    for number in &others {
        servers.stop(*number).await;
        at_once(servers.configs.get_mut(number).expect("it is there"));
        started = clock::boot();
        servers.start(*number);
        // Under which setting it may have answered, it remembers.
        let data = servers.data(*number);
        assert_eq!(owed(&data).as_deref(), Some("tenure 1\n4040000000\n"));
    }
    let [one, two] = others[..] else {
        panic!("three servers")
    };
    let (leader, answered) = next_leader(&servers, before, (one, two)).await;
    assert!(
        clock::boot().since(started) >= LONG,
        "{:?}",
        clock::boot().since(started)
    );
    assert!(answered > 0, "the lease was never used");
    let request = v1::AppendRequest {
        entries: vec!["new".to_owned().into()],
        numbered: None,
    };
    let appended = servers.log(leader).await.append(request).await;
    appended.expect("a leader and a majority");
    if let Some(said) = current(&servers, before).await {
        panic!("the leader of before still answers: {said:?}");
    }
    servers.until(before, |it| !it.leads).await;

    // It was waited out, and nothing is owed any more.
    let gone = async {
        while owed(&servers.data(one)).is_some() || owed(&servers.data(two)).is_some() {
            tokio::task::yield_now().await;
        }
    };
    let gone = tokio::time::timeout(crate::servers::PATIENCE, gone).await;
    gone.expect("lowered");
    servers.stop(before).await;
    at_once(servers.configs.get_mut(&before).expect("it is there"));
    servers.start(before);
    let leader = servers.leader().await;
    let said = current(&servers, leader).await.expect("it leads");
    assert_eq!(said, ["old", "new"]);
}

#[tokio::test]
async fn without_lease_reads_nothing_is_owed() {
    let mut servers = Servers::found(3, 0);
    let leader = servers.leader().await;
    servers.stop(leader).await;
    servers.start(leader);
    servers.leader().await;
    for number in 1..=3 {
        assert_eq!(owed(&servers.data(number)), None);
    }
}
