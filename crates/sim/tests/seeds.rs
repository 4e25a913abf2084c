//! Seeds that once failed, a few fresh ones, and the promise that a seed is
//! all there is to a run.
#![expect(
    clippy::print_stdout,
    reason = "the seed of a fresh sweep must be seen"
)]

use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

use tenure_sim::kernel::{Counts, Report};
use tenure_sim::{Options, cluster, ha, run, sweep, trace};

/// So many fresh seeds are tried of each simulator.
const FRESH: u64 = 500;

/// Sweeps over fresh seeds, from the calendar or from `TENURE_SIM_SEED` on. With
/// `TENURE_SIM_SEEDS=many` over `many` that are always the same, and then over half as
/// many fresh ones. This is what CI runs. The long form is a number instead of `many`.
#[expect(
    clippy::disallowed_methods,
    reason = "fresh seeds come from the calendar"
)]
fn sweep_fresh_seeds<S, C>(
    many: u64,
    sweep: impl Fn(u64, u64) -> Report<S, C> + Sync,
) -> Report<S, C>
where
    S: Counts + Send,
    C: Send,
    Report<S, C>: Display,
{
    // Half of them on another thread.
    let tried = |first: u64, runs: u64| {
        let half = runs / 2;
        let report = std::thread::scope(|scope| {
            let other = scope.spawn(|| sweep(first + half, runs - half));
            let mut report = sweep(first, half);
            report.merge(other.join().expect("a report"));
            report
        });
        println!("{report}");
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.stats.runs(), runs);
        report
    };
    let asked = std::env::var("TENURE_SIM_SEEDS").ok();
    let same = asked.map(|asked| match asked.as_str() {
        "many" => many,
        runs => runs
            .parse()
            .expect("`many` or a number in TENURE_SIM_SEEDS"),
    });
    let first = same.map(|runs| tried(1, runs));
    let given = std::env::var("TENURE_SIM_SEED").ok();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = given.map_or_else(
        || now.map_or(1, |now| now.as_secs()),
        |it| it.parse().expect("a number in TENURE_SIM_SEED"),
    );
    println!("a fresh sweep from seed {seed}");
    let fresh = tried(seed, same.map_or(FRESH, |runs| runs / 2));
    let Some(mut all) = first else { return fresh };
    all.merge(fresh);
    all
}

/// What never happened, but for `rare`.
fn never<S: Counts>(stats: &S, rare: &str) -> Vec<&'static str> {
    let fields = stats.fields().into_iter();
    let never = fields.filter(|(key, _, n)| *n == 0 && *key != rare);
    never.map(|(_, text, _)| text).collect()
}

#[test]
fn seeds_that_once_failed_do_not_any_more() {
    let lines = include_str!("../seeds.txt").lines();
    let mut tried = 0;
    for line in lines.filter(|line| !line.starts_with('#')) {
        let seed = line.split_whitespace().next().expect("a seed");
        let seed = seed.parse().expect("a number");
        if let Some(violation) = run(seed, &Options::default()).violation {
            panic!("{line}\n{violation}");
        }
        tried += 1;
    }
    assert!(tried > 0, "expected seeds");
}

#[test]
fn fresh_seeds_do_not_fail() {
    let options = Options::default();
    let report = sweep_fresh_seeds(3_000, |first, runs| sweep(first, runs, &options, |_| true));
    // Under clocks that keep their promise a leader begins to drain before any
    // rival can lead, so it never finds itself replaced.
    let never = never(&report.stats, "replaced");
    assert!(never.is_empty(), "never happened: {never:?}");
}

#[test]
fn fresh_seeds_of_clusters_do_not_fail() {
    let options = cluster::Options::default();
    sweep_fresh_seeds(600, |first, runs| {
        cluster::sweep(first, runs, &options, |_| true)
    });
}

/// The checker did not wait for what a server lacked whose snapshot had just been
/// taken over.
#[test]
fn a_server_may_catch_up_after_its_snapshot() {
    let options = cluster::Options::default();
    let report = cluster::sweep(1_795_843_807, 1, &options, |_| true);
    assert!(report.is_clean(), "{report}");
}

#[test]
fn fresh_seeds_of_groups_do_not_fail() {
    let options = ha::Options::default();
    let report = sweep_fresh_seeds(1_500, |first, runs| {
        ha::sweep(first, runs, &options, |_| true)
    });
    // That a node is judged dead and learns it by that is rare.
    let rare = if report.stats.runs() < 2_500 {
        "judged"
    } else {
        ""
    };
    let never = never(&report.stats, rare);
    assert!(never.is_empty(), "never happened: {never:?}");
}

#[test]
fn the_same_seed_gives_the_same_trace_byte_for_byte() {
    for seed in 1..=20 {
        let (one, two) = (
            trace(seed, &Options::default()),
            trace(seed, &Options::default()),
        );
        assert!(
            one.len() > 100,
            "expected a trace, found {} lines",
            one.len()
        );
        assert!(one == two, "seed {seed} went two ways");
    }
    assert!(trace(1, &Options::default()) != trace(2, &Options::default()));
}

#[test]
fn the_same_seed_of_clusters_takes_the_same_way() {
    let options = cluster::Options::default();
    for seed in 1..=5 {
        let (first, second) = (
            cluster::trace(seed, &options),
            cluster::trace(seed, &options),
        );
        assert!(!first.is_empty());
        assert_eq!(first, second);
        assert_eq!(cluster::run(seed, &options), cluster::run(seed, &options));
    }
}

#[test]
fn a_sweep_ends_when_it_is_told_to() {
    let mut report = sweep(1, 100, &Options::default(), |stats| stats.runs < 3);
    assert_eq!(report.stats.runs, 3);
    report.merge(sweep(4, 2, &Options::default(), |_| true));
    assert_eq!((report.stats.runs, report.first_seed), (5, 1));
    let json = report.to_json();
    assert!(
        json.starts_with("{\"first_seed\":1,\"failed\":0,\"stats\":{\"runs\":5,"),
        "{json}"
    );
}
