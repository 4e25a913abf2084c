//! The library's HA manager: the scenarios that must hold, by name, on the
//! stores of this process and of this machine; and bad input.

mod hosts;
mod ledger;
mod refusals;
mod scenarios;
mod town;
