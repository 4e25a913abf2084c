//! The store of a cluster of `tenure serve`, three servers in this process: how soon
//! another candidate leads when the leader resigns.

#![allow(clippy::print_stdout, reason = "figures are printed")]

#[path = "common/ports.rs"]
mod ports;
#[path = "common/servers.rs"]
mod servers;
#[path = "common/takeovers.rs"]
mod takeovers;

use servers::Servers;
use takeovers::Notices;
use tenure::store::open;

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let servers = Servers::start(3);
    let url = servers.url();
    let opened = async || open(&url).await.expect("a store");
    takeovers::measure("tenure serve, 3 servers", Notices::ByWatch, opened).await;
}
