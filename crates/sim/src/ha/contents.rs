//! Content of workloads: what users deploy, some of it again and again, how
//! the store lists it, and the last examination: content that no workload of
//! a view needs is gone in the end.

use tenure_core::cas::Bytes;
use tenure_core::ids::{Key, Name};
use tenure_core::rng::Rng;
use tenure_group::{Digest, KeyPage, Keys, MARKS_MAX};

use super::checkers::Check;
use super::events::GroupEvent;
use super::swarm::Swarm;
use super::world::World;
use crate::clock::{MILLI, pick};

impl Swarm {
    /// How long content is kept, and how many registers a page has. That no
    /// content is lost rests on neither.
    pub(super) fn draw_contents(&mut self, rng: &mut Rng) {
        let keep = *pick(rng, &[0, self.lease / 20, self.lease / 5, self.lease]);
        self.page = *pick(rng, &[5, 20, 500]);
        // A deploy with content takes two calls more, and in a world in which
        // calls are slow few of them come as far as the view.
        self.bare = self.quick && rng.chance(50);
        for config in &mut self.agents {
            config.keep = std::time::Duration::from_nanos(keep);
        }
    }
}

/// The bytes that a digest of this world names.
pub(super) fn content(digest: &Digest) -> Bytes {
    format!("the content of {digest}").into_bytes().into()
}

impl World {
    /// What a workload is made from: now and then what another one is, or
    /// was. No two workloads of one name have the same.
    pub(super) fn draw_digest(&mut self, new_name: bool) -> Digest {
        let bits = self.rng.next_u64();
        let digest = format!("d{:08x}", bits as u32);
        let digest = Digest::new(&digest).unwrap_or_else(|| unreachable!("{digest}"));
        if self.swarm.bare {
            return digest;
        }
        let known = &self.users.digests;
        let again = new_name && !known.is_empty() && bits >> 60 < 8;
        if again {
            // Mostly one of the latest.
            let back = (bits >> 32) as usize % known.len().min(6);
            return known[known.len() - 1 - back].clone();
        }
        self.users.digests.push(digest.clone());
        digest
    }

    /// A page of keys and versions, and whether there are more.
    pub(super) fn page(&self, prefix: &str, after: Option<&Key>) -> KeyPage {
        let mut left = self.store.registers.list_after(prefix, after);
        let page = left.by_ref().take(self.swarm.page);
        let page = page.map(|(key, it)| (key.clone(), it.version.clone()));
        KeyPage {
            registers: page.collect(),
            more: left.next().is_some(),
        }
    }

    /// The contents of a group that none of its workloads needs.
    fn needless(&self, group: &Name) -> Vec<Key> {
        let keys = Keys::of(group.clone());
        let view = self.checker_state.views.get(group);
        let needed = |digest: &Digest| {
            let mut workloads = view.into_iter().flat_map(|view| view.workloads.values());
            workloads.any(|it| it.digest == *digest)
        };
        let contents = keys.contents();
        let listed = self.store.registers.list(&contents);
        let needless = listed.filter(|(key, _)| !keys.digest(key).is_some_and(|it| needed(&it)));
        needless.map(|(key, _)| key.clone()).collect()
    }

    /// The groups that somebody is left to see to.
    fn seen_to(&self) -> Vec<Name> {
        let groups = self.checker_state.views.keys();
        let seen = groups.filter(|group| {
            let mut agents = self.agents.iter();
            agents.any(|agent| agent.up && agent.config.group == **group)
        });
        seen.cloned().collect()
    }

    /// All else is well. Waits until whatever no workload needs must be gone:
    /// the rest of a round, a rest between two, and a whole one, in each of
    /// which a page takes two looks, a step to the next, and one more look for
    /// each batch of marks.
    pub(super) fn await_collection(&mut self) {
        let groups = self.seen_to();
        let contents = groups.iter().map(|group| self.needless(group).len());
        let Some(most) = contents.max().filter(|most| *most > 0) else {
            return self.done = true;
        };
        let listed = self.store.registers.list("ha/").count();
        let pages = (listed / self.swarm.page + 1) as u64;
        let batches = (most / MARKS_MAX + 1) as u64;
        let config = &self.agents[0].config;
        let keep = config.drift.lengthen(config.keep);
        let pace = keep.max(config.interval).as_nanos() as u64;
        let looks = 14 + 6 * pages + 2 * batches;
        let calls = (listed as u64 + 10 * looks) * 4 * (self.swarm.net.1 + MILLI);
        let at = self.now + looks * (pace + pace / 10) + calls;
        self.queue.push(at, GroupEvent::Collected);
    }

    /// By now it must be gone, and so must be all marks.
    pub(super) fn collected(&mut self) {
        for group in self.seen_to() {
            let needless = self.needless(&group);
            let marks = self
                .checker_state
                .views
                .get(&group)
                .map(|view| view.marks.clone());
            let finding = match (needless.first(), marks.unwrap_or_default().first()) {
                (Some(key), _) => Err(format!("no workload needs {key}, and it is still there")),
                (None, Some(mark)) => Err(format!("{mark} is still marked")),
                (None, None) => Ok(()),
            };
            self.judge(Check::Content, None, finding);
        }
        self.done = true;
    }
}
