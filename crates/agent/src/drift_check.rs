//! Whether the nodes of a group were given the same `--drift`.
//!
//! The lease of a node is in its heartbeat, and the quorum is in the view. The
//! drift bound is a promise about machines, which each agent keeps by itself: it
//! ends its work so much before its lease is over, and waits so much longer than
//! the lease of another node before it takes that node for dead. Of all bounds in
//! a group only the *smallest* holds. A node that was given less than the others
//! takes away what they were promised. A node that joins warns of that. It is not
//! refused, because a bound is changed node by node.
//!
//! The check leaves out nodes whose heartbeat cannot be read, and nodes of an
//! earlier release, which do not tell their bound.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::request_handler::RequestHandler;

/// How many nodes are named.
const NAMED_MAX: usize = 5;

/// Compares the bound of this node, which has just joined, with those of the
/// others, and warns if they differ.
pub(super) async fn warn_if_different(handler: Arc<RequestHandler>) {
    let mut group_state = handler.manager.group_state();
    if group_state.wait_for(|it| it.member).await.is_err() {
        return;
    }
    // Those who have just joined, too, tell theirs with the next heartbeat.
    tokio::time::sleep(handler.manager.config().interval * 2).await;
    let seen = group_state.borrow().clone();
    let (Some(view), me) = (seen.view, seen.id) else {
        return;
    };
    let ours = handler.manager.config().drift.ppm();
    let mut others = BTreeSet::new();
    for member in view.members.iter().filter(|member| member.id != me) {
        let theirs = handler.status(member.id).await.drift_ppm;
        if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            others.insert(format!("{} on {}", percent(theirs), member.name));
        }
    }
    if others.is_empty() {
        return;
    }
    let more = others.len().saturating_sub(NAMED_MAX);
    let named: Vec<_> = others.into_iter().take(NAMED_MAX).collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    tracing::warn!(
        "expected the same --drift on all nodes of the group, found {} here and {}{more}: only \
         the smallest holds; give all nodes one that the clocks of all machines keep",
        percent(ours),
        named.join(", "),
    );
}

/// Parts per million as people write them.
fn percent(ppm: u32) -> String {
    let (whole, part) = (ppm / 10_000, ppm % 10_000);
    let part = format!("{part:04}");
    match part.trim_end_matches('0') {
        "" => format!("{whole} %"),
        part => format!("{whole}.{part} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_said_as_it_is_given() {
        for (ppm, said) in [
            (10_000, "1 %"),
            (500, "0.05 %"),
            (25_000, "2.5 %"),
            (1, "0.0001 %"),
            (0, "0 %"),
        ] {
            assert_eq!(percent(ppm), said);
        }
    }
}
