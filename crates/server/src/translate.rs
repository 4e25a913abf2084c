//! Between what clients say and what the machine understands.

use bytes::Bytes;
use tenure_alpo::{
    Answer, ClientRequest, Command, LogTime, MAX_BOUND, MAX_NUMBER, OpenSession, Operation,
    Outcome, OwnershipProof, Query, QueryResult,
};
use tenure_api::v1::{self, Cause, answer, command, request};
use tenure_core::cas::{Expect, Register, Stamp, Write};
use tenure_core::ids::{Key, Version};
use tenure_core::time::StoreTime;

use super::caller_proof::CallerProof;
use super::errors::{
    compacted, error, invalid, most_of, other_content, out_of_order, restored, too_many,
};
use super::inbox::{StreamRequest, TimedAnswer};
use super::refusal_errors::{not_leader, refused};
use super::shared::Shared;

fn key(text: &str) -> Result<Key, v1::Error> {
    Key::new(text).map_err(|why| invalid(format!("key: {why}")))
}

fn version(version: &Version) -> u64 {
    version.to_u64().unwrap_or(0)
}

pub(super) fn time(time: StoreTime) -> v1::Time {
    v1::Time {
        clock_high: time.clock.boot,
        clock_low: time.clock.namespace,
        nanos: time.nanos,
    }
}

pub(super) fn register(register: &Register) -> v1::Register {
    v1::Register {
        value: Bytes::copy_from_slice(&register.value),
        version: version(&register.version),
        stamp: register.stamp.map(time),
    }
}

fn value(bytes: &Bytes) -> Result<tenure_core::cas::Bytes, v1::Error> {
    let most = tenure_core::cas::MAX_VALUE_BYTES;
    if bytes.len() > most {
        let found = bytes.len();
        let text = format!("expected a value of at most {most} bytes, found {found}");
        return Err(error(Cause::TooLarge, text));
    }
    Ok((&bytes[..]).into())
}

/// A compare-and-swap as an operation.
pub(super) fn swap(swap: v1::Swap) -> Result<Operation, v1::Error> {
    let write = Write {
        key: key(&swap.key)?,
        expect: match swap.expect {
            None => Expect::Absent,
            Some(version) => Expect::Version(Version::from_u64(version)),
        },
        value: value(&swap.value)?,
        stamp: if swap.keep_stamp {
            Stamp::Keep
        } else {
            Stamp::Now
        },
    };
    match swap.at_end {
        None => Ok(Operation::swap(write)),
        Some(_) if swap.keep_stamp => Err(invalid("expected at_end or keep_stamp, found both")),
        Some(last) => Ok(Operation::bind(write, value(&last.value)?)),
    }
}

pub(super) fn delete(name: &str, expect: u64) -> Result<Operation, v1::Error> {
    Ok(Operation::delete(key(name)?, Version::from_u64(expect)))
}

pub(super) fn append(data: &Bytes) -> Result<Operation, v1::Error> {
    fits(data)?;
    Ok(Operation::Append((&data[..]).into()))
}

/// Whether this can be an entry.
pub(super) fn fits(data: &Bytes) -> Result<(), v1::Error> {
    let most = tenure_alpo::MAX_ENTRY_BYTES;
    if data.len() > most {
        let found = data.len();
        let text = format!("expected an entry of at most {most} bytes, found {found}");
        return Err(error(Cause::TooLarge, text));
    }
    Ok(())
}

/// An operation under a number of the client's own.
pub(super) fn numbered(
    numbered: &v1::Numbered,
    operation: Operation,
    claim: OwnershipProof,
) -> Result<ClientRequest, v1::Error> {
    let (serial, outstanding) = (numbered.serial, numbered.outstanding);
    let highest = serial.max(numbered.session);
    if !(1..=serial).contains(&outstanding) || highest > MAX_NUMBER {
        return Err(invalid(format!(
            "expected a session and a serial from 1 to 2^62, and an outstanding one from 1 to the \
             serial, found {}, {serial} and {outstanding}",
            numbered.session
        )));
    }
    let command = Command {
        session: numbered.session,
        serial,
        outstanding,
        operation,
    };
    Ok(ClientRequest::Command(command, claim))
}

