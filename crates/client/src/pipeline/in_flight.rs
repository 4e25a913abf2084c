//! Numbered commands of one session, from the oldest that is not answered on.
//!
//! They leave in the order of their serials, and may leave again: after a
//! reconnect, or because a leader missed one before them. The name under
//! which one was last sent grows with its serial among all that are sent, so
//! an answer finds its command by bisection, and an answer to an earlier
//! sending finds none.

use std::cmp::Ordering;
use std::collections::VecDeque;

use tenure_alpo::MAX_WINDOW;
use tenure_api::v1::{Command, command};

use super::types::{PendingRequest, Reply};

/// One command that has its number.
#[derive(Debug)]
pub(super) struct Sent {
    /// Under which name it was last sent.
    name: u64,
    /// How often, without the times that it certainly was not taken.
    pub(super) times: u32,
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
}

impl InFlight {
    /// Before the first command of a session.
    pub(super) fn new() -> Self {
        Self {
            first: 1,
            sent: VecDeque::new(),
            unsent: 0,
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
            name: 0,
            times: 0,
            done: false,
            filler: false,
            op,
        });
    }

    /// Takes the next one to send under the name `name`; `None` within if it
    /// is answered already and only takes up the name.
    pub(super) fn send_next(&mut self, session: u64, name: u64) -> Option<Option<Command>> {
        let at = self.unsent;
        let sent = self.sent.get_mut(at)?;
        self.unsent += 1;
        sent.name = name;
        if sent.done {
            return Some(None);
        }
        sent.times = sent.times.saturating_add(1);
        Some(Some(Command {
            session,
            serial: self.first + at as u64,
            outstanding: self.first,
            operation: Some(sent.op.what.clone()),
        }))
    }

    /// The place of the one that was last sent under this name.
    pub(super) fn find(&self, name: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.unsent);
        while low < high {
            let middle = low.midpoint(high);
            match self.sent[middle].name.cmp(&name) {
                Ordering::Equal => return Some(middle).filter(|at| !self.sent[*at].done),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
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
