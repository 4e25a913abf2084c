//! `Leadership::is_valid()` must cost less than 50 ns: it is asked before every
//! effect. `cargo bench -p tenure-bench --bench leadership`

#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::hint::black_box;
use std::sync::Arc;

use tenure::store::Memory;
use tenure::{Election, clock};

/// How many calls are timed together: reading the clock costs as much as a call.
const CALLS: u32 = 1_000_000;
const ROUNDS: usize = 51;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let store = Arc::new(Memory::new());
    let mut election = Election::builder(store, "bench")
        .start()
        .expect("an election");
    let leadership = runtime.block_on(election.elected()).expect("a leadership");
    let round = || {
        let begun = clock::boot();
        for _ in 0..CALLS {
            black_box(black_box(&leadership).is_valid());
        }
        clock::boot().since(begun).as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    let mut nanos: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    assert!(leadership.is_valid(), "it was held all along");
    nanos.sort_by(f64::total_cmp);
    let (least, median, most) = (nanos[0], nanos[ROUNDS / 2], nanos[ROUNDS - 1]);
    println!("Leadership::is_valid: {median:.1} ns ({least:.1} to {most:.1})");
}
