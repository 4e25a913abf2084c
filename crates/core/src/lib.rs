//! The pure part of Tenure: protocols as plain values.
//!
//! Nothing in this crate reads a clock, draws randomness of its own, touches
//! a disk or a socket, or spawns anything. Time and store answers come in as
//! parameters; store calls and events go out as values. That is what lets
//! the production driver and the deterministic simulator run *the same code*.
//! The crate is `no_std` with no dependencies, so the compiler keeps the law.
//!
//! | module | what it holds |
//! |---|---|
//! | [`machine`] | the one shape of every protocol: handle, poll, deadline |
//! | [`time`] | the three clocks (boot-time, wall, store) as types that do not mix |
//! | [`ids`] | terms, versions, leader ids, fences, names and keys |
//! | [`rng`] | the seeded generator that is handed in |
//! | [`cas`] | compare-and-swap registers, the meaning of a store |
//! | [`alpo`] | the replicated log: elections, replication, sessions |
//! | [`wal`] | the replicated log on disk: formats, recovery, what may be removed |
//! | [`election`] | the lease campaign and its observer |
//! | [`ha`] | groups of nodes whose workloads move off dead machines |
#![no_std]

extern crate alloc;

pub mod alpo;
mod bug;
pub mod cas;
pub mod election;
pub mod ha;
pub mod ids;
pub mod machine;
pub mod rng;
pub mod time;
pub mod wal;

pub use machine::Machine;
