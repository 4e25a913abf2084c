//! How one view becomes the next (§1, §3, §4): pure functions, the same for
//! nodes and for an operator's command.
//!
//! Edits are level-triggered. A node looks at the view it has and drafts the next
//! one with *everything* that is due: which nodes to remove, what it has released,
//! what its users asked for. To remove a dead node and place its workloads
//! elsewhere is the failover (eviction in Kubernetes); there is no cordon. If the compare-and-swap fails, it drafts again from
//! what it finds, so nothing is lost and nothing is done twice. Many commands go
//! into one draft.

use alloc::vec::Vec;
use core::fmt;

use tenure_core::ids::Name;

use super::codec::VIEW_BYTES_ROOM;
use super::placement::Placement;
use super::view::{
    Assignment, DEPARTURES_MAX, Departure, INSTANCES_MAX, LABELS_MAX, MARKS_MAX, MEMBERS_MAX,
    Member, Place, Spec, Target, View,
};
use super::{Bug, Digest, NodeId, Plant};

/// What a user asks of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Run this, on that node or on whichever fits.
    Deploy(Spec, Option<NodeId>),
    /// End this workload, wherever it is.
    Undeploy(Name),
    /// End this workload where it is and run it on that node.
    Move(Name, NodeId),
    /// Move everything off this node, which then leaves.
    Drain(NodeId),
}

/// Why an edit was refused; nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The group has another quorum.
    Quorum {
        /// What this node was told.
        ours: u32,
        /// What the group has.
        theirs: u32,
    },
    /// The group places the load of dead nodes in the other way.
    Spread {
        /// Whether this node was told to spread it.
        ours: bool,
    },
    /// A workload of that name is there.
    Exists(Name),
    /// No workload of that name is there.
    NoWorkload(Name),
    /// No such node is there.
    NoNode(NodeId),
    /// The node does not take it, and why.
    Unfit(Name, &'static str),
    /// A number is out of its range.
    OutOfRange(&'static str),
    /// The view would not fit into a register.
    TooLarge {
        /// How many bytes it would take.
        bytes: usize,
    },
    /// The group has as many nodes as it can have.
    Full,
    /// The node is about to leave, or left before it could be known whether
    /// the request was carried out.
    Leaving,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quorum { ours, theirs } => write!(
                f,
                "expected the quorum of the group, {theirs}, found {ours}; give every node of \
                 a group the same one"
            ),
            Self::Spread { ours } => write!(
                f,
                "expected the group's way to place a dead node's load (spread: {}), found the \
                 other (spread: {ours}); give every node of a group the same one",
                !ours
            ),
            Self::Exists(name) => write!(
                f,
                "expected a new name, found that {name} is deployed, or not yet released; \
                 undeploy it first or choose another name"
            ),
            Self::NoWorkload(name) => {
                write!(
                    f,
                    "expected a workload of the group, found {name}, which it does not have"
                )
            }
            Self::NoNode(id) => {
                write!(
                    f,
                    "expected a node of the group, found {id}, which is not in it"
                )
            }
            Self::Unfit(name, why) => write!(
                f,
                "expected a node that can take it, found that {name} {why}; choose another node"
            ),
            Self::OutOfRange(what) => f.write_str(what),
            Self::TooLarge { bytes } => write!(
                f,
                "expected a view of at most {VIEW_BYTES_ROOM} bytes, found {bytes}; split the \
                 group, or use shorter names"
            ),
            Self::Full => write!(
                f,
                "expected at most {MEMBERS_MAX} nodes in a group, found one more; split the group"
            ),
            Self::Leaving => f.write_str(
                "expected a node that stays, found one that is leaving; whether the request was \
                 carried out can be seen in the view: look, and ask another node if it was not",
            ),
        }
    }
}

impl core::error::Error for Refusal {}

/// The next view, as far as it has come.
#[derive(Clone, Debug)]
pub struct Draft {
    view: View,
    changed: bool,
    /// About how many bytes it takes, once that was asked.
    bytes: Option<usize>,
    plant: Plant,
}

impl Draft {
    /// What follows `view`.
    pub const fn new(view: View, plant: Plant) -> Self {
        Self {
            view,
            changed: false,
            bytes: None,
            plant,
        }
    }

