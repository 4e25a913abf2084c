//! The library's HA manager: the scenarios that must hold, by name, on the
//! stores of this process, of this machine, and on a cluster of three
//! servers; and bad input.

mod hosts;
mod ledger;
mod line;
#[cfg(feature = "tenure")]
#[path = "../common/ports.rs"]
mod ports;
mod refusals;
mod scenarios;
#[cfg(feature = "tenure")]
#[path = "../common/servers.rs"]
mod servers;
mod town;
