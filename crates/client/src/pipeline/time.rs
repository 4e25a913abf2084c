//! What a pipeline does because time has passed.

use std::time::Duration;

use tenure_api::v1::command;
use tenure_core::time::Instant;

use super::message::{command_weight, query_weight};
use super::{ANSWER_TIMEOUT_MAX, Outcomes, PendingRequest, Pipeline, Reply, Session};
use crate::Error;

/// How long a keep-alive may wait to be sent; it is sent again anyway.
const ALIVE_WITHIN: Duration = Duration::from_secs(3_600);

/// What is due.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Due {
    /// There is something to send that was not there before.
    pub(crate) send: bool,
    /// Answers are waited for in vain: ask the others who leads.
    pub(crate) no_answers: bool,
}

impl Pipeline {
    /// When to come back at the latest.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        let quiet = self
            .awaits_answers()
            .then(|| self.unanswered_since.after(self.answer_timeout));
        [
            self.next_deadline,
            self.paused_until,
            self.alive_at(),
            quiet,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due now.
    pub(crate) fn tick(&mut self, now: Instant, outcomes: &mut Outcomes) -> Due {
        let mut due = Due::default();
        if self.paused_until.is_some_and(|until| until <= now) {
            self.paused_until = None;
            due.send = true;
        }
        if self.alive_at().is_some_and(|at| at <= now) {
            self.waiting.push_front(PendingRequest {
                what: command::Operation::KeepAlive(true),
                deadline: now.after(ALIVE_WITHIN),
                reply: Reply::Nobody,
            });
            due.send = true;
        }
        if self.awaits_answers() && self.unanswered_since.after(self.answer_timeout) <= now {
            self.unanswered_since = now;
            self.answer_timeout =
                (self.answer_timeout * 2).min(ANSWER_TIMEOUT_MAX.max(self.answer_timeout_min));
            due.no_answers = true;
        }
        if self
            .next_deadline
            .is_some_and(|next_deadline| next_deadline <= now)
        {
            self.expire(now, outcomes);
        }
        due
    }

    /// Why nothing goes, if nothing goes.
    pub(crate) fn trouble(&mut self, why: &str) {
        why.clone_into(&mut self.trouble);
    }

    /// A third of the session's life after it was last heard of, unless
    /// something is under way that will be heard.
    fn alive_at(&self) -> Option<Instant> {
        let idle = self.in_flight.is_empty() && self.waiting.is_empty();
        match self.session {
            Session::Open(_) if idle => Some(self.heard.after(self.ttl / 3)),
            _ => None,
        }
    }

    /// Tells those whose time is over: of what was sent that it is unknown,
    /// of the rest that it did not happen.
    fn expire(&mut self, now: Instant, outcomes: &mut Outcomes) {
        let mut next: Option<Instant> = None;
        let mut is_over = |deadline: Instant| {
            if deadline > now {
                next = Some(next.map_or(deadline, |next: Instant| next.min(deadline)));
            }
            deadline <= now
        };
        let why = &self.trouble;
        let not_done = || Err(Error::Unavailable(format!("not sent in time: {why}")));
        let mut freed = 0;
        for queue in [&mut self.waiting, &mut self.returned] {
            queue.retain_mut(|op| {
                let over = is_over(op.deadline);
                if over {
                    let reply = std::mem::replace(&mut op.reply, Reply::Nobody);
                    outcomes.push((reply, not_done()));
                    freed += command_weight(&op.what);
                }
                !over
            });
        }
        self.queries.retain_mut(|op| {
            let over = is_over(op.deadline);
            if over {
                let reply = std::mem::replace(&mut op.reply, Reply::Nobody);
                outcomes.push((reply, not_done()));
                freed += query_weight(&op.what);
            }
            !over
        });
        self.waiting_bytes = self.waiting_bytes.saturating_sub(freed);
        self.asked.retain(|_, op| {
            let over = is_over(op.deadline);
            if over {
                let reply = std::mem::replace(&mut op.reply, Reply::Nobody);
                let late = Err(Error::Unavailable("no answer in time".into()));
                outcomes.push((reply, late));
            }
            !over
        });
        // What is in the way now may be why, unless a server has it.
        let late = match self.connected {
            true => "no answer in time".to_owned(),
            false => format!("no answer in time: {why}"),
        };
        for sent in self.in_flight.iter_mut() {
            if !matches!(sent.op.reply, Reply::Nobody) && is_over(sent.op.deadline) {
                let reply = std::mem::replace(&mut sent.op.reply, Reply::Nobody);
                outcomes.push((reply, Err(Error::Unknown(late.clone()))));
            }
        }
        self.next_deadline = next;
    }
}
