//! `tenure drain`: has a node hand on its workloads, and reports how that went.
//!
//! A node that is not in the view any more has not necessarily *left*. It may
//! have died on the way, and then its workloads were failed over, not handed on.
//! The view keeps its latest departures, and how each was. Nor do the workloads
//! of a node that left necessarily run: perhaps no node can take them, or the
//! group needs the node for its quorum. Both are reported. The latter is also
//! said before anything is asked, since a drain cannot be taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tenure::Name;
use tenure::clock;
use tenure::ha::{NodeId, Place, View};

use super::pending_reason::{BEING_PLACED, pending_reason};
use super::pending_request::PendingRequest;
use super::request_handler::{RequestFailure, RequestHandler, RequestResult, failure};
use crate::format::counted;

/// How a node left the group, as far as the view remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DepartureKind {
    Left,
    Died,
    /// The view does not say, or could not be seen any more.
    Unknown,
}

/// A node that is being drained.
struct Draining {
    id: NodeId,
    name: String,
    /// The view before the request.
    before: Arc<View>,
    /// The workloads that it had at any time since.
    had: BTreeSet<Name>,
}

impl RequestHandler {
    pub(super) async fn drain(
        &self,
        node: Option<&str>,
        pending: &PendingRequest,
    ) -> RequestResult {
        let me = self.wait_until_joined(pending).await?;
        let (id, name) = match node {
            Some(node) => self.resolve(node)?,
            None => (me, self.manager.config().name.to_string()),
        };
        let before = self
            .view()
            .ok_or_else(|| failure("expected a view of the group"))?;
        let mut draining = Draining {
            id,
            name,
            before,
            had: BTreeSet::new(),
        };
        for text in draining.warnings() {
            pending.send_note(&format!("warning: {text}"));
        }
        let began = clock::boot();
        self.manager.drain_node(id).await?;
        pending.mark_in_view();
        let after = self.wait_until_left(&mut draining, pending).await;
        let took = clock::boot().since(began).as_millis();
        draining.outcome(after.as_deref(), u64::try_from(took).unwrap_or(u64::MAX))
    }

    /// Waits until a node is not in the view; returns the first without it.
    async fn wait_until_left(
        &self,
        draining: &mut Draining,
        pending: &PendingRequest,
    ) -> Option<Arc<View>> {
        let mut group_state = self.manager.group_state();
        let mut last_count = usize::MAX;
        loop {
            // Whether the manager has stopped is read first: the view that is
            // read after that is the last that it saw.
            let stopped = self.manager.has_stopped();
            let view = group_state.borrow_and_update().view.clone();
            if let Some(view) = view {
                if view.member(draining.id).is_none() {
                    return Some(view);
                }
                let held: Vec<Name> = view
                    .held_by(draining.id)
                    .map(|(name, _)| name.clone())
                    .collect();
                if held.len() != last_count {
                    last_count = held.len();
                    let has = counted(last_count, "workload");
                    pending.send_note(&format!("{}: has {has} to hand on", draining.name));
                }
                draining.had.extend(held);
            }
            if stopped {
                return None;
            }
            tokio::select! {
                _ = group_state.changed() => {}
                () = self.manager.stopped() => {}
            }
        }
    }
}

impl Draining {
    /// What a person should know before it cannot be taken back any more.
    fn warnings(&self) -> Vec<String> {
        let mut view = View::clone(&self.before);
        view.members.retain(|member| member.id != self.id);
        let held = self.before.held_by(self.id);
        for (name, it) in held.filter(|(_, it)| it.ha) {
            // If another node takes it, it may still need the quorum.
            let mut it = it.clone();
            it.place = Place::Waiting;
            let taken = pending_reason(&view, &it, |_| true).is_none_or(|why| why == BEING_PLACED);
            let next = view.members.iter().find(|it| it.ha && !it.draining);
            if let (true, Some(next)) = (taken, next) {
                it.place = Place::Assigned(next.id);
            }
            view.workloads.insert(name.clone(), it);
        }
        view.workloads
            .retain(|_, it| it.place.holder() != Some(self.id));
        let mut texts = waiting_texts(&view, &self.waiting(&view), "will wait");
        let own = self.before.held_by(self.id).filter(|(_, it)| !it.ha);
        let own: Vec<&str> = own.map(|(name, _)| name.as_str()).collect();
        if !own.is_empty() {
            texts.push(format!("not HA, and ends with it: {}", own.join(", ")));
        }
        texts
    }

