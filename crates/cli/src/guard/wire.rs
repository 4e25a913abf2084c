//! What supervisor and guardian say to each other: one packet a message, over
//! a sequenced-packet socket, as text.
//!
//! A packet that is not understood ends everything: the two are the same
//! binary, so it can only mean that something is badly wrong.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tenure_core::time::Instant;

/// The longest packet, in bytes. Only the environment of `start` has a
/// length of its own, and that is a few hundred.
const PACKET_MAX: usize = 64 * 1024;

/// When to begin to stop, and when to kill, on the boot-time clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deadlines {
    pub(crate) drain_at: Instant,
    pub(crate) kill_at: Instant,
}

/// What a supervisor tells its guardian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// Run the command, with these additions to its environment. Its standard
    /// input travels along.
    Start {
        deadlines: Deadlines,
        env: Vec<(String, String)>,
    },
    /// The deadlines are later now.
    Extend(Deadlines),
    /// TERM now, KILL after this.
    Stop(Duration),
    /// KILL now.
    Kill,
    /// Send this signal to the command's group.
    Signal(i32),
}

/// What a guardian tells its supervisor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// The command runs.
    Started(i32),
    /// The command was not started, and why.
    Refused(String),
    /// The command itself has ended, with this code (128 + n if signal n
    /// killed it). What it left behind may still run.
    Exited(i32),
    /// Nothing of it runs any more.
    Gone,
}

impl Order {
    fn encode(&self) -> String {
        match self {
            Self::Start { deadlines, env } => {
                let mut text = format!("start {}", times(deadlines));
                for (key, value) in env {
                    text.extend(["\0", key, "=", value]);
                }
                text
            }
            Self::Extend(deadlines) => format!("extend {}", times(deadlines)),
            Self::Stop(grace) => format!("stop {}", grace.as_nanos()),
            Self::Kill => "kill".into(),
            Self::Signal(signal) => format!("signal {signal}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (head, env) = text
            .split_once('\0')
            .map_or((text, None), |(h, e)| (h, Some(e)));
        let mut words = head.split(' ');
        let verb = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let order = match verb {
            "start" => {
                let deadlines = deadlines(&mut number)?;
                let pair = |pair: &str| {
                    pair.split_once('=')
                        .map(|(key, value)| (key.to_owned(), value.to_owned()))
                };
                let env =
                    env.map_or(Some(Vec::new()), |env| env.split('\0').map(pair).collect())?;
                Self::Start { deadlines, env }
            }
            "extend" => Self::Extend(deadlines(&mut number)?),
            "stop" => Self::Stop(Duration::from_nanos(number()?)),
            "kill" => Self::Kill,
            "signal" => Self::Signal(i32::try_from(number()?).ok()?),
            _ => return None,
        };
        Some(order)
    }
}

fn times(deadlines: &Deadlines) -> String {
    format!(
        "{} {}",
        deadlines.drain_at.as_nanos(),
        deadlines.kill_at.as_nanos()
    )
}

fn deadlines(number: &mut impl FnMut() -> Option<u64>) -> Option<Deadlines> {
    let drain_at = Instant::from_nanos(number()?);
    Some(Deadlines {
        drain_at,
        kill_at: Instant::from_nanos(number()?),
    })
}

impl Report {
    fn encode(&self) -> String {
        match self {
            Self::Started(pid) => format!("started {pid}"),
            Self::Refused(why) => format!("refused {why}"),
            Self::Exited(code) => format!("exited {code}"),
            Self::Gone => "gone".into(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
        let report = match verb {
            "started" => Self::Started(rest.parse().ok()?),
            "refused" => Self::Refused(rest.to_owned()),
            "exited" => Self::Exited(rest.parse().ok()?),
            "gone" => Self::Gone,
            _ => return None,
        };
        Some(report)
    }
}

/// Sends an order, with a descriptor if there is one.
pub(super) fn send_order(
    socket: impl AsFd,
    order: &Order,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    send(socket, &order.encode(), descriptor)
}

/// Sends a report.
pub(super) fn send_report(socket: impl AsFd, report: &Report) -> io::Result<()> {
    send(socket, &report.encode(), None)
}

fn send(socket: impl AsFd, text: &str, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    sendmsg(
        socket,
        &[IoSlice::new(text.as_bytes())],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives an order and the descriptor that came along; `None` at the end.
pub(super) fn receive_order(socket: impl AsFd) -> io::Result<Option<(Order, Option<OwnedFd>)>> {
    let Some((text, descriptor)) = receive(socket)? else {
        return Ok(None);
    };
    Ok(Some((
        Order::decode(&text).ok_or_else(|| garbled(&text))?,
        descriptor,
    )))
}

/// Receives a report; `None` at the end.
pub(super) fn receive_report(socket: impl AsFd) -> io::Result<Option<Report>> {
    let Some((text, _)) = receive(socket)? else {
        return Ok(None);
    };
    Ok(Some(Report::decode(&text).ok_or_else(|| garbled(&text))?))
}

fn receive(socket: impl AsFd) -> io::Result<Option<(String, Option<OwnedFd>)>> {
    let mut packet = vec![0; PACKET_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut packet)],
        &mut ancillary,
        flags,
    )?;
    if received.bytes == 0 {
        return Ok(None);
    }
    packet.truncate(received.bytes);
    let text = String::from_utf8(packet).map_err(|_| garbled("bytes"))?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    Ok(Some((text, descriptor)))
}

fn garbled(text: &str) -> io::Error {
    let shown: String = text.chars().take(60).collect();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a garbled message: {shown:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::{Deadlines, Duration, Instant, Order, Report};

    #[test]
    fn orders_and_reports_survive_the_wire() {
        let at = Instant::from_nanos;
        let deadlines = Deadlines {
            drain_at: at(1),
            kill_at: at(u64::MAX),
        };
        let env = vec![("A".into(), "b=c d\n".into()), ("E".into(), String::new())];
        for order in [
            Order::Start { deadlines, env },
            Order::Start {
                deadlines,
                env: Vec::new(),
            },
            Order::Extend(deadlines),
            Order::Stop(Duration::from_millis(1)),
            Order::Kill,
            Order::Signal(15),
        ] {
            assert_eq!(Order::decode(&order.encode()), Some(order));
        }
        for report in [
            Report::Started(7),
            Report::Refused("no such".into()),
            Report::Exited(137),
            Report::Gone,
        ] {
            assert_eq!(Report::decode(&report.encode()), Some(report));
        }
        for garbled in [
            "",
            "start",
            "start 1",
            "extend 1 x",
            "stop -1",
            "signal",
            "dance",
        ] {
            assert_eq!(Order::decode(garbled), None, "{garbled:?}");
        }
    }
}
