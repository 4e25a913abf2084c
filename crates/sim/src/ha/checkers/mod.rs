//! The checkers of the HA simulator: what must be true of every run, each in
//! a file of its own. They see what no node does: true time, every register,
//! the clocks and the processes of all machines.

mod contents;
mod fate;
mod floors;
mod heartbeats;
mod local;
mod members;
mod once;
mod placement;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tenure_core::cas::Register;
use tenure_core::ids::{Key, Name};
use tenure_group::{NodeId, View};

pub(super) use floors::Floors;
pub(super) use heartbeats::HeartbeatRecord;
pub(super) use local::may_start;
pub(super) use once::Once;

use super::world::World;
use crate::clock::TrueTime;

/// What a checker found wrong, in a sentence.
pub(super) type Finding = Result<(), String>;

/// Which checker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Check {
    /// At most one instance of a workload at any instant of true time.
    Once,
    /// A grant counts from before the beat that gave it took effect.
    Grants,
    /// A heartbeat register is swapped to dead only after the lease has
    /// passed in true time since the last beat, and is never created again.
    Verdicts,
    /// A node goes from the view by leaving, or by the two steps of a death.
    Members,
    /// The heir is the one that everybody would choose.
    Heirs,
    /// Nothing is lost, nothing appears twice, nothing is changed.
    Fate,
    /// The epoch grows by one with every view.
    Views,
    /// No register of one group speaks of another.
    Groups,
    /// A node starts only what is assigned to it, and HA workloads only with
    /// the quorum.
    Placed,
    /// What runs was started under the id that the node has.
    Identity,
    /// A node that runs at a deadline acts on it.
    Told,
    /// A node, and the guardian that it tells times to, read one clock.
    Clocks,
    /// No workload begins at or after the end of the last grant that was
    /// confirmed, however long the agent stood still.
    Guard,
    /// No epoch is written and no fence is handed out below what was seen;
    /// none is raised for nothing; what a view that fell has lost is told.
    Floors,
    /// A command is answered, and truly.
    Commands,
    /// No machine asks again and again to be woken in the past.
    Spin,
    /// What a view names is there; what no workload needs is gone in the end.
    Content,
    /// A healed world is as it should be within the bound.
    Liveness,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once => "once",
            Self::Grants => "grants",
            Self::Verdicts => "verdicts",
            Self::Members => "members",
            Self::Heirs => "heirs",
            Self::Fate => "fate",
            Self::Views => "views",
            Self::Groups => "groups",
            Self::Placed => "placed",
            Self::Identity => "identity",
            Self::Told => "told in time",
            Self::Clocks => "clocks",
            Self::Guard => "guard",
            Self::Floors => "floors",
            Self::Commands => "commands",
            Self::Spin => "spin",
            Self::Content => "content",
            Self::Liveness => "liveness",
        })
    }
}

/// Who wrote, and under which id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    pub(super) p: usize,
    pub(super) id: NodeId,
}

/// What has been seen of the registers.
#[derive(Debug, Default)]
pub(super) struct CheckerState {
    pub(super) views: BTreeMap<Name, View>,
    pub(super) heartbeats: BTreeMap<NodeId, HeartbeatRecord>,
    /// Every node that has ever been a member.
    pub(super) members: BTreeSet<NodeId>,
    /// Whose heartbeat was ever lost, or swapped to dead.
    pub(super) gone: BTreeSet<NodeId>,
    /// When the last beat took effect that anybody may be granted a lease for,
    /// in whichever copy of the store.
    pub(super) landed: BTreeMap<NodeId, TrueTime>,
}

impl World {
    /// Looks at a register that has just changed.
    pub(super) fn check_register(
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
