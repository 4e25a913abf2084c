//! What is measured: the load, and the stores.

use std::time::Duration;

use super::load::Pace;
use super::work::Mix;

/// What was asked for, checked.
#[derive(Debug)]
pub struct Plan {
    /// How many clients there are.
    pub clients: usize,
    /// How many connections they share: not more than clients.
    pub connections: usize,
    /// How many registers there are: not fewer than clients.
    pub keys: usize,
    /// Entries of the log a call, if that is what is done.
    pub append: Option<u32>,
    /// What is done to registers.
    pub mix: Mix,
    /// When steps are taken.
    pub pace: Pace,
    /// How long each store is measured in all.
    pub duration: Duration,
    /// How long each is under load before.
    pub warm_up: Duration,
    /// In how many slices two stores take turns.
    pub slices: u32,
}

/// A store that is measured.
#[derive(Debug)]
pub struct Target {
    /// Where it is.
    pub url: String,
    /// The flag that named its processes, for what is said of them.
    pub flag: &'static str,
    /// Its processes, whose processor time counts as the store's.
    pub pids: Vec<u32>,
}
