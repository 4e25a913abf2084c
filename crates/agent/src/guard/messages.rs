//! The messages between supervisor, guardian and launcher, in bytes.
//!
//! A message is a tag and a body; `channel.rs` carries it. Both ends are the same
//! binary, so there is no version. A message that does not parse means that
//! memory or descriptors have gone wrong. Then everything is ended.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use tenure::core::time::Instant;

use super::exit_status::{ExitStatus, StartError};

/// The order to start CMD: what to run, and until when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartOrder {
    /// From here on: TERM. A go-ahead that arrives later starts nothing.
    pub drain_at: Instant,
    /// From here on: KILL.
    pub kill_at: Instant,
    /// The program, looked up in `PATH`, and its arguments.
    pub argv: Vec<OsString>,
    /// Added to the environment `tenure run` itself was given.
    pub env: Vec<(OsString, OsString)>,
}

/// From the supervisor to the guardian; `Start` also from there to the launcher.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum GuardianOrder {
    /// The first message; CMD's standard input travels with it.
    Hello,
    /// Run this.
    Start(StartOrder),
    /// The lease was renewed: the new times, if they are later.
    Extend { drain_at: Instant, kill_at: Instant },
    /// TERM now, KILL at this time, or at `kill_at` if that is earlier.
    Stop { stop_by: Instant },
    /// KILL now.
    Kill,
    /// Pass this signal on to CMD's group.
    Signal(i32),
}

/// From the guardian to the supervisor; the first and third also from the
/// launcher to the guardian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GuardianReport {
    /// Standing by: a go-ahead now costs no fork.
    Ready,
    /// CMD runs under this process id.
    Started(i32),
    /// CMD runs, and is killed at this time unless another is heard of.
    Holds { kill_at: Instant },
    /// CMD was not started.
    Refused(StartError),
    /// CMD has ended; what it left behind is being ended.
    Exited {
        status: ExitStatus,
        /// It had been sent TERM or KILL.
        asked: bool,
    },
    /// Nothing is left.
    Gone,
}

