//! Whether all servers still have the same state.
//!
//! ```text
//!   leader                              the others
//!     │  heartbeat: your checksum at 512?     │
//!     │ ────────────────────────────────────► │
//!     │ ◄──────────────────────────────────── │  a checksum, or "I do not know"
//!     │  (a majority of the voters has one)   │
//!     │  heartbeat: the checksum at 512       │
//!     │ ────────────────────────────────────► │  mine is another: I stop
//! ```
//!
//! What a majority has is taken for right, also against the leader, which then
//! stops as anybody would. It is not known to *be* right; but a server that
//! differs from a majority is the one whose answers will contradict the
//! others'. Where no majority agrees (one against one, say) no server can tell which
//! has gone wrong: none stops, and an error is logged.

use alloc::vec::Vec;

use super::super::quorum;
use super::super::state::StateChecksum;
use super::leader::Leader;
use super::server::Server;
use super::types::{Event, Fault};

impl Leader {
    /// Counts the checksums; a server has answered.
    pub(super) fn compare_checksums(&mut self, server: &mut Server) {
        let at = self.checksum_comparison.at;
        if at == 0
            || self
                .checksum_comparison
                .agreed
                .is_some_and(|agreed| agreed.id >= at)
        {
            return;
        }
        let members = server.members.now();
        let state_checksum = |id| {
            if id == server.id() {
                return server.state.state_checksum(at);
            }
            let peer = self.peers.get(&id)?;
            peer.state_checksum
                .filter(|state_checksum| state_checksum.id == at)
        };
        let state_checksums: Vec<StateChecksum> =
            members.voters().filter_map(state_checksum).collect();
        let voters = members.voters().count();
        let has_majority = |state_checksum: &&StateChecksum| {
            let same = state_checksums
                .iter()
                .filter(|other| other == state_checksum)
                .count();
            same >= quorum::majority(voters)
        };
        if let Some(agreed) = state_checksums.iter().find(has_majority).copied() {
            self.checksum_comparison.agreed = Some(agreed);
            server.emit(Event::StatesAgree { at });
            server.agreed(Some(agreed));
        } else if state_checksums.len() == voters && self.checksum_comparison.reported != at {
            self.checksum_comparison.reported = at;
            server.emit(Event::StatesDisagree { at });
        }
    }
}

impl Server {
    /// A majority has this checksum: stops if its own is another. That of an
    /// entry that is not applied here yet is kept until it is.
    pub(super) fn agreed(&mut self, agreed: Option<StateChecksum>) {
        let Some(agreed) = agreed else {
            return;
        };
        if agreed.id > self.state.applied().id {
            // The earliest: later ones would always be ahead of a server that
            // is always a little late.
            if self
                .awaited_checksum
                .is_none_or(|awaited_checksum| awaited_checksum.id > agreed.id)
            {
                self.awaited_checksum = Some(agreed);
            }
            return;
        }
        if self
            .state
            .state_checksum(agreed.id)
            .is_some_and(|mine| mine != agreed)
        {
            self.halt(Fault::Diverged { id: agreed.id });
        }
    }
}
