//! Entries and hard states as bytes.

use alloc::vec::Vec;

use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Term, Version};

use super::super::durable::{HardState, Vote};
use super::super::entry::{ClusterVersion, Command, Entry, Operation, Payload};
use super::super::ids::{Position, Rank, ServerId, StorageId};
use super::super::membership::{MAX_MEMBERS, Member, Membership, VotingStatus};
use super::super::session_owner::{SessionOpener, SessionOwner};
use super::{DecodeError, Reader, put_bytes, put_u64};

const NO_OP: u8 = 0;
const MEMBERS: u8 = 1;
const OPEN: u8 = 2;
const COMMAND: u8 = 3;
const EXPIRE: u8 = 4;
const VERSION: u8 = 5;
#[cfg(feature = "next-version")]
const NOTE: u8 = 6;
const OPEN_OWNED: u8 = 7;

const APPEND: u8 = 0;
const SWAP: u8 = 1;
const DELETE: u8 = 2;
const KEEP_ALIVE: u8 = 3;
const CLOSE: u8 = 4;
const BIND: u8 = 5;

/// Writes an entry.
pub fn encode_entry(to: &mut Vec<u8>, entry: &Entry) {
    put_u64(to, entry.id);
    put_u64(to, entry.term.get());
    put_u64(to, entry.time);
    match &entry.payload {
        Payload::NoOp => to.push(NO_OP),
        Payload::Members(members) => {
            to.push(MEMBERS);
            write_membership(to, members);
        }
        Payload::Open { ttl } => {
            to.push(OPEN);
            put_u64(to, *ttl);
        }
        Payload::OpenOwned { ttl, owner } => {
            to.push(OPEN_OWNED);
            put_u64(to, *ttl);
            write_owner(to, owner);
        }
        Payload::Command(command) => {
            to.push(COMMAND);
            write_command(to, command);
        }
        Payload::Expire { session } => {
            to.push(EXPIRE);
            put_u64(to, *session);
        }
        Payload::Version(version) => {
            to.push(VERSION);
            put_u64(to, version.get());
        }
        #[cfg(feature = "next-version")]
        Payload::Note(number) => {
            to.push(NOTE);
            put_u64(to, *number);
        }
    }
}

/// Reads an entry that fills `bytes`.
///
/// # Errors
/// If it was not written by [`encode_entry`].
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let mut from = Reader::new(bytes);
    let entry = read_entry(&mut from)?;
    from.end()?;
    Ok(entry)
}

pub(super) fn read_entry(from: &mut Reader<'_>) -> Result<Entry, DecodeError> {
    let id = from.number()?;
    let term = read_term(from)?;
    let time = from.number()?;
    let payload = match from.u8()? {
        NO_OP => Payload::NoOp,
        MEMBERS => Payload::Members(read_membership(from)?),
        OPEN => Payload::Open { ttl: from.u64()? },
        OPEN_OWNED => Payload::OpenOwned {
            ttl: from.u64()?,
            owner: read_owner(from)?,
        },
        COMMAND => Payload::Command(read_command(from)?),
        EXPIRE => Payload::Expire {
            session: from.u64()?,
        },
        VERSION => Payload::Version(read_version(from)?),
        #[cfg(feature = "next-version")]
        NOTE => Payload::Note(from.u64()?),
        kind => return Err(DecodeError::Kind(kind)),
    };
    Ok(Entry {
        id,
        term,
        time,
        payload,
    })
}

/// Writes a hard state.
pub fn encode_hard_state(to: &mut Vec<u8>, hard: &HardState) {
    put_u64(to, hard.term.get());
    put_u64(to, hard.last_reign.get());
    match &hard.vote {
        None => to.push(0),
        Some(Vote { rank, storage }) => {
            to.push(if storage.is_some() { 2 } else { 1 });
            write_rank(to, rank);
            if let Some(storage) = storage {
                to.extend_from_slice(&storage.to_u128().to_le_bytes());
            }
        }
    }
}

/// Reads a hard state that fills `bytes`.
///
/// # Errors
/// If it was not written by [`encode_hard_state`].
pub fn decode_hard_state(bytes: &[u8]) -> Result<HardState, DecodeError> {
    let mut from = Reader::new(bytes);
    let hard = HardState {
        term: read_term(&mut from)?,
        last_reign: read_term(&mut from)?,
        vote: match from.u8()? {
            0 => None,
            1 => Some(Vote {
                rank: read_rank(&mut from)?,
                storage: None,
            }),
            2 => Some(Vote {
                rank: read_rank(&mut from)?,
                storage: Some(StorageId::from_u128(u128::from_le_bytes(from.array()?))),
            }),
            kind => return Err(DecodeError::Kind(kind)),
        },
    };
    from.end()?;
    Ok(hard)
}

fn write_command(to: &mut Vec<u8>, command: &Command) {
    put_u64(to, command.session);
    put_u64(to, command.serial);
    put_u64(to, command.outstanding);
    match &command.operation {
        Operation::Append(bytes) => {
            to.push(APPEND);
            put_bytes(to, bytes);
        }
        Operation::Swap(write) => {
            to.push(SWAP);
            write_write(to, write);
        }
        Operation::Delete(delete) => {
            to.push(DELETE);
            put_bytes(to, delete.key.as_str().as_bytes());
            put_bytes(to, delete.expect.as_bytes());
        }
        Operation::Bind(bind) => {
            to.push(BIND);
            write_write(to, &bind.write);
            put_bytes(to, &bind.last);
        }
        Operation::KeepAlive => to.push(KEEP_ALIVE),
        Operation::Close => to.push(CLOSE),
    }
}

