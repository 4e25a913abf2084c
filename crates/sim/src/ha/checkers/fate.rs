//! What becomes of workloads: nothing is lost, nothing appears that nobody
//! asked for or twice, nothing is changed, and nothing is taken from whoever
//! runs it.

use tenure_core::ha::{Assignment, NodeId, Place, Spec, Target, View};
use tenure_core::ids::Name;

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

    /// It was asked for, by whoever wrote it down, and only once.
    fn check_new(&mut self, writer: Writer, name: &Name, it: &Assignment) -> Finding {
        let group = self.agents[writer.p].config.group.clone();
        let ticket = self.people.deployed(writer.p, &group, name, &it.digest);
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
        if from == writer.id && self.works_of(writer.p, from, name) {
            return Err(format!("it lets go of {name} while it runs it"));
        }
        Ok(())
    }

    fn check_end(&self, writer: Writer, view: &View, name: &Name, then: &Assignment) -> Finding {
        let group = &self.agents[writer.p].config.group;
        if let Some(holder) = then.place.holder() {
            if holder == writer.id && self.works_of(writer.p, holder, name) {
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
        if self.people.undeployed(group, name) {
            return Ok(());
        }
        Err(format!("{name} is lost"))
    }

    fn works_of(&self, p: usize, id: NodeId, name: &Name) -> bool {
        let mut works = self.agents[p].works.values();
        works.any(|work| work.id == id && work.order.name == *name)
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