/// A message that can be put in bytes.
pub(super) trait Message: Sized {
    fn encode(&self, to: &mut Vec<u8>);
    fn decode(from: &mut Reader<'_>) -> Option<Self>;
}

impl Message for GuardianOrder {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello => to.push(0),
            Self::Start(start) => {
                to.push(1);
                put_u64(to, start.drain_at.as_nanos());
                put_u64(to, start.kill_at.as_nanos());
                put_count(to, start.argv.len());
                for arg in &start.argv {
                    put_text(to, arg);
                }
                put_count(to, start.env.len());
                for (key, value) in &start.env {
                    put_text(to, key);
                    put_text(to, value);
                }
            }
            Self::Extend { drain_at, kill_at } => {
                to.push(2);
                put_u64(to, drain_at.as_nanos());
                put_u64(to, kill_at.as_nanos());
            }
            Self::Stop { stop_by } => {
                to.push(3);
                put_u64(to, stop_by.as_nanos());
            }
            Self::Kill => to.push(4),
            Self::Signal(number) => {
                to.push(5);
                to.extend(number.to_le_bytes());
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        Some(match from.u8()? {
            0 => Self::Hello,
            1 => Self::Start(StartOrder {
                drain_at: from.instant()?,
                kill_at: from.instant()?,
                argv: (0..from.u32()?)
                    .map(|_| from.text())
                    .collect::<Option<_>>()?,
                env: (0..from.u32()?)
                    .map(|_| Some((from.text()?, from.text()?)))
                    .collect::<Option<_>>()?,
            }),
            2 => Self::Extend {
                drain_at: from.instant()?,
                kill_at: from.instant()?,
            },
            3 => Self::Stop {
                stop_by: from.instant()?,
            },
            4 => Self::Kill,
            5 => Self::Signal(from.i32()?),
            _ => return None,
        })
    }
}

impl Message for GuardianReport {
    fn encode(&self, to: &mut Vec<u8>) {
        let (tag, number) = match *self {
            Self::Holds { kill_at } => {
                to.push(11);
                return put_u64(to, kill_at.as_nanos());
            }
            Self::Ready => (0, 0),
            Self::Started(pid) => (1, pid),
            Self::Refused(StartError::Late) => (2, 0),
            Self::Refused(StartError::NotFound(number)) => (3, number),
            Self::Refused(StartError::NotExecutable(number)) => (4, number),
            Self::Refused(StartError::System(number)) => (5, number),
            Self::Exited { status, asked } => {
                let (tag, number) = match status {
                    ExitStatus::Code(code) => (6, code),
                    ExitStatus::Signal(signal) => (8, signal),
                };
                (tag + u8::from(asked), i32::from(number))
            }
            Self::Gone => (10, 0),
        };
        to.push(tag);
        to.extend(number.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let tag = from.u8()?;
        if tag == 11 {
            let kill_at = from.instant()?;
            return Some(Self::Holds { kill_at });
        }
        let number = from.i32()?;
        Some(match tag {
            0 => Self::Ready,
            1 => Self::Started(number),
            2 => Self::Refused(StartError::Late),
            3 => Self::Refused(StartError::NotFound(number)),
            4 => Self::Refused(StartError::NotExecutable(number)),
            5 => Self::Refused(StartError::System(number)),
            6 | 7 => Self::Exited {
                status: ExitStatus::Code(u8::try_from(number).ok()?),
                asked: tag == 7,
            },
            8 | 9 => Self::Exited {
                status: ExitStatus::Signal(u8::try_from(number).ok()?),
                asked: tag == 9,
            },
            10 => Self::Gone,
            _ => return None,
        })
    }
}

fn put_u64(to: &mut Vec<u8>, number: u64) {
    to.extend(number.to_le_bytes());
}

fn put_count(to: &mut Vec<u8>, count: usize) {
    // A count that does not fit belongs to a message far beyond the limit,
    // which is refused as a whole.
    to.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(to: &mut Vec<u8>, text: &OsStr) {
    put_count(to, text.len());
    to.extend(text.as_bytes());
}

/// Takes a message apart; `None` wherever it is shorter than it claims.
pub(super) struct Reader<'a>(&'a [u8]);

/// A whole message and nothing behind it.
pub(super) fn parse<M: Message>(body: &[u8]) -> Option<M> {
    let mut reader = Reader(body);
    M::decode(&mut reader).filter(|_| reader.0.is_empty())
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn instant(&mut self) -> Option<Instant> {
        self.u64().map(Instant::from_nanos)
    }

    fn text(&mut self) -> Option<OsString> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(OsString::from_vec(head.to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_survives() {
        let exited = |status, asked| GuardianReport::Exited { status, asked };
        let reports = [
            GuardianReport::Ready,
            GuardianReport::Started(4711),
            GuardianReport::Refused(StartError::Late),
            GuardianReport::Refused(StartError::NotFound(2)),
            GuardianReport::Refused(StartError::NotExecutable(13)),
            GuardianReport::Refused(StartError::System(11)),
            exited(ExitStatus::Code(255), false),
            exited(ExitStatus::Code(0), true),
            exited(ExitStatus::Signal(64), false),
            exited(ExitStatus::Signal(15), true),
            GuardianReport::Gone,
            GuardianReport::Holds {
                kill_at: Instant::from_nanos(u64::MAX - 1),
            },
        ];
        for report in reports {
            let mut bytes = Vec::new();
            report.encode(&mut bytes);
            assert_eq!(parse(&bytes), Some(report));
            bytes.push(0);
            assert_eq!(parse::<GuardianReport>(&bytes), None, "too long");
            bytes.truncate(bytes.len() - 2);
            assert_eq!(parse::<GuardianReport>(&bytes), None, "cut short");
        }
    }
}
