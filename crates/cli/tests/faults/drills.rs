//! What operators do on purpose, under load: the drills of
//! `docs/how-to` that have no test of their own elsewhere.
//!
//! None of them may cost a client more than time, so every call of a patient
//! client must be done; "unknown" or "certainly not" is a failure here.

use std::time::{Duration, Instant};

use crate::healed::{end_of_log, equal, write};
use crate::load::Load;
use crate::network::{CLIENTS, Edge, Edges, Network};
use crate::room::{can, within};
use crate::servers::{Servers, TENURE, until, until_within};

/// Ends the load and judges it: all that was asked was done.
async fn assert_all_done(servers: &Servers, load: Load) {
    let url = servers.url();
    let (record, log) = load
        .end(async |record| end_of_log(&url, record).await)
        .await;
    equal(servers).await;
    let counts = record.counts();
    assert_eq!(counts.refused + counts.appends_refused, 0, "{counts:?}");
    assert_eq!(counts.unknown + counts.appends_unknown, 0, "{counts:?}");
    let verdict = record
        .copy()
        .judge(&log)
        .unwrap_or_else(|why| panic!("{why}"));
    eprintln!("  {verdict}");
}

#[test]
fn a_rolling_restart_fails_no_call() {
    within("drills::a_rolling_restart_fails_no_call", async |room| {
        let mut servers = Servers::found(3, Network::best(room, 3).await).await;
        let load = Load::patient(&servers.url(), 31, Duration::from_millis(8));
        for _ in 0..2 {
            // The leader last, as the drill says.
            let leader = servers.leader().await;
            let mut order = servers.ids();
            order.sort_by_key(|server| *server == leader);
            for server in order {
                let begun = Instant::now();
                servers.terminate(server).await;
                servers.start(server);
                until("the way back", async || {
                    servers.status(server).await.filter(|it| it.ready)
                })
                .await;
                eprintln!(
                    "  server {server} stopped and was back in {:?}",
                    begun.elapsed()
                );
            }
        }
        assert_all_done(&servers, load).await;
    });
}

#[test]
fn a_dead_leader_costs_time_only() {
    within("drills::a_dead_leader_costs_time_only", async |room| {
        let mut servers = Servers::found(3, Network::best(room, 3).await).await;
        let url = servers.url();
        let load = Load::patient(&url, 37, Duration::from_millis(8));
        for _ in 0..3 {
            let leader = servers.leader().await;
            servers.kill(leader);
            let begun = Instant::now();
            write(&url).await;
            eprintln!(
                "  server {leader} killed: a write was done {:?} later",
                begun.elapsed()
            );
            servers.start(leader);
            until("the way back", async || {
                servers.status(leader).await.filter(|it| it.ready)
            })
            .await;
        }
        assert_all_done(&servers, load).await;
    });
}

#[test]
fn a_leader_that_is_cut_off_costs_time_only() {
    within(
        "drills::a_leader_that_is_cut_off_costs_time_only",
        async |room| {
            let mut servers = Servers::found(3, Network::best(room, 3).await).await;
            let url = servers.url();
            let load = Load::patient(&url, 41, Duration::from_millis(8));
            let leader = servers.leader().await;
            let cut = Edge {
                cut: true,
                ..Edge::default()
            };
            let mut edges = Edges::new();
            for other in (CLIENTS..=3).filter(|it| *it != leader) {
                edges.insert((leader, other), cut);
                edges.insert((other, leader), cut);
            }
            servers.network.apply(&edges);
            let begun = Instant::now();
            write(&url).await;
            eprintln!(
                "  server {leader} cut off: a write was done {:?} later",
                begun.elapsed()
            );
            let next = until("another leader", async || {
                servers.leads().await.filter(|it| *it != leader)
            })
            .await;
            servers.network.apply(&Edges::new());
            let begun = Instant::now();
            until("the way back", async || {
                let status = servers.status(leader).await?;
                status.leader.filter(|_| status.ready)
            })
            .await;
            eprintln!("  back after {:?}; {next} had led", begun.elapsed());
            assert_all_done(&servers, load).await;
        },
    );
}

