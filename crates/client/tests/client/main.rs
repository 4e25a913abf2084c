//! The client of a cluster and the store on top of it, against real servers.

#![allow(clippy::print_stdout, reason = "figures are printed")]

#[path = "../../../tenure/tests/common/ports.rs"]
mod ports;

mod calls;
mod election;
mod holding;
mod servers;
mod store;
