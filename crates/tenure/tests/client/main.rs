//! The client of a cluster and the store on top of it, against real servers.

#![allow(clippy::print_stdout, reason = "figures are printed")]

#[path = "../common/ports.rs"]
mod ports;
#[path = "../common/servers.rs"]
mod servers;

mod calls;
mod election;
mod holding;
mod store;
