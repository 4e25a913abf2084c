//! Who belongs to the cluster.
//!
//! Members change one server at a time, by an entry of the log that takes
//! effect when it is *appended*, not when it commits. One at a time, so that
//! any majority before the change and any majority after it share a server:
//! that is why two leaders cannot be elected across a change. (Ongaro's
//! thesis, 4.1; and as found later: not before an entry of the leader's own
//! term has committed, or two changes of different leaders can be under way.)

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::ids::{ServerId, StorageId};

/// The most members a cluster can have.
pub const MAX_MEMBERS: usize = 31;

/// Whether a member votes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum VotingStatus {
    /// It votes, may stand, and is counted for commit.
    Voter,
    /// It is brought up to date, and is no part of any majority.
    Learner,
}

/// One member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Member {
    /// Whether it votes.
    pub voting_status: VotingStatus,
    /// The data directory it was admitted with; the server that comes with
    /// another one is a stranger.
    pub storage: StorageId,
}

/// The members of a cluster, dead or alive.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Membership {
    members: BTreeMap<ServerId, Member>,
}

/// One step from a membership to the next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// Takes in a server as a learner.
    AddLearner {
        /// Which server.
        server: ServerId,
        /// With which data directory.
        storage: StorageId,
    },
    /// Promotes a learner to a voter.
    Promote(ServerId),
    /// Takes a member out.
    Remove(ServerId),
}

/// Why a change makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// The server is a member already.
    AlreadyMember,
    /// The server is not a member.
    NotAMember,
    /// The server that is to be promoted is a voter already.
    AlreadyVoter,
    /// Nobody would be left to vote.
    LastVoter,
    /// There are [`MAX_MEMBERS`] already.
    Full,
}

impl Membership {
    /// The members a cluster is founded with: all of them vote.
    pub fn bootstrapped(servers: impl IntoIterator<Item = (ServerId, StorageId)>) -> Self {
        let voter = |storage| Member {
            voting_status: VotingStatus::Voter,
            storage,
        };
        servers
            .into_iter()
            .map(|(server, storage)| (server, voter(storage)))
            .collect()
    }

    /// All members in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ServerId, Member)> {
        self.members.iter().map(|(id, member)| (*id, *member))
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none: a server that was never told who belongs.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// One member.
    pub fn get(&self, server: ServerId) -> Option<Member> {
        self.members.get(&server).copied()
    }

    /// Whether `server` votes: whether it is a voter.
    pub fn is_voter(&self, server: ServerId) -> bool {
        self.get(server)
            .is_some_and(|m| m.voting_status == VotingStatus::Voter)
    }

    /// Whether `server` counts, and with this very disk.
    pub fn is_voter_with(&self, server: ServerId, storage: StorageId) -> bool {
        self.is_voter(server) && self.has(server, storage)
    }

    /// Whether `server` is a member, and with this very disk.
    pub fn has(&self, server: ServerId, storage: StorageId) -> bool {
        self.storage(server) == Some(storage)
    }

    /// The disk that `server` was admitted with, if it is a member.
    pub fn storage(&self, server: ServerId) -> Option<StorageId> {
        self.get(server).map(|member| member.storage)
    }

    /// Those that count.
    pub fn voters(&self) -> impl Iterator<Item = ServerId> {
        self.iter()
            .filter(|(_, member)| member.voting_status == VotingStatus::Voter)
            .map(|(id, _)| id)
    }

    /// Everybody but `server`.
    pub fn peers(&self, server: ServerId) -> Vec<ServerId> {
        let others = self.members.keys().filter(|id| **id != server);
        others.copied().collect()
    }

    /// The membership after `change`.
    ///
    /// # Errors
    /// If it makes no sense for these members.
    pub fn after(&self, change: Change) -> Result<Self, ChangeError> {
        let mut next = self.clone();
        match change {
            Change::AddLearner { server, storage } => {
                if self.get(server).is_some() {
                    return Err(ChangeError::AlreadyMember);
                }
                if self.len() >= MAX_MEMBERS {
                    return Err(ChangeError::Full);
                }
                let voting_status = VotingStatus::Learner;
                next.members.insert(
                    server,
                    Member {
                        voting_status,
                        storage,
                    },
                );
            }
            Change::Promote(server) => match next.members.get_mut(&server) {
                Some(member) if member.voting_status == VotingStatus::Learner => {
                    member.voting_status = VotingStatus::Voter;
                }
                Some(_) => return Err(ChangeError::AlreadyVoter),
                None => return Err(ChangeError::NotAMember),
            },
            Change::Remove(server) => {
                if next.members.remove(&server).is_none() {
                    return Err(ChangeError::NotAMember);
                }
                if next.voters().next().is_none() {
                    return Err(ChangeError::LastVoter);
                }
            }
        }
        Ok(next)
    }

    /// Whether `other` is at most one voter away from this: the condition
    /// under which their majorities overlap. A number with another disk is
    /// another voter.
    pub fn is_next_to(&self, other: &Self) -> bool {
        let missing = |from: &Self, to: &Self| {
            let voters = from.iter().filter(|(id, _)| from.is_voter(*id));
            let missing = voters.filter(|(id, it)| !to.is_voter_with(*id, it.storage));
            missing.count()
        };
        missing(self, other) + missing(other, self) <= 1
    }
}

impl FromIterator<(ServerId, Member)> for Membership {
    fn from_iter<T: IntoIterator<Item = (ServerId, Member)>>(members: T) -> Self {
        Self {
            members: members.into_iter().collect(),
        }
    }
}