/// The time to live of a session.
pub(super) fn open(ttl_millis: u64, proof: &CallerProof) -> Result<OpenSession, v1::Error> {
    if !(1_000..=86_400_000).contains(&ttl_millis) {
        return Err(invalid(format!(
            "expected a time to live of 1 s to 1 day, found {ttl_millis} ms"
        )));
    }
    let ttl = ttl_millis * 1_000_000;
    Ok(proof.opening(ttl))
}

pub(super) fn read(name: &str) -> Result<Query, v1::Error> {
    key(name).map(Query::Register)
}

pub(super) fn list(request: &v1::ListRequest) -> Result<Query, v1::Error> {
    Ok(Query::List {
        prefix: request.prefix.clone(),
        after: request.after.as_deref().map(key).transpose()?,
        count: count(request.limit),
    })
}

pub(super) fn read_log(request: &v1::ReadLogRequest) -> Query {
    Query::UserLog {
        from: request.from.max(1),
        count: count(request.limit),
    }
}

fn count(limit: u32) -> usize {
    match limit {
        0 => usize::MAX,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    }
}

/// One request of a stream, as the machine is asked.
pub(super) fn pipelined(
    request: request::What,
    proof: &CallerProof,
) -> Result<ClientRequest, v1::Error> {
    match request {
        request::What::Open(ttl) => open(ttl, proof).map(ClientRequest::Open),
        request::What::Command(command) => {
            let number = v1::Numbered {
                session: command.session,
                serial: command.serial,
                outstanding: command.outstanding,
                secret: Bytes::new(),
            };
            let operation = match command.operation {
                Some(command::Operation::Append(data)) => append(&data)?,
                Some(command::Operation::Swap(it)) => swap(it)?,
                Some(command::Operation::Delete(it)) => delete(&it.key, it.expect)?,
                Some(command::Operation::KeepAlive(_)) => Operation::KeepAlive,
                Some(command::Operation::Close(_)) => Operation::Close,
                None => return Err(invalid("expected an operation, found none")),
            };
            numbered(&number, operation, proof.claim)
        }
        request::What::Read(it) if !it.stale => read(&it.key).map(ClientRequest::Read),
        request::What::List(it) if !it.stale => list(&it).map(ClientRequest::Read),
        request::What::ReadLog(it) if !it.stale => Ok(ClientRequest::Read(read_log(&it))),
        request::What::Read(_) | request::What::List(_) | request::What::ReadLog(_) => Err(
            invalid("expected no stale read here: a stream speaks to the leader; call Read"),
        ),
    }
}

/// Whether a register is to be deleted.
pub(super) const fn deletes(request: &ClientRequest) -> bool {
    matches!(
        request,
        ClientRequest::Command(
            Command {
                operation: Operation::Delete(_),
                ..
            },
            _
        )
    )
}

/// What was done, or why it was not.
pub(super) fn done(
    told: TimedAnswer,
    shared: &Shared,
) -> Result<(Outcome, Option<LogTime>), v1::Error> {
    match told.answer {
        Answer::Done(outcome) => match outcome {
            Outcome::SessionExpired => Err(error(
                Cause::SessionExpired,
                "there is no such session any more; open another",
            )),
            Outcome::TooManySessions => Err(too_many(format!(
                "expected fewer than {} sessions of all clients together, found as many, of which \
                 {}",
                super::config::limits().sessions,
                most_of(&shared.holders())
            ))),
            Outcome::TooManyBound => Err(error(
                Cause::TooLarge,
                format!("expected at most {MAX_BOUND} registers bound to a session"),
            )),
            Outcome::TooOld => Err(error(
                Cause::TooOld,
                "this serial was done long ago, and its answer is forgotten",
            )),
            Outcome::OtherContent => Err(other_content()),
            Outcome::OutOfOrder { expected } => Err(out_of_order(expected)),
            outcome => Ok((outcome, told.at)),
        },
        Answer::HandedOver => Ok((Outcome::Nothing, None)),
        Answer::Refused(refusal) => Err(refused(refusal, shared)),
        Answer::Interrupted => Err(error(
            Cause::Interrupted,
            "this server has lost its leadership: the request may or may not be carried out; \
             send it again, unchanged",
        )),
        Answer::Read(_) => Err(error(Cause::Unspecified, "a read was answered to a write")),
    }
}

