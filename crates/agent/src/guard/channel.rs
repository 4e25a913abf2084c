//! How supervisor, guardian and launcher talk: messages over a stream socket.
//!
//! A message (`messages.rs`) is preceded by its length (four bytes,
//! little-endian), on a socket that only the two of them hold. The end of the
//! stream is a message too: the process on the other side is dead.
//!
//! Sending never blocks. What the socket does not take is kept and sent when it
//! does, because a supervisor that waits for a stopped guardian could not kill it
//! at `kill_at`. Limit: [`LIMIT`] bytes a message.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::messages::{Message, parse};

/// The longest message: above what exec(2) takes for arguments and
/// environment by default (2 MiB), below what could hurt.
pub(super) const LIMIT: usize = 4 << 20;

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
        let message = parse(body);
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

    /// Waits until there is something to read. For the launcher, which has
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
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;

    use tenure::core::time::Instant;

    use super::super::messages::{GuardianOrder, StartOrder};
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
        let start = StartOrder {
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
            GuardianOrder::Hello,
            GuardianOrder::Start(start),
            GuardianOrder::Extend {
                drain_at: at(3),
                kill_at: at(4),
            },
            GuardianOrder::Stop { stop_by: at(5) },
            GuardianOrder::Kill,
            GuardianOrder::Signal(-7),
        ];
        for order in &orders {
            a.send(order).expect("sent");
        }
        assert!(b.fill().expect("read"));
        for order in orders {
            assert_eq!(b.next().expect("parsed"), Some(order));
        }
        assert_eq!(b.next::<GuardianOrder>().expect("nothing"), None);
        drop(a);
        assert!(!b.fill().expect("read"), "the end of the channel is told");
    }

    #[test]
    fn a_message_larger_than_the_socket_is_sent_in_parts() {
        let (mut a, mut b) = pair();
        let start = GuardianOrder::Start(StartOrder {
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
            assert!(b.next::<GuardianOrder>().is_err(), "{bytes:?}");
        }
        let (mut a, _b) = pair();
        let long = GuardianOrder::Start(StartOrder {
            drain_at: Instant::ZERO,
            kill_at: Instant::ZERO,
            argv: vec![OsString::from("x".repeat(LIMIT))],
            env: Vec::new(),
        });
        assert!(a.send(&long).is_err());
    }
}
