//! Answers of one connection that have not gone.
//!
//! A call is over here when its answer was given to the HTTP library. The
//! library keeps the answer, and what it knows of the call, until the system
//! takes it; the system takes it when the client reads. A client that asks for
//! a thousand things on each of its connections and reads nothing would have a
//! server keep all of that, a kilobyte or two each, and drop it in one go when
//! the connections end. Most of these calls are refused and counted nowhere
//! else.
//!
//! So calls that have ended count as *unsent*. The last frame of an answer says
//! that it is the last (`END_STREAM`), and [`WriteTally`] sees it in what the
//! system takes. Some ends are never seen: of calls that the client has reset,
//! and of those that were answered before all of their body had come, which the
//! library resets behind the answer. They count until the library has nothing
//! left to write.
//!
//! Where the system takes no more and callers have no room for what is unsent
//! ([`UnsentCharge`]), the connection is closed. Up to [`FREE`] calls close
//! none: a client that reads but slowly keeps its connection, however much
//! others of its caller leave unread.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use tenure_api::v1;

use super::account::{Connection, UnsentCharge};
use super::unsent_count::UnsentCount;

/// About what an answer costs while it waits in the HTTP library.
const ANSWER_BYTES: usize = 2 * 1024;
/// Unsent answers for which no connection is closed: those of one turn.
const FREE: usize = 16;

/// Counts what is unsent of a connection, beside its calls.
pub(super) struct UnsentAnswers {
    connection: Arc<Connection>,
    charge: Option<UnsentCharge>,
}

impl UnsentAnswers {
    pub(super) const fn new(connection: Arc<Connection>) -> Self {
        Self {
            connection,
            charge: None,
        }
    }

    /// The connection is about to be polled.
    pub(super) fn begin(&self) {
        self.connection
            .unsent()
            .blocked
            .store(false, Ordering::Relaxed);
    }

    /// The connection was polled, and wrote what it could.
    pub(super) fn written(&mut self) {
        let unsent = self.connection.unsent();
        if !unsent.blocked.load(Ordering::Relaxed) {
            unsent.ended.store(0, Ordering::Relaxed);
            unsent.reset.store(0, Ordering::Relaxed);
            self.charge = None;
        }
    }

    /// How many calls have ended and not gone.
    pub(super) fn held(&self) -> usize {
        self.connection.unsent().held()
    }

    /// A call has ended.
    pub(super) fn end(&self) {
        let unsent = self.connection.unsent();
        unsent.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what is unsent, and whether there is room for it.
    ///
    /// # Errors
    /// BUSY, with who holds how much: the connection has to be closed.
    pub(super) fn fits(&mut self) -> Result<(), v1::Error> {
        let unsent = self.connection.unsent();
        if !unsent.blocked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let held = unsent.held();
        let of = || UnsentCharge::new(self.connection.last());
        let charge = self.charge.get_or_insert_with(of);
        charge.set(held * ANSWER_BYTES);
        if held > FREE { charge.room() } else { Ok(()) }
    }
}

/// What is written over a connection, as far as it tells which answers have
/// gone.
#[derive(Debug)]
pub(super) struct WriteTally {
    unsent: Arc<UnsentCount>,
    /// Over HTTP/1 an answer has gone before the next call begins.
    frames: Option<Frames>,
}

impl WriteTally {
    pub(super) fn new(unsent: Arc<UnsentCount>, is_http_2: bool) -> Self {
        let frames = is_http_2.then(Frames::default);
        Self { unsent, frames }
    }