/// What was found, or why nothing was read.
pub(super) fn found(told: TimedAnswer, shared: &Shared) -> Result<QueryResult, v1::Error> {
    match told.answer {
        Answer::Read(QueryResult::UserLog(Err(first))) => Err(compacted(first)),
        Answer::Read(QueryResult::Restored(next)) => Err(restored(next)),
        Answer::Read(found) => Ok(found),
        // Nothing was changed, so it may simply be asked again.
        Answer::Interrupted => Err(not_leader(None, shared)),
        Answer::Refused(refusal) => Err(refused(refusal, shared)),
        Answer::Done(_) | Answer::HandedOver => {
            Err(error(Cause::Unspecified, "a write was answered to a read"))
        }
    }
}

pub(super) fn swapped(
    outcome: &Outcome,
    at: Option<LogTime>,
    clock: StoreTime,
) -> v1::CompareAndSwapResponse {
    match outcome {
        Outcome::Swapped(it) => v1::CompareAndSwapResponse {
            swapped: true,
            version: version(it),
            now: at.map(|nanos| time(StoreTime { nanos, ..clock })),
        },
        _ => v1::CompareAndSwapResponse::default(),
    }
}

pub(super) fn read_response(found: QueryResult) -> v1::ReadResponse {
    match found {
        QueryResult::Register(held, now, bound) => v1::ReadResponse {
            register: held.as_ref().map(register),
            now: Some(time(now)),
            bound: bound.map(|it| v1::Bound {
                session: it.session,
                heard: Some(time(StoreTime {
                    nanos: it.heard,
                    ..now
                })),
                ends: Some(time(StoreTime {
                    nanos: it.ends,
                    ..now
                })),
            }),
            ..v1::ReadResponse::default()
        },
        _ => v1::ReadResponse::default(),
    }
}

pub(super) fn list_response(found: QueryResult) -> v1::ListResponse {
    let QueryResult::List {
        registers,
        more,
        now,
    } = found
    else {
        return v1::ListResponse::default();
    };
    let named = registers.iter().map(|(key, held)| v1::Named {
        key: key.as_str().to_owned(),
        register: Some(register(held)),
    });
    v1::ListResponse {
        registers: named.collect(),
        more,
        now: Some(time(now)),
    }
}

pub(super) fn log_response(found: QueryResult) -> v1::ReadLogResponse {
    let QueryResult::UserLog(Ok(entries)) = found else {
        return v1::ReadLogResponse::default();
    };
    let entry = |(number, data): &(u64, tenure_core::cas::Bytes)| v1::LogEntry {
        number: *number,
        data: Bytes::copy_from_slice(data),
    };
    v1::ReadLogResponse {
        entries: entries.iter().map(entry).collect(),
        cluster: String::new(),
    }
}

/// One answer of a stream.
pub(super) fn answer(
    ticket: StreamRequest,
    told: TimedAnswer,
    shared: &Shared,
    clock: StoreTime,
) -> v1::Answer {
    let owned = told.owned;
    let what = match &told.answer {
        Answer::Read(_) => found(told, shared).map(|found| match found {
            QueryResult::Register(..) => answer::What::Read(read_response(found)),
            QueryResult::List { .. } => answer::What::List(list_response(found)),
            QueryResult::UserLog(_) | QueryResult::Restored(_) | QueryResult::Barrier(_) => {
                answer::What::Log(log_response(found))
            }
        }),
        _ => done(told, shared).map(|(outcome, at)| match outcome {
            Outcome::Opened(session) => answer::What::Opened(session),
            Outcome::Appended(number) => answer::What::Appended(number),
            Outcome::Deleted => answer::What::Deleted(v1::DeleteResponse { deleted: true }),
            Outcome::Conflict if ticket.deletes => {
                answer::What::Deleted(v1::DeleteResponse { deleted: false })
            }
            Outcome::Alive => answer::What::Alive(true),
            Outcome::Closed => answer::What::Closed(true),
            outcome => answer::What::Swapped(swapped(&outcome, at, clock)),
        }),
    };
    if let Some(entry) = ticket.entry {
        let done = |what: &_| match what {
            answer::What::Swapped(it) => it.swapped,
            answer::What::Deleted(it) => it.deleted,
            _ => false,
        };
        entry.ends(what.as_ref().map(done));
    }
    v1::Answer {
        number: ticket.number,
        what: Some(what.unwrap_or_else(answer::What::Error)),
        owned,
    }
}
