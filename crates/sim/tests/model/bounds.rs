//! How much may happen. Within these bounds *everything* is explored.

use std::time::Duration;

use tenure_alpo::{Bug, Config};

use super::host::BEAT;
use super::rules::Broken;
use super::wire::Kept;

/// What is bounded; what is not (the order of messages, their loss) is tried
/// in every way there is.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) servers: usize,
    /// The highest term; nobody stands in a later one.
    pub(crate) terms: u64,
    /// Candidacies that a timeout begins.
    pub(crate) stands: u8,
    /// The only server that may begin one, if it is not all.
    pub(crate) only_stands: Option<usize>,
    /// Entries that clients propose; each leader adds its own no-op.
    pub(crate) proposals: u8,
    /// Heartbeats of leaders, to all at once.
    pub(crate) beats: u8,
    /// Hand-overs that leaders are asked for.
    pub(crate) transfers: u8,
    /// Reads rest on leases, and time passes for all at once, so often.
    pub(crate) lease: Option<u8>,
    /// The last server's number can go to another disk; both are there.
    pub(crate) replaced: bool,
    /// Steps of that that leaders are asked for.
    pub(crate) changes: u8,
    /// Crashes, each with a restart.
    pub(crate) crashes: u8,
    /// Messages delivered twice.
    pub(crate) duplicates: u8,
    /// Entries go one in a message, as large ones do.
    pub(crate) one_by_one: bool,
    /// Refusals are delivered, with all that candidates do about them.
    pub(crate) refusals: bool,
    /// Nothing is simplified: pre-votes and requests of bygone terms are
    /// messages like others, and every disk may be late.
    pub(crate) plain: bool,
    pub(crate) planted: Option<Bug>,
    /// The only rule that is watched, to see it caught by itself.
    pub(crate) only: Option<Broken>,
}

impl Bounds {
    /// Three servers, two elections, a crash.
    pub(crate) const SMALL: Self = Self {
        servers: 3,
        terms: 2,
        stands: 2,
        only_stands: None,
        proposals: 0,
        beats: 0,
        transfers: 0,
        lease: None,
        replaced: false,
        changes: 0,
        crashes: 1,
        duplicates: 0,
        one_by_one: false,
        refusals: false,
        plain: false,
        planted: None,
        only: None,
    };

    /// Three elections.
    pub(crate) const THREE: Self = Self {
        terms: 3,
        stands: 3,
        crashes: 0,
        ..Self::SMALL
    };

    /// Four elections.
    pub(crate) const FOUR: Self = Self {
        terms: 4,
        stands: 4,
        crashes: 0,
        ..Self::SMALL
    };

    /// Two elections with work to do, refusals, and a duplicate.
    pub(crate) const BUSY: Self = Self {
        proposals: 1,
        crashes: 0,
        duplicates: 1,
        refusals: true,
        ..Self::SMALL
    };

    /// A heartbeat, and one more election than the script had.
    pub(crate) const BEATING: Self = Self {
        stands: 1,
        beats: 1,
        refusals: true,
        ..Self::SMALL
    };

    /// After a leadership a hand-over, and one more election, with a crash.
    pub(crate) const HANDING: Self = Self {
        terms: 3,
        stands: 1,
        transfers: 1,
        ..Self::SMALL
    };

    /// After a leadership two hand-overs, and one more election, with a crash
    /// and a proposal.
    pub(crate) const HANDING_TWICE: Self = Self {
        terms: 4,
        proposals: 1,
        transfers: 2,
        ..Self::HANDING
    };

    /// After a leadership with a lease a hand-over, a timeout in which an
    /// election may begin, and a crash.
    pub(crate) const LEASE: Self = Self {
        terms: 2,
        lease: Some(1),
        ..Self::HANDING
    };

    /// A heartbeat instead of the hand-over, and no crash.
    pub(crate) const LEASE_BEATING: Self = Self {
        beats: 1,
        transfers: 0,
        crashes: 0,
        ..Self::LEASE
    };

    /// A server's disk is replaced, and the old one lives on. At any stage of
    /// it: the next change, a timeout in which an election may begin, a crash.
    pub(crate) const REPLACED: Self = Self {
        terms: 2,
        replaced: true,
        changes: 1,
        transfers: 0,
        ..Self::LEASE
    };

    /// The same without a crash.
    pub(crate) const REPLACED_CHANGING: Self = Self {
        crashes: 0,
        ..Self::REPLACED
    };

    /// A hand-over instead of the change and the crash.
    pub(crate) const REPLACED_HANDING: Self = Self {
        changes: 0,
        transfers: 1,
        crashes: 0,
        ..Self::REPLACED
    };

    /// And a crash too.
    pub(crate) const REPLACED_ALL: Self = Self {
        crashes: 1,
        ..Self::REPLACED_HANDING
    };

    /// One election with nothing simplified.
    pub(crate) const PLAIN: Self = Self {
        terms: 1,
        stands: 1,
        plain: true,
        ..Self::SMALL
    };

    /// Two candidates in one term with nothing simplified.
    pub(crate) const PLAIN_RIVALS: Self = Self {
        stands: 2,
        crashes: 0,
        ..Self::PLAIN
    };

    /// Two elections, a crash, a duplicate.
    pub(crate) const TWICE: Self = Self {
        duplicates: 1,
        ..Self::SMALL
    };

    /// Three elections, a crash.
    pub(crate) const THREE_CRASH: Self = Self {
        crashes: 1,
        ..Self::THREE
    };

    /// After a leadership two more, with a crash and a duplicate.
    pub(crate) const AFTER_TWO: Self = Self {
        terms: 3,
        duplicates: 1,
        ..Self::SMALL
    };

    /// After a leadership three more, with a crash.
    pub(crate) const AFTER_THREE: Self = Self {
        terms: 4,
        stands: 3,
        ..Self::SMALL
    };

    /// And a duplicate too.
    pub(crate) const AFTER_ALL: Self = Self {
        duplicates: 1,
        ..Self::AFTER_THREE
    };

    /// What is left of figure 8 after its script: s5 stands, among
    /// five.
    pub(crate) const FIGURE_EIGHT: Self = Self {
        servers: 5,
        terms: 4,
        stands: 1,
        only_stands: Some(4),
        crashes: 0,
        one_by_one: true,
        ..Self::SMALL
    };

    pub(crate) const fn kept(&self) -> Kept {
        Kept {
            stale: self.plain,
            refusals: self.refusals || self.plain,
            polls: self.plain,
            times: self.lease.is_some(),
        }
    }

    pub(crate) fn config(&self) -> Config {
        Config {
            election_timeout: Duration::from_secs(1),
            heartbeat: BEAT,
            // So much that pacing holds nothing back: how much is on its way is
            // the explorer's choice, and the digest leaves it out.
            append_bytes: if self.one_by_one { 1 } else { 1 << 20 },
            lease_reads: self.lease.is_some(),
            fast_detection: self.lease.is_none(),
            // Time goes by in leaps; a disk that is behind is not one that hangs.
            disk_lag: Duration::from_secs(3_600),
            planted: self.planted,
            ..Config::default()
        }
    }
}
