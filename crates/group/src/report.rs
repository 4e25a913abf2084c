//! What a node reports to its user: the difference between two views, and the
//! progress of a take-over. Nothing is decided here.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use tenure_core::ids::Name;

use super::node::Node;
use super::reconcile::has_quorum;
use super::types::Event;
use super::view::View;
use super::{Bug, NodeId};

impl Node {
    pub(super) fn report_joined(&mut self) {
        let id = self.context.me;
        let Some(view) = self.view_sync.view() else {
            return;
        };
        let name = &self.context.config.name;
        let own = |other: NodeId| other == id || self.detector.is_former(other);
        let mut others = view.members.iter().filter(|member| !own(member.id));
        let namesake = others.any(|member| member.name == *name);
        self.context.event(Event::Joined { id, namesake });
    }

    /// Tells which workloads went with the view, if it was lost: it is gone,
    /// or its epoch, which only grows, is below the one that was known. If
    /// another node has made a view again before this one looked, its epoch is
    /// above, and this node cannot tell it from one in which they were
    /// undeployed; the node that made it has told.
    pub(super) fn report_lost(&mut self, before: &View) {
        let now = self.view_sync.view();
        let found = now.map(|view| view.epoch);
        if found.is_some_and(|found| found >= before.epoch) {
            return;
        }
        if found.is_some() && self.context.config.plant.is(Bug::LossNotReported) {
            return;
        }
        let stays = |name: &Name| now.is_some_and(|view| view.workloads.contains_key(name));
        let names = before.workloads.keys().filter(|name| !stays(name));
        let (epoch, workloads) = (before.epoch, names.cloned().collect());
        self.context.event(Event::ViewLost {
            epoch,
            found,
            workloads,
        });
    }

    /// Tells what has changed since `before`.
    pub(super) fn report_changes(&mut self, before: Option<&View>) {
        let Some(view) = self.view_sync.view().cloned() else {
            return;
        };
        if view.member(self.context.me).is_none() {
            return;
        }
        if let Some(before) = before {
            self.report_members(before, &view);
        }
        self.report_quorum(&view);
        if let Some(before) = before {
            self.report_takeovers(before, &view);
        }
    }

    fn report_members(&mut self, before: &View, view: &View) {
        for member in &before.members {
            if view.member(member.id).is_some() {
                continue;
            }
            let (id, name) = (member.id, member.name.clone());
            self.context.event(if died(view, id) {
                Event::NodeDied { id, name }
            } else {
                Event::NodeLeft { id, name }
            });
        }
        for member in &view.members {
            if member.id != self.context.me && before.member(member.id).is_none() {
                let (id, name) = (member.id, member.name.clone());
                self.context.event(Event::NodeJoined { id, name });
            }
        }
    }

    fn report_quorum(&mut self, view: &View) {
        let attained = has_quorum(view, self.context.config.plant);
        let before = self.quorum.replace(attained);
        let (nodes, quorum) = (view.voters(), view.quorum);
        match (before, attained) {
            (None | Some(false), true) => {
                self.context.event(Event::QuorumAttained { nodes, quorum });
            }
            (Some(true), false) => self.context.event(Event::QuorumLost { nodes, quorum }),
            (None | Some(false), false) | (Some(true), true) => {}
        }
    }

    /// What has come to this node from one that died.
    fn report_takeovers(&mut self, before: &View, view: &View) {
        let me = self.context.me;
        let mut begun: BTreeMap<NodeId, BTreeSet<Name>> = BTreeMap::new();
        for (name, _) in view.held_by(me) {
            let from = before.workloads.get(name).and_then(|it| it.place.holder());
            if let Some(from) = from.filter(|from| *from != me && died(view, *from)) {
                begun.entry(from).or_default().insert(name.clone());
            }
        }
        for names in self.takeovers.values_mut() {
            let mine = |name: &Name| {
                let it = view.workloads.get(name);
                it.is_some_and(|it| it.place.holder() == Some(me))
            };
            names.retain(mine);
        }
        self.takeovers.retain(|_, names| !names.is_empty());
        for (from, names) in begun {
            let workloads = names.len();
            self.context.event(Event::FailoverBegun { from, workloads });
            self.takeovers.insert(from, names);
        }
    }

    /// A workload runs, or would not start.
    pub(super) fn taken_over(&mut self, name: &Name, runs: bool) {
        let froms = self.takeovers.iter();
        let froms = froms.filter(|(_, names)| names.contains(name));
        let froms: Vec<NodeId> = froms.map(|(from, _)| *from).collect();
        for from in froms {
            if !runs {
                let name = name.clone();
                self.context.event(Event::FailoverFailed { from, name });
                continue;
            }
            if let Some(names) = self.takeovers.get_mut(&from) {
                names.remove(name);
                if names.is_empty() {
                    self.takeovers.remove(&from);
                    self.context.event(Event::FailoverCompleted { from });
                }
            }
        }
    }
}

/// Whether a node that is no member went by dying. A view remembers the last
/// few; who is forgotten is taken for dead.
fn died(view: &View, id: NodeId) -> bool {
    let gone = view.departures.iter().find(|gone| gone.id == id);
    view.member(id).is_none() && gone.is_none_or(|gone| gone.died)
}