fn read_command(from: &mut Reader<'_>) -> Result<Command, DecodeError> {
    // As clients said them: earlier releases put any into the log, and what is
    // there must reach everybody. Sessions compare them and add to none
    // without a check ([`Sessions`](super::super::state::Sessions)).
    let session = from.u64()?;
    let serial = from.u64()?;
    let outstanding = from.u64()?;
    let operation = match from.u8()? {
        APPEND => Operation::Append(from.bytes()?.into()),
        SWAP => Operation::swap(read_write(from)?),
        DELETE => Operation::delete(read_key(from)?, Version::from_bytes(from.bytes()?)),
        BIND => Operation::bind(read_write(from)?, from.bytes()?.into()),
        KEEP_ALIVE => Operation::KeepAlive,
        CLOSE => Operation::Close,
        kind => return Err(DecodeError::Kind(kind)),
    };
    Ok(Command {
        session,
        serial,
        outstanding,
        operation,
    })
}

pub(in super::super) fn write_owner(to: &mut Vec<u8>, owner: &SessionOwner) {
    to.push(u8::from(owner.secret.is_some()));
    if let Some(secret) = &owner.secret {
        to.extend_from_slice(secret);
    }
    match &owner.opener {
        SessionOpener::Server => to.push(0),
        SessionOpener::Token(token) => {
            to.push(1);
            to.extend_from_slice(token);
        }
        SessionOpener::Address(address) => {
            to.push(2);
            to.extend_from_slice(address);
        }
    }
}

pub(in super::super) fn read_owner(from: &mut Reader<'_>) -> Result<SessionOwner, DecodeError> {
    let secret = if from.bool()? {
        Some(from.array()?)
    } else {
        None
    };
    let opener = match from.u8()? {
        0 => SessionOpener::Server,
        1 => SessionOpener::Token(from.array()?),
        2 => SessionOpener::Address(from.array()?),
        kind => return Err(DecodeError::Kind(kind)),
    };
    Ok(SessionOwner { secret, opener })
}

fn write_write(to: &mut Vec<u8>, write: &Write) {
    put_bytes(to, write.key.as_str().as_bytes());
    match &write.expect {
        Expect::Absent => to.push(0),
        Expect::Version(version) => {
            to.push(1);
            put_bytes(to, version.as_bytes());
        }
    }
    put_bytes(to, &write.value);
    to.push(match write.stamp {
        Stamp::Now => 0,
        Stamp::Keep => 1,
    });
}

fn read_write(from: &mut Reader<'_>) -> Result<Write, DecodeError> {
    let key = read_key(from)?;
    let expect = if from.bool()? {
        Expect::Version(Version::from_bytes(from.bytes()?))
    } else {
        Expect::Absent
    };
    let value = from.bytes()?.into();
    let stamp = if from.bool()? {
        Stamp::Keep
    } else {
        Stamp::Now
    };
    Ok(Write {
        key,
        expect,
        value,
        stamp,
    })
}

pub(super) fn read_key(from: &mut Reader<'_>) -> Result<Key, DecodeError> {
    let text = core::str::from_utf8(from.bytes()?).map_err(|_| DecodeError::Name)?;
    Key::new(text).map_err(|_| DecodeError::Name)
}

pub(in super::super) fn write_membership(to: &mut Vec<u8>, members: &Membership) {
    put_u64(to, members.len() as u64);
    for (server, member) in members.iter() {
        put_u64(to, server.get());
        to.push(match member.voting_status {
            VotingStatus::Voter => 0,
            VotingStatus::Learner => 1,
        });
        to.extend_from_slice(&member.storage.to_u128().to_le_bytes());
    }
}

pub(in super::super) fn read_membership(from: &mut Reader<'_>) -> Result<Membership, DecodeError> {
    let count = from.count()?;
    if count > MAX_MEMBERS {
        return Err(DecodeError::Number);
    }
    let mut last = 0;
    (0..count)
        .map(|_| {
            let server = read_server(from)?;
            // Ascending, so that there is one way to write them.
            if server.get() <= last {
                return Err(DecodeError::Number);
            }
            last = server.get();
            let voting_status = if from.bool()? {
                VotingStatus::Learner
            } else {
                VotingStatus::Voter
            };
            let storage = StorageId::from_u128(u128::from_le_bytes(from.array()?));
            Ok((
                server,
                Member {
                    voting_status,
                    storage,
                },
            ))
        })
        .collect()
}

pub(super) fn read_server(from: &mut Reader<'_>) -> Result<ServerId, DecodeError> {
    ServerId::new(from.u64()?).ok_or(DecodeError::Number)
}

pub(super) fn read_version(from: &mut Reader<'_>) -> Result<ClusterVersion, DecodeError> {
    ClusterVersion::new(from.u64()?).ok_or(DecodeError::Number)
}

pub(super) fn read_term(from: &mut Reader<'_>) -> Result<Term, DecodeError> {
    Term::new(from.number()?).ok_or(DecodeError::Number)
}

pub(super) fn write_position(to: &mut Vec<u8>, position: Position) {
    put_u64(to, position.term.get());
    put_u64(to, position.id);
}

pub(super) fn read_position(from: &mut Reader<'_>) -> Result<Position, DecodeError> {
    Ok(Position {
        term: read_term(from)?,
        id: from.number()?,
    })
}

pub(super) fn write_rank(to: &mut Vec<u8>, rank: &Rank) {
    write_position(to, rank.last);
    put_u64(to, rank.server.get());
}

pub(super) fn read_rank(from: &mut Reader<'_>) -> Result<Rank, DecodeError> {
    Ok(Rank {
        last: read_position(from)?,
        server: read_server(from)?,
    })
}