    /// The system was asked to take these pieces.
    pub(super) fn wrote(&mut self, written: &Poll<io::Result<usize>>, pieces: &[IoSlice<'_>]) {
        let mut written = match written {
            Poll::Ready(Ok(written)) => *written,
            Poll::Ready(Err(_)) => return,
            Poll::Pending => return self.is_blocked(),
        };
        let Some(frames) = &mut self.frames else {
            return;
        };
        let mut ends = 0;
        for piece in pieces {
            let taken = piece.len().min(written);
            ends += frames.ends(&piece[..taken]);
            written -= taken;
        }
        let ended = self.unsent.ended.load(Ordering::Relaxed);
        let ended = ended.saturating_sub(ends);
        self.unsent.ended.store(ended, Ordering::Relaxed);
    }

    /// The system takes no more.
    pub(super) fn is_blocked(&self) {
        self.unsent.blocked.store(true, Ordering::Relaxed);
    }
}

/// Frames of HTTP/2, as they come by in pieces.
#[derive(Debug, Default)]
struct Frames {
    /// What has come of the head of the next one.
    head: [u8; 9],
    begun: usize,
    /// What has to come of the one before.
    rest: usize,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;

impl Frames {
    /// How many of the frames whose heads end in these bytes are the last of
    /// their streams.
    fn ends(&mut self, mut bytes: &[u8]) -> usize {
        let mut ends = 0;
        while !bytes.is_empty() {
            let skipped = self.rest.min(bytes.len());
            self.rest -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.head.len() - self.begun).min(bytes.len());
            self.head[self.begun..self.begun + taken].copy_from_slice(&bytes[..taken]);
            self.begun += taken;
            bytes = &bytes[taken..];
            if self.begun == self.head.len() {
                let [high, middle, low, kind, flags, ..] = self.head;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.begun = 0;
                let is_last = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
                ends += usize::from(is_last);
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use prometheus_client::metrics::family::Family;

    use super::super::account::Account;
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let head = [0, 0, length, kind, flags, 0, 0, 0, 1];
        // A payload that looks like heads.
        [&head[..], &vec![END_STREAM; length.into()]].concat()
    }

    #[test]
    fn last_frames_are_found_however_they_are_written() {
        const SETTINGS: u8 = 4;
        let bytes = [
            frame(SETTINGS, 1, 0),
            frame(HEADERS, 4, 30),
            frame(DATA, 0, 200),
            frame(DATA, 1, 0),
            frame(HEADERS, 5, 1),
            frame(SETTINGS, 0, 12),
            frame(DATA, 1, 255),
        ];
        let bytes = bytes.concat();
        for size in 1..=bytes.len() {
            let mut frames = Frames::default();
            let ends: usize = bytes.chunks(size).map(|it| frames.ends(it)).sum();
            assert_eq!(ends, 3, "in pieces of {size}");
        }
    }

    fn connections(from: u8, count: usize, account: &Arc<Account>) -> Vec<UnsentAnswers> {
        let address = Ipv4Addr::new(10, 0, 0, from).into();
        let one = |_| UnsentAnswers::new(account.connection(address));
        (0..count).map(one).collect()
    }

    /// One more turn in which a thousand calls end.
    fn thousand(answers: &mut UnsentAnswers, is_blocked: bool) -> bool {
        let tally = WriteTally::new(Arc::clone(answers.connection.unsent()), true);
        answers.begin();
        if is_blocked {
            tally.is_blocked();
        }
        answers.written();
        (0..1_000).for_each(|_| answers.end());
        answers.fits().is_ok()
    }

    #[test]
    fn who_reads_nothing_is_cut_off_and_who_reads_is_not() {
        let account = Account::new(Family::default(), false);
        let mut unread = connections(1, 20, &account);
        // Who has no room is closed, and counts no more.
        unread.retain_mut(|it| thousand(it, true));
        let kept = unread.len();
        assert!((4..=12).contains(&kept), "{kept}");
        // Others have room, and so has the same caller where it reads.
        for mut other in connections(2, 3, &account) {
            assert!(thousand(&mut other, true));
        }
        // Its caller has no room any more.
        unread.extend(connections(1, 1, &account));
        let _ = unread.last_mut().map(|it| thousand(it, true));
        let mut reads = connections(1, 1, &account).remove(0);
        assert!((0..100).all(|_| thousand(&mut reads, false)));
        // A few that wait are no reason.
        let mut slow = connections(1, 1, &account).remove(0);
        let mut tally = WriteTally::new(Arc::clone(slow.connection.unsent()), true);
        slow.begin();
        tally.is_blocked();
        slow.written();
        (0..FREE).for_each(|_| slow.end());
        assert!(slow.fits().is_ok());
        slow.end();
        assert!(slow.fits().is_err());
        // One of them goes.
        let last = frame(HEADERS, 5, 20);
        tally.wrote(&Poll::Ready(Ok(last.len())), &[IoSlice::new(&last)]);
        assert!(slow.fits().is_ok());
        drop(unread);
        assert!(thousand(&mut slow, true));
    }
}
