//! What one connection to the leader carries, as a value without a socket.
//!
//! Commands are numbered when they leave, one serial after the other within
//! a session, and stay in [`in_flight`] until they are answered; whatever
//! happens to the connection, they are sent again under the same numbers, in
//! the same order, and take effect once. What only looks has no number and is
//! asked again freely.
//!
//! Four rules keep "perhaps" apart from "no":
//!
//! * what was never sent and ran out of time certainly did not happen; what
//!   was sent and ran out of time is unknown, and *stays in flight* although no
//!   caller waits for it: a gap in the serials would stop the session;
//! * a session that is over takes what was in flight under it along, as
//!   unknown. Only what was told at each sending that it was not taken, at
//!   last because the session is over, goes on under a new session;
//! * a refusal speaks of the sending that it answers. Servers judge who asks
//!   before they see that something is asked again, so a right that was taken
//!   away since proves nothing about a sending whose answer was lost;
//! * a leader that lacks an answered command was deposed; the client leaves it.
//!
//! Sessions are opened with a secret, and each stream shows it with the first
//! command of a session, so no other client can use it
//! (`docs/design/identity.md`). If a copy of this very process uses it all the
//! same, this client leaves the session as if it were over.
//!
//! It is not a machine of the core's shape only because it hands out channels
//! and messages of the wire; like those it reads no clock and never waits.

mod answers;
mod in_flight;
mod message;
mod time;
mod types;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tenure_api::v1::{self, command, request};
use tenure_core::time::Instant;
use tenure_runtime::round_trip::RoundTripTimes;

use self::in_flight::InFlight;
use self::message::{Message, command_weight, query_weight, weight};
pub(super) use self::types::{Gather, Outcome, PendingRequest, Reply, RequestKind};
use crate::Error;

/// Requests that wait to be sent, at most; one more is refused.
const WAITING_MAX: usize = 65_536;
/// Bytes of them, at most.
const WAITING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Queries in flight, at most.
const QUERIES_MAX: usize = 1_024;
/// How many requests a new stream gets before it has answered one: whether it
/// leads to somebody who leads is not known yet.
const TRIAL: usize = 16;
/// How long an answer may take before others are asked who leads: of a server
/// that is near, and the longest that this grows to by itself.
const ANSWER_TIMEOUT_MIN: Duration = Duration::from_millis(250);
const ANSWER_TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// Who is to be told what, once no lock is held.
pub(super) type Outcomes = Vec<(Reply, Outcome)>;

/// What an answer says about the stream that it came by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing.
    Stay,
    /// The server at the other end is not the leader.
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
    /// Asked for under this request number, if on this stream.
    Opening(Option<u64>),
    Open(u64),
    /// Over; what was sent under it is not answered yet.
    Over,
    /// Over, and there is to be no other.
    Ended,
}

/// What is sent within two packets, or three.
const LITTLE_BYTES: usize = 4 * 1024;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Pipeline {
    ttl: Duration,
    session: Session,
    /// What proves the sessions to be this client's; empty if nothing does.
    secret: Bytes,
    /// Whether that was shown on this stream for the session that is open.
    proven: bool,
    /// Whether there is to be one session and no other: what is bound to it
    /// ends with it.
    once: bool,
    /// Commands that have no number yet.
    waiting: VecDeque<PendingRequest<command::Operation>>,
    /// Those that an ended session certainly did not do.
    returned: VecDeque<PendingRequest<command::Operation>>,
    queries: VecDeque<PendingRequest<request::What>>,
    waiting_bytes: usize,
    in_flight: InFlight,
    /// Queries in flight, by request number.
    asked: BTreeMap<u64, PendingRequest<request::What>>,
    /// The last request number given; they grow for as long as the pipeline
    /// lives.
    request_number: u64,
    connected: bool,
    /// How many more requests this stream gets before its first answer.
    trial: Option<usize>,
    paused_until: Option<Instant>,
    pause: Duration,
    /// When the last command was done.
    heard: Instant,
    /// Since when answers are waited for in vain.
    unanswered_since: Instant,
    /// When something was sent on this stream while no answer was awaited, until one
    /// comes, and how long that took.
    sent_alone: Option<Instant>,
    answer_time: Option<Duration>,
    answer_timeout: Duration,
    /// What it is where answers come in time.
    answer_timeout_min: Duration,
    /// The earliest deadline that anybody waits with, or earlier.
    next_deadline: Option<Instant>,
    /// What was last in the way, for those who run out of time.
    trouble: String,
}

