//! A group may refuse an agent because of its quorum. Then the agent says which
//! nodes the group has, whether any of them lives, and what a person can do.
//!
//! The quorum stays in the view until the last HA node has gone from it, and only
//! a member takes other nodes out. So a group that has died as a whole keeps its
//! quorum, although no node is left that needs it.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::ha::{Heartbeat, NodeId, Refusal};

use super::request_handler::RequestHandler;

/// How many nodes are named.
const SHOWN_MAX: usize = 8;

/// What to add to the refusal: nothing, or how the group could get another
/// quorum.
pub(super) async fn quorum_advice(handler: &RequestHandler, why: &Refusal) -> String {
    let Refusal::Quorum { theirs, .. } = why else {
        return String::new();
    };
    let Some(view) = handler.manager.group_state().borrow().view.clone() else {
        return String::new();
    };
    let silences = silences(handler).await;
    let mut members: Vec<_> = view.members.iter().filter(|member| member.ha).collect();
    members.sort_by_key(|member| (&member.name, member.id));
    let more = members.len().saturating_sub(SHOWN_MAX);
    let members = members.iter().take(SHOWN_MAX);
    let members = members.map(|member| {
        let how = match silences.get(&member.id) {
            Some(silence) if *silence > member.lease => {
                format!("silent for {} s", silence.as_secs())
            }
            Some(_) => "alive".into(),
            None => "not heard of".into(),
        };
        format!("{} ({how})", member.name)
    });
    let mut members: Vec<String> = members.collect();
    if more > 0 {
        members.push(format!("and {more} more, which `tenure ps` shows"));
    }
    format!(
        ". Its HA nodes are: {}. If none of them lives, start one agent with --quorum {theirs}, \
         wait until its log says that they have died (a lease and somewhat more), end it by TERM, \
         and then start all with the new quorum; what is deployed stays deployed",
        members.join(", ")
    )
}

/// How long each node has been silent, as far as the store can tell.
async fn silences(handler: &RequestHandler) -> BTreeMap<NodeId, Duration> {
    let within = handler.manager.config().lease;
    let (mut found, mut after) = (BTreeMap::new(), None);
    loop {
        let prefix = handler.keys.heartbeats();
        let Ok(page) = handler.store.list(&prefix, after.as_ref(), within).await else {
            return found;
        };
        for (key, register) in &page.registers {
            let is_alive =
                Heartbeat::decode(&register.value).is_ok_and(|heartbeat| heartbeat.dead.is_none());
            let silence = page.now.zip(register.stamp);
            let silence = silence.and_then(|(now, stamp)| now.since(stamp));
            if let (true, Some(id), Some(silence)) = (is_alive, handler.keys.node(key), silence) {
                found.insert(id, silence);
            }
        }
        after = page.more_after;
        if after.is_none() {
            return found;
        }
    }
}
