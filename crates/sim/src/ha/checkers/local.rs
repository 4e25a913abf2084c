//! What one node does, after each of its steps: it starts what is assigned to
//! it, runs HA workloads only with the quorum, under the id it has, and acts
//! on its deadlines.

use tenure_group::{Node, Order, Phase, Place, View};

use super::{Check, Finding};
use crate::ha::world::World;

/// Whether a node may start that, by its own view.
pub(in crate::ha) fn may_start(node: &Node, order: &Order) -> Finding {
    let view = node.view();
    let it = view.and_then(|view| view.workloads.get(&order.name));
    match it {
        Some(it) if it.place == Place::Assigned(node.id()) => {
            if it.digest != order.digest || it.instances != order.instances {
                return Err(format!("it starts {order:?}, assigned is {it:?}"));
            }
            Ok(())
        }
        other => Err(format!("it starts {}, which is {other:?}", order.name)),
    }
}

fn quorum(view: &View) -> bool {
    let mut count = 0;
    for member in &view.members {
        count += u32::from(member.ha);
    }
    count >= view.quorum
}

impl World {
    /// After a step of `p`.
    pub(in crate::ha) fn look(&mut self, p: usize) {
        if !self.agents[p].runs() {
            return;
        }
        let (placed, identity, told) = {
            let agent = &self.agents[p];
            let Some(node) = agent.node() else {
                return;
            };
            (placed(node), self.identity(p, node), self.told(p, node))
        };
        self.judge(Check::Placed, Some(p), placed);
        self.judge(Check::Identity, Some(p), identity);
        self.judge(Check::Told, Some(p), told);
    }

    fn identity(&self, p: usize, node: &Node) -> Finding {
        let mut works = self.agents[p].works.values();
        match works.find(|work| work.id != node.id()) {
            None => Ok(()),
            Some(work) => Err(format!(
                "{} was started under {}, and the node is {}",
                work.order.name,
                work.id,
                node.id()
            )),
        }
    }

    /// A workload is begun under a grant that stands.
    pub(in crate::ha) fn check_begins(&self, p: usize, order: &Order) -> Finding {
        let now = self.local(p).boot;
        let grant = self.agents[p].file.map(|file| file.grant);
        match grant {
            Some(grant) if now >= grant.drain_at => Err(format!(
                "{} begins at {now}, at or after the end of the grant at {}",
                order.name, grant.drain_at
            )),
            _ => Ok(()),
        }
    }

    fn told(&self, p: usize, node: &Node) -> Finding {
        let agent = &self.agents[p];
        let Some(grant) = node.grant().filter(|_| node.is_member()) else {
            return Ok(());
        };
        // As of a moment ago: its timer for this very moment may be next.
        let now = self.local_at(p, self.now.saturating_sub(1));
        if !agent.fenced && now >= grant.drain_at {
            return Err(format!(
                "at {now} it is a member still, past {}",
                grant.drain_at
            ));
        }
        Ok(())
    }
}

fn placed(node: &Node) -> Finding {
    let Some(view) = node.view().filter(|view| !quorum(view)) else {
        return Ok(());
    };
    for (name, job) in &node.jobs().jobs {
        let ha = view.workloads.get(name).is_some_and(|it| it.ha);
        if ha && !matches!(job.phase, Phase::Stopping { .. }) && node.is_member() {
            return Err(format!("it runs {name} without the quorum"));
        }
    }
    Ok(())
}
