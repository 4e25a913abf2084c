//! What one connection to the leader carries, as a value without a socket.
//!
//! Commands are numbered when they leave, one serial after the other within
//! a session, and stay in [`flight`] until they are answered; whatever
//! happens to the connection, they are sent again under the same numbers, in
//! the same order, and take effect once. What only looks has no number and is
//! asked again freely.
//!
//! Three rules keep "perhaps" apart from "no":
//!
//! * what was never sent and ran out of time certainly did not happen; what
//!   was sent and ran out of time is unknown, and *stays in flight* without
//!   anybody waiting for it: a gap in the serials would stop the session;
//! * a session that is over takes what was in flight under it along, as
//!   unknown. Only what was sent once, and was told that it was not done
//!   because the session is over, goes on under a new session;
//! * a leader that lacks what was answered already is none that counts.
//!
//! It is not a machine of the core's shape only because it hands out channels
//! and messages of the wire; like those it reads no clock and never waits.

mod flight;
mod time;
mod types;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tenure_core::time::Instant;

use self::flight::Flight;
pub(super) use self::types::{Ask, Gather, Op, Outcome, Reply};
use super::Error;
use crate::api::v1::{self, answer, command, request};

/// Requests that wait to be sent, at most; one more is refused.
const WAITING_MAX: usize = 65_536;
/// Bytes of them, at most.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Looks whose answers are waited for, at most.
const LOOKS_MAX: usize = 1_024;
/// How many requests a new stream gets before it has answered one: whether it
/// leads to somebody who leads is not known yet.
const TRIAL: usize = 16;
/// After how many bytes a message is full.
const MESSAGE_BYTES: usize = 512 * 1024;
/// After how many requests a message is full.
const MESSAGE_REQUESTS: usize = 1_024;
/// The pauses after a leader that has too much to do.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// How long an answer may take before others are asked who leads.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
const PATIENCE_MAX: Duration = Duration::from_secs(2);

/// Who is to be told what, once no lock is held.
pub(super) type Told = Vec<(Reply, Outcome)>;

/// What an answer says about the stream that it came by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing.
    Stay,
    /// It leads to nobody who leads.
    Leave {
        /// Why.
        why: String,
        /// Who might.
        hint: Option<String>,
    },
}

#[derive(Debug)]
enum Session {
    None,
    /// Asked for under this name, if on this stream.
    Opening(Option<u64>),
    Open(u64),
    /// Over; what was sent under it is not answered yet.
    Over,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Pipeline {
    ttl: Duration,
    session: Session,
    /// Commands that have no number yet.
    waiting: VecDeque<Op<command::Operation>>,
    /// Those that an ended session certainly did not do.
    returned: VecDeque<Op<command::Operation>>,
    looks: VecDeque<Op<request::What>>,
    waiting_bytes: usize,
    flight: Flight,
    /// Looks that are asked, by name.
    asked: BTreeMap<u64, Op<request::What>>,
    /// The last name given; names grow for as long as the pipeline lives.
    name: u64,
    connected: bool,
    /// How many more requests this stream gets before its first answer.
    trial: Option<usize>,
    paused_until: Option<Instant>,
    pause: Duration,
    /// When the last command was done.
    heard: Instant,
    /// Since when answers are waited for in vain.
    quiet_since: Instant,
    patience: Duration,
    /// The earliest deadline that anybody waits with, or earlier.
    armed: Option<Instant>,
    /// What was last in the way, for those who run out of time.
    trouble: String,
}

impl Pipeline {
    pub(super) fn new(ttl: Duration, now: Instant) -> Self {
        Self {
            ttl,
            session: Session::None,
            waiting: VecDeque::new(),
            returned: VecDeque::new(),
            looks: VecDeque::new(),
            waiting_bytes: 0,
            flight: Flight::new(),
            asked: BTreeMap::new(),
            name: 0,
            connected: false,
            trial: None,
            paused_until: None,
            pause: Duration::ZERO,
            heard: now,
            quiet_since: now,
            patience: PATIENCE_MIN,
            armed: None,
            trouble: "no server has been reached".into(),
        }
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// Gives back who is to be told if too much is waiting.
    pub(super) fn push(&mut self, op: Op<Ask>) -> Result<(), Reply> {
        let bytes = weight(&op.what);
        let full = self.waiting.len() + self.looks.len() >= WAITING_MAX
            || self.waiting_bytes + bytes > WAITING_BYTES_MAX;
        if full {
            return Err(op.reply);
        }
        self.waiting_bytes += bytes;
        let Op {
            what,
            deadline,
            reply,
        } = op;
        match what {
            Ask::Do(what) => self.waiting.push_back(Op {
                what,
                deadline,
                reply,
            }),
            Ask::Look(what) => self.looks.push_back(Op {
                what,
                deadline,
                reply,
            }),
        }
        if self.armed.is_none_or(|armed| deadline < armed) {
            self.armed = Some(deadline);
        }
        Ok(())
    }

    /// Whether there is a stream.
    pub(super) const fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether there is something to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !(self.waiting.is_empty() && self.looks.is_empty() && self.returned.is_empty())
            || self.flight.has_unsent()
    }

