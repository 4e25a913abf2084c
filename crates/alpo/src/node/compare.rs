//! Whether all servers still have the same state.
//!
//! ```text
//!   leader                              the others
//!     │  heartbeat: marked with what at 512?  │
//!     │ ────────────────────────────────────► │
//!     │ ◄──────────────────────────────────── │  a mark, or "I do not know"
//!     │  (a majority of the voters has one)   │
//!     │  heartbeat: 512 is marked so          │
//!     │ ────────────────────────────────────► │  mine is another: I stop
//! ```
//!
//! What a majority has is taken for right, also against the leader, which
//! then stops as anybody would. It is not known to *be* right; but whoever
//! differs from a majority is the one whose answers will contradict the
//! others'. Where no majority agrees (one against one, say) nobody can tell
//! who has gone wrong: nobody stops, and people are told.

use alloc::vec::Vec;

use super::super::ids::LogId;
use super::super::message::Compare;
use super::super::quorum;
use super::super::state::Mark;
use super::leader::Leader;
use super::server::Server;
use super::types::{Event, Fault};

/// Heartbeats after which another mark is asked for, although no majority
/// has answered for the one before: they may have started anew since, and not
/// know it any more.
const PATIENCE: u32 = 10;

/// What a leader knows of the others' marks.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparing {
    /// Which mark is asked for; 0 for none yet.
    at: LogId,
    /// How often it was.
    asked: u32,
    agreed: Option<Mark>,
    /// The last mark that people were told of that nobody agrees on.
    told: LogId,
}

impl Comparing {
    /// What the next heartbeat says.
    pub(super) fn ask(&mut self, server: &Server) -> Compare {
        let settled = self.agreed.is_some_and(|agreed| agreed.id >= self.at);
        if (settled || self.at == 0 || self.asked >= PATIENCE)
            && let Some(newest) = server.state.newest_mark()
            && newest.id > self.at
        {
            (self.at, self.asked) = (newest.id, 0);
        }
        self.asked = self.asked.saturating_add(1);
        Compare {
            at: self.at,
            agreed: self.agreed,
        }
    }
}

impl Leader {
    /// Counts the marks; somebody has answered.
    pub(super) fn compare(&mut self, server: &mut Server) {
        let at = self.comparing.at;
        if at == 0 || self.comparing.agreed.is_some_and(|agreed| agreed.id >= at) {
            return;
        }
        let members = server.members.now();
        let mark = |id| {
            if id == server.id() {
                return server.state.mark(at);
            }
            let peer = self.peers.get(&id)?;
            peer.mark.filter(|mark| mark.id == at)
        };
        let marks: Vec<Mark> = members.voters().filter_map(mark).collect();
        let voters = members.voters().count();
        let has_majority = |mark: &&Mark| {
            let same = marks.iter().filter(|other| other == mark).count();
            same >= quorum::majority(voters)
        };
        if let Some(agreed) = marks.iter().find(has_majority).copied() {
            self.comparing.agreed = Some(agreed);
            server.tell(Event::Compared { at });
            server.agreed(Some(agreed));
        } else if marks.len() == voters && self.comparing.told != at {
            self.comparing.told = at;
            server.tell(Event::Disagreement { at });
        }
    }
}

impl Server {
    /// A majority has this mark: stops if its own is another. A mark of an
    /// entry that is not applied here yet is kept until it is.
    pub(super) fn agreed(&mut self, agreed: Option<Mark>) {
        let Some(agreed) = agreed else {
            return;
        };
        if agreed.id > self.state.applied().id {
            // The earliest: later ones would always be ahead of a server that
            // is always a little late.
            if self.awaited.is_none_or(|awaited| awaited.id > agreed.id) {
                self.awaited = Some(agreed);
            }
            return;
        }
        if self
            .state
            .mark(agreed.id)
            .is_some_and(|mine| mine != agreed)
        {
            self.halt(Fault::Diverged { id: agreed.id });
        }
    }
}