impl Pipeline {
    pub(super) fn new(ttl: Duration, now: Instant) -> Self {
        Self {
            ttl,
            session: Session::None,
            secret: Bytes::new(),
            proven: false,
            once: false,
            waiting: VecDeque::new(),
            returned: VecDeque::new(),
            queries: VecDeque::new(),
            waiting_bytes: 0,
            in_flight: InFlight::new(),
            asked: BTreeMap::new(),
            request_number: 0,
            connected: false,
            trial: None,
            paused_until: None,
            pause: Duration::ZERO,
            heard: now,
            unanswered_since: now,
            sent_alone: None,
            answer_time: None,
            answer_timeout: ANSWER_TIMEOUT_MIN,
            answer_timeout_min: ANSWER_TIMEOUT_MIN,
            next_deadline: None,
            trouble: "no server has been reached".into(),
        }
    }

    /// Waits for answers as long as the distance of the servers asks for.
    pub(super) fn adapt_to(&mut self, round_trips: &RoundTripTimes) {
        self.answer_timeout_min = round_trips.timeout(ANSWER_TIMEOUT_MIN);
        self.answer_timeout = self.answer_timeout.max(self.answer_timeout_min);
    }

    /// What the last answer took that nothing else was in the way of.
    pub(super) const fn take_answer_time(&mut self) -> Option<Duration> {
        self.answer_time.take()
    }

    /// The same with one session and no other: when that is over, commands are
    /// refused.
    pub(super) fn once(ttl: Duration, now: Instant) -> Self {
        Self {
            once: true,
            ..Self::new(ttl, now)
        }
    }

    /// The same with a secret, by which its sessions are this client's alone.
    #[must_use]
    pub(super) fn with_secret(self, secret: Bytes) -> Self {
        Self { secret, ..self }
    }

    /// Whether the one session is over.
    pub(super) const fn is_over(&self) -> bool {
        self.once && matches!(self.session, Session::Over | Session::Ended)
    }

    /// The session that is open.
    pub(super) const fn session(&self) -> Option<u64> {
        match self.session {
            Session::Open(session) => Some(session),
            _ => None,
        }
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// Gives back who is to be told what if too much is waiting, or the one
    /// session is over.
    pub(super) fn push(&mut self, op: PendingRequest<RequestKind>) -> Result<(), (Reply, Error)> {
        if matches!(self.session, Session::Ended) {
            return Err((op.reply, session_over()));
        }
        let bytes = weight(&op.what);
        let full = self.waiting.len() + self.queries.len() >= WAITING_MAX
            || self.waiting_bytes + bytes > WAITING_BYTES_MAX;
        if full {
            let why = "too many requests are waiting to be sent already";
            return Err((op.reply, Error::Unavailable(why.into())));
        }
        self.waiting_bytes += bytes;
        let PendingRequest {
            what,
            deadline,
            reply,
        } = op;
        match what {
            RequestKind::Change(what) => self.waiting.push_back(PendingRequest {
                what,
                deadline,
                reply,
            }),
            RequestKind::Query(what) => self.queries.push_back(PendingRequest {
                what,
                deadline,
                reply,
            }),
        }
        if self
            .next_deadline
            .is_none_or(|next_deadline| deadline < next_deadline)
        {
            self.next_deadline = Some(deadline);
        }
        Ok(())
    }

    /// Whether there is a stream.
    pub(super) const fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether there is something to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        !(self.waiting.is_empty() && self.queries.is_empty() && self.returned.is_empty())
            || self.in_flight.has_unsent()
    }

    /// Whether there is anything to be sent or waited for: a connection is
    /// wanted.
    pub(super) fn wants_connection(&self) -> bool {
        !(self.waiting.is_empty()
            && self.queries.is_empty()
            && self.in_flight.is_empty()
            && self.asked.is_empty()
            && self.returned.is_empty())
    }