    /// What waits in `view` because the node has gone: what it had, and what
    /// did not wait before. Names by what they wait for.
    fn waiting(&self, view: &View) -> BTreeMap<String, Vec<Name>> {
        let waits = |view: &View, name: &Name| {
            let it = view.workloads.get(name)?;
            if matches!(it.place, Place::Releasing { .. }) {
                return None;
            }
            // The group judges which node is dead. Until then each counts as live.
            pending_reason(view, it, |_| true).filter(|why| why != BEING_PLACED)
        };
        let mut waiting: BTreeMap<String, Vec<Name>> = BTreeMap::new();
        for name in view.workloads.keys() {
            let was = self.before.workloads.get(name);
            let had = was.is_some_and(|it| it.place.holder() == Some(self.id));
            let concerned = had || self.had.contains(name) || waits(&self.before, name).is_none();
            if let Some(why) = waits(view, name).filter(|_| concerned) {
                waiting.entry(why).or_default().push(name.clone());
            }
        }
        waiting
    }

    fn departure_kind(&self, after: Option<&View>) -> DepartureKind {
        let departures = after.iter().flat_map(|view| &view.departures);
        match departures.clone().find(|gone| gone.id == self.id) {
            Some(gone) if gone.died => DepartureKind::Died,
            Some(_) => DepartureKind::Left,
            None => DepartureKind::Unknown,
        }
    }

    /// The id under which it has joined again, if it has.
    fn rejoined_as(&self, after: Option<&View>) -> Option<NodeId> {
        let members = after.iter().flat_map(|view| &view.members);
        let mut back = members.filter(|it| it.name.as_str() == self.name);
        let back = back.find(|it| self.before.member(it.id).is_none());
        back.map(|it| it.id)
    }

    fn outcome(&self, after: Option<&View>, took_ms: u64) -> RequestResult {
        let (name, back) = (&self.name, self.rejoined_as(after));
        let again = back.map_or_else(String::new, |id| {
            format!("; it is back as {id}, which is not drained")
        });
        match self.departure_kind(after) {
            DepartureKind::Left => {}
            DepartureKind::Died => return Err(self.died(after, &again)),
            DepartureKind::Unknown => {
                return Err(failure(format!(
                    "expected {name} ({}) to leave, found that it is not known whether it has \
                     left or died{again}; see `tenure ps`",
                    self.id
                )));
            }
        }
        let Some(view) = after else {
            return Err(failure("expected a view of the group"));
        };
        let waiting = self.waiting(view);
        let texts = waiting_texts(view, &waiting, "waits");
        let mut text = format!("{name} has handed on what it had and left, in {took_ms} ms");
        if !texts.is_empty() {
            text = format!("{name} has left, in {took_ms} ms, but {}", texts.join("; "));
        }
        let waiting: Vec<Value> = waiting
            .iter()
            .flat_map(|(why, names)| {
                let one = move |name: &Name| json!({ "workload": name.as_str(), "why": why });
                names.iter().map(one)
            })
            .collect();
        let object = json!({
            "node": name, "id": self.id.to_string(), "took_ms": took_ms,
            "waiting": waiting, "quorum": view.quorum, "attained": view.has_quorum(),
            "back": back.map(|id| id.to_string()),
        });
        Ok((text + &again, object))
    }

    fn died(&self, after: Option<&View>, again: &str) -> RequestFailure {
        let had = self.had.iter();
        let kept = had.filter(|it| after.is_some_and(|view| view.workloads.contains_key(*it)));
        let kept: Vec<&str> = kept.map(Name::as_str).collect();
        let over = match kept.as_slice() {
            [] => "nothing was left to be failed over".to_owned(),
            names => format!("failed over, not handed on: {}", names.join(", ")),
        };
        failure(format!(
            "expected {} ({}) to hand on what it had and leave, found that it died meanwhile; \
             {over}{again}",
            self.name, self.id
        ))
    }
}

