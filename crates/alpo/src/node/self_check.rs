//! In debug builds a node checks the invariants after each step.

use super::super::invariants;
use super::Node;

impl Node {
    /// What the next step is judged by, in debug builds.
    pub(super) fn view(&self) -> Option<invariants::View> {
        cfg!(debug_assertions).then(|| invariants::View::of(self))
    }

    /// Debug builds check after every step that no rule is broken.
    pub(super) fn self_check(&self, before: Option<invariants::View>) {
        if let Some(before) = before.filter(|_| self.server.fault.is_none()) {
            let broken = invariants::check_state(self)
                .or_else(|| invariants::check_step(&before, &invariants::View::of(self)));
            assert!(broken.is_none(), "{}: {broken:?}", self.id());
        }
    }
}
