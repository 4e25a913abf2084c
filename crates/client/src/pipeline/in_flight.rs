//! Numbered commands of one session, from the oldest that is not answered on.
//!
//! They leave in the order of their serials, and may leave again: after a
//! reconnect, or because a leader missed one before them. The request
//! number under which one was last sent grows with its serial among all that are sent, so
//! an answer finds its command by bisection. An answer to an earlier sending
//! finds none; if it says that this sending was not taken, it leaves one
//! sending less in doubt.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

use tenure_alpo::MAX_WINDOW;
use tenure_api::v1::{Command, command};

use super::types::{PendingRequest, Reply};

/// Earlier sendings whose answers may come yet, at most. Beyond that they stay
/// in doubt: a server that does not answer must not make them many.
const EARLIER_MAX: usize = 4_096;

/// One command that has its number.
#[derive(Debug)]
pub(super) struct Sent {
    /// Under which number it was last sent.
    request_number: u64,
    /// The sendings of which it is not known that they were not taken.
    pub(super) unsettled_sends: u32,
    /// Whether the answer to the last sending may come by this stream.
    awaits: bool,
    /// Whether it is answered and only waits for those before it.
    done: bool,
    /// Whether it stands for one that was refused, so that its serial is used.
    pub(super) filler: bool,
    pub(super) op: PendingRequest<command::Operation>,
}

#[derive(Debug)]
pub(super) struct InFlight {
    /// The serial of the oldest.
    first: u64,
    sent: VecDeque<Sent>,
    /// From here on they are to be sent (again).
    unsent: usize,
    /// Serials by the numbers of their earlier sendings on this stream that are
    /// not answered.
    earlier: BTreeMap<u64, u64>,
}

impl InFlight {
    /// Before the first command of a session.
    pub(super) fn new() -> Self {
        Self {
            first: 1,
            sent: VecDeque::new(),
            unsent: 0,
            earlier: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Whether there is anything whose answer can come.
    pub(super) fn awaits(&self) -> bool {
        self.unsent > 0
    }

    /// Whether something is to be sent again.
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent < self.sent.len()
    }

    /// Whether another command may be numbered.
    pub(super) fn has_room(&self) -> bool {
        (self.sent.len() as u64) < MAX_WINDOW
    }

    /// Numbers a command. It is not sent yet.
    pub(super) fn push(&mut self, op: PendingRequest<command::Operation>) {
        self.sent.push_back(Sent {
            request_number: 0,
            unsettled_sends: 0,
            awaits: false,
            done: false,
            filler: false,
            op,
        });
    }

    /// Takes the next one to send under this number; `None` within if it is
    /// answered already and only takes up the number.
    pub(super) fn send_next(
        &mut self,
        session: u64,
        request_number: u64,
    ) -> Option<Option<Command>> {
        let at = self.unsent;
        let sent = self.sent.get_mut(at)?;
        self.unsent += 1;
        let before = std::mem::replace(&mut sent.request_number, request_number);
        if sent.done {
            return Some(None);
        }
        let serial = self.first + at as u64;
        if sent.awaits && self.earlier.len() < EARLIER_MAX {
            self.earlier.insert(before, serial);
        }
        sent.awaits = true;
        sent.unsettled_sends = sent.unsettled_sends.saturating_add(1);
        Some(Some(Command {
            session,
            serial,
            outstanding: self.first,
            operation: Some(sent.op.what.clone()),
        }))
    }

    /// The place of the one that was last sent under this number.
    pub(super) fn find(&self, request_number: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.unsent);
        while low < high {
            let middle = low.midpoint(high);
            match self.sent[middle].request_number.cmp(&request_number) {
                Ordering::Equal => return Some(middle).filter(|at| !self.sent[*at].done),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// What was sent last was certainly not taken.
    pub(super) fn refused(&mut self, at: usize) {
        let sent = &mut self.sent[at];
        sent.awaits = false;
        sent.unsettled_sends = sent.unsettled_sends.saturating_sub(1);
    }

    /// An answer to what may be an earlier sending, and whether it says that
    /// this one was certainly not taken.
    pub(super) fn earlier_answered(&mut self, request_number: u64, refused: bool) {
        // It may be one that is to be sent again and was not yet.
        let waiting = self.sent.iter().skip(self.unsent);
        let mut waiting = waiting.take_while(|sent| sent.request_number != 0);
        let again = waiting.position(|sent| sent.awaits && sent.request_number == request_number);
        if let Some(at) = again.map(|at| self.unsent + at) {
            self.sent[at].awaits = false;
            if refused {
                self.refused(at);
            }
        } else if let Some(serial) = self.earlier.remove(&request_number)
            && let Some(at) = self.place(serial)
            && refused
        {
            let sent = &mut self.sent[at];
            sent.unsettled_sends = sent.unsettled_sends.saturating_sub(1);
        }
    }

    /// A new stream: no answer to an earlier sending comes by it, and all are
    /// sent again.
    pub(super) fn begin_stream(&mut self) {
        self.earlier.clear();
        self.sent.iter_mut().for_each(|sent| sent.awaits = false);
        self.resend_from(0);
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut Sent {
        &mut self.sent[at]
    }

    /// The serial of the oldest that is not answered.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// The one at `at` is answered. Gives back who is to be told.
    pub(super) fn settle(&mut self, at: usize) -> Reply {
        let sent = &mut self.sent[at];
        sent.done = true;
        let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
        while self.sent.front().is_some_and(|sent| sent.done) {
            self.sent.pop_front();
            self.first += 1;
            self.unsent = self.unsent.saturating_sub(1);
        }
        reply
    }

    /// Everything from `at` on is to be sent again.
    pub(super) fn resend_from(&mut self, at: usize) {
        self.unsent = self.unsent.min(at);
    }

    /// The place of a serial, if it is among these.
    pub(super) fn place(&self, serial: u64) -> Option<usize> {
        let at = usize::try_from(serial.checked_sub(self.first)?).ok()?;
        (at < self.sent.len()).then_some(at)
    }

    /// All that are not answered.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sent> {
        self.sent.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sent> {
        self.sent.iter_mut().filter(|sent| !sent.done)
    }

    /// Takes all that are to be sent (again).
    pub(super) fn drain_unsent(&mut self) -> impl Iterator<Item = Sent> {
        self.sent.drain(self.unsent..).filter(|sent| !sent.done)
    }

    /// Takes all that are not answered.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Sent> {
        self.unsent = 0;
        self.sent.drain(..).filter(|sent| !sent.done)
    }
}