    /// Whether there is anything to be sent or waited for: a connection is
    /// wanted.
    pub(super) fn wants_connection(&self) -> bool {
        !(self.waiting.is_empty()
            && self.looks.is_empty()
            && self.flight.is_empty()
            && self.asked.is_empty()
            && self.returned.is_empty())
    }

    /// Ends the session after everything that is waiting, and says so to
    /// whoever `reply` is for. Gives it back if there is none to end.
    pub(super) fn close(&mut self, now: Instant, reply: Reply) -> Option<Reply> {
        if !self.connected || !matches!(self.session, Session::Open(_)) {
            return Some(reply);
        }
        self.waiting.push_back(Op {
            what: command::Operation::Close(true),
            deadline: now.after(self.ttl),
            reply,
        });
        None
    }

    /// A new stream begins: everything that is not answered is sent again.
    pub(super) fn connected(&mut self, now: Instant) {
        self.connected = true;
        self.trial = Some(TRIAL);
        self.paused_until = None;
        self.quiet_since = now;
        self.flight.resend_from(0);
    }

    /// The stream has ended, and why.
    pub(super) fn disconnected(&mut self, why: &str, told: &mut Told) {
        self.connected = false;
        why.clone_into(&mut self.trouble);
        for (_, op) in std::mem::take(&mut self.asked).into_iter().rev() {
            self.waiting_bytes += look_weight(&op.what);
            self.looks.push_front(op);
        }
        match self.session {
            Session::Opening(_) => self.session = Session::Opening(None),
            Session::Over => self.end_session(told),
            Session::None | Session::Open(_) => {}
        }
    }

    /// The next message, if there is anything to be sent now.
    pub(super) fn message(&mut self, now: Instant) -> Option<v1::Requests> {
        if !self.connected || self.paused_until.is_some() {
            return None;
        }
        let awaited = self.awaits_answers();
        let mut message = Message::new(self.trial);
        self.put_commands(&mut message);
        while message.has_room() && self.asked.len() < LOOKS_MAX {
            let Some(op) = self.looks.pop_front() else {
                break;
            };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(look_weight(&op.what));
            if op.reply.is_nobody() {
                continue;
            }
            let name = self.next_name();
            message.put(name, op.what.clone());
            self.asked.insert(name, op);
        }
        if message.requests.is_empty() {
            return None;
        }
        if !awaited {
            self.quiet_since = now;
        }
        if let Some(trial) = &mut self.trial {
            *trial = trial.saturating_sub(message.requests.len());
        }
        let requests = message.requests;
        Some(v1::Requests { requests })
    }

    fn put_commands(&mut self, message: &mut Message) {
        let session = match self.session {
            Session::Open(session) => session,
            Session::Opening(Some(_)) | Session::Over => return,
            Session::None | Session::Opening(None) => {
                let wanted = !(self.waiting.is_empty() && self.returned.is_empty());
                if wanted && message.has_room() {
                    let name = self.next_name();
                    self.session = Session::Opening(Some(name));
                    let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
                    message.put(name, request::What::Open(ttl));
                }
                return;
            }
        };
        while message.has_room() {
            if !self.flight.has_unsent() && !self.number_next() {
                return;
            }
            let name = self.next_name();
            if let Some(Some(command)) = self.flight.send_next(session, name) {
                message.put(name, request::What::Command(command));
            }
        }
    }

    /// Gives the next command its number; whether there is one, and room.
    fn number_next(&mut self) -> bool {
        while self.flight.has_room() {
            let op = match self.returned.pop_front() {
                Some(op) => op,
                None => match self.waiting.pop_front() {
                    Some(op) => op,
                    None => return false,
                },
            };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(op_weight(&op.what));
            let own = matches!(
                op.what,
                command::Operation::KeepAlive(_) | command::Operation::Close(_)
            );
            if own || !op.reply.is_nobody() {
                self.flight.push(op);
                return true;
            }
        }
        false
    }

    fn next_name(&mut self) -> u64 {
        self.name += 1;
        self.name
    }

