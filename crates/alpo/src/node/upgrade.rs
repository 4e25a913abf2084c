//! Kinds of entries that come with a later release.
//!
//! What is in the log must be understood by every server that will ever read
//! it. So the log itself says which kinds there may be: the *cluster's
//! version*, which a leader raises with an entry once every member has told it,
//! in this term, that it speaks more. Nothing of a later version is proposed
//! before that entry is applied; so a server that meets such an entry has met
//! the one that announced it.
//!
//! A server that is too old for what it is given stops before it has
//! accepted anything of it, and says so. It comes to that only if somebody
//! starts an earlier release after the cluster's version was raised, or
//! admits a server of one.

use super::super::entry::{ClusterVersion, Entry, Payload};
use super::super::state::State;
use super::leader::Leader;
use super::server::Server;
use super::types::Fault;

impl Leader {
    /// Raises the cluster's version to what all members speak.
    pub(super) fn raise(&mut self, server: &mut Server) {
        if self.ready_at.is_none() || self.transfer.is_some() {
            return;
        }
        let peers = server.members.now().peers(server.id());
        let spoken = |id| self.peers.get(id).and_then(|peer| peer.version);
        let all = peers
            .iter()
            .map(spoken)
            .try_fold(server.config.version, |least, version| {
                Some(least.min(version?))
            });
        let known = self.raised.max(server.state.version());
        if let Some(all) = all.filter(|all| *all > known) {
            self.raised = all;
            self.append(server, Payload::Version(all), None);
        }
        #[cfg(feature = "next-version")]
        self.note(server);
    }

    /// The next release's leader notes its term, once.
    #[cfg(feature = "next-version")]
    fn note(&mut self, server: &mut Server) {
        let payload = Payload::Note(server.term().get());
        let noted = server
            .log
            .iter()
            .any(|entry| entry.term == server.term() && matches!(entry.payload, Payload::Note(_)));
        if payload.since() <= server.state.version() && !noted {
            self.append(server, payload, None);
        }
    }
}

/// The version that a server must speak to go on after this entry.
pub(super) fn version_of(entry: &Entry) -> ClusterVersion {
    match entry.payload {
        Payload::Version(version) => version,
        _ => entry.payload.since(),
    }
}

impl Server {
    /// Stops if this entry says, or is, more than this server understands.
    pub(super) fn is_too_old_for(&mut self, entry: &Entry) -> bool {
        self.is_too_old(version_of(entry))
    }

    /// Stops if there may be entries before this state that this server does
    /// not understand, or there will be after it.
    pub(super) fn is_too_old_for_state(&mut self, state: &State) -> bool {
        self.is_too_old(state.version())
    }

    /// The same for what the disk gave back.
    pub(super) fn refuse_to_be_too_old(&mut self) {
        let announced = self.log.iter().filter_map(|entry| match entry.payload {
            Payload::Version(version) => Some(version),
            _ => None,
        });
        let newest = announced.fold(self.state.version(), ClusterVersion::max);
        self.is_too_old(newest);
    }

    fn is_too_old(&mut self, cluster: ClusterVersion) -> bool {
        let mine = self.config.version;
        let too_old = cluster > mine;
        if too_old {
            self.halt(Fault::Version { cluster, mine });
        }
        too_old
    }
}
