//! What threads of their own do with snapshots.

use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_api::v1;
use tenure_server::Ended;
use tokio::time::timeout;

use crate::servers::{PATIENCE, Servers};

/// Whether this is a thread for snapshots.
fn is_apart() -> bool {
    std::thread::current().name() == Some("tenure-snapshot")
}

fn panics_apart(sum: u32, bytes: &[u8]) -> u32 {
    assert!(!is_apart(), "planted");
    tenure_alpo::codec::crc32c_append(sum, bytes)
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_encoded_ends_the_server() {
    let mut servers = Servers::found_with(1, 0, |config| {
        config.node.checksum = panics_apart;
    });
    servers.append("one").await;
    let mut cluster = servers.cluster(1).await;
    let server = servers.running.remove(&1).expect("it runs");
    let answer = timeout(PATIENCE, cluster.snapshot(v1::SnapshotRequest {})).await;
    assert!(answer.expect("it does not hang").is_err());
    let ended = timeout(PATIENCE, server.ended()).await.expect("it ends");
    let Ended::Fault(text) = &*ended else {
        panic!("{ended}");
    };
    let expected = "the thread that encodes a snapshot panicked; this is a bug";
    assert_eq!(text, expected);
}

/// How often a thread of its own has worked for server 3, which takes no
/// snapshots.
static APART: AtomicUsize = AtomicUsize::new(0);

fn counts_apart(sum: u32, bytes: &[u8]) -> u32 {
    APART.fetch_add(usize::from(is_apart()), Ordering::Relaxed);
    tenure_alpo::codec::crc32c_append(sum, bytes)
}

#[tokio::test]
async fn what_a_leader_sends_is_decoded_by_a_thread_of_its_own() {
    let mut servers = Servers::found_with(3, 0, |config| {
        if config.id.get() == 3 {
            config.node.checksum = counts_apart;
        } else {
            (
                config.node.snapshot_threshold_bytes,
                config.node.kept_entries,
            ) = (10_000, 0);
        }
    });
    servers.leader().await;
    servers.stop(3).await;
    let all: Vec<_> = (0..40)
        .map(|number| format!("{number} {}", "x".repeat(1_000)))
        .collect();
    for data in &all {
        servers.append(data).await;
    }
    assert_eq!(APART.load(Ordering::Relaxed), 0);
    servers.start(3);
    assert_eq!(servers.entries(3, all.len()).await, all);
    assert!(APART.load(Ordering::Relaxed) > 0, "it was sent no snapshot");
}
