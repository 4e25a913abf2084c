//! What a leader takes for accepted is on the disk that it counts (H11, H15).
//!
//! A leader commits by counting disks. What it believes of each of them has
//! to be true: the member that it counts has, durably, the leader's own entry
//! there. Nobody but the simulator can look at both at once. It is not looked
//! at once the member is in a later term, whose leader may have taken the
//! entry away, nor while its process is down.

use tenure_alpo::{Node, Status};

use super::super::host::Host;
use super::{Check, Verdict, broken};

/// Looks at a server after a step.
pub(in super::super) fn look(leader: &Node, hosts: &[Host]) -> Verdict {
    if leader.status() != Status::Leader {
        return Ok(());
    }
    for (peer, accepted) in leader.accepted() {
        let disk = leader.members().get(peer).map(|member| member.storage);
        let theirs = |host: &&Host| host.id == peer && Some(host.storage) == disk;
        let host = hosts.iter().find(theirs);
        let Some(node) = host.and_then(|host| host.node.as_ref()) else {
            continue;
        };
        let Some(entry) = leader.log().term_at(accepted) else {
            continue;
        };
        if node.term() > leader.term() || accepted <= node.log().base().id {
            continue;
        }
        if node.log().term_at(accepted) != Some(entry) || node.durable() < accepted {
            let detail = format!(
                "{} leads term {} and counts {peer} up to {accepted} of term {entry}; it has {} \
                 there and is durable up to {}",
                leader.id(),
                leader.term(),
                node.log()
                    .term_at(accepted)
                    .map_or(0, tenure_core::ids::Term::get),
                node.durable(),
            );
            return broken(Check::Accepted, detail);
        }
    }
    Ok(())
}
