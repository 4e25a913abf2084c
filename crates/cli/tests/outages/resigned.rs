//! Nothing goes wrong: how soon another candidate leads when the leader resigns, on a
//! cluster of three servers of `tenure serve` in this process. Of the other stores
//! `crates/tenure/tests` measure it.

use tenure::store::open;

use super::servers::Servers;
use super::takeovers::{self, Notices};

#[tokio::test]
async fn a_leader_is_elected_and_another_takes_over_when_it_resigns() {
    let servers = Servers::start(3);
    let url = servers.url();
    let opened = async || open(&url).await.expect("a store");
    takeovers::measure("tenure serve, 3 servers", Notices::ByWatch, opened).await;
}
