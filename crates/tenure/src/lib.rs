//! Run work on exactly one of several machines, and move it when that machine dies.
//!
//! Tenure elects leaders over any highly available store: the time of an old leader
//! is over before another one can be elected. A process stands in an
//! [`Election`]; whenever it leads it holds a [`Leadership`], whose validity is
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
//! | to | use |
//! |---|---|
//! | stand in an election, and lead | [`Election`], [`Leadership`] |
//! | ask *do we lead?* anywhere in the program | [`LeadershipView`] |
//! | see who leads, without standing | [`Observer`], [`election::leader`] |
//! | run workloads on a group of machines, and move them off dead ones | [`Manager`] |
//! | reach a store, or be one | [`open`], [`Store`] |
//! | refuse what a deposed leader still writes | [`Fence`], [`Term`] |
//! | work on a plain thread | [`blocking`] |
//! | test a program that leads | [`test`](mod@test) |
//!
//! The type of an error says how the call failed: [`StoreError`] by what to do
//! next, [`Deposed`] for work that was stopped. Streams of events tell what
//! happens ([`election::Event`], [`ha::Event`]); nothing safe depends on them.
//!
//! Enums that are `#[non_exhaustive]` get more variants. All others can be matched without
//! a wildcard: a variant more would break programs, so it comes with an incompatible
//! release only, and the changelog names it.
//!
//! **`fork()` without `exec` is not supported.** A child has a copy of each
//! [`LeadershipView`], and none of the threads that renew and release. The copy stays
//! valid until the deadline of the last renewal before the fork, though the parent may
//! have resigned and another may lead. Elections, groups and stores do not run in the
//! child, and calls there wait for ever. A child that calls `exec` at once, as
//! `std::process::Command` has it do, is all right.
//!
//! The features are the stores: `sqlite` (the default), `file`, `postgres`, `mysql`,
//! `redis`, `etcd`, `nats`, `consul`, `kubernetes`, `s3`, `azure`, `gcs`, and `cluster` for
//! `tenure://`, whose client is `tenure-client`.

pub mod blocking;
// For `tenure check`; it may become a part of what programs build on.
#[doc(hidden)]
pub mod check;
pub mod election;
pub mod ha;
pub mod store;

pub use election::{Deposed, Election, Leadership, LeadershipView, Observer};
pub use error::StoreError;
pub use ha::Manager;
pub use store::{Store, open};
pub use tenure_core::ids::{Fence, LeaderId, Name, Term};
pub(crate) use tenure_runtime::round_trip;
pub use tenure_runtime::{clock, error};
// For stores and for the binary; not a part of what programs build on.
#[doc(hidden)]
pub use tenure_runtime::{drive, small};

/// The pure machines that the rest of this crate runs.
pub mod core {
    pub use tenure_core::*;
    pub use tenure_election as election;
    pub use tenure_group as ha;
}

/// For the tests of programs that use this crate: an election that the test
/// decides and whose time it moves, and registers in memory for whole
/// elections.
pub mod test {
    #[doc(inline)]
    pub use crate::election::FakeElection;
    pub use crate::store::Memory;
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
