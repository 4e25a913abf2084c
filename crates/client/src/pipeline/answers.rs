//! What answers mean: done, not done, perhaps, and where to go next.

use std::time::Duration;

use tenure_api::v1::{self, answer, command, request};
use tenure_core::time::Instant;

use super::in_flight::{InFlight, Sent};
use super::message::{command_weight, query_weight};
use super::{Outcome, Outcomes, PendingRequest, Pipeline, Reply, Session, Verdict, session_over};
use crate::Error;

/// The pauses after a leader that has too much to do.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

impl Pipeline {
    /// Takes an answer, and says what it means for the stream.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        answer: v1::Answer,
        outcomes: &mut Outcomes,
    ) -> Verdict {
        self.unanswered_since = now;
        if let Some(sent) = self.sent_alone.take() {
            self.answer_time = Some(now.since(sent));
        }
        let v1::Answer { number, what, .. } = answer;
        let what = what.ok_or_else(|| Error::Unknown("an answer without content".into()));
        let verdict = if let Some(at) = self.in_flight.find(number) {
            self.command_answered(now, at, what, outcomes)
        } else if let Some(op) = self.asked.remove(&number) {
            self.query_answered(now, op, what, outcomes)
        } else if matches!(self.session, Session::Opening(Some(opening)) if opening == number) {
            self.open_answered(now, what, outcomes)
        } else {
            // To an earlier sending of the same.
            let refused = matches!(&what, Ok(answer::What::Error(error)) if was_not_taken(error));
            self.in_flight.earlier_answered(number, refused);
            return Verdict::Stay;
        };
        if verdict == Verdict::Stay {
            self.trial = None;
            self.answer_timeout = self.answer_timeout_min;
        }
        verdict
    }

    fn command_answered(
        &mut self,
        now: Instant,
        at: usize,
        what: Outcome,
        outcomes: &mut Outcomes,
    ) -> Verdict {
        match what {
            Ok(answer::What::Error(error)) => self.command_refused(now, at, &error, outcomes),
            what => {
                self.heard = now;
                self.pause = Duration::ZERO;
                let closed = matches!(what, Ok(answer::What::Closed(_)));
                self.settle(at, what, outcomes);
                if closed {
                    self.end_session(outcomes);
                }
                Verdict::Stay
            }
        }
    }

    fn settle(&mut self, at: usize, outcome: Outcome, outcomes: &mut Outcomes) {
        outcomes.push((self.in_flight.settle(at), outcome));
        if self.in_flight.is_empty() && matches!(self.session, Session::Over) {
            self.end_session(outcomes);
        }
    }

    fn command_refused(
        &mut self,
        now: Instant,
        at: usize,
        error: &v1::Error,
        outcomes: &mut Outcomes,
    ) -> Verdict {
        let over = matches!(self.session, Session::Over);
        if was_not_taken(error) {
            self.in_flight.refused(at);
        }
        match error.cause() {
            // The next stream carries the token that is in the file by then.
            v1::Cause::NotLeader
            | v1::Cause::Interrupted
            | v1::Cause::NotReady
            | v1::Cause::Unauthenticated
            | v1::Cause::TooSlow => leave(error),
            // Nothing is sent again under a session that is over.
            v1::Cause::Busy | v1::Cause::Window | v1::Cause::OutOfOrder if over => {
                self.session_over(at, outcomes);
                Verdict::Stay
            }
            v1::Cause::Busy | v1::Cause::Window => {
                self.in_flight.resend_from(at);
                self.pause_more(now);
                error.message.clone_into(&mut self.trouble);
                Verdict::Stay
            }
            v1::Cause::OutOfOrder => self.out_of_order(now, error.expected),
            v1::Cause::OtherContent if self.in_flight.get_mut(at).filler => {
                // What it stands for was taken after all: the serial is used.
                let done = answer::What::Alive(true);
                self.settle(at, Ok(done), outcomes);
                Verdict::Stay
            }
            // Somebody else uses this session, or it is not this client's any
            // more. What was refused so was certainly not done.
            v1::Cause::SessionExpired | v1::Cause::OtherContent | v1::Cause::NotOwner => {
                self.session_over(at, outcomes);
                Verdict::Stay
            }
            v1::Cause::Unspecified | v1::Cause::TooOld => {
                self.settle(at, Err(Error::from_wire(error)), outcomes);
                Verdict::Stay
            }
            _ => self.never(at, error, outcomes),
        }
    }

    /// The leader waits for this serial.
    fn out_of_order(&mut self, now: Instant, expected: u64) -> Verdict {
        if expected < self.in_flight.first() {
            return Verdict::Leave {
                why: format!(
                    "expected a leader that has done commands up to {}, found one that waits for \
                     {expected}: another leads by now",
                    self.in_flight.first() - 1
                ),
                hint: None,
            };
        }
        let Some(at) = self.in_flight.place(expected) else {
            return Verdict::Leave {
                why: format!("the server waits for command {expected}, which is not there yet"),
                hint: None,
            };
        };
        self.in_flight.resend_from(at);
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

    /// It was not done by what was sent last, and would not be if sent again;
    /// its serial has to be used all the same, by something that is always
    /// done.
    fn never(&mut self, at: usize, error: &v1::Error, outcomes: &mut Outcomes) -> Verdict {
        let sent = self.in_flight.get_mut(at);
        let refused = Error::from_wire(error);
        // What would have been refused the first time as well.
        let always = match error.cause() {
            v1::Cause::Invalid => true,
            v1::Cause::TooLarge => !error.quota,
            _ => false,
        };
        let outcome = if sent.unsettled_sends == 0 || always {
            refused
        } else {
            Error::Unknown(format!(
                "it was sent before without an answer, and when it was sent again it was refused: \
                 {refused}"
            ))
        };
        if sent.filler || matches!(self.session, Session::Over) {
            // Not even that: this session is of no use any more.
            self.leave_session(outcomes);
            self.settle(at, Err(outcome), outcomes);
            return Verdict::Stay;
        }
        sent.filler = true;
        sent.op.what = command::Operation::KeepAlive(true);
        let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
        outcomes.push((reply, Err(outcome)));
        self.in_flight.resend_from(at);
        Verdict::Stay
    }

    /// Nothing more is sent under this session; answers may come yet.
    fn leave_session(&mut self, outcomes: &mut Outcomes) {
        self.session = Session::Over;
        "the session is over".clone_into(&mut self.trouble);
        // What was to be sent again has no answer to wait for.
        outcomes.extend(self.in_flight.drain_unsent().map(given_up));
    }

    /// The one at `at` was not done by what was sent last, and its session is
    /// over.
    fn session_over(&mut self, at: usize, outcomes: &mut Outcomes) {
        self.leave_session(outcomes);
        let sent = self.in_flight.get_mut(at);
        if sent.unsettled_sends == 0 {
            let what = std::mem::replace(&mut sent.op.what, command::Operation::KeepAlive(true));
            let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
            let deadline = sent.op.deadline;
            if !reply.is_nobody() {
                self.waiting_bytes += command_weight(&what);
                self.returned.push_back(PendingRequest {
                    what,
                    deadline,
                    reply,
                });
            }
        }
        self.settle(at, Err(expired()), outcomes);
    }

    /// What is still in flight under a session that is over is unknown, unless
    /// each sending of it was refused.
    pub(super) fn end_session(&mut self, outcomes: &mut Outcomes) {
        outcomes.extend(self.in_flight.drain().map(given_up));
        self.in_flight = InFlight::new();
        self.session = Session::None;
        if self.once {
            self.session = Session::Ended;
            self.turn_away_commands(&session_over(), outcomes);
        }
    }

    fn query_answered(
        &mut self,
        now: Instant,
        op: PendingRequest<request::What>,
        what: Outcome,
        outcomes: &mut Outcomes,
    ) -> Verdict {
        let error = match what {
            Ok(answer::What::Error(error)) => error,
            what => {
                outcomes.push((op.reply, what));
                return Verdict::Stay;
            }
        };
        let again = |pipeline: &mut Self, op: PendingRequest<request::What>| {
            pipeline.waiting_bytes += query_weight(&op.what);
            pipeline.queries.push_front(op);
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
            | v1::Cause::Unauthenticated
            | v1::Cause::TooSlow => {
                again(self, op);
                leave(&error)
            }
            _ => {
                outcomes.push((op.reply, Err(Error::from_wire(&error))));
                Verdict::Stay
            }
        }
    }

    fn open_answered(&mut self, now: Instant, what: Outcome, outcomes: &mut Outcomes) -> Verdict {
        self.session = Session::Opening(None);
        match what {
            Ok(answer::What::Opened(session)) => {
                self.session = Session::Open(session);
                self.proven = false;
                self.in_flight = InFlight::new();
                self.heard = now;
                Verdict::Stay
            }
            Ok(answer::What::Error(error)) => match error.cause() {
                v1::Cause::NotLeader
                | v1::Cause::Interrupted
                | v1::Cause::NotReady
                | v1::Cause::Unauthenticated
                | v1::Cause::TooSlow => leave(&error),
                v1::Cause::Denied => {
                    self.session = Session::None;
                    self.turn_away_commands(&Error::from_wire(&error), outcomes);
                    Verdict::Stay
                }
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
}

/// Whether an answer says that the sending that it answers took no effect and
/// will take none. It says nothing about earlier ones.
fn was_not_taken(error: &v1::Error) -> bool {
    match error.cause() {
        v1::Cause::Unspecified
        | v1::Cause::Interrupted
        | v1::Cause::TooOld
        // It is the stream that was too slow.
        | v1::Cause::TooSlow => false,
        v1::Cause::NotLeader
        | v1::Cause::NotReady
        | v1::Cause::Busy
        | v1::Cause::Window
        | v1::Cause::TooManySessions
        | v1::Cause::OutOfOrder
        | v1::Cause::OtherContent
        | v1::Cause::NotOwner
        | v1::Cause::SessionExpired
        | v1::Cause::Held
        | v1::Cause::Members
        | v1::Cause::NotHandedOver
        | v1::Cause::Compacted
        | v1::Cause::Restored
        | v1::Cause::TooLarge
        | v1::Cause::Invalid
        | v1::Cause::Denied
        | v1::Cause::Unauthenticated => true,
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

/// Whom to tell what of a command whose session is over.
fn given_up(sent: Sent) -> (Reply, Outcome) {
    let error = if sent.unsettled_sends == 0 {
        session_over()
    } else {
        expired()
    };
    (sent.op.reply, Err(error))
}

fn expired() -> Error {
    Error::Unknown("the session is over, and with it what was known of the request".into())
}
