//! Values of chance: entries, hard states, messages, and states with what
//! could come next.
//!
//! Numbers are drawn small, at the edges of a byte's worth, and of any size,
//! so that all lengths of their form occur; names are few, so that they meet.

use std::sync::Arc;

use tenure_alpo::{
    Body, ClusterVersion, Command, CompareChecksums, Entry, Envelope, HardState, Limits,
    MAX_NUMBER, Member, Membership, Operation, Payload, Position, Rank, Reply, Request, ServerId,
    SessionOpener, SessionOwner, State, StateChecksum, StorageId, Vote, VotingStatus,
};
use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::ids::{Key, Term, Version};
use tenure_core::rng::Rng;
use tenure_core::time::ClockId;

/// What can be drawn.
pub(crate) trait Any {
    /// One that is taken from others too.
    fn number(&mut self) -> u64;
    fn bytes(&mut self, length: usize) -> Vec<u8>;
    fn some_bytes(&mut self) -> Bytes;
    fn term(&mut self) -> Term;
    fn server(&mut self) -> ServerId;
    fn position(&mut self) -> Position;
    fn rank(&mut self) -> Rank;
    fn members(&mut self) -> Membership;
    fn key(&mut self) -> Key;
    fn version(&mut self) -> Version;
    fn write(&mut self) -> Write;
    fn operation(&mut self) -> Operation;
    fn payload(&mut self) -> Payload;
    fn entry(&mut self, id: u64) -> Entry;
    fn entries(&mut self) -> Vec<Entry>;
    fn hard_state(&mut self) -> HardState;
    fn request(&mut self) -> Request;
    fn reply(&mut self) -> Reply;
    fn state_checksum(&mut self) -> Option<StateChecksum>;
    fn cluster_version(&mut self) -> ClusterVersion;
    fn owner(&mut self) -> SessionOwner;
    fn envelope(&mut self) -> Envelope;
    fn state(&mut self, length: u64) -> State;
    fn next_entry(&mut self, state: &State) -> Entry;
    fn damage(&mut self, bytes: &mut Vec<u8>);
}