    /// Takes an answer, and says what it means for the stream.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        answer: v1::Answer,
        told: &mut Told,
    ) -> Verdict {
        self.quiet_since = now;
        let v1::Answer { number, what } = answer;
        let what = what.ok_or_else(|| Error::Unknown("an answer without content".into()));
        let verdict = if let Some(at) = self.flight.find(number) {
            self.command_answered(now, at, what, told)
        } else if let Some(op) = self.asked.remove(&number) {
            self.look_answered(now, op, what, told)
        } else if matches!(self.session, Session::Opening(Some(name)) if name == number) {
            self.open_answered(now, what)
        } else {
            // To an earlier sending of the same.
            return Verdict::Stay;
        };
        if verdict == Verdict::Stay {
            self.trial = None;
            self.patience = PATIENCE_MIN;
        }
        verdict
    }

    fn command_answered(
        &mut self,
        now: Instant,
        at: usize,
        what: Outcome,
        told: &mut Told,
    ) -> Verdict {
        match what {
            Ok(answer::What::Error(error)) => self.command_refused(now, at, &error, told),
            what => {
                self.heard = now;
                self.pause = Duration::ZERO;
                let closed = matches!(what, Ok(answer::What::Closed(_)));
                self.settle(at, what, told);
                if closed {
                    self.end_session(told);
                }
                Verdict::Stay
            }
        }
    }

    fn settle(&mut self, at: usize, outcome: Outcome, told: &mut Told) {
        told.push((self.flight.settle(at), outcome));
        if self.flight.is_empty() && matches!(self.session, Session::Over) {
            self.end_session(told);
        }
    }

    fn command_refused(
        &mut self,
        now: Instant,
        at: usize,
        error: &v1::Error,
        told: &mut Told,
    ) -> Verdict {
        let over = matches!(self.session, Session::Over);
        match error.cause() {
            v1::Cause::NotLeader
            | v1::Cause::Interrupted
            | v1::Cause::NotReady
            | v1::Cause::TooSlow => leave(error),
            // Nothing is sent again under a session that is over.
            v1::Cause::Busy | v1::Cause::Window | v1::Cause::OutOfOrder if over => {
                self.session_over(at, told);
                Verdict::Stay
            }
            v1::Cause::Busy | v1::Cause::Window => {
                self.flight.resend_from(at);
                self.pause_more(now);
                error.message.clone_into(&mut self.trouble);
                Verdict::Stay
            }
            v1::Cause::OutOfOrder => self.out_of_order(now, error.expected),
            v1::Cause::SessionExpired => {
                self.session_over(at, told);
                Verdict::Stay
            }
            v1::Cause::Unspecified | v1::Cause::TooOld => {
                self.settle(at, Err(Error::from_wire(error)), told);
                Verdict::Stay
            }
            _ => self.never(at, error, told),
        }
    }

    /// The leader waits for this serial.
    fn out_of_order(&mut self, now: Instant, expected: u64) -> Verdict {
        if expected < self.flight.first() {
            return Verdict::Leave {
                why: format!(
                    "expected a leader that has done commands up to {}, found one that waits for \
                     {expected}: another leads by now",
                    self.flight.first() - 1
                ),
                hint: None,
            };
        }
        let Some(at) = self.flight.place(expected) else {
            return Verdict::Leave {
                why: format!("the server waits for command {expected}, which is not there yet"),
                hint: None,
            };
        };
        self.flight.resend_from(at);
        if self.pause.is_zero() {
            self.pause = PAUSE_MIN;
        } else {
            self.pause_more(now);
        }
        Verdict::Stay
    }

    fn pause_more(&mut self, now: Instant) {
        if self.paused_until.is_none() {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            self.paused_until = Some(now.after(self.pause));
        }
    }

    /// It was not done and never will be; its serial has to be used all the
    /// same, by something that is always done.
    fn never(&mut self, at: usize, error: &v1::Error, told: &mut Told) -> Verdict {
        let sent = self.flight.get_mut(at);
        let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
        let stuck = std::mem::replace(&mut sent.filler, true);
        sent.op.what = command::Operation::KeepAlive(true);
        told.push((reply, Err(Error::from_wire(error))));
        self.flight.resend_from(at);
        if stuck {
            // Not even that: this session is of no use any more.
            self.session = Session::Over;
            self.end_session(told);
        }
        Verdict::Stay
    }

    /// The one at `at` was not done by what was sent last, and its session is
    /// over.
    fn session_over(&mut self, at: usize, told: &mut Told) {
        self.session = Session::Over;
        "the session is over".clone_into(&mut self.trouble);
        // What was to be sent again has no answer to wait for.
        told.extend(
            self.flight
                .drain_unsent()
                .map(|sent| (sent.op.reply, Err(expired()))),
        );
        let sent = self.flight.get_mut(at);
        if sent.times == 1 {
            let what = std::mem::replace(&mut sent.op.what, command::Operation::KeepAlive(true));
            let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
            let deadline = sent.op.deadline;
            if !reply.is_nobody() {
                self.waiting_bytes += op_weight(&what);
                self.returned.push_back(Op {
                    what,
                    deadline,
                    reply,
                });
            }
        }
        self.settle(at, Err(expired()), told);
    }

