//! How nodes come and go: each joins once, by its own hand; it goes by
//! leaving, with nothing running, or by death, in two steps. Who leaves
//! cleanly is never failed over.

use tenure_group::{NodeId, Place, Target, View};

use super::{Finding, Writer};
use crate::ha::world::World;

impl World {
    pub(super) fn check_members(&self, writer: Writer, before: &View, view: &View) -> Finding {
        for member in &view.members {
            if before.member(member.id).is_some() {
                continue;
            }
            if member.id != writer.id {
                return Err(format!("it lets {} join", member.id));
            }
            // Where the store has lost a view, the join went with it.
            if self.checker_state.members.contains(&member.id) && !self.store.store_damage.ever {
                return Err(format!("{} joins a second time", member.id));
            }
        }
        for member in &before.members {
            if view.member(member.id).is_none() {
                self.check_departure(writer, before, view, member.id)?;
            }
        }
        Ok(())
    }

    fn check_departure(&self, writer: Writer, before: &View, view: &View, id: NodeId) -> Finding {
        let gone = view.departures.iter().find(|gone| gone.id == id);
        let died = gone.is_none_or(|gone| gone.died);
        if died {
            let heartbeat_record = self.checker_state.heartbeats.get(&id);
            let alive = heartbeat_record
                .is_some_and(|heartbeat_record| heartbeat_record.exists && !heartbeat_record.dead);
            if alive && !self.checker_state.gone.contains(&id) {
                return Err(format!("{id} is buried, and its heartbeat is not dead"));
            }
            return Ok(());
        }
        if writer.id != id {
            return Err(format!("it makes {id} leave"));
        }
        let works = self.agents[writer.p].works.values();
        let left: Vec<_> = works.filter(|work| work.id == id).collect();
        if let Some(work) = left.first() {
            return Err(format!("it leaves while it runs {}", work.order.name));
        }
        if before.member(id).is_some_and(|member| member.draining) {
            // It was asked to hand everything on first.
            return Ok(());
        }
        for (name, then) in &before.workloads {
            let fails_over = match then.place {
                Place::Assigned(holder) => holder == id,
                Place::Releasing { from, to } => from == id && to == Target::Nowhere,
                Place::Waiting => false,
            };
            if fails_over && view.workloads.contains_key(name) {
                return Err(format!("it leaves cleanly, and {name} fails over"));
            }
        }
        Ok(())
    }
}