    /// As it stands.
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// The next view, or `None` if there is nothing to change. Whatever was
    /// waiting is placed if a node fits.
    pub fn finish(mut self) -> Option<View> {
        if !self.changed {
            return None;
        }
        self.place_waiting();
        if !self.plant.is(Bug::EpochKept) {
            self.view.epoch += 1;
        }
        Some(self.view)
    }

    /// Raises the epoch above one that was seen before a register was lost.
    pub fn above(&mut self, epoch: u64) {
        self.view.epoch = self.view.epoch.max(epoch);
    }

    /// Makes another version of the view, even if nothing else changes.
    pub(super) const fn touch(&mut self) {
        self.changed = true;
    }

    /// Says that content is about to be deleted, if there is room to say so;
    /// whether it does.
    pub(super) fn mark(&mut self, digest: &Digest) -> bool {
        let free = self.view.marks.len() < MARKS_MAX;
        if !free || self.grow(3 + digest.as_str().len()).is_err() {
            return false;
        }
        self.changed = true;
        self.view.marks.insert(digest.clone())
    }

    /// Says it of none any more.
    pub(super) fn unmark_all(&mut self) {
        self.changed |= !self.view.marks.is_empty();
        self.view.marks.clear();
    }

    fn grow(&mut self, by: usize) -> Result<(), Refusal> {
        let view = &self.view;
        let bytes = self.bytes.unwrap_or_else(|| view.encode().len()) + by;
        if bytes > VIEW_BYTES_ROOM {
            return Err(Refusal::TooLarge { bytes });
        }
        self.bytes = Some(bytes);
        Ok(())
    }

    /// Takes a node in. The first HA node of a group says its quorum.
    ///
    /// # Errors
    /// If it was told another quorum than the group, or there is no room.
    pub fn join(&mut self, member: Member, quorum: u32, spread: bool) -> Result<(), Refusal> {
        if self.view.member(member.id).is_some() {
            return Ok(());
        }
        if self.view.voters() == 0 {
            (self.view.quorum, self.view.spread) = (quorum, spread);
        } else if member.ha && self.view.quorum != quorum {
            let theirs = self.view.quorum;
            return Err(Refusal::Quorum {
                ours: quorum,
                theirs,
            });
        } else if member.ha && self.view.spread != spread {
            return Err(Refusal::Spread { ours: spread });
        }
        if self.view.members.len() >= MEMBERS_MAX {
            return Err(Refusal::Full);
        }
        let labels = member.labels.iter().map(|label| label.as_str().len() + 3);
        self.grow(96 + member.name.as_str().len() + labels.sum::<usize>())?;
        self.view.members.push(member);
        self.changed = true;
        Ok(())
    }

    /// Takes a node out that has ended everything, with all that was its own.
    pub fn leave(&mut self, id: NodeId) {
        if self.plant.is(Bug::LeaveFailsOver) {
            return self.remove_dead(id);
        }
        self.remove(id, false, |place| match place {
            Place::Releasing {
                to: Target::Node(next),
                ..
            } if next != id => Some(Place::Assigned(next)),
            Place::Releasing {
                to: Target::Anyone, ..
            } => Some(Place::Waiting),
            _ => None,
        });
    }

