//! The model check: the production core, explored exhaustively.
//!
//! The simulator tries millions of schedules out of infinitely many. Here
//! the cluster is small and little may happen, but *everything* that can
//! happen then is tried: every order of messages, every one of them lost,
//! some of them twice, a crash at every moment with every loss that a disk
//! can suffer. What is explored is [`tenure_alpo::Node`] itself, by the
//! checker `stateright`; there is no second description of the protocol that
//! could be right where the code is wrong.
//!
//! | file | what it holds |
//! |---|---|
//! | `bounds` | how much may happen |
//! | `host` | a server: the machine, its disk, its clock |
//! | `wire` | messages on their way, and which of them make no difference |
//! | `model`, `action` | what can happen next, and why no more is needed |
//! | `rules`, `properties` | what must be true, and the history it takes to tell |
//! | `script` | where to begin if not at the beginning |
//! | `explore`, `seen` | running the checker; what was reached |
//!
//! The short form runs with the other tests; `TENURE_MODEL=long` adds the
//! long one. `docs/evidence/simulation.md` has the numbers.
#![allow(clippy::print_stdout)]

mod action;
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
use tenure_alpo::Bug;

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
fn holds(name: &str, cluster: Cluster) -> Report {
    let _alone = alone();
    let report = explore(cluster, Order::Depth, NO_END);
    report.print(name);
    assert!(report.broken.is_none(), "{name}: {:?}", report.broken);
    assert!(report.complete, "{name}: not everything was explored");
    let came_to_something = report.committed > 0 && report.reigns > 0;
    assert!(came_to_something, "{name}: nobody ever led and committed");
    report
}

