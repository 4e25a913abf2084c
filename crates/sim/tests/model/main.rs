//! The model check: the production core, explored exhaustively.
//!
//! The simulator tries millions of schedules out of infinitely many. Here
//! the cluster is small and little may happen, but *everything* that can
//! happen then is tried: every order of messages, every one of them lost,
//! some of them twice, a crash at every moment with every loss that a disk
//! can suffer. What is explored is [`tenure_core::alpo::Node`] itself, by the
//! checker `stateright`; there is no second description of the protocol that
//! could be right where the code is wrong.
//!
//! | file | what it holds |
//! |---|---|
//! | `bounds` | how much may happen |
//! | `host` | a server: the machine, its disk, its clock |
//! | `wire` | messages on their way, and which of them make no difference |
//! | `model` | what can happen next, and why no more is needed |
//! | `rules`, `properties` | what must be true, and the history it takes to tell |
//! | `script` | where to begin if not at the beginning |
//! | `explore`, `seen` | running the checker; what was reached |
//!
//! The short form runs with the other tests. `TENURE_MODEL=long` runs the
//! long form, alone; `docs/simulation.md` has its numbers.
#![allow(clippy::print_stdout)]

mod bounds;
mod explore;
mod host;
mod model;
mod properties;
mod rules;
mod script;
mod seen;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

use bounds::Bounds;
use explore::{Order, Report, explore};
use model::Cluster;
use rules::Broken;
use tenure_core::alpo::Bug;

/// More steps than any of these explorations takes.
const NO_END: usize = 1_000_000_000;

/// One exploration at a time: each uses two cores, and times are told.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_long() -> bool {
    std::env::var("TENURE_MODEL").is_ok_and(|form| form == "long")
}

/// Explores everything; nothing may be broken, and the check must have come
/// to something.
fn holds(name: &str, cluster: Cluster) {
    let _alone = alone();
    let report = explore(cluster, Order::Depth, NO_END);
    report.print(name);
    assert!(report.broken.is_none(), "{name}: {:?}", report.broken);
    assert!(report.complete, "{name}: not everything was explored");
    assert!(report.committed >= 2 && report.reigns >= 2, "{name}: too little");
}

/// Looks for the shortest schedule that breaks `rule`.
fn breaks(name: &str, cluster: Cluster, rule: Broken) -> Report {
    let _alone = alone();
    // A server that finds a broken rule itself panics, and that is news for
    // the checker alone.
    std::panic::set_hook(Box::new(|_| {}));
    let report = explore(cluster, Order::Breadth, NO_END);
    drop(std::panic::take_hook());
    report.print(name);
    let found = report.broken.as_ref().map(|(rule, _)| *rule);
    assert_eq!(found, Some(rule.rule()), "{name}");
    report
}

/// From everyday states: `leader` leads in term 1, and any one crashes.
fn established(bounds: Bounds, leader: usize) -> Cluster {
    let mut cluster = Cluster::new(bounds);
    let victims = (0..cluster.bounds.servers).map(Some);
    let start = victims.map(|victim| script::established(&cluster, leader, victim));
    cluster.start = start.collect();
    cluster
}

fn figure_eight(planted: Option<Bug>) -> Cluster {
    let mut cluster = Cluster::new(Bounds {
        planted,
        ..Bounds::FIGURE_EIGHT
    });
    cluster.start = vec![script::figure_eight(&cluster)];
    cluster
}

#[test]
fn two_elections_with_a_crash_break_nothing() {
    holds("two elections, a crash", Cluster::new(Bounds::SMALL));
}

#[test]
fn three_elections_break_nothing() {
    holds("three elections", Cluster::new(Bounds::THREE));
}

#[test]
fn two_elections_with_a_duplicate_and_a_proposal_break_nothing() {
    let name = "two elections, a proposal, a heartbeat, a duplicate";
    holds(name, Cluster::new(Bounds::BUSY));
}

#[test]
fn without_simplifications_nothing_is_broken() {
    holds("two elections, plain", Cluster::new(Bounds::PLAIN));
}

#[test]
fn a_forgotten_vote_is_found() {
    let bounds = Bounds {
        planted: Some(Bug::VoteForgotten),
        ..Bounds::SMALL
    };
    let name = "H1, the vote forgotten";
    breaks(name, Cluster::new(bounds.clone()), Broken::TwoVotes);
    let only = Some(Broken::TwoReigns);
    let bounds = Bounds { only, ..bounds };
    let name = "H1, the vote forgotten, reigns alone watched";
    breaks(name, Cluster::new(bounds), Broken::TwoReigns);
}

#[test]
fn ranking_by_length_is_found() {
    let bounds = Bounds {
        planted: Some(Bug::LengthRanks),
        ..Bounds::THREE
    };
    let name = "H3, logs compared by length";
    breaks(name, Cluster::new(bounds), Broken::Incomplete);
}

#[test]
fn counting_an_earlier_term_is_found_where_figure_eight_begins() {
    let name = "H2, an earlier term counted, five servers";
    breaks(name, figure_eight(Some(Bug::EarlierTermCounted)), Broken::Incomplete);
    holds("figure 8, five servers", figure_eight(None));
}

/// By itself, without a script: three servers and four terms are enough.
#[test]
fn long_counting_an_earlier_term_is_found_from_the_beginning() {
    if !is_long() {
        return;
    }
    let bounds = Bounds {
        planted: Some(Bug::EarlierTermCounted),
        one_by_one: true,
        ..Bounds::FOUR
    };
    let name = "H2, an earlier term counted, from the beginning";
    breaks(name, Cluster::new(bounds), Broken::Incomplete);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn scratch() {
    let bounds = Bounds {
        servers: number("SERVERS", 3) as usize,
        terms: number("TERMS", 2),
        stands: number("STANDS", 2) as u8,
        only_stands: (number("FIG8", 0) == 1).then_some(4),
        proposals: number("PROPOSALS", 0) as u8,
        beats: number("BEATS", 0) as u8,
        crashes: number("CRASHES", 0) as u8,
        duplicates: number("DUPS", 0) as u8,
        one_by_one: number("ONE", 0) == 1,
        refusals: number("REFUSALS", 0) == 1,
        plain: number("PLAIN", 0) == 1,
        planted: std::env::var("PLANT").ok().map(|name| *tenure_core::alpo::Bug::ALL.iter().find(|b| format!("{b:?}") == name).unwrap()),
        only: std::env::var("ONLY").ok().map(|name| *rules::Broken::ALL.iter().find(|b| format!("{b:?}") == name).unwrap()),
    };
    if bounds.planted.is_some() { std::panic::set_hook(Box::new(|_| {})); }
    let order = if number("BFS", 0) == 1 { Order::Breadth } else { Order::Depth };
    let mut cluster = Cluster::new(bounds);
    if number("FIG8", 0) == 1 { cluster.start = vec![script::figure_eight(&cluster)]; }
    if number("EST", 0) > 0 { cluster = established(cluster.bounds, number("EST", 0) as usize - 1); }
    explore(cluster, order, number("MOST", 20_000_000) as usize).print("scratch");
}
