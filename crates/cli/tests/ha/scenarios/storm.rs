//! Eight nodes, up to twenty workloads each; somebody deploys, undeploys and
//! kills at random until one node is left, which then has it all.

use std::collections::{BTreeMap, BTreeSet};

use tenure::clock;
use tenure::core::rng::Rng;
use tenure::ha::{GroupRequestError, Manager, Refusal};

use crate::town::{Town, joined, soon, work};

const NODES: u64 = 8;
const EACH_MAX: usize = 20;

struct Storm {
    town: Town,
    rng: Rng,
    /// By name; those that are left.
    nodes: BTreeMap<String, Manager>,
    born: u32,
    /// What is to be there, with its number of instances.
    there: BTreeMap<String, u32>,
    gone: Vec<String>,
    /// What was asked of a node that was fenced meanwhile: nobody knows.
    unsure: BTreeSet<String>,
}

impl Storm {
    fn chosen(&mut self, most: usize) -> usize {
        let most = u64::try_from(most).expect("few");
        usize::try_from(self.rng.below(most)).expect("fewer")
    }

    fn node(&mut self) -> String {
        let chosen = self.chosen(self.nodes.len());
        let name = self.nodes.keys().nth(chosen);
        name.expect("one is left").clone()
    }

    async fn deploy(&mut self) {
        let node = self.node();
        let node = &self.nodes[&node];
        if node.running().len() >= EACH_MAX {
            return;
        }
        self.born += 1;
        let (name, instances) = (format!("w{}", self.born), 1 + self.born % 5);
        let it = work(&name).config(name.as_str()).instances(instances);
        match soon("deploying", node.deploy(it)).await {
            // A busy machine may have been fenced before it came up there.
            Ok(_) | Err(GroupRequestError::Elsewhere(_)) => {
                self.there.insert(name, instances);
            }
            Err(GroupRequestError::Refused(Refusal::Leaving)) => {
                self.unsure.insert(name);
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Somebody undeploys what runs on a node that lives, or is about to.
    async fn undeploy(&mut self) {
        if self.there.is_empty() {
            return;
        }
        let chosen = self.chosen(self.there.len());
        let name = self.there.keys().nth(chosen).expect("one").clone();
        let asked = self.node();
        let undeployed = self.nodes[&asked].undeploy(&name);
        let undeployed = soon("undeploying", undeployed).await;
        self.there.remove(&name);
        match undeployed {
            Ok(()) => {
                assert_eq!(self.town.ledger.place(&name), None, "{name}");
                self.gone.push(name);
            }
            Err(GroupRequestError::Refused(Refusal::Leaving)) => {
                self.unsure.insert(name);
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }

    async fn kill(&mut self) {
        let node = self.node();
        self.nodes.remove(&node);
        if self.rng.chance(50) {
            return;
        }
        // The next one dies when this one's work has moved, not before.
        let names: Vec<String> = self.there.keys().cloned().collect();
        let last = |name: &String| self.town.ledger.stays(name).pop();
        let held = |name: &&String| last(name).is_some_and(|stay| stay.node == node);
        if let Some(name) = names.iter().find(held) {
            self.town.ledger.until_that(name, |_| true).await;
        }
    }
}

pub(super) async fn random_storm(town: Town) {
    // Its timing is never the same, so neither are the choices.
    let seed = clock::boot().as_nanos();
    let mut storm = Storm {
        rng: Rng::from_seed(seed),
        nodes: BTreeMap::new(),
        there: BTreeMap::new(),
        gone: Vec::new(),
        unsure: BTreeSet::new(),
        born: 0,
        town,
    };
    for number in 0..NODES {
        let name = format!("n{number}");
        let store = storm.town.store().await;
        let node = joined(storm.town.builder(store, "alpha", &name)).await;
        storm.nodes.insert(name, node);
    }
    for _ in 0..24 {
        storm.deploy().await;
    }
    while storm.nodes.len() > 1 {
        match storm.chosen(8) {
            0 => storm.kill().await,
            1..=2 => storm.undeploy().await,
            _ => storm.deploy().await,
        }
    }
    let (survivor, node) = storm.nodes.pop_first().expect("one is left");
    for (name, instances) in &storm.there {
        storm.town.ledger.until(name, Some(&survivor)).await;
        for stay in storm.town.ledger.stays(name) {
            assert_eq!(stay.config, name.as_bytes());
            assert_eq!(stay.instances, *instances);
        }
    }
    for name in &storm.gone {
        assert_eq!(storm.town.ledger.place(name), None, "{name} is undeployed");
    }
    // And nothing else runs.
    let mut running = storm.town.ledger.running();
    running.retain(|name| !storm.unsure.contains(name));
    let wanted: Vec<String> = storm.there.into_keys().collect();
    assert_eq!(running, wanted);
    storm.town.close([node]).await;
}
