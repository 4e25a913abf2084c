//! Epochs and fences do not go back where somebody remembers, whatever the
//! store has lost; and nobody raises an epoch for nothing.
//!
//! What a node remembers is taken from the views that it showed to its agent,
//! not from what its machine says that it remembers.

use tenure_core::cas::Write;
use tenure_core::ids::Name;
use tenure_group::{Node, Order, View};

use super::{Check, Finding};
use crate::ha::simulated_store::GroupStoreCall;
use crate::ha::world::World;

impl World {
    /// The machine of `p` has taken a step, and shows a view.
    pub(in crate::ha) fn note_view(&mut self, p: usize) {
        let shown = self.agents[p].node().and_then(Node::view);
        let epoch = shown.map_or(0, |view| view.epoch);
        let floors = &self.agents[p].floors;
        // Two copies of the store may have two views of one epoch.
        let same = floors.last.as_ref().map(|(last, _)| *last) == shown.map(|view| view.epoch);
        if same && !self.store.store_damage.ever {
            return;
        }
        let names = shown.map(|view| view.workloads.keys().cloned().collect::<Vec<_>>());
        let last = names.map(|names| (epoch, names));
        let floors = &mut self.agents[p].floors;
        if floors.last == last {
            return;
        }
        floors.floor = floors.floor.max(epoch);
        floors.told = None;
        let before = std::mem::replace(&mut floors.last, last);
        if let Some((then, names)) = before.filter(|(then, _)| *then > epoch) {
            let stays = self.agents[p].floors.last.as_ref();
            let stays = stays.map_or(&[][..], |(_, names)| names);
            let lost: Vec<Name> = names.into_iter().filter(|it| !stays.contains(it)).collect();
            self.agents[p].fell = Some((then, epoch, lost));
        }
    }

    /// After a step of `p`: a view that fell has been told, with all that went
    /// with it.
    pub(in crate::ha) fn check_told(&mut self, p: usize) {
        let Some((then, now, lost)) = self.agents[p].fell.take() else {
            return;
        };
        self.stats.fell += 1;
        let told = self.agents[p].floors.told.take();
        let finding = if told.as_ref() == Some(&lost) {
            Ok(())
        } else {
            Err(format!(
                "the view fell from epoch {then} to {now}, and {lost:?} were lost; told was {told:?}"
            ))
        };
        self.judge(Check::Floors, Some(p), finding);
    }

    /// A workload is begun.
    pub(in crate::ha) fn check_fence(&mut self, p: usize, order: &Order) {
        let finding = self.agents[p].floors.fence(order);
        self.judge(Check::Floors, Some(p), finding);
    }

    /// `p` sends a view.
    pub(in crate::ha) fn check_sent(&mut self, p: usize, write: &Write) {
        let Ok(view) = View::decode(&write.value) else {
            return;
        };
        let floor = self.agents[p].floors.floor;
        let finding = if view.epoch > floor {
            Ok(())
        } else {
            Err(format!(
                "it writes epoch {}, though epoch {floor} was seen",
                view.epoch
            ))
        };
        self.judge(Check::Floors, Some(p), finding);
    }

    /// A view is about to take effect that `before` is swapped for: if it
    /// changes nothing, there is a cause.
    pub(in crate::ha) fn check_idle(&self, question: &GroupStoreCall, write: &Write) -> Finding {
        let p = question.p;
        let agent = &self.agents[p];
        let held = self.registers(p).read(&write.key);
        let held = held.and_then(|held| View::decode(&held.value).ok());
        let (Some(before), Ok(mut view)) = (held, View::decode(&write.value)) else {
            return Ok(());
        };
        view.epoch = before.epoch;
        let waits = |it: &crate::ha::tickets::Ticket| it.p == p && !it.answered && !it.orphan;
        let caused = view != before
            || before.epoch < agent.floors.floor
            || agent.resumed
            || question.life != agent.life
            || self.users.tickets.values().any(waits);
        if caused {
            return Ok(());
        }
        Err(format!(
            "it raises epoch {} and changes nothing, though it has seen none above {}",
            before.epoch, agent.floors.floor
        ))
    }

    /// In a healed world no epoch is below what anybody remembers.
    pub(in crate::ha) fn risen(&self) -> Finding {
        for agent in self.agents.iter().filter(|agent| agent.up) {
            let view = self.checker_state.views.get(&agent.config.group);
            let epoch = view.map_or(0, |view| view.epoch);
            if epoch < agent.floors.floor {
                return Err(format!(
                    "the epoch is {epoch}, and {} remembers {}",
                    agent.config.name, agent.floors.floor
                ));
            }
        }
        Ok(())
    }
}
