//! Calls that a client gives up, as it is: futures that are dropped.

use tenure_api::v1;
use tenure_api::v1::registers_client::RegistersClient;
use tonic::Code;

use crate::servers::{PATIENCE, Servers};

/// With a client as it is: a watch goes on over the connection on which
/// hundreds of calls are dropped, again and again.
#[tokio::test]
async fn a_client_that_drops_its_calls_keeps_its_watch() {
    // One leads for good, however busy this machine is.
    let servers = Servers::found(1, 0);
    let leader = servers.leader().await;
    let channel = servers.channel(leader).await;
    let mut registers = RegistersClient::new(channel.clone());
    let watch = v1::WatchRequest {
        key: Some("kept".into()),
        ..v1::WatchRequest::default()
    };
    let watch = registers.watch(watch).await;
    let mut watch = watch.expect("a watch").into_inner();
    let mut version = None;
    for round in 0..8 {
        let calls: Vec<_> = (0..400)
            .map(|_| {
                let mut registers = RegistersClient::new(channel.clone());
                let read = v1::ReadRequest {
                    key: "other".into(),
                    stale: false,
                };
                tokio::spawn(async move { registers.read(read).await.map(drop) })
            })
            .collect();
        // Some have been sent by now, some not, and some are answered.
        tokio::task::yield_now().await;
        for call in calls {
            call.abort();
            if let Ok(Err(status)) = call.await {
                assert_ne!(status.code(), Code::Internal, "{status}");
            }
        }
        let swap = v1::Swap {
            key: "kept".into(),
            expect: version,
            value: format!("{round}").into(),
            ..v1::Swap::default()
        };
        let swap = v1::CompareAndSwapRequest {
            swap: Some(swap),
            numbered: None,
        };
        let swapped = registers.compare_and_swap(swap).await.expect("an answer");
        version = Some(swapped.into_inner().version);
        loop {
            let message = tokio::time::timeout(PATIENCE, watch.message()).await;
            let message = message.expect("in time").expect("it goes on");
            let told = message.expect("it has not ended").changes;
            let registers = told.iter().filter_map(|it| it.register.as_ref());
            if registers.map(|it| it.version).any(|it| Some(it) == version) {
                break;
            }
        }
    }
}
