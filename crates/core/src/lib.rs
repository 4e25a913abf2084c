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
//! | [`shared_map`] | a sorted map of which a copy is cheap |
//! | [`shared_queue`] | a queue of which a copy is cheap |
//! | [`call`] | a call to a store: which one, and how it failed |
//! | [`crc`] | CRC-32C |
//! | [`fnv`] | a hash that is the same everywhere |
//! | [`bug`] | what the lists of planted bugs have in common |
#![no_std]

extern crate alloc;

pub mod bug;
pub mod call;
pub mod cas;
pub mod crc;
pub mod fnv;
pub mod ids;
pub mod machine;
pub mod rng;
pub mod shared_map;
pub mod shared_queue;
pub mod time;

pub use machine::Machine;
