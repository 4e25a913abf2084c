//! The library's HA manager: the scenarios that must hold, by name, on the
//! stores of this process, of this machine, and on a cluster of three
//! servers; and bad input.

mod hosts;
#[path = "../../../tenure/tests/common/intercepted.rs"]
mod intercepted;
mod ledger;
#[path = "../../../tenure/tests/common/ports.rs"]
mod ports;
#[path = "../../../tenure/tests/common/postgres.rs"]
mod postgres;
mod refusals;
mod scenarios;
#[path = "../../../client/tests/client/servers.rs"]
mod servers;
#[path = "../../../tenure/tests/common/stopped.rs"]
mod stopped;
mod town;
