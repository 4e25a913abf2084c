//! The epoch grows by one with every view; a view speaks of its own group.

use tenure_core::ha::View;
use tenure_core::ids::Name;

use super::Finding;

pub(super) fn group(view: &View, group: &Name) -> Finding {
    if view.group == *group {
        return Ok(());
    }
    Err(format!("the view of {group} speaks of {}", view.group))
}

pub(super) fn epoch(before: &View, view: &View) -> Finding {
    if view.epoch == before.epoch + 1 {
        return Ok(());
    }
    Err(format!(
        "epoch {} follows epoch {}",
        view.epoch, before.epoch
    ))
}
