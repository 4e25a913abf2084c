//! Kinds of entries that come with a later release.
//!
//! What is in the log must be understood by every server that will ever read
//! it. So the log itself says which kinds there may be: the *cluster's
//! version*, which a leader raises with an entry once every member has told it,
//! in this term, that it speaks more. Nothing of a later version is proposed
//! before that entry is applied; so a server that meets such an entry has met
//! the one that announced it.
//!
//! A session's owner is noted where the session is opened, and never later. A
//! new cluster begins at version 1, though all of its servers speak more, and a
//! session of that moment would have no owner for its whole life. So a leader
//! opens none that is to have an owner while the version may be about to rise
//! ([`Leader::may_rise`]): it refuses, and the client asks again. It opens them
//! without owners as soon as it knows that a member speaks version 1 alone, as
//! in a cluster that is being upgraded.
//!
//! A member that says nothing may be down, and clients cannot wait for its
//! return: after [`RISE_WITHIN`] of the term they are served without it.
//!
//! A server that is too old for what it is given stops before it has
//! accepted anything of it, and says so. It comes to that only if somebody
//! starts an earlier release after the cluster's version was raised, or
//! admits a server of one.

use super::super::entry::{ClusterVersion, Entry, LogTime, Outcome, Payload};
use super::super::state::State;
use super::leader::Leader;
use super::server::Server;
use super::types::{Answer, Fault, Refusal};

/// For how much of a reign, in nanoseconds, a member that has not said what it
/// speaks holds up sessions that are to have an owner. It says so with its
/// first answer to a heartbeat: this is many times the round trip to a distant
/// server.
const RISE_WITHIN: LogTime = 3_000_000_000;

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

    /// Whether the cluster may be about to come to `wanted`: no member is known
    /// to speak less.
    ///
    /// Nothing that stands behind the entry that raises the version can be
    /// committed without it. So once that is in the log its end is waited for,
    /// however long it takes.
    pub(super) fn may_rise(&self, server: &Server, wanted: ClusterVersion) -> bool {
        if server.state.version() >= wanted || server.config.version < wanted {
            return false;
        }
        let since_ready = self
            .log_time(server)
            .saturating_sub(self.ready_at.unwrap_or(0));
        let mut peers = self.peers.values();
        let too_old = peers.any(|peer| peer.version.is_some_and(|version| version < wanted));
        self.raised >= wanted || !too_old && since_ready < RISE_WITHIN
    }

    /// What to tell the client whose entry came to this; `ownerless` if it was
    /// the opening of a session without an owner.
    ///
    /// A session whose opening came before the entry that raised the version,
    /// by a moment, has no owner. Its client is to open another one. The first
    /// ends by itself: no client is told its number.
    pub(super) fn answer_told(server: &Server, ownerless: bool, outcome: Outcome) -> Answer {
        let owns = server.state.version() >= ClusterVersion::SECOND;
        if ownerless && owns && matches!(outcome, Outcome::Opened(_)) {
            Answer::Refused(Refusal::UpgradeUnderWay)
        } else {
            Answer::Done(outcome)
        }
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
    pub(super) fn halt_if_too_old_for(&mut self, entry: &Entry) -> bool {
        self.halt_if_too_old(version_of(entry))
    }

    /// Stops if there may be entries before this state that this server does
    /// not understand, or there will be after it.
    pub(super) fn halt_if_too_old_for_state(&mut self, state: &State) -> bool {
        self.halt_if_too_old(state.version())
    }

    /// The same for what the disk gave back.
    pub(super) fn refuse_to_be_too_old(&mut self) {
        let announced = self.log.iter().filter_map(|entry| match entry.payload {
            Payload::Version(version) => Some(version),
            _ => None,
        });
        let newest = announced.fold(self.state.version(), ClusterVersion::max);
        self.halt_if_too_old(newest);
    }

    fn halt_if_too_old(&mut self, cluster: ClusterVersion) -> bool {
        let mine = self.config.version;
        let too_old = cluster > mine;
        if too_old {
            self.halt(Fault::Version { cluster, mine });
        }
        too_old
    }
}
