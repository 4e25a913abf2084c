//! Storms over eight agents with real processes on a cluster of three servers,
//! and how long a take-over takes.
//!
//! The short forms run for half a minute. The long ones:
//!
//! ```sh
//! TENURE_STORM_SECONDS=300 cargo test -p tenure-cli --test storm storm -- --nocapture
//! TENURE_TAKEOVERS=20 cargo test -p tenure-cli --test storm figures -- --nocapture --test-threads 1
//! ```
//!
//! `TENURE_SEED` repeats the faults of a storm (not its timing).

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "figures and logs are printed"
)]

#[path = "../common/mod.rs"]
mod common;
mod figures;
#[path = "../agent/fixture.rs"]
mod fixture;
mod net;
#[path = "../agent/pressure.rs"]
mod pressure;
#[path = "../agent/stamps.rs"]
mod stamps;
mod storm;

fn print(text: &str) {
    eprintln!("{text}");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}
