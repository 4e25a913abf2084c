//! What becomes of workloads: nothing is lost, nothing appears that nobody
//! asked for or twice, nothing is changed, and nothing is taken from the node
//! that runs it.
//!
//! That a holder lets go only of what it has reaped rests on the store's
//! promise; all else here compares one view with the next and does not. A node
//! that resumes may run again what its earlier life did not run any more, and a
//! swap of that life, which lets go of it, may still be on its way.
//!
//! The node starts nothing before a swap of its own has landed (§7.2), and
//! after that the earlier one meets a conflict: its version is not there any
//! more. But a store that gives out an older view under its old version brings
//! that very version back, and the swap lands.
//!
//! No rule of the machine prevents it: the life that sent the swap has ended,
//! and the one that runs the workload has been told that its own swap landed.
//! So this is not claimed while the store is torn and for the leases after it,
//! like *members*, who says the same of a node that leaves.
//!
//! What follows is over by then: a request lands within two leases, and who
//! sees the view ends what is not its own (`World::mended` looks).

use tenure_core::ids::Name;
use tenure_group::{Assignment, NodeId, Place, Spec, Target, View};

use super::{Finding, Writer};
use crate::ha::world::World;

impl World {
    pub(super) fn check_fate(&mut self, writer: Writer, before: &View, view: &View) -> Finding {
        for (name, it) in &view.workloads {
            match before.workloads.get(name) {
                None => self.check_new(writer, name, it)?,
                // Ended, and another deployed under its name, in one step.
                Some(then) if then.digest != it.digest && it.fails == 0 => {
                    self.check_end(writer, view, name, then)?;
                    self.check_new(writer, name, it)?;
                }
                Some(then) => {
                    unchanged(name, then, it)?;
                    self.check_move(writer, view, name, then.place, it.place)?;
                }
            }
        }
        for (name, then) in &before.workloads {
            if !view.workloads.contains_key(name) {
                self.check_end(writer, view, name, then)?;
            }
        }
        Ok(())
    }

    /// It was asked for at the node that wrote it down, and only once.
    fn check_new(&mut self, writer: Writer, name: &Name, it: &Assignment) -> Finding {
        let group = self.agents[writer.p].config.group.clone();
        let ticket = self.users.deployed(writer.p, &group, name, &it.digest);
        let Some(spec) = ticket else {
            return Err(format!("{name} appears, and nobody asked for it"));
        };
        as_asked(name, &spec, it)
    }

    fn check_move(
        &self,
        writer: Writer,
        view: &View,
        name: &Name,
        then: Place,
        now: Place,
    ) -> Finding {
        let (Some(from), false) = (then.holder(), then.holder() == now.holder()) else {
            return Ok(());
        };
        // Its death is for another checker.
        if from != writer.id && view.member(from).is_some() {
            return Err(format!("it takes {name} from {from}, which is there"));
        }
        if from == writer.id && self.must_have_reaped(writer.p, from, name) {
            return Err(format!("it lets go of {name} while it runs it"));
        }
        Ok(())
    }

    fn check_end(&self, writer: Writer, view: &View, name: &Name, then: &Assignment) -> Finding {
        let group = &self.agents[writer.p].config.group;
        if let Some(holder) = then.place.holder() {
            if holder == writer.id && self.must_have_reaped(writer.p, holder, name) {
                return Err(format!("it forgets {name} while it runs it"));
            }
            let gone = view.member(holder).is_none();
            if holder != writer.id && !gone {
                return Err(format!("it takes {name} from {holder}, which is there"));
            }
            let left = view.departures.iter().any(|it| it.id == holder && !it.died);
            let moving = matches!(
                then.place,
                Place::Releasing { to: Target::Node(to), .. } if to != holder
            );
            if gone && ((left && !moving) || (!left && !then.ha)) {
                return Ok(());
            }
            // What is not HA ends with a node that drains.
            if !then.ha && holder == writer.id {
                return Ok(());
            }
        }
        if self.users.undeployed(group, name) {
            return Ok(());
        }
        Err(format!("{name} is lost"))
    }

    /// Whether `p` runs under `id` what it must have reaped before it let go of
    /// it: not claimed while the store's promise is broken (see above).
    fn must_have_reaped(&self, p: usize, id: NodeId, name: &Name) -> bool {
        let mut works = self.agents[p].works.values();
        let runs = works.any(|work| work.id == id && work.order.name == *name);
        runs && !self.store.store_damage.excuses(self.now)
    }
}

fn as_asked(name: &Name, spec: &Spec, it: &Assignment) -> Finding {
    let asked = (&spec.digest, spec.instances, spec.ha, spec.order);
    if asked != (&it.digest, it.instances, it.ha, it.order) || spec.needs != it.needs {
        return Err(format!("{name} is {it:?}, asked for was {spec:?}"));
    }
    Ok(())
}

fn unchanged(name: &Name, then: &Assignment, now: &Assignment) -> Finding {
    let of = |it: &Assignment| {
        (
            it.digest.clone(),
            it.instances,
            it.ha,
            it.order,
            it.needs.clone(),
        )
    };
    if of(then) != of(now) {
        return Err(format!("{name} was {then:?} and is {now:?}"));
    }
    Ok(())
}
