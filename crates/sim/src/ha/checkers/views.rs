//! The epoch grows by one with every view (by more where the store was torn);
//! a view speaks of its own group.

use tenure_core::ids::Name;
use tenure_group::View;

use super::Finding;

pub(super) fn group(view: &View, group: &Name) -> Finding {
    if view.group == *group {
        return Ok(());
    }
    Err(format!("the view of {group} speaks of {}", view.group))
}

/// Where the store was torn, a view is raised above what its node remembers.
pub(super) fn epoch(before: &View, view: &View, store_damage: bool) -> Finding {
    if view.epoch == before.epoch + 1 || (store_damage && view.epoch > before.epoch) {
        return Ok(());
    }
    Err(format!(
        "epoch {} follows epoch {}",
        view.epoch, before.epoch
    ))
}
