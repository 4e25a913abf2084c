//! A server goes by the members that its log has (H17).
//!
//! A change of members counts from when its entry is in the log, and no
//! longer than it is: the last such entry says who the members are, committed
//! or not, and before the first of them the applied state does. It is looked
//! at when entries were taken away, which is when a server could forget it.

use tenure_alpo::{Node, Payload};

use super::{Check, Verdict, broken};

/// Looks at a server whose log was truncated.
pub(in super::super) fn look(node: &Node) -> Verdict {
    let applied = node.state().applied().id;
    let entries = node.log().iter().filter(|entry| entry.id > applied);
    let mut last = entries.filter_map(|entry| match &entry.payload {
        Payload::Members(members) => Some(members),
        _ => None,
    });
    let due = last.next_back().unwrap_or_else(|| node.state().members());
    if node.members() == due {
        return Ok(());
    }
    let (id, found) = (node.id(), node.members());
    let detail = format!("{id} goes by {found:?}, and its log says {due:?}");
    broken(Check::Members, detail)
}
