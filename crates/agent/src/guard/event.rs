//! Events of CMD and of its guardian, which the watchdog sends to the supervisor.

use super::exit_status::{ExitStatus, StartError};

/// What happened to CMD and to its guardian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GuardianEvent {
    /// The guardian stands by.
    Ready,
    /// CMD runs under this process id.
    Started {
        /// The process id, which is also its group's.
        pid: i32,
    },
    /// CMD was not started; `Gone` follows.
    Refused {
        /// For what reason.
        why: StartError,
    },
    /// CMD itself has ended; `Gone` follows when all it started has, too.
    Exited {
        /// How.
        status: ExitStatus,
        /// It had been sent TERM or KILL; otherwise it ended by itself.
        asked: bool,
    },
    /// The last event: nothing is left.
    Gone,
    /// The last event: the guardian failed. The supervisor has ended
    /// everything in its place; nothing is left.
    Lost {
        /// How it failed, for a person.
        why: String,
    },
    /// The last event: the watchdog itself has failed, and with it this
    /// process's sight of CMD. The guardian hears that its channel ends and
    /// ends CMD, at `kill_at` at the latest, but that is not reported.
    WatchdogLost,
}

impl GuardianEvent {
    /// Whether no other follows.
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Gone | Self::Lost { .. } | Self::WatchdogLost)
    }
}
