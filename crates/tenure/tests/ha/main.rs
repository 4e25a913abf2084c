//! The library's HA manager: the scenarios that must hold, by name, on the
//! stores of this process, of this machine, and on a cluster of three
//! servers; and bad input.

mod hosts;
#[path = "../common/intercepted.rs"]
mod intercepted;
mod ledger;
#[cfg(any(feature = "cluster", feature = "postgres"))]
#[path = "../common/ports.rs"]
mod ports;
#[cfg(feature = "postgres")]
#[path = "../common/postgres.rs"]
mod postgres;
mod refusals;
mod scenarios;
#[cfg(feature = "cluster")]
#[path = "../common/servers.rs"]
mod servers;
#[cfg(feature = "postgres")]
#[path = "../common/stopped.rs"]
mod stopped;
mod town;
