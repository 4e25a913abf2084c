//! Who leads now, until when, and how does everybody else find out?
//!
//! Tenure elects leaders over any highly available store. A process stands in
//! an [`Election`]; whenever it leads it holds a [`Leadership`], whose validity is
//! a comparison with a clock and whose [`Fence`] protects everything outside.
//!
//! ```no_run
//! # async fn pay_everyone(_: tenure::Fence) {}
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tenure::store::open("sqlite:///var/lib/payroll.db").await?;
//! let mut election = tenure::Election::builder(store, "payroll").start()?;
//! while let Some(leadership) = election.elected().await {
//!     // Dropped at the deadline if the election cannot be held.
//!     if let Err(deposed) = leadership.guard(pay_everyone(leadership.fence())).await {
//!         eprintln!("{deposed}");
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`store`] | the waist: compare-and-swap registers, and the stores |
//! | [`election`] | standing, leading, observing, asking to go |
//! | [`ha`] | groups of nodes whose workloads move off the dead ones |
//! | [`error`], [`clock`], [`small`], [`drive`] | `tenure-runtime`: errors by what to do next; the only reader of time; the reader of small files; what runs the pure machines of [`core`] on a thread of its own |
//!
//! The features are the stores: `sqlite` (the default), `postgres`, `etcd`, and
//! `cluster` for `tenure://`, whose client is `tenure-client`.

pub mod election;
pub mod ha;
pub mod store;

pub use election::{Election, Leadership};
pub use error::StoreError;
pub use tenure_core::ids::{Fence, LeaderId, Name, Term};
pub(crate) use tenure_runtime::round_trip;
pub use tenure_runtime::{clock, drive, error, small};

/// The pure machines that the rest of this crate runs.
pub mod core {
    pub use tenure_core::*;
    pub use tenure_election as election;
    pub use tenure_group as ha;
}

#[cfg(test)]
mod tests {
    /// The lines of the first Rust example that a reader sees.
    fn example<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        lines
            .skip_while(|line| !line.starts_with("```rust") && !line.starts_with("```no_run"))
            .skip(1)
            .take_while(|line| !line.starts_with("```"))
            .filter(|line| !line.starts_with("# "))
            .collect()
    }

    #[test]
    fn the_example_of_the_readme_is_the_one_that_is_compiled() {
        let shown = example(include_str!("../../../README.md").lines());
        let documented = include_str!("lib.rs").lines();
        let documented = documented.filter_map(|line| line.strip_prefix("//! "));
        assert_eq!(shown, example(documented));
        assert!(shown.len() > 5, "the example has gone");
    }
}