impl Any for Rng {
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4),
            1 => (1 << self.below(63)) - self.below(2),
            2 => MAX_NUMBER - self.below(2),
            _ => self.next_u64() >> (2 + self.below(62)),
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next_u64() as u8).collect()
    }

    fn some_bytes(&mut self) -> Bytes {
        let length = self.below(40) * u64::from(!self.chance(20));
        self.bytes(length as usize).into()
    }

    fn term(&mut self) -> Term {
        Term::new(self.number()).expect("63 bits")
    }

    fn server(&mut self) -> ServerId {
        ServerId::new(self.number().max(1)).expect("not zero")
    }

    fn position(&mut self) -> Position {
        Position::new(self.term(), self.number())
    }

    fn rank(&mut self) -> Rank {
        let last = self.position();
        let server = self.server();
        Rank { last, server }
    }

    fn members(&mut self) -> Membership {
        let count = self.below(6);
        let mut member = || {
            let voting_status = if self.chance(50) {
                VotingStatus::Voter
            } else {
                VotingStatus::Learner
            };
            let storage = StorageId::from_u128(self.next_u128());
            (
                self.server(),
                Member {
                    voting_status,
                    storage,
                },
            )
        };
        (0..count).map(|_| member()).collect()
    }

    fn key(&mut self) -> Key {
        let names = ["a", "b", "elections/payroll", "é", "a/b"];
        Key::new(names[self.below(5) as usize]).expect("a good key")
    }

    fn version(&mut self) -> Version {
        match self.below(3) {
            0 => Version::from_bytes(&self.some_bytes()),
            _ => Version::from_u64(self.number()),
        }
    }

    fn write(&mut self) -> Write {
        Write {
            key: self.key(),
            expect: if self.chance(50) {
                Expect::Absent
            } else {
                Expect::Version(self.version())
            },
            value: self.some_bytes(),
            stamp: if self.chance(50) {
                Stamp::Now
            } else {
                Stamp::Keep
            },
        }
    }

    fn operation(&mut self) -> Operation {
        match self.below(8) {
            0 => Operation::Append(self.some_bytes()),
            1 | 2 => Operation::swap(self.write()),
            3 => Operation::delete(self.key(), self.version()),
            4 => Operation::KeepAlive,
            5 => Operation::Close,
            _ => Operation::bind(self.write(), self.some_bytes()),
        }
    }

    fn owner(&mut self) -> SessionOwner {
        // Few, so that they meet again.
        let half = [self.below(3) as u8; 16];
        SessionOwner {
            secret: self.chance(50).then_some(half),
            opener: match self.below(3) {
                0 => SessionOpener::Server,
                1 => SessionOpener::Token(half),
                _ => SessionOpener::Address(half),
            },
        }
    }

    fn payload(&mut self) -> Payload {
        match self.below(8) {
            0 => Payload::NoOp,
            1 => Payload::Members(self.members()),
            2 => Payload::Open { ttl: self.number() },
            3 => Payload::Expire {
                session: self.number(),
            },
            4 => Payload::Version(self.cluster_version()),
            5 => Payload::OpenOwned {
                ttl: self.number(),
                owner: self.owner(),
            },
            _ => Payload::Command(Command {
                session: self.number(),
                serial: self.number(),
                outstanding: self.number(),
                operation: self.operation(),
            }),
        }
    }

    fn entry(&mut self, id: u64) -> Entry {
        Entry {
            id,
            term: self.term(),
            time: self.number(),
            payload: self.payload(),
        }
    }

    fn entries(&mut self) -> Vec<Entry> {
        let first = self.number() >> 1;
        let mut entries: Vec<Entry> = (first..)
            .take(self.below(5) as usize)
            .map(|id| self.entry(id))
            .collect();
        // Terms do not fall along a log.
        let mut terms: Vec<Term> = entries.iter().map(|entry| entry.term).collect();
        terms.sort_unstable();
        for (entry, term) in entries.iter_mut().zip(terms) {
            entry.term = term;
        }
        entries
    }

    fn hard_state(&mut self) -> HardState {
        HardState {
            term: self.term(),
            last_reign: self.term(),
            vote: self.chance(50).then(|| Vote {
                rank: self.rank(),
                storage: self
                    .chance(50)
                    .then(|| StorageId::from_u128(self.next_u128())),
            }),
        }
    }

    fn request(&mut self) -> Request {
        let last = self.position();
        let (commit, round) = (self.number(), self.number());
        match self.below(7) {
            0 => Request::PreVote { last },
            1 => Request::Vote {
                last,
                transfer: self.chance(50),
            },
            2 => Request::Defer { last },
            3 => Request::Append {
                prev: last,
                entries: self.entries(),
                commit,
                round,
            },
            4 => Request::Heartbeat {
                last,
                commit,
                round,
                time: self.number(),
                compare_checksums: CompareChecksums {
                    at: self.number(),
                    agreed: self.state_checksum(),
                },
            },
            5 => Request::Install {
                last,
                offset: self.number(),
                bytes: self.some_bytes(),
                total: self.number(),
                round,
            },
            _ => Request::TimeoutNow,
        }
    }

    fn reply(&mut self) -> Reply {
        let last = self.position();
        let round = self.number();
        match self.below(15) {
            0 => Reply::StaleTerm,
            1 => Reply::PreVoteGranted,
            2 => Reply::LeaderKnown {
                leader: self.chance(50).then(|| self.server()),
            },
            3 => Reply::LogIncomplete { last },
            4 => Reply::NotAMember,
            5 => Reply::Granted,
            6 => Reply::AlreadyVoted {
                voted_for: self.rank(),
            },
            7 => Reply::Deferred,
            8 => Reply::AlreadyLeader,
            9 => Reply::NotOutranked { mine: self.rank() },
            10 => Reply::Appended {
                matched: self.number(),
                round,
            },
            11 => Reply::Mismatch {
                last,
                conflict: self.chance(50).then(|| self.position()),
                round,
            },
            12 => Reply::Heard {
                matched: self.chance(50).then(|| self.number()),
                last,
                round,
                version: self.cluster_version(),
                state_checksum: self.state_checksum(),
            },
            13 => Reply::Installed {
                last,
                offset: self.number(),
                done: self.chance(50),
                round,
            },
            _ => Reply::Standing,
        }
    }

    fn state_checksum(&mut self) -> Option<StateChecksum> {
        let (id, hash) = (self.number(), self.number());
        self.chance(50).then_some(StateChecksum { id, hash })
    }

    fn cluster_version(&mut self) -> ClusterVersion {
        ClusterVersion::new(self.number().max(1)).expect("not zero")
    }

    fn envelope(&mut self) -> Envelope {
        let number = self.number();
        let body = if self.chance(40) {
            let request = self.request();
            Body::Request { number, request }
        } else {
            Body::Reply {
                number,
                asked_in: self.term(),
                reply: self.reply(),
            }
        };
        Envelope {
            from: self.server(),
            to: self.server(),
            term: self.term(),
            body,
        }
    }

    fn state(&mut self, length: u64) -> State {
        let limits = Limits {
            user_log_bytes: self.between(1, 600),
            sessions: self.between(1, 5),
            changes: self.below(10),
            checksum_every: self.between(1, 10),
        };
        let clock = ClockId {
            boot: self.number(),
            namespace: self.number(),
        };
        let mut state = State::new(limits, clock);
        if self.chance(60) {
            state = state.with_version(ClusterVersion::SECOND);
        }
        for _ in 0..length {
            let entry = self.next_entry(&state);
            state.apply(&entry);
        }
        state
    }

    /// An entry that could come next, and that mostly does something.
    fn next_entry(&mut self, state: &State) -> Entry {
        let sessions = state.sessions().len() as u64;
        let nth = self.below(sessions) as usize;
        let session = state.sessions().iter().nth(nth);
        let mut payload = match session {
            Some((id, session)) if self.chance(75) => {
                let serial = (session.completed() + 2).saturating_sub(self.below(3) / 2);
                Payload::Command(Command {
                    session: id,
                    serial: serial.saturating_sub(self.below(8) / 7),
                    outstanding: self.between(1, serial),
                    operation: self.operation(),
                })
            }
            Some((session, _)) if self.chance(20) => Payload::Expire { session },
            Some(_) | None if self.chance(40) => Payload::Open {
                ttl: self.below(20),
            },
            Some(_) | None if self.chance(40) => Payload::OpenOwned {
                ttl: self.below(20),
                owner: self.owner(),
            },
            Some(_) | None => self.payload(),
        };
        // Half of what expects a version expects the right one.
        if let Payload::Command(command) = &mut payload
            && self.chance(50)
        {
            let right = |write: &mut Write| {
                let held = state.registers().read(&write.key);
                let version = held.map(|held| Expect::Version(held.version.clone()));
                write.expect = version.unwrap_or(Expect::Absent);
            };
            match &mut command.operation {
                Operation::Swap(write) => right(Arc::make_mut(write)),
                Operation::Bind(bind) => right(&mut Arc::make_mut(bind).write),
                Operation::Delete(delete) => {
                    if let Some(held) = state.registers().read(&delete.key) {
                        Arc::make_mut(delete).expect = held.version.clone();
                    }
                }
                Operation::Append(_) | Operation::KeepAlive | Operation::Close => {}
            }
        }
        let Position { term, id } = state.applied();
        Entry {
            id: id + 1,
            term: Term::new(term.get() + self.below(2)).expect("a small term"),
            time: state.time() + self.below(4),
            payload,
        }
    }

    /// Changes, loses, repeats or adds a few bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.between(1, 2) {
            let at = self.below(bytes.len() as u64) as usize;
            match self.below(6) {
                0 if !bytes.is_empty() => drop(bytes.remove(at)),
                1 => bytes.insert(at, self.next_u64() as u8),
                2 if !bytes.is_empty() => bytes[at] = self.below(4) as u8,
                3 if bytes.len() > 1 => {
                    let other = self.below(bytes.len() as u64) as usize;
                    bytes.swap(at, other);
                }
                _ if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
    }
}
