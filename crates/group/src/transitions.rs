//! What a node writes into the next view, in each of its stages (§1.8).

use alloc::vec::Vec;

use tenure_core::ids::Name;

use super::Bug;
use super::NodeId;
use super::edit::{Draft, Request};
use super::node::{Node, Stage};
use super::reconcile::{Phase, STARTS_MAX};
use super::types::Event;
use super::view::{Place, SERIALS, View};

impl Node {
    /// The next view, with everything that is due.
    pub(super) fn draft(&mut self) -> Option<View> {
        let me = self.context.me;
        let config = self.context.config.clone();
        let view = self.view_sync.view().cloned();
        let missing = view.is_none();
        let view =
            view.unwrap_or_else(|| View::empty(config.group.clone(), config.quorum, config.spread));
        let declared_dead: Vec<NodeId> = self
            .detector
            .declared_dead(&view, self.context.now)
            .collect();
        let mut draft = Draft::new(view, config.plant);
        if !config.plant.is(Bug::FloorForgotten) {
            draft.above(self.view_sync.top_epoch);
        }
        match self.stage {
            Stage::Joining => {
                if self.grant().is_none() || self.leaving {
                    return None;
                }
                if let Err(why) = draft.join(config.member(me), config.quorum, config.spread) {
                    self.context.event(Event::Excluded { why });
                    self.view_sync.close(&mut self.context);
                    self.stage = Stage::Deleting(None);
                    self.leaving = true;
                    return None;
                }
            }
            Stage::Member | Stage::Leaving if missing => return None,
            // A node that is leaving might be chosen for the workloads, and would
            // take them along.
            Stage::Leaving => self.draft_own(&mut draft),
            Stage::Member => {
                for id in declared_dead {
                    draft.remove_dead(id);
                }
                self.draft_own(&mut draft);
                self.collector.draft(&mut draft);
            }
            Stage::Resuming | Stage::Fenced | Stage::Deleting(_) | Stage::Stopped => return None,
        }
        draft.finish()
    }

    /// What the draft says of this node and its workloads.
    fn draft_own(&mut self, draft: &mut Draft) {
        let (me, plant) = (self.context.me, self.context.config.plant);
        // A view that has fallen is raised above all that this node remembers,
        // even if nothing else is to be changed (§1.4).
        if self.unsettled || self.view_sync.has_fallen(plant) {
            draft.touch();
        }
        // It goes on from an incarnation of before the rules of content. No attempt
        // has this serial.
        let member = draft.view().member(me);
        if member.is_some_and(|member| member.serial < SERIALS) {
            draft.count(me, SERIALS);
        }
        if self.draining {
            // It is a member.
            let _ = draft.request(&Request::Drain(me));
        }
        if draft
            .view()
            .member(me)
            .is_some_and(|member| member.draining)
        {
            draft.evacuate(me);
        }
        let held = draft.view().held_by(me);
        let released = held.filter(|(name, held)| {
            let reaped =
                !self.jobs.jobs.contains_key::<Name>(name) || plant.is(Bug::ReleaseUnreaped);
            matches!(held.place, Place::Releasing { .. }) && reaped
        });
        let released: Vec<Name> = released.map(|(name, _)| name.clone()).collect();
        for name in &released {
            draft.release(me, name);
        }
        for (name, cooling) in &self.jobs.backoffs {
            let stays = matches!(self.stage, Stage::Member);
            if stays && cooling.fails >= STARTS_MAX && !self.jobs.jobs.contains_key(name) {
                draft.hand_on(me, name);
            }
        }
        for (name, job) in &self.jobs.jobs {
            if job.phase == Phase::Running && !self.jobs.backoff_resets_at.contains_key(name) {
                draft.succeeded(me, name);
            }
        }
        if matches!(self.stage, Stage::Member) {
            // Without a line of its own the view could not show which attempt
            // took effect. A node that goes on from an incarnation before it had joined has
            // none yet.
            if draft.view().member(me).is_some() {
                self.view_sync
                    .apply_requests(&mut self.context, draft, &self.uploads);
            }
        } else if self.jobs.is_empty() || plant.is(Bug::LeaveUnreaped) {
            draft.leave(me);
        }
    }
}