    /// The failover: takes a dead node out and hands its HA workloads over. Allowed only
    /// after its heartbeat register was read as dead (§3.2).
    pub fn remove_dead(&mut self, id: NodeId) {
        let mut chooser = Placement::new(&self.view, Some(id), self.plant);
        let plant = self.plant;
        let names: Vec<Name> = self
            .view
            .held_by(id)
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(assignment) = self.view.workloads.get_mut(&name) else {
                continue;
            };
            if plant.is(Bug::InstancesForgotten) {
                assignment.instances = 1;
            }
            assignment.place = match assignment.place {
                Place::Releasing {
                    to: Target::Nowhere,
                    ..
                } => continue,
                Place::Releasing { .. } if plant.is(Bug::MovesForgotten) => continue,
                _ if !assignment.ha => continue,
                // It was promised to a node that is there.
                Place::Releasing {
                    to: Target::Node(next),
                    ..
                } if next != id => Place::Assigned(next),
                _ => match chooser.placement(id, &name, assignment) {
                    Some(placement) => Place::Assigned(placement),
                    None => Place::Waiting,
                },
            };
        }
        self.remove(id, true, |_| None);
    }

    /// Removes a node; `left` says what becomes of what it still holds.
    fn remove(&mut self, id: NodeId, died: bool, left: impl Fn(Place) -> Option<Place>) {
        let members = self.view.members.len();
        self.view.members.retain(|member| member.id != id);
        if self.view.members.len() == members {
            return;
        }
        self.changed = true;
        self.view.departures.push(Departure { id, died });
        if self.view.departures.len() > DEPARTURES_MAX {
            self.view.departures.remove(0);
        }
        self.view.workloads.retain(|_, assignment| {
            if assignment.place.holder() == Some(id) {
                let place = left(assignment.place);
                assignment.place = place.unwrap_or(assignment.place);
                return place.is_some();
            }
            if let Place::Releasing { to, .. } = &mut assignment.place
                && *to == Target::Node(id)
            {
                *to = Target::Anyone;
            }
            true
        });
    }

    /// Carries out a request.
    ///
    /// # Errors
    /// If it cannot be.
    pub fn request(&mut self, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::Deploy(spec, on) => self.deploy(spec, *on),
            Request::Undeploy(name) => self.redirect(name, Target::Nowhere),
            Request::Move(name, to) => {
                let assignment = self.view.workloads.get(name);
                let assignment = assignment.ok_or_else(|| Refusal::NoWorkload(name.clone()))?;
                self.fit(*to, assignment)?;
                self.redirect(name, Target::Node(*to))
            }
            Request::Drain(id) => self.drain(*id),
        }
    }

    fn deploy(&mut self, spec: &Spec, on: Option<NodeId>) -> Result<(), Refusal> {
        if !(1..=INSTANCES_MAX).contains(&spec.instances) {
            return Err(Refusal::OutOfRange("expected 1 to 10000 instances"));
        }
        if spec.needs.len() > LABELS_MAX {
            return Err(Refusal::OutOfRange("expected at most 16 labels"));
        }
        if self.view.workloads.contains_key(&spec.name) {
            return Err(Refusal::Exists(spec.name.clone()));
        }
        let mut assignment = Assignment {
            digest: spec.digest.clone(),
            instances: spec.instances,
            ha: spec.ha,
            order: spec.order,
            fails: 0,
            needs: spec.needs.clone(),
            place: Place::Waiting,
        };
        assignment.needs.sort();
        match on {
            Some(id) => {
                self.fit(id, &assignment)?;
                assignment.place = Place::Assigned(id);
            }
            None if !spec.ha => {
                return Err(Refusal::OutOfRange(
                    "expected a node for a workload that is not HA",
                ));
            }
            None => {}
        }
        let needs = spec.needs.iter().map(|need| need.as_str().len() + 3);
        let bytes = 48 + spec.name.as_str().len() + spec.digest.as_str().len();
        self.grow(bytes + needs.sum::<usize>())?;
        self.view.marks.remove(&spec.digest);
        self.view.workloads.insert(spec.name.clone(), assignment);
        self.changed = true;
        Ok(())
    }

    /// Whether that node may be asked to take it.
    fn fit(&self, id: NodeId, assignment: &Assignment) -> Result<(), Refusal> {
        let member = self.view.member(id).ok_or(Refusal::NoNode(id))?;
        let claims = |place: &Place| place.claims().any(|node| node == id);
        let taken = self.view.workloads.values();
        let load = || taken.filter(|other| claims(&other.place)).count() as u64;
        let why = if member.draining {
            "is draining"
        } else if assignment.ha && !member.ha {
            "takes no HA workloads"
        } else if !member.satisfies(&assignment.needs) {
            "has not the labels asked for"
        } else if member.max.is_some_and(|max| load() >= u64::from(max)) {
            "is full"
        } else {
            return Ok(());
        };
        Err(Refusal::Unfit(member.name.clone(), why))
    }

    /// Asks its holder to release it.
    fn redirect(&mut self, name: &Name, to: Target) -> Result<(), Refusal> {
        let assignment = self.view.workloads.get_mut(name);
        let assignment = assignment.ok_or_else(|| Refusal::NoWorkload(name.clone()))?;
        let place = match (assignment.place, to) {
            (Place::Waiting, Target::Nowhere) => {
                self.view.workloads.remove(name);
                self.changed = true;
                return Ok(());
            }
            (Place::Waiting, Target::Node(node)) => Place::Assigned(node),
            (Place::Waiting, Target::Anyone) => Place::Waiting,
            // Where it is already.
            (Place::Assigned(from), Target::Node(node)) if from == node => Place::Assigned(from),
            // An undeployment that has begun is not taken back.
            (
                place @ Place::Releasing {
                    to: Target::Nowhere,
                    ..
                },
                _,
            ) => place,
            (Place::Assigned(from) | Place::Releasing { from, .. }, to) => {
                Place::Releasing { from, to }
            }
        };
        self.changed |= place != assignment.place;
        assignment.place = place;
        Ok(())
    }

    fn drain(&mut self, id: NodeId) -> Result<(), Refusal> {
        let member = self.view.members.iter_mut().find(|member| member.id == id);
        let member = member.ok_or(Refusal::NoNode(id))?;
        self.changed |= !member.draining;
        member.draining = true;
        Ok(())
    }

    /// Notes that so many commands of `id` have gone into the view.
    pub(super) fn count(&mut self, id: NodeId, serial: u64) {
        if let Some(member) = self.view.members.iter_mut().find(|member| member.id == id) {
            self.changed |= member.serial != serial;
            member.serial = serial;
        }
    }

    /// A draining node hands on all it has; what is not HA ends with it.
    pub(super) fn evacuate(&mut self, id: NodeId) {
        let held = self.view.held_by(id);
        let held = held.filter(|(_, held)| matches!(held.place, Place::Assigned(_)));
        let names: Vec<Name> = held.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return;
        }
        let mut chooser = Placement::new(&self.view, Some(id), self.plant);
        for name in names {
            let Some(assignment) = self.view.workloads.get_mut(&name) else {
                continue;
            };
            let to = if assignment.ha {
                let placement = chooser.placement(id, &name, assignment);
                placement.map_or(Target::Anyone, Target::Node)
            } else {
                Target::Nowhere
            };
            assignment.place = Place::Releasing { from: id, to };
            self.changed = true;
        }
    }

    /// `id` has reaped a workload that it was asked to release.
    pub(super) fn release(&mut self, id: NodeId, name: &Name) {
        let Some(assignment) = self.view.workloads.get_mut(name) else {
            return;
        };
        let Place::Releasing { from, to } = assignment.place else {
            return;
        };
        if from != id {
            return;
        }
        self.changed = true;
        match to {
            Target::Nowhere => {
                self.view.workloads.remove(name);
            }
            Target::Anyone => assignment.place = Place::Waiting,
            Target::Node(next) => assignment.place = Place::Assigned(next),
        }
    }

    /// `id` could not start it: the next one may try. Says whether there is
    /// one.
    pub(super) fn hand_on(&mut self, id: NodeId, name: &Name) -> bool {
        let mut chooser = Placement::new(&self.view, Some(id), self.plant);
        let Some(assignment) = self.view.workloads.get_mut(name) else {
            return false;
        };
        if assignment.place != Place::Assigned(id) || !assignment.ha {
            return false;
        }
        let Some(next) = chooser.next_after(id, assignment) else {
            return false;
        };
        assignment.fails = assignment.fails.saturating_add(1);
        assignment.place = Place::Assigned(next);
        self.changed = true;
        true
    }

    /// `id` runs it, after others could not.
    pub(super) fn succeeded(&mut self, id: NodeId, name: &Name) {
        if let Some(assignment) = self.view.workloads.get_mut(name)
            && assignment.place.holder() == Some(id)
            && assignment.fails > 0
        {
            assignment.fails = 0;
            self.changed = true;
        }
    }

    fn place_waiting(&mut self) {
        let waits = |(_, it): &(&Name, &Assignment)| it.place == Place::Waiting;
        let waiting = self.view.workloads.iter().filter(waits);
        let names: Vec<Name> = waiting.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return;
        }
        let mut chooser = Placement::new(&self.view, None, self.plant).spreading();
        for name in names {
            if let Some(assignment) = self.view.workloads.get_mut(&name)
                && let Some(node) = chooser.placement(NodeId::from_u128(0), &name, assignment)
            {
                assignment.place = Place::Assigned(node);
            }
        }
    }
}