    /// What is still in flight under a session that is over is unknown.
    fn end_session(&mut self, told: &mut Told) {
        told.extend(
            self.flight
                .drain()
                .map(|sent| (sent.op.reply, Err(expired()))),
        );
        self.flight = Flight::new();
        self.session = Session::None;
    }

    fn look_answered(
        &mut self,
        now: Instant,
        op: Op<request::What>,
        what: Outcome,
        told: &mut Told,
    ) -> Verdict {
        let error = match what {
            Ok(answer::What::Error(error)) => error,
            what => {
                told.push((op.reply, what));
                return Verdict::Stay;
            }
        };
        let again = |pipeline: &mut Self, op: Op<request::What>| {
            pipeline.waiting_bytes += look_weight(&op.what);
            pipeline.looks.push_front(op);
        };
        match error.cause() {
            v1::Cause::Busy | v1::Cause::Window => {
                again(self, op);
                self.pause_more(now);
                Verdict::Stay
            }
            v1::Cause::NotLeader
            | v1::Cause::Interrupted
            | v1::Cause::NotReady
            | v1::Cause::TooSlow => {
                again(self, op);
                leave(&error)
            }
            _ => {
                told.push((op.reply, Err(Error::from_wire(&error))));
                Verdict::Stay
            }
        }
    }

    fn open_answered(&mut self, now: Instant, what: Outcome) -> Verdict {
        self.session = Session::Opening(None);
        match what {
            Ok(answer::What::Opened(session)) => {
                self.session = Session::Open(session);
                self.flight = Flight::new();
                self.heard = now;
                Verdict::Stay
            }
            Ok(answer::What::Error(error)) => match error.cause() {
                v1::Cause::NotLeader
                | v1::Cause::Interrupted
                | v1::Cause::NotReady
                | v1::Cause::TooSlow => leave(&error),
                _ => {
                    error.message.clone_into(&mut self.trouble);
                    self.pause_more(now);
                    Verdict::Stay
                }
            },
            _ => Verdict::Leave {
                why: "the server answered another question than to open a session".into(),
                hint: None,
            },
        }
    }

    /// Whether anything was sent on this stream that is not answered.
    fn awaits_answers(&self) -> bool {
        self.connected
            && (self.flight.awaits()
                || !self.asked.is_empty()
                || matches!(self.session, Session::Opening(Some(_))))
    }
}

/// A message that is being filled.
struct Message {
    requests: Vec<v1::Request>,
    bytes: usize,
    most: usize,
}

impl Message {
    fn new(trial: Option<usize>) -> Self {
        Self {
            requests: Vec::new(),
            bytes: 0,
            most: trial.unwrap_or(MESSAGE_REQUESTS),
        }
    }

    fn has_room(&self) -> bool {
        self.requests.len() < self.most && self.bytes < MESSAGE_BYTES
    }

    fn put(&mut self, number: u64, what: request::What) {
        self.bytes += match &what {
            request::What::Command(command) => command.operation.as_ref().map_or(0, op_weight),
            look => look_weight(look),
        };
        let what = Some(what);
        self.requests.push(v1::Request { number, what });
    }
}

fn leave(error: &v1::Error) -> Verdict {
    let hint = Some(error.leader_address.clone()).filter(|address| !address.is_empty());
    Verdict::Leave {
        why: if error.message.is_empty() {
            format!("the server says {}", error.cause().as_str_name())
        } else {
            error.message.clone()
        },
        hint,
    }
}

fn expired() -> Error {
    Error::Unknown("the session is over, and with it what was known of the request".into())
}

fn weight(ask: &Ask) -> usize {
    match ask {
        Ask::Do(operation) => op_weight(operation),
        Ask::Look(what) => look_weight(what),
    }
}

fn op_weight(operation: &command::Operation) -> usize {
    64 + match operation {
        command::Operation::Append(bytes) => bytes.len(),
        command::Operation::Swap(swap) => swap.key.len() + swap.value.len(),
        command::Operation::Delete(delete) => delete.key.len(),
        command::Operation::KeepAlive(_) | command::Operation::Close(_) => 0,
    }
}

fn look_weight(what: &request::What) -> usize {
    64 + match what {
        request::What::Read(read) => read.key.len(),
        request::What::List(list) => list.prefix.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
