//! Why a workload does not run, as a text for people.
//!
//! The text says what the placement of `docs/design/groups.md` §5 has against
//! each node. It decides nothing: a workload that is shown as waiting for room
//! may get it in the same moment.

use tenure::ha::{Assignment, Member, Place, Target, View};

/// What is said of one that has a node to go to.
pub(super) const BEING_PLACED: &str = "a node is being chosen";

/// What a workload of this view waits for; `None` for one that is on a node
/// and may run there. `live` tells which nodes are not silent, as far as is
/// known.
pub fn pending_reason(
    view: &View,
    it: &Assignment,
    live: impl Fn(&Member) -> bool,
) -> Option<String> {
    match it.place {
        Place::Waiting => Some(no_node(view, it, live)),
        Place::Releasing { from, to } => {
            let name = |id| {
                let member = view.member(id);
                member.map_or_else(|| "a node".to_owned(), |it| it.name.to_string())
            };
            let from = name(from);
            Some(match to {
                Target::Nowhere => format!("{from} ends it: it is undeployed"),
                Target::Anyone => format!("{from} ends it before another node may start it"),
                Target::Node(to) => format!("{from} ends it before {} may start it", name(to)),
            })
        }
        Place::Assigned(_) if it.ha && !view.has_quorum() => {
            Some(format!("{} of {} HA nodes", view.voters(), view.quorum))
        }
        Place::Assigned(_) => None,
    }
}

/// Why no node has it.
fn no_node(view: &View, it: &Assignment, live: impl Fn(&Member) -> bool) -> String {
    let takes = |member: &&Member| member.ha && !member.draining && live(member);
    let nodes: Vec<&Member> = view.members.iter().filter(takes).collect();
    if nodes.is_empty() {
        return "no live HA node".to_owned();
    }
    let has_none = |need: &&tenure::Name| !nodes.iter().any(|node| node.labels.contains(need));
    let missing: Vec<&str> = it
        .needs
        .iter()
        .filter(has_none)
        .map(tenure::Name::as_str)
        .collect();
    if !missing.is_empty() {
        return format!("no live HA node has the label {}", missing.join(", "));
    }
    let fitting: Vec<&&Member> = nodes
        .iter()
        .filter(|node| node.satisfies(&it.needs))
        .collect();
    if fitting.is_empty() {
        let needs: Vec<&str> = it.needs.iter().map(tenure::Name::as_str).collect();
        return format!("no live HA node has all of the labels {}", needs.join(", "));
    }
    let claims = |place: &Place, node: &Member| {
        let comes =
            matches!(place, Place::Releasing { to: Target::Node(to), .. } if *to == node.id);
        comes || place.holder() == Some(node.id)
    };
    let full = |node: &&&Member| {
        let others = view.workloads.values();
        let held = others.filter(|it| claims(&it.place, node)).count();
        node.max.is_some_and(|max| held as u64 >= u64::from(max))
    };
    if fitting.iter().all(full) {
        let names: Vec<&str> = fitting.iter().map(|node| node.name.as_str()).collect();
        return format!("full: {}", names.join(", "));
    }
    BEING_PLACED.to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use tenure::Name;
    use tenure::ha::{Digest, NodeId};

    use super::*;

    fn names(text: &[&str]) -> Vec<Name> {
        let name = |text: &&str| Name::new(text).expect("a name");
        text.iter().map(name).collect()
    }

    fn node(number: u128, name: &str, labels: &[&str], max: Option<u32>) -> Member {
        Member {
            id: NodeId::from_u128(number),
            name: Name::new(name).expect("a name"),
            ha: true,
            draining: false,
            lease: Duration::from_secs(1),
            max,
            serial: 0,
            labels: names(labels),
        }
    }

    fn workload(needs: &[&str], place: Place) -> Assignment {
        Assignment {
            digest: Digest::new(&"0".repeat(64)).expect("a digest"),
            instances: 1,
            ha: true,
            order: 0,
            fails: 0,
            needs: names(needs),
            place,
        }
    }

    #[test]
    fn what_is_waited_for_has_a_name() {
        let (one, two) = (NodeId::from_u128(1), NodeId::from_u128(2));
        let to = Target::Node(two);
        let taken = workload(&[], Place::Releasing { from: one, to });
        let view = View {
            group: Name::new("web").expect("a name"),
            epoch: 7,
            quorum: 2,
            spread: false,
            members: vec![
                node(1, "one", &["disk=ssd"], None),
                node(2, "two", &["zone=a"], Some(1)),
            ],
            departures: Vec::new(),
            workloads: BTreeMap::from([(Name::new("taken").expect("a name"), taken.clone())]),
            marks: Default::default(),
        };
        let why = |it: &Assignment| pending_reason(&view, it, |_| true);
        for (needs, words) in [
            (&["zone=b"][..], "no live HA node has the label zone=b"),
            (
                &["disk=ssd", "zone=a"],
                "no live HA node has all of the labels disk=ssd, zone=a",
            ),
            // What is on its way there has its room already.
            (&["zone=a"], "full: two"),
            (&[], "a node is being chosen"),
        ] {
            let it = workload(needs, Place::Waiting);
            assert_eq!(why(&it).as_deref(), Some(words));
            let nobody = pending_reason(&view, &it, |_| false);
            assert_eq!(nobody.as_deref(), Some("no live HA node"));
        }
        let words = "one ends it before two may start it";
        assert_eq!(why(&taken).as_deref(), Some(words));
        let mut there = workload(&[], Place::Assigned(one));
        assert_eq!(why(&there), None);
        let mut few = view.clone();
        few.quorum = 3;
        let words = "2 of 3 HA nodes";
        assert_eq!(
            pending_reason(&few, &there, |_| true).as_deref(),
            Some(words)
        );
        there.ha = false;
        assert_eq!(
            pending_reason(&few, &there, |_| true),
            None,
            "it needs none"
        );
    }
}
