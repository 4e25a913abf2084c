//! What must be true of a server at any moment, and of each of its steps.
//!
//! These are the rules that a single server can break on its own (I2, I3, I5,
//! I6, I10 of the table in `docs/design/alpo.md`). Those between servers (one
//! leader in a term, equal logs, no loss) need a view of all servers: the
//! simulator, the scripts and the model check have it. Debug builds check
//! after every step.

use super::durable::HardState;
use super::ids::{LogId, Position};
use super::node::{Node, Status};

/// What a step is judged by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Term, last reign and vote.
    pub hard: HardState,
    /// Up to where the log is committed.
    pub commit: LogId,
    /// Where the log ends.
    pub last: Position,
    /// The role.
    pub status: Status,
}

impl View {
    /// Of a node as it is now.
    pub fn of(node: &Node) -> Self {
        Self {
            hard: node.hard_state(),
            commit: node.commit(),
            last: node.log().last(),
            status: node.status(),
        }
    }
}

/// A rule that is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// I10: the last reign is above the term.
    ReignAboveTerm,
    /// The last entry's term is above the server's.
    EntryAboveTerm,
    /// More is committed than the log has.
    CommitAboveLog,
    /// What is committed is not applied, or the other way round.
    AppliedIsNotCommit,
    /// What is not committed was compacted.
    BaseAboveCommit,
    /// More is durable than the log has.
    DurableAboveLog,
    /// A leader whose own vote is another's.
    LeaderWithoutVote,
    /// A leader in a term in which it has not heard itself.
    LeaderWithoutReign,
    /// I3: the term fell.
    TermFell,
    /// I3: the commit fell.
    CommitFell,
    /// I2: the vote changed within a term.
    VoteChanged,
    /// The last reign fell.
    ReignFell,
    /// I5: a leader's log lost an entry.
    LeaderTruncated,
    /// I6: a committed entry was lost.
    CommittedTruncated,
}

/// The first rule that the server's state breaks.
pub fn check_state(node: &Node) -> Option<Broken> {
    let View {
        hard,
        commit,
        last,
        status,
    } = View::of(node);
    let leads = status == Status::Leader;
    let own_vote = hard.vote.is_some_and(|vote| vote.rank.server == node.id());
    let rules = [
        (hard.last_reign > hard.term, Broken::ReignAboveTerm),
        (last.term > hard.term, Broken::EntryAboveTerm),
        (commit > last.id, Broken::CommitAboveLog),
        (
            node.state().applied().id != commit,
            Broken::AppliedIsNotCommit,
        ),
        (node.log().base().id > commit, Broken::BaseAboveCommit),
        (node.durable() > last.id, Broken::DurableAboveLog),
        (leads && !own_vote, Broken::LeaderWithoutVote),
        (
            leads && hard.last_reign != hard.term,
            Broken::LeaderWithoutReign,
        ),
    ];
    first_broken(rules)
}

/// The first rule that the step from `before` to `after` breaks.
pub fn check_step(before: &View, after: &View) -> Option<Broken> {
    let same_term = before.hard.term == after.hard.term;
    let reigned_on = same_term && before.status == Status::Leader && after.status == Status::Leader;
    let vote_changed = before.hard.vote.is_some_and(|vote| {
        let voted = |other: super::durable::Vote| {
            other.rank.server == vote.rank.server && other.storage == vote.storage
        };
        !after.hard.vote.is_some_and(voted)
    });
    let rules = [
        (after.hard.term < before.hard.term, Broken::TermFell),
        (
            after.hard.last_reign < before.hard.last_reign,
            Broken::ReignFell,
        ),
        (same_term && vote_changed, Broken::VoteChanged),
        (after.commit < before.commit, Broken::CommitFell),
        (
            reigned_on && after.last.id < before.last.id,
            Broken::LeaderTruncated,
        ),
        (after.last.id < before.commit, Broken::CommittedTruncated),
    ];
    first_broken(rules)
}

fn first_broken<const N: usize>(rules: [(bool, Broken); N]) -> Option<Broken> {
    rules
        .into_iter()
        .find_map(|(broken, which)| broken.then_some(which))
}
