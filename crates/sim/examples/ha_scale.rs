//! What a group costs its store as it grows: calls and bytes per node and
//! second at rest, and how long one death takes, for up to 100 nodes with
//! 5,000 workloads.
//!
//! `cargo run --release -p tenure-sim --example ha_scale`
#![expect(clippy::print_stdout, reason = "an example prints")]

use tenure_sim::ha::Scenario;

fn main() {
    println!(
        "| watch | nodes | workloads | view, bytes | calls /node/s | beats /node/s | one death, ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for watch in [true, false] {
        for (nodes, each) in [(3, 50), (20, 10), (50, 50), (100, 50)] {
            measure(watch, nodes, each);
        }
    }
}

fn measure(watch: bool, nodes: usize, each: usize) {
    let mut scenario = Scenario::new(1, nodes, watch, |_, _| {});
    scenario.forget_trace();
    scenario.pass(20_000);
    for p in 0..nodes {
        for index in 0..each {
            scenario.deploy(p, &format!("w-{p:03}-{index:02}"), true);
        }
    }
    let all = nodes * each;
    scenario.until_coarse(120_000, |scenario| scenario.running().len() == all);
    scenario.pass(10_000);
    let (before, seconds) = (scenario.stats(), 60);
    scenario.pass(seconds * 1_000);
    let after = scenario.stats();
    let per = |count: u64| count as f64 / nodes as f64 / seconds as f64;
    let bytes = scenario.view().encode().len();
    let victim = nodes / 2;
    scenario.kill(victim);
    let took = scenario.until_coarse(60_000, |scenario| scenario.running().len() == all);
    println!(
        "| {} | {nodes} | {all} | {bytes} | {:.2} | {:.2} | {took} |",
        if watch { "yes" } else { "no" },
        per(after.calls - before.calls),
        per(after.beats - before.beats),
    );
}
