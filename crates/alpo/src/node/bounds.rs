//! Validation of messages, before any role handles them.
//!
//! Numbers that no cluster reaches by itself are refused where they are
//! decoded ([`MAX_NUMBER`]). Here is what only this server can tell: that a
//! term is further ahead than elections could have brought it, that a log is
//! said to end in a term that its owner has not reached, and that a message
//! contradicts what is known here.
//!
//! A contradiction (two leaders of one term, another entry than a committed
//! one, another state than the majority's) ends a server, since then something
//! is truly lost. An entry that only a later release understands ends it too,
//! since it cannot follow the log any further. Both are believed only of a
//! *member*, by this server's own log and with the disk that the log names.
//! A message of any other sender is refused and logged ([`Node::admit`]). So a server
//! that is no member, or not yet one in this server's log, cannot stop this server with a
//! message. That costs
//! nothing: if the contradiction is real this server goes on following the
//! leader that it follows, and hears of the other from members.
//!
//! Not covered: Byzantine members. A member that has proven its identity is trusted.

use core::fmt;

use tenure_core::ids::Term;

use super::super::entry::Entry;
use super::super::ids::{MAX_NUMBER, MAX_TERM_LEAP, Position, ServerId, StorageId};
use super::super::message::{Body, CompareChecksums, Envelope, Reply, Request, SenderRole};
use super::Node;
use super::server::Server;
use super::types::Fault;
use super::upgrade::version_of;

/// Why a message is rejected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessageError {
    /// Its term, or one that its log is said to have, cannot be.
    Term {
        /// The term.
        found: Term,
        /// The highest that is believed.
        most: u64,
    },
    /// It contradicts what is known here, and its sender is no member.
    Contradiction {
        /// The sender.
        by: ServerId,
        /// What it would end this server with, if a member had said it.
        fault: Fault,
    },
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Term { found, most } => write!(
                f,
                "expected a term of at most {most}, found {found}, which no election leads to"
            ),
            Self::Contradiction { by, fault } => write!(
                f,
                "server {}, which is no member by this server's log, claims that {fault}; find \
                 out who it is, and keep it off this network",
                by.get()
            ),
        }
    }
}

impl Node {
    /// Whether a message that came from a server with disk `storage` is to be
    /// taken. Checksums are taken out of it if the sender is no member. They are
    /// kept until the entry is applied, and would contradict later.
    ///
    /// # Errors
    /// Why it is not.
    pub fn admit(&self, envelope: &mut Envelope, storage: StorageId) -> Result<(), MessageError> {
        let server = &self.server;
        if let Some(objection) = server.validate(envelope) {
            return Err(objection);
        }
        let by = envelope.from;
        let member = server.members.now().get(by);
        if member.is_some_and(|member| member.storage == storage) {
            return Ok(());
        }
        if let Some(fault) = server.contradiction(envelope, storage) {
            return Err(MessageError::Contradiction { by, fault });
        }
        if let Body::Request { request, .. } = &mut envelope.body
            && let Request::Heartbeat {
                compare_checksums, ..
            } = request
        {
            *compare_checksums = CompareChecksums {
                agreed: None,
                ..*compare_checksums
            };
        }
        Ok(())
    }
}

impl Server {
    /// What is wrong with a message that no server can have sent, member or not.
    pub(super) fn validate(&self, envelope: &Envelope) -> Option<MessageError> {
        // Above `MAX_NUMBER` nothing is decoded, and no server stands.
        let most = self.term().get().saturating_add(MAX_TERM_LEAP);
        if envelope.term.get() > most {
            let found = envelope.term;
            return Some(MessageError::Term { found, most });
        }
        // No server has an entry of a term that it has not reached. One that
        // is believed to have it would outrank all others.
        let last = named(&envelope.body).max()?;
        (last > envelope.term).then_some(MessageError::Term {
            found: last,
            most: envelope.term.get(),
        })
    }

    /// What the message of a member would end this server with.
    fn contradiction(&self, envelope: &Envelope, storage: StorageId) -> Option<Fault> {
        let Body::Request { request, .. } = &envelope.body else {
            return None;
        };
        let (term, other) = (envelope.term, envelope.from);
        if request.sender_role() != SenderRole::Leader || term < self.term() {
            return None;
        }
        if term == self.term()
            && let Some(one) = self.another_leads((other, storage))
        {
            return Some(Fault::TwoLeaders { term, one, other });
        }
        match request {
            Request::Append { entries, .. } => {
                let conflicts = |entry: &&Entry| {
                    let known = self.log.term_at(entry.id);
                    entry.id <= self.commit && known.is_some_and(|known| known != entry.term)
                };
                if let Some(entry) = entries.iter().find(conflicts) {
                    let (id, leader) = (entry.id, other);
                    return Some(Fault::CommittedConflict { id, leader });
                }
                let mine = self.config.version;
                let newest = entries.iter().map(version_of).max()?;
                (newest > mine).then_some(Fault::Version {
                    cluster: newest,
                    mine,
                })
            }
            Request::Heartbeat {
                compare_checksums, ..
            } => {
                let agreed = compare_checksums.agreed?;
                let mine = self.state.state_checksum(agreed.id)?;
                (mine != agreed).then_some(Fault::Diverged { id: agreed.id })
            }
            _ => None,
        }
    }

    /// Who is known to lead this term, if that is another than this one, by
    /// number or by disk.
    pub(super) fn another_leads(&self, (by, storage): (ServerId, StorageId)) -> Option<ServerId> {
        let another = |one: &ServerId| *one != by || self.leads_with != Some(storage);
        self.leader.filter(another)
    }

    /// Whether there is another term to stand in. Only a forged disk or message
    /// can have brought a server so far that there is none.
    pub(super) const fn has_next_term(&self) -> bool {
        self.term().get() < MAX_NUMBER
    }

    /// Whether there is an id for another entry.
    pub(super) const fn has_next_entry(&self) -> bool {
        self.log.last().id < MAX_NUMBER
    }

    /// Stops, since there is none.
    pub(super) fn exhausted(&mut self) {
        let (term, last) = (self.term(), self.log.last().id);
        self.halt(Fault::Exhausted { term, last });
    }
}

/// The terms of entries that a message says its sender has.
fn named(body: &Body) -> impl Iterator<Item = Term> {
    let positions: [Option<Position>; 2] = match body {
        Body::Request { request, .. } => match request {
            Request::PreVote { last }
            | Request::Vote { last, .. }
            | Request::Defer { last }
            | Request::Heartbeat { last, .. }
            | Request::Install { last, .. }
            | Request::Append { prev: last, .. } => [Some(*last), None],
            Request::TimeoutNow => [None, None],
        },
        Body::Reply { reply, .. } => match reply {
            Reply::LogIncomplete { last }
            | Reply::Heard { last, .. }
            | Reply::Installed { last, .. } => [Some(*last), None],
            Reply::Mismatch { last, conflict, .. } => [Some(*last), *conflict],
            Reply::NotOutranked { mine: rank } | Reply::AlreadyVoted { voted_for: rank } => {
                [Some(rank.last), None]
            }
            Reply::StaleTerm
            | Reply::PreVoteGranted
            | Reply::LeaderKnown { .. }
            | Reply::NotAMember
            | Reply::Granted
            | Reply::Deferred
            | Reply::AlreadyLeader
            | Reply::Appended { .. }
            | Reply::Standing => [None, None],
        },
    };
    positions
        .into_iter()
        .flatten()
        .map(|position| position.term)
}
