//! A candidate that watches never finds itself to be the holder.
//!
//! If it did, either a write of its own landed that it took for lost, or it
//! still goes by an id whose leadership is over. Both end in a leadership that
//! nobody knows of, or in one that begins twice.

use tenure_election::Campaign;

use super::Finding;

/// Looks at a candidate after a step.
pub(crate) fn own_id(campaign: &Campaign) -> Finding {
    let held = campaign.judge().record().and_then(|record| record.holder());
    match held {
        Some(holder) if campaign.is_standby() && holder.id == campaign.id() => Err(format!(
            "watches an election that it holds itself, as {}",
            holder.id
        )),
        _ => Ok(()),
    }
}
