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
        duplicates: number("DUPS", 0) as u8,
        one_by_one: number("ONE", 0) == 1,
        refusals: number("REFUSALS", 0) == 1,
        plain: number("PLAIN", 0) == 1,
        planted: std::env::var("PLANT").ok().map(|name| *tenure_core::alpo::Bug::ALL.iter().find(|b| format!("{b:?}") == name).unwrap()),
        only: std::env::var("ONLY").ok().map(|name| *rules::Broken::ALL.iter().find(|b| format!("{b:?}") == name).unwrap()),
        ..Bounds::SMALL
    };
    if bounds.planted.is_some() { std::panic::set_hook(Box::new(|_| {})); }
    let order = if number("BFS", 0) == 1 { Order::Breadth } else { Order::Depth };
    explore(Cluster::new(bounds), order, number("MOST", 20_000_000) as usize).print("scratch");
}
