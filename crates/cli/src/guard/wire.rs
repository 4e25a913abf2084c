//! What supervisor, guardian and shim say to each other, and how.
//!
//! A message is a length (four bytes, little-endian), a tag and a body, over
//! a stream socket that only the two of them hold. Its end is a message too:
//! whoever is on the other side is dead. Both ends are the same binary, so
//! there is no version; anything that does not parse means that memory or
//! descriptors have gone wrong, and is answered by ending everything.
//!
//! Sending never blocks: what the socket does not take is kept and sent when
//! it does, because a supervisor that waits for a stopped guardian could not
//! kill it at `kill_at`. Limits: [`LIMIT`] bytes a message.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tenure::core::time::Instant;

use super::status::{Refusal, Status};

/// The longest message: above what exec(2) takes for arguments and
/// environment by default (2 MiB), below what could hurt.
pub(super) const LIMIT: usize = 4 << 20;

/// What to run and until when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Start {
    /// From here on: TERM. A go-ahead that arrives later starts nothing.
    pub(crate) drain_at: Instant,
    /// From here on: KILL.
    pub(crate) kill_at: Instant,
    /// The program, looked up in `PATH`, and its arguments.
    pub(crate) argv: Vec<OsString>,
    /// Added to the environment `tenure run` itself was given.
    pub(crate) env: Vec<(OsString, OsString)>,
}

/// From the supervisor to the guardian; `Start` also from there to the shim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// The first message; CMD's standard input travels with it.
    Hello,
    /// Run this.
    Start(Start),
    /// The lease was renewed: the new times, if they are later.
    Extend { drain_at: Instant, kill_at: Instant },
    /// TERM now, KILL after this long if `kill_at` is not earlier.
    Stop { grace: Duration },
    /// KILL now.
    Kill,
    /// Pass this signal on to CMD's group.
    Signal(i32),
}

/// From the guardian to the supervisor; the first and third also from the
/// shim to the guardian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Report {
    /// Standing by: a go-ahead now costs no fork.
    Ready,
    /// CMD runs under this process id.
    Started(i32),
    /// CMD was not started.
    Refused(Refusal),
    /// CMD has ended; what it left behind is being ended.
    Exited {
        status: Status,
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

impl Message for Order {
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
            Self::Stop { grace } => {
                to.push(3);
                put_u64(to, u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX));
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
            1 => Self::Start(Start {
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
                grace: Duration::from_nanos(from.u64()?),
            },
            4 => Self::Kill,
            5 => Self::Signal(from.i32()?),
            _ => return None,
        })
    }
}

impl Message for Report {
    fn encode(&self, to: &mut Vec<u8>) {
        let (tag, number) = match *self {
            Self::Ready => (0, 0),
            Self::Started(pid) => (1, pid),
            Self::Refused(Refusal::Late) => (2, 0),
            Self::Refused(Refusal::NotFound(number)) => (3, number),
            Self::Refused(Refusal::NotExecutable(number)) => (4, number),
            Self::Refused(Refusal::System(number)) => (5, number),
            Self::Exited { status, asked } => {
                let (tag, number) = match status {
                    Status::Code(code) => (6, code),
                    Status::Signal(signal) => (8, signal),
                };
                (tag + u8::from(asked), i32::from(number))
            }
            Self::Gone => (10, 0),
        };
        to.push(tag);
        to.extend(number.to_le_bytes());
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (tag, number) = (from.u8()?, from.i32()?);
        Some(match tag {
            0 => Self::Ready,
            1 => Self::Started(number),
            2 => Self::Refused(Refusal::Late),
            3 => Self::Refused(Refusal::NotFound(number)),
            4 => Self::Refused(Refusal::NotExecutable(number)),
            5 => Self::Refused(Refusal::System(number)),
            6 | 7 => Self::Exited {
                status: Status::Code(u8::try_from(number).ok()?),
                asked: tag == 7,
            },
            8 | 9 => Self::Exited {
                status: Status::Signal(u8::try_from(number).ok()?),
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

/// One end of a channel.
pub(super) struct Channel {
    socket: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    passed: Option<OwnedFd>,
}

impl Channel {
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            inbox: Vec::new(),
            outbox: Vec::new(),
            passed: None,
        })
    }

    /// Sends, or keeps for later what cannot be sent now. An error means that
    /// the other side is gone or the message is beyond the limit.
    pub(super) fn send(&mut self, message: &impl Message) -> io::Result<()> {
        self.enqueue(message)?;
        self.flush()
    }

    /// The same, with a descriptor that travels along.
    pub(super) fn send_with(
        &mut self,
        message: &impl Message,
        passenger: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.enqueue(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [passenger];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        let slices = [IoSlice::new(&self.outbox)];
        let sent = sendmsg(&self.socket, &slices, &mut control, SendFlags::NOSIGNAL)?;
        self.outbox.drain(..sent);
        self.flush()
    }

    fn enqueue(&mut self, message: &impl Message) -> io::Result<()> {
        let mut body = Vec::with_capacity(64);
        message.encode(&mut body);
        let length = u32::try_from(body.len()).ok();
        let length = length.filter(|_| body.len() <= LIMIT).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("arguments and environment are longer than {LIMIT} bytes"),
            )
        })?;
        self.outbox.extend(length.to_le_bytes());
        self.outbox.extend(body);
        Ok(())
    }

