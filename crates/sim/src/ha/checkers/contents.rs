//! Content: whatever a view names is there from that view on, as long as it
//! is named, and no content is changed.

use tenure_core::cas::Register;
use tenure_core::ids::Name;
use tenure_group::{Digest, Keys, View};

use super::Finding;
use crate::ha::contents::content;
use crate::ha::world::World;

impl World {
    /// A view has been written: what it names newly is there.
    pub(super) fn check_named(&mut self, group: &Name, before: &View, view: &View) -> Finding {
        let keys = Keys::of(group.clone());
        self.stats.marks += view.marks.difference(&before.marks).count() as u64;
        for (name, it) in &view.workloads {
            if view.marks.contains(&it.digest) {
                return Err(format!("{} is marked, and {name} needs it", it.digest));
            }
            let digest = |it: &tenure_group::Assignment| it.digest.clone();
            if before.workloads.get(name).map(digest) == Some(digest(it)) {
                continue;
            }
            self.stats.rescued += u64::from(before.marks.contains(&it.digest));
            // What a scene deploys may have no content.
            let known = self.users.digests.contains(&it.digest);
            let there = self.store.registers.read(&keys.content(&it.digest));
            if known && there.is_none() {
                return Err(format!("{name} needs {}, which is not there", it.digest));
            }
        }
        Ok(())
    }

    /// A register of content has been written or deleted.
    pub(super) fn check_content(
        &mut self,
        group: &Name,
        digest: &Digest,
        register: Option<&Register>,
    ) -> Finding {
        let Some(register) = register else {
            self.stats.collected += 1;
            let view = self.checker_state.views.get(group);
            let mut workloads = view.into_iter().flat_map(|view| &view.workloads);
            return match workloads.find(|(_, it)| it.digest == *digest) {
                Some((name, _)) => Err(format!("it deleted {digest}, which {name} needs")),
                None => Ok(()),
            };
        };
        self.stats.touches += 1;
        if register.value != content(digest) {
            return Err(format!("it wrote other bytes into {digest}"));
        }
        Ok(())
    }
}
