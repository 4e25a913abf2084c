//! Running the checker, and telling what came of it.

use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use super::model::Cluster;
use super::rules::Broken;

/// What came of an exploration.
#[derive(Debug)]
pub(crate) struct Report {
    /// Steps taken.
    pub(crate) steps: usize,
    /// States that differ.
    pub(crate) states: usize,
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    /// Whether all states were seen.
    pub(crate) complete: bool,
    pub(crate) seen: String,
    pub(crate) committed: u64,
    pub(crate) reigns: u64,
    /// The rule that was broken and how.
    pub(crate) broken: Option<(&'static str, Vec<String>)>,
}

/// How to go through the states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// All of them, with little memory.
    Depth,
    /// The shortest schedule first.
    Breadth,
}

/// Explores until something is broken or `most` steps were taken.
pub(crate) fn explore(cluster: Cluster, order: Order, most: usize) -> Report {
    // The checker works in real time; the model knows none.
    #[allow(clippy::disallowed_methods)]
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let builder = cluster
        .checker()
        .threads(threads.min(2))
        .target_state_count(most)
        .finish_when(HasDiscoveries::AnyFailures);
    match order {
        Order::Depth => report(&builder.spawn_dfs().join(), began, most),
        Order::Breadth => report(&builder.spawn_bfs().join(), began, most),
    }
}

fn report(checker: &impl Checker<Cluster>, began: Instant, most: usize) -> Report {
    let found = Broken::ALL
        .into_iter()
        .find_map(|broken| Some((broken, checker.discovery(broken.rule())?)));
    let broken = found.map(|(broken, path)| {
        let steps = path.into_vec();
        let told = steps
            .iter()
            .filter_map(|(world, action)| action.map(|action| action.describe(world)));
        (broken.rule(), told.collect())
    });
    let seen = &checker.model().seen;
    Report {
        steps: checker.state_count(),
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        time: began.elapsed(),
        complete: broken.is_none() && checker.state_count() < most,
        seen: seen.to_string(),
        committed: seen.committed(),
        reigns: seen.reigns(),
        broken,
    }
}

impl Report {
    /// Prints what came of `name`.
    pub(crate) fn print(&self, name: &str) {
        let Self {
            steps,
            states,
            depth,
            time,
            complete,
            seen,
            ..
        } = self;
        let all = if *complete { "all" } else { "not all" };
        println!(
            "{name}: {states} distinct states ({all}), {steps} steps, depth {depth}, {:.1} s",
            time.as_secs_f64()
        );
        println!("    {seen}");
        if let Some((rule, schedule)) = &self.broken {
            println!("    BROKEN: {rule}, by {} steps", schedule.len());
            for step in schedule {
                println!("        {step}");
            }
        }
    }
}
