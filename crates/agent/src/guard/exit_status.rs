//! How CMD ended, or why it never started, in the numbers of a shell.
//!
//! A caller of `tenure run` must be able to treat it as if it had run CMD itself.
//! So the numbers are those that every shell uses: CMD's own code, 128 and the
//! signal's number, 127 for "not found", 126 for "found, but cannot be run".

use std::fmt;

use rustix::io::Errno;
use rustix::process::WaitStatus;

/// How CMD ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(u8),
    /// It was ended by this signal.
    Signal(u8),
}

impl ExitStatus {
    /// What the kernel said; `None` if the process has not ended.
    pub(super) fn of(status: WaitStatus) -> Option<Self> {
        let byte = |n: i32| u8::try_from(n).ok();
        let code = status.exit_status().and_then(byte).map(Self::Code);
        code.or_else(|| status.terminating_signal().and_then(byte).map(Self::Signal))
    }

    /// The exit code to pass on: CMD's own, or 128 and the signal.
    pub fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "ended by signal {signal}"),
        }
    }
}

/// Why CMD was not started. The number is the system's error number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    /// The go-ahead came at or after `drain_at`: there was no time left.
    Late,
    /// There is no such program (or its interpreter is missing).
    NotFound(i32),
    /// There is one, but it may not or cannot be executed.
    NotExecutable(i32),
    /// The system would not start a process at all.
    System(i32),
}

impl StartError {
    /// Sorts an error of exec(2).
    pub(super) fn of_exec(error: &std::io::Error) -> Self {
        let number = error.raw_os_error().unwrap_or(0);
        match Errno::from_raw_os_error(number) {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound(number),
            Errno::NOMEM | Errno::AGAIN | Errno::NFILE | Errno::MFILE => Self::System(number),
            _ => Self::NotExecutable(number),
        }
    }

    /// The exit code a shell would give: 127, 126; 1 for the rest.
    pub fn code(self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
            Self::Late | Self::System(_) => 1,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cause = |number: &i32| std::io::Error::from_raw_os_error(*number);
        match self {
            Self::Late => write!(f, "the leadership was about to end before it started"),
            Self::NotFound(number) => write!(f, "command not found: {}", cause(number)),
            Self::NotExecutable(number) => write!(f, "cannot be executed: {}", cause(number)),
            Self::System(number) => write!(f, "no process could be started: {}", cause(number)),
        }
    }
}