    /// Sends what was kept.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            match self.socket.write(&self.outbox) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Bytes that wait for the other side to read.
    pub(super) fn backlog(&self) -> usize {
        self.outbox.len()
    }

    /// Takes in all there is; false once the other side has closed its end.
    pub(super) fn fill(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let count = match recvmsg(&self.socket, &mut slices, &mut control, flags) {
                Ok(message) => message.bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::CONNRESET) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.passed = fds.last();
                }
            }
            if count == 0 {
                return Ok(false);
            }
            self.inbox.extend(&bytes[..count]);
            if self.inbox.len() > LIMIT + bytes.len() {
                return Ok(true);
            }
        }
    }

    /// The next whole message, if it has arrived.
    pub(super) fn next<M: Message>(&mut self) -> io::Result<Option<M>> {
        let Some((head, rest)) = self.inbox.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let garbled = || io::Error::new(io::ErrorKind::InvalidData, "a message that is none");
        let length = usize::try_from(u32::from_le_bytes(*head)).map_err(|_| garbled())?;
        if length > LIMIT {
            return Err(garbled());
        }
        let Some((body, _)) = rest.split_at_checked(length) else {
            return Ok(None);
        };
        let mut reader = Reader(body);
        let message = M::decode(&mut reader).filter(|_| reader.0.is_empty());
        self.inbox.drain(..length + 4);
        message.map(Some).ok_or_else(garbled)
    }

    /// The descriptor that came with the messages read so far.
    pub(super) fn passed(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    /// What to poll for.
    pub(super) fn interest(&self) -> (BorrowedFd<'_>, PollFlags) {
        let mut flags = PollFlags::IN;
        if !self.outbox.is_empty() {
            flags |= PollFlags::OUT;
        }
        (self.socket.as_fd(), flags)
    }

    /// Waits until there is something to read. For the shim, which has
    /// nothing else to do.
    pub(super) fn block(&self) -> io::Result<()> {
        let (fd, flags) = self.interest();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, flags)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (a, b) = UnixStream::pair().expect("a pair");
        let channel = |socket| Channel::new(socket).expect("a channel");
        (channel(a), channel(b))
    }

    #[test]
    fn what_is_sent_arrives() {
        let (mut a, mut b) = pair();
        let at = Instant::from_nanos;
        let start = Start {
            drain_at: at(1),
            kill_at: at(u64::MAX),
            argv: vec![
                "cmd".into(),
                OsString::from_vec(vec![0xff, 0x20]),
                "".into(),
            ],
            env: vec![("A".into(), "b=c".into())],
        };
        let orders = [
            Order::Hello,
            Order::Start(start),
            Order::Extend {
                drain_at: at(3),
                kill_at: at(4),
            },
            Order::Stop {
                grace: Duration::from_millis(5),
            },
            Order::Kill,
            Order::Signal(-7),
        ];
        for order in &orders {
            a.send(order).expect("sent");
        }
        assert!(b.fill().expect("read"));
        for order in orders {
            assert_eq!(b.next().expect("parsed"), Some(order));
        }
        assert_eq!(b.next::<Order>().expect("nothing"), None);
        drop(a);
        assert!(!b.fill().expect("read"), "the end of the channel is told");
    }

    #[test]
    fn every_report_survives() {
        let exited = |status, asked| Report::Exited { status, asked };
        let reports = [
            Report::Ready,
            Report::Started(4711),
            Report::Refused(Refusal::Late),
            Report::Refused(Refusal::NotFound(2)),
            Report::Refused(Refusal::NotExecutable(13)),
            Report::Refused(Refusal::System(11)),
            exited(Status::Code(255), false),
            exited(Status::Code(0), true),
            exited(Status::Signal(64), false),
            exited(Status::Signal(15), true),
            Report::Gone,
        ];
        for report in reports {
            let mut bytes = Vec::new();
            report.encode(&mut bytes);
            assert_eq!(Report::decode(&mut Reader(&bytes)), Some(report));
            bytes.pop();
            assert_eq!(Report::decode(&mut Reader(&bytes)), None, "cut short");
        }
    }

    #[test]
    fn a_message_larger_than_the_socket_is_sent_in_parts() {
        let (mut a, mut b) = pair();
        let start = Order::Start(Start {
            drain_at: Instant::ZERO,
            kill_at: Instant::ZERO,
            argv: vec![OsString::from("x".repeat(LIMIT - 100))],
            env: Vec::new(),
        });
        let stdin = io::stdin();
        a.send_with(&start, stdin.as_fd()).expect("taken");
        assert!(a.backlog() > 0, "it does not fit at once");
        while a.backlog() > 0 {
            assert!(b.fill().expect("read"));
            a.flush().expect("sent");
        }
        assert!(b.fill().expect("read"));
        assert!(b.passed().is_some(), "the descriptor came along");
        assert!(b.next().expect("parsed") == Some(start));
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [&[0xff; 8][..], &[1, 0, 0, 0, 99], &[2, 0, 0, 0, 4, 0]] {
            let (a, mut b) = pair();
            (&a.socket).write_all(bytes).expect("written");
            b.fill().expect("read");
            assert!(b.next::<Order>().is_err(), "{bytes:?}");
        }
        let (mut a, _b) = pair();
        let long = Order::Start(Start {
            drain_at: Instant::ZERO,
            kill_at: Instant::ZERO,
            argv: vec![OsString::from("x".repeat(LIMIT))],
            env: Vec::new(),
        });
        assert!(a.send(&long).is_err());
    }
}
