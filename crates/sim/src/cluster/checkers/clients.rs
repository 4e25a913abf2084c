//! What clients were told has to make sense: there is an order of all calls
//! that explains every answer (I12), and what was appended stands in the
//! user log once, where its client was told.

use std::collections::BTreeMap;

use tenure_alpo::{
    ClientRequest, Command, Operation, Outcome, Query, QueryResult, SessionId, State,
};
use tenure_core::cas::Stamp;
use tenure_core::ids::Key;

use super::{Broken, Check, Verdict, broken};
use crate::linearize::{self, Answer, Append, CallId, History, Invocation, exactly_once};

/// What clients asked and were told.
#[derive(Default)]
pub(in super::super) struct Calls {
    history: History,
    appends: Vec<Append>,
    events: u64,
    /// By operation: the call on a register, or the append.
    kinds: BTreeMap<usize, Kind>,
    /// The ends of sessions, as far as they may matter to a register.
    ends: BTreeMap<(SessionId, Key), CallId>,
    count: usize,
    /// Registers whose search was given up.
    pub(in super::super) inconclusive: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Call(CallId),
    Append(usize),
}

impl Calls {
    /// A client asks; gives the number of the operation.
    pub(in super::super) fn invoke(
        &mut self,
        at: u64,
        client: usize,
        request: &ClientRequest,
    ) -> usize {
        self.events += 1;
        self.count += 1;
        let number = self.count;
        let client = client as u64;
        let call = match request {
            ClientRequest::Read(Query::Register(key)) => {
                self.history
                    .invoke(at, client, key.clone(), Invocation::Read)
            }
            ClientRequest::Command(command, _) => {
                if let Operation::Append(bytes) = &command.operation {
                    self.kinds.insert(number, Kind::Append(self.appends.len()));
                    self.appends.push(Append {
                        session: command.session,
                        serial: command.serial,
                        payload: bytes.clone(),
                        invoked: self.events,
                        answered: None,
                    });
                    return number;
                }
                let Some((key, invocation)) = of_register(&command.operation) else {
                    return number;
                };
                let session = command.session;
                if let Operation::Bind(_) = &command.operation {
                    // Whatever becomes of the session, this is how it ends.
                    let history = &mut self.history;
                    let end =
                        || history.invoke_in(session, at, client, key.clone(), Invocation::End);
                    self.ends.entry((session, key.clone())).or_insert_with(end);
                }
                self.history
                    .invoke_in(session, at, client, key.clone(), invocation)
            }
            _ => return number,
        };
        self.kinds.insert(number, Kind::Call(call));
        number
    }

    /// The session is over, as its client has just learnt.
    fn over(&mut self, at: u64, session: SessionId) {
        for (_, end) in self.ends.extract_if(.., |(of, _), _| *of == session) {
            self.history.answer(at, end, Answer::Ended);
        }
    }

    /// Operation `number` was done with this outcome.
    pub(in super::super) fn done(
        &mut self,
        at: u64,
        number: usize,
        request: &ClientRequest,
        outcome: &Outcome,
    ) -> Verdict {
        self.events += 1;
        if let (ClientRequest::Command(Command { session, .. }, _), true) = (
            request,
            matches!(outcome, Outcome::SessionExpired | Outcome::Closed),
        ) {
            self.over(at, *session);
        }
        let answer = match (self.kinds.get(&number), outcome) {
            // Not done by this asking; by an earlier one, perhaps.
            (_, Outcome::SessionExpired) | (None, _) => return Ok(()),
            (Some(Kind::Append(index)), Outcome::Appended(told)) => {
                self.appends[*index].answered = Some((self.events, *told));
                return Ok(());
            }
            (Some(Kind::Call(_)), Outcome::Swapped(version)) => Answer::Swapped(version.clone()),
            (Some(Kind::Call(_)), Outcome::Deleted) => Answer::Deleted,
            (Some(Kind::Call(_)), Outcome::Conflict) => Answer::Conflict,
            (Some(_), outcome) => {
                let detail = format!("a client was told {outcome:?}");
                return broken(Check::ExactlyOnce, detail);
            }
        };
        if let Some(Kind::Call(call)) = self.kinds.get(&number) {
            self.history.answer(at, *call, answer);
        }
        Ok(())
    }

    /// Read `number` found this.
    pub(in super::super) fn read(&mut self, at: u64, number: usize, found: &QueryResult) {
        self.events += 1;
        let (Some(Kind::Call(call)), QueryResult::Register(register, ..)) =
            (self.kinds.get(&number), found)
        else {
            return;
        };
        let answer = match register {
            None => Answer::Absent,
            Some(register) => Answer::Holds {
                value: register.value.clone(),
                version: register.version.clone(),
            },
        };
        self.history.answer(at, *call, answer);
    }

    /// How many operations there were.
    pub(in super::super) const fn count(&self) -> usize {
        self.count
    }

    /// At the end: does it all make sense?
    pub(in super::super) fn judge(&mut self, everything: &State) -> Verdict {
        let log: Vec<_> = everything
            .user_log()
            .read(1)
            .into_iter()
            .flatten()
            .map(|(number, bytes)| (number, bytes.clone()))
            .collect();
        exactly_once(&self.appends, &log)
            .map_err(|misdeeds| Broken::new(Check::ExactlyOnce, format!("{:?}", misdeeds[0])))?;
        self.judge_registers()
    }

    /// The same of the registers alone.
    pub(in super::super) fn judge_registers(&mut self) -> Verdict {
        match linearize::check(&self.history) {
            linearize::Verdict::Linearizable { .. } => Ok(()),
            linearize::Verdict::Inconclusive { .. } => {
                self.inconclusive += 1;
                Ok(())
            }
            linearize::Verdict::Violation(contradiction) => {
                broken(Check::Linearizable, contradiction.to_string())
            }
        }
    }
}

/// What a command asks of a register, if it does.
fn of_register(operation: &Operation) -> Option<(&Key, Invocation)> {
    Some(match operation {
        Operation::Swap(write) => {
            let (expect, value) = (write.expect.clone(), write.value.clone());
            let invocation = match write.stamp {
                Stamp::Now => Invocation::Swap { expect, value },
                Stamp::Keep => Invocation::Note { expect, value },
            };
            (&write.key, invocation)
        }
        Operation::Bind(bind) => {
            let write = &bind.write;
            let (expect, value) = (write.expect.clone(), write.value.clone());
            let last = bind.last.clone();
            let invocation = Invocation::Bind {
                expect,
                value,
                last,
            };
            (&write.key, invocation)
        }
        Operation::Delete(delete) => {
            let expect = delete.expect.clone();
            (&delete.key, Invocation::Delete { expect })
        }
        Operation::Append(_) | Operation::KeepAlive | Operation::Close => return None,
    })
}