/// What waits, as texts for people.
fn waiting_texts(view: &View, waiting: &BTreeMap<String, Vec<Name>>, how: &str) -> Vec<String> {
    let one = |(why, names): (&String, &Vec<Name>)| {
        let list: Vec<&str> = names.iter().map(Name::as_str).collect();
        let how = match (how, names.len()) {
            ("waits", 2..) => "wait",
            _ => how,
        };
        let of_quorum = names.iter().any(|name| {
            let it = view.workloads.get(name);
            it.is_some_and(|it| it.ha && it.place != Place::Waiting)
        });
        let why = if of_quorum {
            format!("the group is below its quorum: {why}")
        } else {
            why.clone()
        };
        format!(
            "{} {how} ({}): {why}",
            counted(names.len(), "workload"),
            list.join(", ")
        )
    };
    let mut texts: Vec<String> = waiting.iter().map(one).collect();
    if texts.is_empty() && !view.has_quorum() {
        texts.push(format!(
            "the group is below its quorum: {} of {} HA nodes",
            view.voters(),
            view.quorum
        ));
    }
    texts
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure::core::ha::{Assignment, Departure, Digest, Member};

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    fn member(id: u128) -> Member {
        Member {
            id: NodeId::from_u128(id),
            name: name("one"),
            ha: true,
            draining: false,
            lease: Duration::from_secs(3),
            max: None,
            serial: 0,
            labels: Vec::new(),
        }
    }

    fn view(members: &[u128]) -> View {
        let mut view = View::empty(name("town"), 0, false);
        view.members = members.iter().map(|id| member(*id)).collect();
        view
    }

    fn outcome_of(after: Option<View>) -> Result<(String, Value), String> {
        let draining = Draining {
            id: NodeId::from_u128(1),
            name: "one".into(),
            before: Arc::new(view(&[1])),
            had: BTreeSet::new(),
        };
        draining
            .outcome(after.as_ref(), 7)
            .map_err(|failure| failure.text)
    }

    #[test]
    fn whoever_is_not_in_the_view_may_have_left_or_died_or_nobody_knows() {
        let without = |went: Option<bool>, members: &[u128]| {
            let mut view = view(members);
            let departed = |died| Departure {
                id: NodeId::from_u128(1),
                died,
            };
            view.departures.extend(went.map(departed));
            Some(view)
        };
        let (text, object) = outcome_of(without(Some(false), &[])).expect("it left");
        assert!(text.contains("one has handed on"), "{text}");
        assert_eq!(object["back"], Value::Null);
        let (text, object) = outcome_of(without(Some(false), &[2])).expect("it left");
        let id = NodeId::from_u128(2).to_string();
        assert!(text.contains(&format!("it is back as {id}")), "{text}");
        assert_eq!(object["back"], id);
        let why = outcome_of(without(Some(true), &[2])).expect_err("it died");
        assert!(why.contains("died") && why.contains(&id), "{why}");
        // Others have gone since, and nothing says how this one did.
        for unknown in [None, without(None, &[])] {
            let why = outcome_of(unknown).expect_err("nobody knows");
            assert!(why.contains("not known whether"), "{why}");
        }
    }

    #[test]
    fn who_is_needed_for_the_quorum_is_not_drained_unwarned() {
        let mut both = view(&[1, 2]);
        both.quorum = 2;
        for (workload, node) in [("a", 1), ("b", 2)] {
            let digest = Digest::new("x").expect("a digest");
            let it = Assignment {
                digest,
                instances: 1,
                ha: true,
                order: 0,
                fails: 0,
                needs: Vec::new(),
                place: Place::Assigned(NodeId::from_u128(node)),
            };
            both.workloads.insert(name(workload), it);
        }
        let draining = |view: View| Draining {
            id: NodeId::from_u128(1),
            name: "one".into(),
            before: Arc::new(view),
            had: BTreeSet::new(),
        };
        assert_eq!(
            draining(both.clone()).warnings(),
            ["2 workloads will wait (a, b): the group is below its quorum: 1 of 2 HA nodes"]
        );
        let mut alone = both.clone();
        alone.quorum = 0;
        assert!(draining(alone.clone()).warnings().is_empty());
        alone.members.truncate(1);
        alone.workloads.remove(&name("b"));
        assert_eq!(
            draining(alone).warnings(),
            ["1 workload will wait (a): no live HA node"]
        );
    }
}
