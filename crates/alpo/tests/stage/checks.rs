//! What must be true of all servers together, after every step.
//!
//! The rules that one server can break alone are asserted by the node itself
//! in debug builds, and here again; I1, I2, I4, I7 to I9, I11 and I12 of
//! `docs/design/alpo.md` compare servers, so only this checker can judge them.

use std::collections::BTreeMap;

use tenure_alpo::invariants::{self, View};
use tenure_alpo::{Answer, Body, Entry, Envelope, LogId, Node, Payload, Reply, ServerId, Status};
use tenure_core::ids::Term;

use super::host::Host;
use crate::args::Outcome;

type Hosts = BTreeMap<ServerId, Host>;

#[derive(Default)]
pub(crate) struct Checks {
    leaders: BTreeMap<Term, ServerId>,
    /// Who told whom in which term that it voted for it.
    votes: BTreeMap<(ServerId, Term), ServerId>,
    committed: BTreeMap<LogId, Entry>,
    /// Up to here clients know it to be done.
    acknowledged: LogId,
    tokens: u64,
    /// The script breaks a rule itself.
    pub(crate) off: bool,
}

impl Checks {
    pub(crate) const fn next_token(&mut self) -> u64 {
        self.tokens += 1;
        self.tokens
    }

    pub(crate) const fn acknowledged(&self) -> LogId {
        self.acknowledged
    }

    pub(crate) fn after_step(&mut self, hosts: &Hosts, id: ServerId, before: &View) -> Outcome<()> {
        let node = hosts.get(&id).and_then(|host| host.node.as_ref());
        let Some(node) = node.filter(|_| !self.off) else {
            return Ok(());
        };
        let broken = invariants::check_state(node)
            .or_else(|| invariants::check_step(before, &View::of(node)));
        if let Some(broken) = broken {
            return Err(format!("{id}: {broken:?}").into());
        }
        self.commits(node, before.commit)?;
        if node.status() == Status::Leader {
            self.leads(node)?;
        }
        let others = hosts.values().filter_map(|host| host.node.as_ref());
        for other in others.filter(|other| other.id() != id) {
            matching(node, other)?;
        }
        Ok(())
    }

    /// I1 and I7: one leader in a term, and it has what was committed.
    fn leads(&mut self, node: &Node) -> Outcome<()> {
        let (id, term) = (node.id(), node.term());
        let known = *self.leaders.entry(term).or_insert(id);
        if known != id {
            return Err(format!("I1: {known} and {id} lead in term {term}").into());
        }
        let base = node.log().base().id;
        let earlier = self.committed.values().filter(|entry| entry.term < term);
        for entry in earlier.filter(|entry| entry.id > base) {
            if node.log().get(entry.id) != Some(entry) {
                return Err(format!("I7: {id} leads without {:?}", entry.position()).into());
            }
        }
        Ok(())
    }

    /// I8 and I9: what is committed is committed everywhere, and a request
    /// once.
    fn commits(&mut self, node: &Node, before: LogId) -> Outcome<()> {
        for id in before + 1..=node.commit() {
            let Some(entry) = node.log().get(id) else {
                continue;
            };
            let known = self.committed.entry(id).or_insert_with(|| entry.clone());
            if known != entry {
                return Err(format!("I8: {} commits another entry {id}", node.id()).into());
            }
        }
        let mut seen = BTreeMap::new();
        for entry in self.committed.values() {
            let Payload::Command(command) = &entry.payload else {
                continue;
            };
            let key = (command.session, command.serial);
            if seen.insert(key, entry.id).is_some() {
                return Err(format!("I9: {key:?} is committed twice").into());
            }
        }
        Ok(())
    }

    /// I2 and I11: one vote for each term, and no request of the passive.
    pub(crate) fn sent(
        &mut self,
        hosts: &Hosts,
        before: &View,
        envelope: &Envelope,
    ) -> Outcome<()> {
        let Envelope { from, to, .. } = *envelope;
        let node = hosts.get(&from).and_then(|host| host.node.as_ref());
        let asks = [Status::Candidate, Status::PreVoting, Status::Leader];
        match &envelope.body {
            Body::Request { .. } => {
                let is = node
                    .map(Node::status)
                    .filter(|status| asks.contains(status));
                if is.is_none() && !asks.contains(&before.status) {
                    return Err(format!("I11: {from} asks {to}").into());
                }
            }
            Body::Reply {
                asked_in,
                reply: Reply::Granted,
                ..
            } => {
                let known = *self.votes.entry((from, *asked_in)).or_insert(to);
                if known != to && !self.off {
                    let who = format!("{known} and for {to}");
                    return Err(format!("I2: {from} votes for {who} in term {asked_in}").into());
                }
            }
            Body::Reply { .. } => {}
        }
        Ok(())
    }

    /// I12: an answer knows what was acknowledged before it was asked for.
    pub(crate) fn answered(
        &mut self,
        hosts: &Hosts,
        id: ServerId,
        answer: &Answer,
        known: LogId,
    ) -> Outcome<()> {
        let node = hosts.get(&id).and_then(|host| host.node.as_ref());
        let commit = node.map_or(0, Node::commit);
        match answer {
            Answer::Read(_) if commit < known => {
                Err(format!("I12: {id} answers as of {commit}, but {known} was done").into())
            }
            Answer::Done(_) => {
                self.acknowledged = self.acknowledged.max(commit);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// I4: below an entry that two logs share they are equal.
fn matching(one: &Node, other: &Node) -> Outcome<()> {
    let (a, b) = (one.log(), other.log());
    let from = a.base().id.max(b.base().id) + 1;
    let upto = a.last().id.min(b.last().id);
    let meet = (from..=upto)
        .rev()
        .find(|id| a.term_at(*id) == b.term_at(*id));
    for id in from..=meet.unwrap_or(0) {
        if a.get(id) != b.get(id) {
            let (one, other) = (one.id(), other.id());
            return Err(format!("I4: {one} and {other} differ in entry {id}").into());
        }
    }
    Ok(())
}
