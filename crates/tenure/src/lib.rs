//! Who holds office now, until when, and how does everybody else find out?
//!
//! Tenure elects leaders over any highly available store. A process stands in
//! an [`Election`]; whenever it leads it holds a [`Reign`], whose validity is
//! a comparison with a clock and whose [`Fence`] protects everything outside.
//!
//! ```no_run
//! # async fn pay_everyone(_: tenure::Fence) {}
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let store = tenure::store::open("sqlite:///var/lib/payroll.db").await?;
//! let mut election = tenure::Election::builder(store, "payroll").start()?;
//! while let Some(reign) = election.elected().await {
//!     // Dropped at the deadline if the office cannot be held.
//!     if let Err(deposed) = reign.guard(pay_everyone(reign.fence())).await {
//!         eprintln!("{deposed}");
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! | layer | module | what it holds |
//! |---|---|---|
//! | 1 | [`error`], [`clock`], [`small`], [`drive`] | `tenure-runtime`: errors by what to do next; the only reader of time; the reader of small files; what runs the pure machines of [`core`] on a thread of its own |
//! | 3 | [`wal`] | what a server must not forget, on disk |
//! | 4 | [`log`] | the client of a cluster: appends once, follows its leader |
//! | 5 | [`store`] | the waist: compare-and-swap registers, and the stores |
//! | 6 | [`election`] | standing, holding office, observing, asking to go |
//! | 7 | [`ha`] | groups of nodes whose workloads move off the dead ones |
//!
//! A module uses only layers above it in this table.

pub mod election;
#[cfg(all(feature = "tenure", any(test, fuzzing)))]
#[doc(hidden)]
pub mod fuzzed;
pub mod ha;
#[cfg(feature = "tenure")]
pub mod log;
#[cfg(feature = "tenure")]
pub mod server;
pub mod store;
#[cfg(feature = "tenure")]
pub mod transport;
pub mod wal;

pub use election::{Election, Reign};
pub use error::StoreError;
#[cfg(feature = "tenure")]
pub use tenure_api as api;
pub use tenure_core::ids::{Fence, LeaderId, Name, Term};
pub(crate) use tenure_runtime::distance;
pub use tenure_runtime::{clock, drive, error, small};

/// The pure machines that the rest of this crate runs.
pub mod core {
    pub use tenure_alpo as alpo;
    pub use tenure_alpo::wal;
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
