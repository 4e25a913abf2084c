//! What a URL opens: registers, or elections in a heartbeat table.

use std::sync::Arc;

use super::MySql;
use super::heartbeats::Heartbeats;
use super::settings::Settings;
use crate::error::StoreError;
use crate::store::{PollTimes, Polled, Store};

/// Prepares to use the servers that `url` names; connects at the first call, and then
/// makes the table if it is missing and `may_create`.
pub(in crate::store) fn open(url: &str, may_create: bool) -> Result<Arc<dyn Store>, StoreError> {
    let mut settings = Settings::parse(url)?;
    settings.may_create = may_create;
    let times = PollTimes {
        floor: settings.poll_every,
        ..PollTimes::default()
    };
    let is_of_heartbeats = settings.heartbeats.is_asked;
    let client = MySql::new(settings);
    if is_of_heartbeats {
        return Ok(Arc::new(Polled::new(Heartbeats::new(client), times)));
    }
    Ok(Arc::new(Polled::new(client, times)))
}
