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
//!     reign.guard(pay_everyone(reign.fence())).await;
//! }
//! # Ok(()) }
//! ```
//!
//! | layer | module | what it holds |
//! |---|---|---|
//! | 1 | [`error`], [`clock`] | errors by what to do next; the only reader of time |
//! | 2 | [`drive`] | runs the pure machines of [`core`] on a thread of its own |
//! | 3 | [`wal`] | what a server must not forget, on disk |
//! | 4 | [`store`] | the waist: compare-and-swap registers, and the stores |
//! | 5 | [`election`] | standing, holding office, observing, asking to go |
//!
//! A module uses only layers above it in this table.

pub mod clock;
pub mod drive;
pub mod election;
pub mod error;
pub mod store;
pub mod wal;

pub use election::{Election, Reign};
pub use error::StoreError;
pub use tenure_core as core;
pub use tenure_core::ids::{Fence, LeaderId, Name, Term};
