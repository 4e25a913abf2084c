//! A store while it is measured.

use std::time::Duration;

use super::record::Record;
use super::work::Work;

/// One of the stores, or the only one.
#[derive(Debug)]
pub(super) struct Side {
    /// The store, without its password.
    pub(super) name: String,
    pub(super) flag: &'static str,
    pub(super) pids: Vec<u32>,
    pub(super) clients: Vec<Work>,
    pub(super) record: Record,
    /// Processor time of the servers, if they were named, and of this
    /// process while this store was measured.
    pub(super) servers: Option<Duration>,
    pub(super) here: Duration,
}
