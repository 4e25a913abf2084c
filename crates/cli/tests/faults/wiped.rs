//! A data directory that is gone.
//!
//! A server whose disk was lost has forgotten its vote and what it
//! acknowledged. Under its old number it could elect a leader that lacks what
//! was acknowledged, so it must not take part, and must say what to do; and
//! what it says must work when it is typed.

use std::time::Duration;

use tenure_client::Client;

use crate::healed::{end_of_log, equal, write};
use crate::load::Load;
use crate::mending::REFUSAL;
use crate::network::Network;
use crate::room::{can, sh, within};
use crate::servers::{Servers, TENURE, until};

pub(crate) fn wipe(servers: &Servers, server: u64) {
    std::fs::remove_dir_all(servers.data(server)).expect("wiped");
}

/// The commands that a refused server names, as they stand there.
pub(crate) fn advice(said: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in said.split("tenure member ").skip(1) {
        let command = part.split('`').next();
        found.extend(command.map(str::to_owned));
    }
    found
}

#[test]
fn a_wiped_server_says_what_to_do_and_that_helps() {
    let name = "wiped::a_wiped_server_says_what_to_do_and_that_helps";
    within(name, async |room| {
        let mut servers = Servers::found(3, Network::best(room, 3).await).await;
        let url = servers.url();
        let load = Load::start(&url, 17, Duration::from_millis(15));
        let written = async || (load.record.counts().done > 20).then_some(());
        until("something to lose", written).await;
        let leader = servers.leader().await;
        servers.kill(leader);
        wipe(&servers, leader);
        servers.start(leader);
        let said = until("what to do", async || {
            let said = servers.log(leader);
            said.contains(REFUSAL).then_some(said)
        })
        .await;
        let advice = advice(&said);
        assert_eq!(advice.len(), 3, "expected what to type, found {said}");
        let line =
            |command: &str| format!("TENURE_STORE={url} timeout 30 {TENURE} member {command}");
        let [remove, add, promote] = [0, 1, 2].map(|at| line(&advice[at]));
        // It waits for that: nobody has to start it again.
        sh(&remove);
        sh(&add);
        // It may have to be told that it is too early.
        until("the promotion", async || can(&promote).then_some(())).await;
        until("the server that was mended", async || {
            let status = servers.status(leader).await?;
            let member = status.members.iter().find(|it| it.id == leader)?;
            (status.ready && member.voter).then_some(())
        })
        .await;
        let (record, log) = load
            .end(async |record| end_of_log(&url, record).await)
            .await;
        equal(&servers).await;
        let verdict = record
            .copy()
            .judge(&log)
            .unwrap_or_else(|why| panic!("{why}"));
        eprintln!("  {verdict}");
    });
}

#[test]
fn a_wiped_server_elects_nobody_who_lacks_what_was_acknowledged() {
    let name = "wiped::a_wiped_server_elects_nobody_who_lacks_what_was_acknowledged";
    within(name, async |room| {
        let mut servers = Servers::found(3, Network::best(room, 3).await).await;
        let url = servers.url();
        let client = Client::open(&url).expect("a client");
        client.append("all have it").await.expect("appended");
        // Server 1 lacks what 2 and 3 acknowledge; then 3 loses it.
        servers.kill(1);
        let number = until("an append", async || {
            client.append("two have it").await.ok()
        })
        .await;
        servers.kill(2);
        servers.kill(3);
        wipe(&servers, 3);
        servers.start(1);
        servers.start(3);
        let refused = async |servers: &Servers, from| {
            let said = servers.log_from(3, from);
            said.contains(REFUSAL).then_some(())
        };
        until("a refusal", async || refused(&servers, 0).await).await;
        // Again: it must not have learnt to pass for an old one.
        servers.kill(3);
        let from = servers.log_length(3);
        servers.start(3);
        until("another refusal", async || refused(&servers, from).await).await;
        // Both go on running, and 1 asks again and again: through several of
        // its election timeouts (250 ms) it is not elected.
        let elected = tokio::time::timeout(Duration::from_secs(3), servers.leader()).await;
        assert!(elected.is_err(), "{elected:?} lacks what was acknowledged");
        servers.start(2);
        write(&url).await;
        let found = client.read_log(number, 1).await.expect("it is there");
        assert_eq!(&found[0].data[..], b"two have it");
    });
}
