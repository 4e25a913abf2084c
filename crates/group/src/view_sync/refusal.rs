//! Views that a node cannot write: the store refuses them (§1.12), or there is
//! no epoch for another (§1.4). Either is reported, and tried less and less often.

use tenure_core::call::{Failure, FailureClass};
use tenure_core::cas::Reading;

use super::{Context, ViewSync};
use crate::view::View;

impl ViewSync {
    /// Whether there is an epoch for another view. If not, a person is told so,
    /// and it is looked at again later.
    pub(crate) fn has_room(&mut self, context: &mut Context) -> bool {
        let known = self.view().map_or(0, |view| view.epoch);
        let epoch = known.max(self.top_epoch);
        if epoch < View::EPOCH_MAX {
            return true;
        }
        let why = alloc::format!(
            "expected a view of the group, {}, with an epoch below 2^62, above which none is \
             written, found {epoch}: the view was written by hand; write it anew with a lower \
             one, or make the group anew under another name",
            context.keys.view()
        );
        self.refusals = self.refusals.saturating_add(1);
        let pause = context.trouble(&Failure::new(FailureClass::Broken, &why), self.refusals);
        self.retry_at = context.now.after(pause);
        false
    }

    /// The read after a swap that met a conflict. Where it shows what the swap
    /// expected, no node has changed the view: the store refuses this node's
    /// writes. A draft at once would be refused again, as fast as the store
    /// answers, so it is tried less and less often.
    pub(super) fn settle_conflict(&mut self, context: &mut Context, reading: &Reading) {
        let conflicted = core::mem::take(&mut self.conflicted);
        let refused = conflicted && self.sent.is_met_by(reading.register.as_ref());
        if refused {
            self.refusals = self.refusals.saturating_add(1);
            let pause = context.trouble(
                &Failure::refused(&context.view_key(), reading),
                self.refusals,
            );
            self.retry_at = context.now.after(pause);
        }
    }
}
