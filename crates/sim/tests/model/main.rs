//! The production core, explored exhaustively within bounds.
#![allow(clippy::print_stdout)]

mod bounds;
mod explore;
mod host;
mod model;
mod properties;
mod rules;
mod seen;
mod wire;

use bounds::Bounds;
use explore::{Order, explore};
use model::Cluster;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn scratch() {
    let bounds = Bounds {
        terms: number("TERMS", 2),
        stands: number("STANDS", 2) as u8,
        proposals: number("PROPOSALS", 0) as u8,
        beats: number("BEATS", 0) as u8,
        crashes: number("CRASHES", 0) as u8,
        duplicates: std::env::var("DUPS").ok().map(|v| v.parse().unwrap()),
        one_by_one: number("ONE", 0) == 1,
        polls: number("POLLS", 0) == 1,
        all_late: number("LATE", 0) == 1,
        ..Bounds::SMALL
    };
    explore(Cluster::new(bounds), Order::Depth, number("MOST", 20_000_000) as usize).print("scratch");
}