/// The same, in both orders.
///
/// Two states with the same digest are explored as one, whichever is met
/// first. If the digest left out anything that decides, what becomes of them
/// would differ, and with the order of exploration the number of states.
fn holds_in_both_orders(name: &str, cluster: impl Fn() -> Cluster) {
    let deep = holds(name, cluster());
    let _alone = alone();
    let wide = explore(cluster(), Order::Breadth, NO_END);
    let numbers = |report: &Report| (report.states, report.steps);
    assert_eq!(numbers(&deep), numbers(&wide), "by depth, by breadth");
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

/// From an everyday state: s1 leads in term 1, and any one will crash.
fn established(bounds: Bounds) -> Cluster {
    let mut cluster = Cluster::new(bounds);
    let victims = (0..cluster.bounds.servers).map(Some);
    let start = victims.map(|victim| script::established(&cluster, 0, victim));
    cluster.start = start.collect();
    cluster
}

/// The stage at which the new disk's promotion is appended, and the last one.
const PROMOTED: usize = 5;
const OVER: usize = 6;

/// From each stage of a replacement whose old disk lives on, `first` and later
/// ones. Any one crashes, if one does.
fn replacement(bounds: Bounds, first: usize) -> Cluster {
    let mut cluster = Cluster::new(bounds);
    let all = 0..=cluster.bounds.servers;
    let victims: Vec<_> = match cluster.bounds.crashes {
        0 => vec![None],
        _ => all.map(Some).collect(),
    };
    for victim in victims {
        let mut stages = script::replacement(&cluster, victim);
        assert_eq!(stages.len(), OVER + 1);
        cluster.start.extend(stages.drain(first..));
    }
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
    holds_in_both_orders("two elections, a crash", || Cluster::new(Bounds::SMALL));
}

#[test]
fn three_elections_break_nothing() {
    holds("three elections", Cluster::new(Bounds::THREE));
}

#[test]
fn two_elections_with_a_proposal_and_a_duplicate_break_nothing() {
    let name = "two elections, refusals, a proposal, a duplicate";
    holds_in_both_orders(name, || Cluster::new(Bounds::BUSY));
}

#[test]
fn an_election_with_a_heartbeat_and_a_crash_breaks_nothing() {
    let name = "one more election, refusals, a heartbeat, a crash";
    holds_in_both_orders(name, || established(Bounds::BEATING));
}

#[test]
fn a_hand_over_with_an_election_and_a_crash_breaks_nothing() {
    let name = "from a reign: a hand-over, an election, a crash";
    holds_in_both_orders(name, || established(Bounds::HANDING));
}

#[test]
fn a_lease_with_a_hand_over_and_a_crash_breaks_nothing() {
    let name = "from a reign with a lease: a hand-over, a timeout, a crash";
    holds(name, established(Bounds::LEASE));
    let name = "from a reign with a lease: a heartbeat, a timeout";
    holds(name, established(Bounds::LEASE_BEATING));
}

#[test]
fn a_number_that_goes_to_another_disk_with_both_alive_breaks_nothing() {
    let name = "a disk is replaced and lives on: the next change, a timeout";
    holds(name, replacement(Bounds::REPLACED_CHANGING, 0));
    let name = "the same from the promotion on, with a crash";
    holds(name, replacement(Bounds::REPLACED, PROMOTED));
    let name = "a disk is replaced and lives on: a hand-over, a timeout";
    holds(name, replacement(Bounds::REPLACED_HANDING, 0));
}

#[test]
fn without_simplifications_nothing_is_broken() {
    holds_in_both_orders("one election, a crash, plain", || {
        Cluster::new(Bounds::PLAIN)
    });
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
fn a_lease_that_is_kept_at_a_hand_over_is_found() {
    let bounds = Bounds {
        planted: Some(Bug::LeaseKept),
        ..Bounds::LEASE
    };
    let name = "the lease kept at a hand-over";
    breaks(name, established(bounds), Broken::StaleRead);
}

#[test]
fn a_lease_that_counts_from_the_end_of_a_round_is_found() {
    let bounds = Bounds {
        planted: Some(Bug::LeaseFromEnd),
        ..Bounds::LEASE_BEATING
    };
    let name = "the lease counted from the end of a round";
    breaks(name, established(bounds), Broken::StaleRead);
}

#[test]
fn votes_counted_by_number_are_found() {
    let bounds = Bounds {
        planted: Some(Bug::VotesByNumber),
        stands: 2,
        changes: 0,
        ..Bounds::REPLACED
    };
    let name = "votes counted by number";
    breaks(name, replacement(bounds, OVER), Broken::TwoReigns);
}

#[test]
fn entries_counted_by_number_are_found() {
    let bounds = Bounds {
        planted: Some(Bug::AppendsByNumber),
        terms: 3,
        stands: 4,
        lease: Some(2),
        changes: 0,
        crashes: 0,
        ..Bounds::REPLACED
    };
    let mut cluster = replacement(bounds, OVER);
    let start = cluster.start.iter();
    cluster.start = start.map(|it| script::astray(&cluster, it)).collect();
    breaks("entries counted by number", cluster, Broken::Incomplete);
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
    breaks(
        name,
        figure_eight(Some(Bug::EarlierTermCounted)),
        Broken::Incomplete,
    );
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

#[test]
fn long_nothing_is_broken() {
    if !is_long() {
        return;
    }
    let bootstrapped: [(&str, Bounds); 4] = [
        ("two plain candidacies", Bounds::PLAIN_RIVALS),
        ("two elections, a crash, a duplicate", Bounds::TWICE),
        ("three elections, a crash", Bounds::THREE_CRASH),
        ("four elections", Bounds::FOUR),
    ];
    for (name, bounds) in bootstrapped {
        holds(name, Cluster::new(bounds));
    }
    let name = "from a reign: two elections, a crash, a duplicate";
    holds(name, established(Bounds::AFTER_TWO));
    let name = "from a reign: three elections, a crash";
    holds(name, established(Bounds::AFTER_THREE));
}

#[test]
fn long_two_hand_overs_break_nothing() {
    if !is_long() {
        return;
    }
    let name = "from a reign: two hand-overs, an election, a proposal, a crash";
    holds(name, established(Bounds::HANDING_TWICE));
}

#[test]
fn long_a_number_that_goes_to_another_disk_breaks_nothing() {
    if !is_long() {
        return;
    }
    let name = "a disk is replaced and lives on: the next change, a timeout, a crash";
    holds(name, replacement(Bounds::REPLACED, 0));
    let name = "a disk is replaced and lives on: a hand-over, a timeout, a crash";
    holds(name, replacement(Bounds::REPLACED_ALL, 0));
}

/// Everything at once, to the bound the design asks for. It takes minutes,
/// so it has to be asked for by its own name.
#[test]
fn longest_nothing_is_broken() {
    if std::env::var("TENURE_MODEL").is_ok_and(|form| form == "longest") {
        let name = "from a reign: three elections, a crash, a duplicate";
        holds(name, established(Bounds::AFTER_ALL));
    }
}