    /// Ends the session after everything that is waiting, and says so to the
    /// caller that `reply` is for. Gives it back if there is none to end.
    pub(super) fn close(&mut self, now: Instant, reply: Reply) -> Option<Reply> {
        if !self.connected || !matches!(self.session, Session::Open(_)) {
            return Some(reply);
        }
        self.waiting.push_back(PendingRequest {
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
        self.proven = false;
        self.paused_until = None;
        self.unanswered_since = now;
        self.sent_alone = None;
        self.in_flight.begin_stream();
    }

    /// The stream has ended, and why.
    pub(super) fn disconnected(&mut self, why: &str, outcomes: &mut Outcomes) {
        self.connected = false;
        why.clone_into(&mut self.trouble);
        for (_, op) in std::mem::take(&mut self.asked).into_iter().rev() {
            self.waiting_bytes += query_weight(&op.what);
            self.queries.push_front(op);
        }
        match self.session {
            Session::Opening(_) => self.session = Session::Opening(None),
            Session::Over => self.end_session(outcomes),
            Session::None | Session::Open(_) | Session::Ended => {}
        }
    }

    /// Nobody lets this client in, and why: tells everybody who waits with
    /// something that no server has taken. The rest is left to its deadline.
    pub(super) fn turn_away(&mut self, error: &Error, outcomes: &mut Outcomes) {
        self.turn_away_commands(error, outcomes);
        for sent in self
            .in_flight
            .iter_mut()
            .filter(|sent| sent.unsettled_sends == 0)
        {
            let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
            // Its serial has to be used all the same.
            sent.op.what = command::Operation::KeepAlive(true);
            sent.filler = true;
            outcomes.push((reply, Err(error.clone())));
        }
        for op in std::mem::take(&mut self.queries) {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(query_weight(&op.what));
            outcomes.push((op.reply, Err(error.clone())));
        }
        error.to_string().clone_into(&mut self.trouble);
    }

    /// The same for commands alone: this client may not have a session.
    fn turn_away_commands(&mut self, error: &Error, outcomes: &mut Outcomes) {
        let returned = std::mem::take(&mut self.returned);
        for op in returned
            .into_iter()
            .chain(std::mem::take(&mut self.waiting))
        {
            self.waiting_bytes = self.waiting_bytes.saturating_sub(command_weight(&op.what));
            outcomes.push((op.reply, Err(error.clone())));
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
        while message.has_room() && self.asked.len() < QUERIES_MAX {
            let Some(op) = self.queries.pop_front() else {
                break;
            };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(query_weight(&op.what));
            if op.reply.is_nobody() {
                continue;
            }
            let request_number = self.next_request_number();
            message.put(request_number, op.what.clone());
            self.asked.insert(request_number, op);
        }
        if message.requests.is_empty() {
            return None;
        }
        if !awaited {
            self.unanswered_since = now;
            self.sent_alone = Some(now);
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
            Session::Opening(Some(_)) | Session::Over | Session::Ended => return,
            Session::None | Session::Opening(None) => {
                let wanted = !(self.waiting.is_empty() && self.returned.is_empty());
                if wanted && message.has_room() {
                    let request_number = self.next_request_number();
                    self.session = Session::Opening(Some(request_number));
                    let ttl = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
                    let secret = self.secret.clone();
                    message.put_with(request_number, request::What::Open(ttl), secret);
                }
                return;
            }
        };
        while message.has_room() {
            if !self.in_flight.has_unsent() && !self.number_next() {
                return;
            }
            let request_number = self.next_request_number();
            if let Some(Some(command)) = self.in_flight.send_next(session, request_number) {
                // Once on each stream; the server keeps it in mind.
                let proven = std::mem::replace(&mut self.proven, true);
                let secret = if proven {
                    Bytes::new()
                } else {
                    self.secret.clone()
                };
                message.put_with(request_number, request::What::Command(command), secret);
            }
        }
    }

    /// Gives the next command its number; whether there is one, and room.
    fn number_next(&mut self) -> bool {
        while self.in_flight.has_room() {
            let op = match self.returned.pop_front() {
                Some(op) => op,
                None => match self.waiting.pop_front() {
                    Some(op) => op,
                    None => return false,
                },
            };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(command_weight(&op.what));
            let own = matches!(
                op.what,
                command::Operation::KeepAlive(_) | command::Operation::Close(_)
            );
            if own || !op.reply.is_nobody() {
                self.in_flight.push(op);
                return true;
            }
        }
        false
    }

    fn next_request_number(&mut self) -> u64 {
        self.request_number += 1;
        self.request_number
    }

    /// Whether what is under way takes no time on a line that is narrow: a few small
    /// commands, whose answers are small. A read may bring much.
    pub(super) fn awaits_little(&self) -> bool {
        let bytes = self
            .in_flight
            .iter()
            .map(|sent| command_weight(&sent.op.what));
        self.asked.is_empty() && bytes.sum::<usize>() <= LITTLE_BYTES
    }

    /// Whether anything was sent on this stream that is not answered.
    fn awaits_answers(&self) -> bool {
        self.connected
            && (self.in_flight.awaits()
                || !self.asked.is_empty()
                || matches!(self.session, Session::Opening(Some(_))))
    }
}

/// Nothing that was not done yet will be: its session is over.
fn session_over() -> Error {
    Error::Unavailable("the session is over".into())
}

#[cfg(test)]
mod tests;
