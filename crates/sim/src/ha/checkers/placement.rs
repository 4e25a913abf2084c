//! The successor is the one that everybody would choose: computed here once more,
//! from the words of `docs/design/groups.md` and not from the code that is checked.

use tenure_group::{Assignment, NodeId, Place, Target, View};

use super::Finding;

pub(super) fn placement(before: &View, view: &View) -> Finding {
    let gone = before.members.iter().map(|member| member.id);
    let gone: Vec<NodeId> = gone.filter(|id| view.member(*id).is_none()).collect();
    for (name, now) in &view.workloads {
        let then = before.workloads.get(name);
        // Another of that name may have been deployed in the same step.
        let Some(then) = then.filter(|then| then.digest == now.digest) else {
            continue;
        };
        let Some(former) = then.place.holder().filter(|id| gone.contains(id)) else {
            continue;
        };
        if let Place::Assigned(successor) = now.place {
            eligible(view, successor, now)
                .map_err(|why| format!("{name} goes to {successor}, {why}"))?;
        }
        // Where several die at once, or there are wishes, the walk is long;
        // that they are eligible is enough.
        let moved =
            matches!(then.place, Place::Releasing { to: Target::Node(to), .. } if to != former);
        let plain = before.members.iter().all(|member| member.max.is_none());
        let left = view.departures.iter().any(|it| it.id == former && !it.died);
        if gone.len() > 1 || moved || left || !plain || view.spread || !then.needs.is_empty() {
            continue;
        }
        let mut ring: Vec<NodeId> = before
            .members
            .iter()
            .filter(|member| member.ha && !member.draining && member.id != former)
            .map(|member| member.id)
            .collect();
        ring.sort();
        let expected = match ring.len() {
            0 => None,
            count => Some(ring[(hash(former) % count as u64) as usize]),
        };
        // The node that has it may have been asked to hand it on in the same
        // step.
        let found = match now.place {
            Place::Releasing { from, .. } => Some(from),
            place => place.holder(),
        };
        // The successor may have handed it on already, if it is leaving.
        let stays = expected.and_then(|id| view.member(id));
        if found != expected && stays.is_some_and(|successor| !successor.draining) {
            return Err(format!(
                "{name} of {former} goes to {found:?}, expected {expected:?}"
            ));
        }
    }
    Ok(())
}

fn eligible(view: &View, successor: NodeId, it: &Assignment) -> Result<(), &'static str> {
    let member = view.member(successor).ok_or("which is no member")?;
    if it.ha && !member.ha {
        return Err("which is not HA");
    }
    if !it.needs.iter().all(|need| member.labels.contains(need)) {
        return Err("which lacks a label");
    }
    Ok(())
}

fn hash(id: NodeId) -> u64 {
    let mut hash = 14_695_981_039_346_656_037_u64;
    for byte in id.to_u128().to_be_bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(1_099_511_628_211);
    }
    hash
}
