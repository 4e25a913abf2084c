//! At most one instance of a workload at any instant of true time: the law
//! that everything else is for.

use std::collections::BTreeMap;

use tenure_core::ids::Name;
use tenure_group::{Config, Order};

use super::Finding;

/// What runs, and where.
#[derive(Debug, Default)]
pub(in crate::ha) struct Once {
    running: BTreeMap<(Name, Name), Vec<usize>>,
    /// The highest fence that was handed out for each workload.
    fences: BTreeMap<(Name, Name), (u64, usize)>,
}

impl Once {
    /// `store_damage` says that the store has lost something: then who does not
    /// remember may hand out a fence once more.
    pub(in crate::ha) fn begins(
        &mut self,
        config: &Config,
        order: &Order,
        p: usize,
        store_damage: bool,
    ) -> Finding {
        let key = (config.group.clone(), order.name.clone());
        let runners = self.running.entry(key.clone()).or_default();
        let other = runners.first().copied();
        runners.push(p);
        if let Some(other) = other {
            let text = format!("{} starts while agent {other} runs it still", order.name);
            return Err(text);
        }
        let last = self.fences.insert(key, (order.fence, p));
        match last {
            Some(_) if store_damage => Ok(()),
            Some((fence, q)) if fence > order.fence || (fence == order.fence && p != q) => {
                Err(format!(
                    "{} has fence {} after agent {q} had {fence}",
                    order.name, order.fence
                ))
            }
            _ => Ok(()),
        }
    }

    pub(in crate::ha) fn ends(&mut self, config: &Config, name: &Name, p: usize) {
        let key = (config.group.clone(), name.clone());
        if let Some(runners) = self.running.get_mut(&key) {
            runners.retain(|runner| *runner != p);
        }
    }

    /// What runs at `p` takes no step for a while.
    pub(in crate::ha) fn rests(&mut self, p: usize) {
        for runners in self.running.values_mut() {
            runners.retain(|runner| *runner != p);
        }
    }

    /// It goes on.
    pub(in crate::ha) fn wakes(&mut self, config: &Config, name: &Name, p: usize) -> Finding {
        let key = (config.group.clone(), name.clone());
        let runners = self.running.entry(key).or_default();
        let other = runners.first().copied();
        runners.push(p);
        match other {
            None => Ok(()),
            Some(other) => Err(format!("{name} goes on while agent {other} runs it")),
        }
    }

    /// Who runs it, if it is one.
    pub(in crate::ha) fn runner(&self, group: &Name, name: &Name) -> Option<usize> {
        let runners = self.running.get(&(group.clone(), name.clone()))?;
        match runners[..] {
            [runner] => Some(runner),
            _ => None,
        }
    }
}
