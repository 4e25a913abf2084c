//! Shows again what a seed led to:
//! `cargo run --release -p tenure-sim --example replay -- SEED [RUNS]`.
//! One run is shown with its trace, many with a line for each that failed.
#![expect(clippy::print_stdout, reason = "it is for people to read")]

use tenure_sim::{Options, run};

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse().ok());
    let (seed, runs): (u64, u64) = (args.next().unwrap_or(1), args.next().unwrap_or(1));
    for seed in seed..seed.saturating_add(runs) {
        match run(seed, &Options::default()).violation {
            Some(violation) if runs == 1 => println!("{violation}"),
            Some(violation) => println!("{seed}: {}: {}", violation.check, violation.text),
            None if runs == 1 => println!("nothing was violated"),
            None => {}
        }
    }
}
