//! A register that has just changed, for each checker whose register it is.

use tenure_core::cas::Register;
use tenure_core::ids::{Key, Name};
use tenure_group::View;

use super::check::{Check, Finding};
use super::state::Writer;
use super::{placement, views};
use crate::ha::world::World;

impl World {
    /// Looks at a register that has just changed.
    pub(in crate::ha) fn check_register(
        &mut self,
        writer: Writer,
        key: &Key,
        register: Option<&Register>,
    ) -> Vec<(Check, Finding)> {
        let group = self.agents[writer.p].config.group.clone();
        let keys = tenure_group::Keys::of(group.clone());
        if *key == keys.view() {
            return self.check_view(writer, &group, register);
        }
        if let Some(digest) = keys.digest(key) {
            let finding = self.check_content(&group, &digest, register);
            return vec![(Check::Content, finding)];
        }
        match keys.node(key) {
            Some(id) => vec![(Check::Verdicts, self.check_heart(writer, id, register))],
            None => {
                let text = format!("it wrote {key}, which is no register of its group");
                vec![(Check::Groups, Err(text))]
            }
        }
    }

    fn check_view(
        &mut self,
        writer: Writer,
        group: &Name,
        register: Option<&Register>,
    ) -> Vec<(Check, Finding)> {
        let Some(register) = register else {
            return vec![(Check::Views, Err("it deleted the view".into()))];
        };
        let view = match View::decode(&register.value) {
            Ok(view) => view,
            Err(error) => return vec![(Check::Views, Err(error.to_string()))],
        };
        let empty = View::empty(group.clone(), view.quorum, view.spread);
        let before = self
            .checker_state
            .views
            .get(group)
            .unwrap_or(&empty)
            .clone();
        let findings = vec![
            (Check::Groups, views::group(&view, group)),
            (
                Check::Views,
                views::epoch(&before, &view, self.store.store_damage.ever),
            ),
            (Check::Members, self.check_members(writer, &before, &view)),
            (Check::Heirs, placement::placement(&before, &view)),
            (Check::Fate, self.check_fate(writer, &before, &view)),
            (Check::Content, self.check_named(group, &before, &view)),
        ];
        let joined = view.members.iter().map(|member| member.id);
        self.checker_state.members.extend(joined);
        self.checker_state.views.insert(group.clone(), view);
        findings
    }
}