/// A connection that lived through a cut waits, to send again, for as long as
/// the cut was: here 11 s from the healing. It has to be given up before.
#[test]
fn two_servers_that_were_cut_apart_elect_at_once_when_healed() {
    within(
        "drills::two_servers_that_were_cut_apart_elect_at_once_when_healed",
        async |room| {
            let mut servers = Servers::found(3, Network::best(room, 3).await).await;
            let leader = servers.leader().await;
            servers.kill(leader);
            let rest: Vec<u64> = servers
                .ids()
                .into_iter()
                .filter(|it| *it != leader)
                .collect();
            let (one, two) = (rest[0], rest[1]);
            let cut = Edge {
                cut: true,
                ..Edge::default()
            };
            servers
                .network
                .apply(&Edges::from([((one, two), cut), ((two, one), cut)]));
            // Between the times at which TCP sends again, 12.6 and 25.4 s after
            // a first message that is lost.
            tokio::time::sleep(Duration::from_secs(14)).await;
            assert_eq!(servers.leads().await, None, "one of two led");
            servers.network.apply(&Edges::new());
            let begun = Instant::now();
            until_within(Duration::from_secs(6), "a leader", async || {
                servers.leads().await
            })
            .await;
            eprintln!("  healed: a leader {:?} later", begun.elapsed());
            write(&servers.url()).await;
        },
    );
}

/// A `tenure member …` that is typed until it is done: it may be too early, or
/// the leader may have handed over first.
async fn member(servers: &Servers, command: &str) {
    let url = servers.url();
    let line = format!("TENURE_STORE={url} timeout 30 {TENURE} member {command}");
    until(command, async || can(&line).then_some(())).await;
}

/// Starts a server that no cluster knows, and does what it says is to be done.
async fn admit(servers: &mut Servers, server: u64) {
    let before = servers.log(server).len();
    servers.start(server);
    let add = until("what to type", async || {
        let said = servers.log(server)[before..].to_owned();
        let (_, add) = said.split_once("tenure member ")?;
        let add = add.split('`').next()?.to_owned();
        add.starts_with(&format!("add {server} ")).then_some(add)
    })
    .await;
    member(servers, &add).await;
    member(servers, &format!("promote {server}")).await;
    until("a member that counts", async || {
        let status = servers.status(server).await?;
        let own = status.members.iter().find(|it| it.id == server)?;
        (status.ready && own.voter).then_some(())
    })
    .await;
}

/// Takes a server out, and ends it if it runs.
async fn dismiss(servers: &mut Servers, server: u64) {
    member(servers, &format!("remove {server}")).await;
    if servers.running.contains_key(&server) {
        servers.terminate(server).await;
    }
}

#[test]
fn a_cluster_grows_to_five_and_shrinks_to_three_under_load() {
    let name = "drills::a_cluster_grows_to_five_and_shrinks_to_three_under_load";
    within(name, async |room| {
        let mut servers = Servers::found(1, Network::best(room, 5).await).await;
        let load = Load::patient(&servers.url(), 43, Duration::from_millis(8));
        for server in 2..=5 {
            servers.count = server;
            let begun = Instant::now();
            admit(&mut servers, server).await;
            eprintln!("  {server} members after {:?}", begun.elapsed());
        }
        // One is lost with its disk, and another takes its place.
        let lost = servers.leader().await;
        servers.kill(lost);
        std::fs::remove_dir_all(servers.data(lost)).expect("wiped");
        let begun = Instant::now();
        dismiss(&mut servers, lost).await;
        admit(&mut servers, lost).await;
        eprintln!(
            "  server {lost}, who led, was replaced in {:?}",
            begun.elapsed()
        );
        for server in [5, 4] {
            // Also one that leads can be taken out.
            let lead = format!("transfer --to {server}");
            member(&servers, &lead).await;
            let begun = Instant::now();
            dismiss(&mut servers, server).await;
            servers.count = server - 1;
            eprintln!("  {} members after {:?}", server - 1, begun.elapsed());
        }
        servers.leader().await;
        assert_all_done(&servers, load).await;
    });
}
