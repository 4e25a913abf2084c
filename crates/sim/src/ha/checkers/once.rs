//! At most one instance of a workload at any instant of true time: the law
//! that everything else is for.

use std::collections::BTreeMap;

use tenure_core::ha::{Config, Order};
use tenure_core::ids::Name;

use super::Finding;

/// What runs, and where.
#[derive(Debug, Default)]
pub(in crate::ha) struct Once {
    running: BTreeMap<(Name, Name), usize>,
    /// The highest fence that was handed out for each workload.
    fences: BTreeMap<(Name, Name), (u64, usize)>,
}

impl Once {
    pub(in crate::ha) fn begins(&mut self, config: &Config, order: &Order, p: usize) -> Finding {
        let key = (config.group.clone(), order.name.clone());
        if let Some(other) = self.running.insert(key.clone(), p) {
            let text = format!("{} starts while agent {other} runs it still", order.name);
            return Err(text);
        }
        let last = self.fences.insert(key, (order.fence, p));
        match last {
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
        if self.running.get(&key) == Some(&p) {
            self.running.remove(&key);
        }
    }

    /// Who runs it.
    pub(in crate::ha) fn runner(&self, group: &Name, name: &Name) -> Option<usize> {
        self.running.get(&(group.clone(), name.clone())).copied()
    }
}
