//! Deliberate mistakes, so that the checkers can prove themselves.
//!
//! Each is a one-line switch at the place in production code where the mistake
//! would really be made.
//!
//! They are the flaws H1 to H18 of the sources (`docs/design/alpo.md`), the classical
//! mistakes in a replicated log, and mistakes in bootstrap, in registers that are bound to
//! sessions, in the time without votes on which a read lease counts, in what a stalled
//! disk does, and in the identity of servers (`docs/design/identity.md`).
//!
//! The feature `planted-bugs` compiles the switches in; without it they are the
//! constant `false`.

use tenure_core::bugs;

bugs! {
    /// H1: the vote is not made durable, so a restarted server votes twice.
    VoteForgotten,
    /// H1: the term is not made durable and begins again at that of the
    /// last entry.
    TermForgotten,
    /// H2: an earlier term's entry is committed by counting.
    EarlierTermCounted,
    /// H3: logs are compared by length alone.
    LengthRanks,
    /// H3: a longer *or* a newer log refuses, so two servers can refuse each
    /// other for ever.
    EitherRefuses,
    /// H4: logs are compared by the last reign that was heard.
    ReignRanks,
    /// H5: a leader answers reads without asking whether it still leads.
    ReadUnconfirmed,
    /// H5: a leader that hears nobody goes on.
    NeverStepsDown,
    /// H6: a candidate waits for ever.
    CandidateWaits,
    /// H7: a single better log drops a candidate out, every time.
    SingleVeto,
    /// H8: any candidate's message restarts the timer.
    AnyCandidateResetsTimer,
    /// H9: a server that hears a leader takes over a candidate's term.
    NotSticky,
    /// H9: the term is raised without a pre-vote.
    NoPreVote,
    /// H10: a server that deferred stands again at once.
    DeferImpatient,
    /// H11: votes of an earlier cycle are counted.
    StaleVotes,
    /// H11: replies of an earlier term are counted.
    StaleMatches,
    /// H12: a leader counts itself before its disk has the entry.
    CountedUnsynced,
    /// H13: a follower takes the leader's commit for its own log.
    CommitUnverified,
    /// H14: a damaged log is cut where the damage begins, whatever follows.
    DamageCut,
    /// H15: a follower reports its own last id as matched.
    LastIdMatches,
    /// H16: a retry is not looked for in the uncommitted tail.
    TailUnsearched,
    /// H16: a request done before is skipped but its answer is not kept.
    AnswerLost,
    /// H16: each server ends sessions by its own clock.
    LocalExpiry,
    /// A follower acknowledges entries before its disk has them.
    AckUnsynced,
    /// A duplicate append truncates what came after it.
    DuplicateTruncates,
    /// A snapshot leaves out the sessions.
    SnapshotForgets,
    /// A snapshot that was encoded while a newer one came from the leader
    /// takes that one's place.
    SnapshotOvertaken,
    /// A snapshot from the leader takes the place of the state although the log
    /// went beyond it while it was decoded.
    InstallOvertaken,
    /// Half is taken for a majority.
    HalfIsMajority,
    /// The lease is counted from the end of the round.
    LeaseFromEnd,
    /// Reads are answered before an entry of the leader's own term has
    /// committed.
    ReadBeforeNoOp,
    /// Learners are counted.
    LearnerCounted,
    /// A change of members begins while another is under way.
    ChangesOverlap,
    /// Voters are changed although the disks of those who would vote then may
    /// hang.
    ChangeUnsynced,
    /// An entry is applied when it arrives, not when it commits.
    AppliedEarly,
    /// A server whose disk was wiped is taken for the one it was.
    WipedVotes,
    /// A majority of blank servers founds a cluster.
    FoundByMajority,
    /// Blank servers found a cluster without having promised it to each other.
    FoundUnpromised,
    /// A session ends, and its registers keep what they hold.
    OnExpiryValueForgotten,
    /// A client that knows its version writes a register, bound or not.
    BoundWritable,
    /// The end of a session is carried out as it was proposed, whatever was
    /// heard of it since.
    ExpiryUnchecked,
    /// A new leader gives no session a new time to live.
    NewLeaderExtendsNoSession,
    /// The log's time goes on from the newest that was heard, by the whole
    /// leadership: it runs ahead of every clock.
    TimeCountedTwice,
    /// A restarted server refuses votes only for as long as the settings that
    /// it has now.
    NoVoteTimeForgotten,
    /// A connection that is closed ends the time without votes after a restart.
    NoVoteTimeShortened,
    /// A leader that has offered the leadership to another still counts on
    /// its lease.
    LeaseKept,
    /// What a leader's own disk has kept waiting for long is counted as if it
    /// were on it.
    StalledCounted,
    /// A cluster that is made from a backup goes on where that ends.
    RestoredInPlace,
    /// Votes are counted by number alone, whichever disk gave them.
    VotesByNumber,
    /// What is appended is counted by number alone.
    AppendsByNumber,
    /// Rounds, on which reads rest, are counted by number alone.
    RoundsByNumber,
    /// What a disk has is believed of the one that gets its number, which is
    /// promoted on its word.
    ProgressKept,
    /// A change of members that is truncated is not taken back.
    MembersKept,
    /// Requests of servers that this server's own members do not have with
    /// that disk are refused.
    NewerRefused,
    /// A serial that comes again is answered as done, whatever it asks for.
    SerialWithoutDigest,
    /// A client that knows a session's number may use it.
    SessionWithoutOwner,
    /// A disk that was set back to an earlier state of itself is let in, and
    /// counts.
    SetBackCounted,
    /// Of two processes with one disk both are let in, and count.
    CloneCounted,
}
