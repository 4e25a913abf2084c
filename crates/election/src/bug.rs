//! Deliberate mistakes, so that the checkers can prove themselves.
//!
//! A checker that has never caught anything is a decoration. Each of these is
//! a one-line switch at the place in production code where the mistake would
//! really be made; the feature `planted-bugs` compiles the switches in, and
//! without it [`Config::planted`](super::Config) is the constant `false`. The
//! list is the classical ways to get a lease wrong.

use tenure_core::bugs;

bugs! {
    /// The grant is counted from the answer to a renewal, not from before it
    /// was sent.
    DeadlineFromEnd,
    /// Neither holder nor judge allow for clocks that run at other rates.
    DriftForgotten,
    /// A race whose outcome is unknown is taken for won.
    UnknownIsWon,
    /// A race whose outcome is unknown is taken for lost.
    UnknownIsLost,
    /// Resigning sets the term back to zero.
    TermReset,
    /// The version that a check found is not taken over: the stale one is
    /// expected again.
    StaleVersion,
    /// Under observed silence a grant is judged by the calendar.
    JudgedByWall,
    /// The holder goes on renewing after its deadline.
    RenewAfterDeadline,
    /// A candidate stands again under the id it was ousted with.
    OldId,
    /// The silence of a watch is taken for a verdict, without a fresh read.
    SilentWatch,
    /// A request that somebody wrote into the register is taken for an
    /// ousting.
    RequestIsOusting,
    /// The sequence is not raised, so that two writes can be equal.
    SequenceKept,
    /// The version swapped is the latest seen, not the one that was judged.
    SwapUnjudged,
    /// The election is vacated before the work has ended.
    VacateUndrained,
    /// A grant by session is counted from the answer to a keep-alive, not
    /// from before it was sent.
    ConfirmedFromAnswer,
    /// A keep-alive of unknown outcome is taken for confirmed.
    UnknownIsConfirmed,
    /// The session by which an election is held lives no longer than its lease,
    /// though the store's clock may be fast while the holder's is slow.
    SessionUnstretched,
    /// A leader that holds by a session never looks at the register, and trusts
    /// a watch that may have died.
    NeverLooks,
    /// What an abandoned id may have bound is not released: whatever keeps
    /// the session alive keeps nobody leading.
    NeverReleased,
    /// A boot id that differs is taken for the proof of a reboot.
    BootTrusted,
    /// A candidate races above what the register shows, and not above what it
    /// has seen.
    FloorForgotten,
    /// A candidate whose floor is above the register's term asks the leader to
    /// go as often as it looks.
    FloorRepeated,
    /// A term that the register shows under another leader than was seen in it
    /// is taken for the same.
    TermHadTwice,
    /// A leadership is renewed though its work has not confirmed the last
    /// grant.
    WorkUnasked,
    /// What the work has said of an earlier grant is taken for a word about
    /// the present one.
    OldWord,
    /// A conflict is taken for a lost race though the register shows what the
    /// race expected: it is run again at once.
    RefusalIsRace,
    /// Guarded work takes steps until the timer at the end of the grant has
    /// been heard of; the clock is not asked.
    GuardByTimer,
}
