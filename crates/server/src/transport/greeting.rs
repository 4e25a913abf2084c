//! The first thing said on a connection between servers.
//!
//! A greeting tells who speaks ([`Hello`]), what it knows of addresses
//! ([`AddressBook`]) and of the members that are committed ([`CommittedMembers`]), and the
//! settings on which all servers of a cluster must agree, since one server's
//! stickiness is what another's lease rests on ([`Settings`]). In its second
//! form it also tells which start of the server speaks, and how far its disk
//! has come ([`Details`]). How greetings are exchanged is in `handshake`.

use std::collections::BTreeSet;
use std::io;

use tenure_alpo::codec::{DecodeError, Reader, put_bytes, put_u64};
use tenure_alpo::{
    ClusterId, ClusterVersion, Config, DiskProgress, Hello, LogId, Member, MemberDisks, Membership,
    Position, ServerId, Start, StorageId, VotingStatus,
};
use tenure_core::ids::Term;

use super::address_book::AddressBook;

/// The longest reason of a refusal.
pub(super) const MAX_REASON_BYTES: usize = 2_000;

/// What all servers of a cluster must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The election timeout, in nanoseconds.
    pub timeout: u64,
    /// The bound on the rates of clocks, in parts per million.
    pub drift: u32,
    /// Whether leaders answer reads by their lease.
    pub lease_reads: bool,
    /// Whether a broken connection shortens the wait.
    pub fast_detection: bool,
}

impl Settings {
    /// Those of `config`.
    pub fn of(config: &Config) -> Self {
        Self {
            timeout: u64::try_from(config.election_timeout.as_nanos()).unwrap_or(u64::MAX),
            drift: config.drift.ppm(),
            lease_reads: config.lease_reads,
            fast_detection: config.fast_detection,
        }
    }
}

/// The members of a cluster as far as they can change no more.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommittedMembers {
    /// The last entry that the server has applied: they are those as of it.
    pub upto: LogId,
    /// Who they are; none if the server does not know yet.
    pub members: Membership,
}

/// What a server says first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// Who it is.
    pub hello: Hello,
    /// The addresses it knows, its own among them.
    pub address_book: AddressBook,
    /// The members that it knows to be committed.
    pub settled: CommittedMembers,
    /// How it is set.
    pub settings: Settings,
    /// What only the second form says.
    pub details: Option<Details>,
}

/// What only the second form of a greeting says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Details {
    /// Which start of the server this is.
    pub start: Start,
    /// How far its disk has come.
    pub disk_progress: DiskProgress,
    /// The newest cluster version that it speaks.
    pub newest_version: ClusterVersion,
    /// The cluster version of its log; the first if it has none.
    pub version: ClusterVersion,
}

impl Default for Details {
    fn default() -> Self {
        Self {
            start: Start::default(),
            disk_progress: DiskProgress::default(),
            newest_version: ClusterVersion::NEWEST,
            version: ClusterVersion::FIRST,
        }
    }
}

/// What is answered to a greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GreetingAnswer {
    /// The same from the other side.
    Welcome(Box<Greeting>),
    /// Why the other side does not talk to this server.
    Refused(String),
    /// Why it does not talk to it yet: it should come again soon.
    Later(String),
    /// The disk of this server was set back: which disk the other side has,
    /// and how it can tell.
    SetBack(StorageId, String),
}

/// Why there was no greeting.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something else came.
    #[error(
        "expected a server of a Tenure cluster (protocol tenure-1 or tenure-2), found something \
         else: is this the address of its peers, and the same release?"
    )]
    Magic,
    /// The other side said nothing and ended the connection.
    #[error(
        "expected an answer to a greeting of protocol tenure-2, found that the connection was \
         ended without one ({0}); is it an older release?"
    )]
    Unanswered(io::Error),
    /// Another server is there than the one that was meant.
    #[error("expected another server, found server {}", .0.get())]
    Elsewhere(ServerId),
    /// It was damaged, too long, or made by another version.
    #[error("expected a greeting, found one that cannot be read: {0}")]
    Body(&'static str),
    /// It was damaged.
    #[error("expected a greeting, found one that cannot be read: {0}")]
    Decode(#[from] DecodeError),
}

impl Greeting {
    /// Whether it may be said in the first form. A server whose log says that
    /// all members of its cluster speak a later version meets none that knows
    /// the first form alone.
    pub fn may_be_first(&self) -> bool {
        let version = self.details.map(|it| it.version);
        version.is_none_or(|version| version < ClusterVersion::SECOND)
    }

    /// As it is said in the second form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = self.encode_first();
        put_details(&mut body, &self.details.unwrap_or_default());
        body
    }

    /// As it is said in the first form, without what only later ones have.
    pub(super) fn encode_first(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_greeting(&mut body, self);
        body
    }

    /// What [`encode`](Self::encode) wrote, here or in a later release: what
    /// that has added at the end is skipped.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, GreetingError> {
        let mut reader = Reader::foreign(bytes);
        let greeting = take_greeting(&mut reader)?;
        let details = Some(take_details(&mut reader)?);
        Ok(Self {
            details,
            ..greeting
        })
    }

    pub(super) fn decode_first(bytes: &[u8]) -> Result<Self, GreetingError> {
        let mut reader = Reader::foreign(bytes);
        let greeting = take_greeting(&mut reader)?;
        reader.end()?;
        Ok(greeting)
    }
}

const WELCOME: u8 = 0;
const REFUSED: u8 = 1;
const LATER: u8 = 2;
const SET_BACK: u8 = 3;

impl GreetingAnswer {
    /// As it is said in the second form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, reason) = match self {
            Self::Welcome(greeting) => {
                let mut body = vec![WELCOME];
                body.extend(greeting.encode());
                return body;
            }
            Self::Refused(reason) => (REFUSED, reason),
            Self::Later(reason) => (LATER, reason),
            Self::SetBack(own, reason) => {
                let mut body = refusal(SET_BACK, reason);
                body.extend_from_slice(&own.to_u128().to_le_bytes());
                return body;
            }
        };
        refusal(kind, reason)
    }

    /// As it is said in the first form, which has one kind of refusal.
    pub(super) fn encode_first(&self) -> Vec<u8> {
        match self {
            Self::Welcome(greeting) => {
                let mut body = vec![WELCOME];
                body.extend(greeting.encode_first());
                body
            }
            Self::Refused(reason) | Self::Later(reason) | Self::SetBack(_, reason) => {
                refusal(REFUSED, reason)
            }
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, GreetingError> {
        let mut reader = Reader::foreign(bytes);
        match reader.u8()? {
            WELCOME => Ok(Self::Welcome(Box::new(Greeting::decode(reader.rest())?))),
            REFUSED => Ok(Self::Refused(take_reason(&mut reader)?)),
            LATER => Ok(Self::Later(take_reason(&mut reader)?)),
            SET_BACK => {
                let reason = take_reason(&mut reader)?;
                let own = take_storage(&mut reader)?;
                Ok(Self::SetBack(own, reason))
            }
            kind => Err(DecodeError::Kind(kind).into()),
        }
    }

    pub(super) fn decode_first(bytes: &[u8]) -> Result<Self, GreetingError> {
        let mut reader = Reader::foreign(bytes);
        match reader.u8()? {
            WELCOME => {
                let greeting = Greeting::decode_first(reader.rest())?;
                Ok(Self::Welcome(Box::new(greeting)))
            }
            REFUSED => {
                let reason = take_reason(&mut reader)?;
                reader.end()?;
                Ok(Self::Refused(reason))
            }
            kind => Err(DecodeError::Kind(kind).into()),
        }
    }
}

fn refusal(kind: u8, reason: &str) -> Vec<u8> {
    let mut body = vec![kind];
    let end = reason.floor_char_boundary(MAX_REASON_BYTES);
    put_bytes(&mut body, &reason.as_bytes()[..end]);
    body
}

fn take_reason(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let reason = reader.bytes()?;
    // It goes to logs and terminals.
    let reason = String::from_utf8_lossy(&reason[..reason.len().min(MAX_REASON_BYTES)]);
    let mut reason = reason.replace(char::is_control, " ");
    // What is no text takes up to three times the room as text.
    reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
    Ok(reason)
}

fn put_greeting(to: &mut Vec<u8>, it: &Greeting) {
    let Hello {
        server,
        storage,
        cluster,
        known,
        founders,
    } = &it.hello;
    put_u64(to, server.get());
    to.extend_from_slice(&storage.to_u128().to_le_bytes());
    to.push(u8::from(cluster.is_some()));
    let cluster = cluster.map_or(0, ClusterId::to_u128);
    to.extend_from_slice(&cluster.to_le_bytes());
    put_u64(to, known.len() as u64);
    for (server, storage) in known {
        put_u64(to, server.get());
        to.extend_from_slice(&storage.to_u128().to_le_bytes());
    }
    put_u64(to, founders.len() as u64);
    for server in founders {
        put_u64(to, server.get());
    }
    it.address_book.encode(to);
    put_settled(to, &it.settled);
    put_u64(to, it.settings.timeout);
    put_u64(to, it.settings.drift.into());
    to.push(u8::from(it.settings.lease_reads));
    to.push(u8::from(it.settings.fast_detection));
}

fn take_greeting(reader: &mut Reader<'_>) -> Result<Greeting, DecodeError> {
    let server = take_server(reader)?;
    let storage = take_storage(reader)?;
    let bootstrapped = reader.bool()?;
    let cluster = ClusterId::from_u128(u128::from_le_bytes(reader.array()?));
    let count = reader.count()?;
    let mut known = MemberDisks::new();
    for _ in 0..count {
        known.insert(take_server(reader)?, take_storage(reader)?);
    }
    let count = reader.count()?;
    let mut founders = BTreeSet::new();
    for _ in 0..count {
        founders.insert(take_server(reader)?);
    }
    Ok(Greeting {
        hello: Hello {
            server,
            storage,
            cluster: bootstrapped.then_some(cluster),
            known,
            founders,
        },
        address_book: AddressBook::decode(reader)?,
        settled: take_settled(reader)?,
        settings: Settings {
            timeout: reader.number()?,
            drift: u32::try_from(reader.number()?).map_err(|_| DecodeError::Number)?,
            lease_reads: reader.bool()?,
            fast_detection: reader.bool()?,
        },
        details: None,
    })
}

fn put_details(to: &mut Vec<u8>, it: &Details) {
    put_u64(to, it.start.counter);
    to.extend_from_slice(&it.start.random.to_le_bytes());
    to.extend_from_slice(&it.start.lock.to_le_bytes());
    let DiskProgress {
        term,
        last,
        settled,
    } = it.disk_progress;
    put_u64(to, term.get());
    put_u64(to, last.term.get());
    put_u64(to, last.id);
    put_u64(to, settled);
    put_u64(to, it.newest_version.get());
    put_u64(to, it.version.get());
}

fn take_details(reader: &mut Reader<'_>) -> Result<Details, DecodeError> {
    Ok(Details {
        start: Start {
            counter: reader.number()?,
            random: u128::from_le_bytes(reader.array()?),
            lock: u128::from_le_bytes(reader.array()?),
        },
        disk_progress: DiskProgress {
            term: take_term(reader)?,
            last: Position::new(take_term(reader)?, reader.number()?),
            settled: reader.number()?,
        },
        newest_version: take_version(reader)?,
        version: take_version(reader)?,
    })
}

fn take_term(reader: &mut Reader<'_>) -> Result<Term, DecodeError> {
    Term::new(reader.number()?).ok_or(DecodeError::Number)
}

fn take_version(reader: &mut Reader<'_>) -> Result<ClusterVersion, DecodeError> {
    ClusterVersion::new(reader.u64()?).ok_or(DecodeError::Number)
}

fn put_settled(to: &mut Vec<u8>, it: &CommittedMembers) {
    put_u64(to, it.upto);
    put_u64(to, it.members.len() as u64);
    for (server, member) in it.members.iter() {
        put_u64(to, server.get());
        to.extend_from_slice(&member.storage.to_u128().to_le_bytes());
        to.push(u8::from(member.voting_status == VotingStatus::Voter));
    }
}

fn take_settled(reader: &mut Reader<'_>) -> Result<CommittedMembers, DecodeError> {
    let upto = reader.number()?;
    let mut members = Vec::new();
    for _ in 0..reader.count()? {
        let (server, storage) = (take_server(reader)?, take_storage(reader)?);
        let voting_status = match reader.bool()? {
            true => VotingStatus::Voter,
            false => VotingStatus::Learner,
        };
        members.push((
            server,
            Member {
                voting_status,
                storage,
            },
        ));
    }
    let members = members.into_iter().collect();
    Ok(CommittedMembers { upto, members })
}

fn take_server(reader: &mut Reader<'_>) -> Result<ServerId, DecodeError> {
    ServerId::new(reader.u64()?).ok_or(DecodeError::Number)
}

fn take_storage(reader: &mut Reader<'_>) -> Result<StorageId, DecodeError> {
    Ok(StorageId::from_u128(u128::from_le_bytes(reader.array()?)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn greeting() -> Greeting {
        let id = |number| ServerId::new(number).expect("a number");
        let storage = StorageId::from_u128(7);
        Greeting {
            hello: Hello {
                server: id(1),
                storage,
                cluster: Some(ClusterId::from_u128(9)),
                known: MemberDisks::from([(id(1), storage), (id(2), storage)]),
                founders: BTreeSet::from([id(1), id(3)]),
            },
            address_book: AddressBook::from_flags(&[(id(1), "host:1".to_owned())].into()),
            settled: CommittedMembers {
                upto: 11,
                members: Membership::bootstrapped([(id(1), storage), (id(4), storage)]),
            },
            settings: Settings::of(&Config::default()),
            details: Some(Details {
                start: Start {
                    counter: 5,
                    random: 1 << 100,
                    lock: 1 << 90,
                },
                disk_progress: DiskProgress {
                    term: term(8),
                    last: Position::new(term(6), 300),
                    settled: 290,
                },
                newest_version: ClusterVersion::NEWEST,
                version: ClusterVersion::FIRST,
            }),
        }
    }

    fn term(number: u64) -> Term {
        Term::new(number).expect("a term")
    }

    #[test]
    fn what_a_later_release_adds_is_skipped() {
        let mut bytes = greeting().encode();
        bytes.extend(b"what is not known yet");
        assert_eq!(Greeting::decode(&bytes).expect("read"), greeting());
        // In the first form nothing can follow.
        let mut bytes = greeting().encode_first();
        assert!(Greeting::decode_first(&bytes).is_ok());
        bytes.push(0);
        assert!(Greeting::decode_first(&bytes).is_err());
    }

    #[test]
    fn a_reason_stays_short_whatever_it_is() {
        let letters = [&[b'a'; MAX_REASON_BYTES - 1][..], "é".as_bytes()].concat();
        for reason in [vec![0xff; MAX_REASON_BYTES], letters, vec![7; 5_000]] {
            let mut bytes = vec![REFUSED];
            put_bytes(&mut bytes, &reason);
            let Ok(GreetingAnswer::Refused(said)) = GreetingAnswer::decode(&bytes) else {
                panic!("expected a refusal of {reason:?}");
            };
            assert!(said.len() <= MAX_REASON_BYTES, "{} bytes", said.len());
            assert!(!said.contains(char::is_control), "{said:?}");
        }
    }

    #[test]
    fn only_a_log_of_the_first_version_may_greet_in_the_first_form() {
        let with = |version| Greeting {
            details: Some(Details {
                version,
                ..Details::default()
            }),
            ..greeting()
        };
        assert!(with(ClusterVersion::FIRST).may_be_first());
        assert!(!with(ClusterVersion::SECOND).may_be_first());
    }
}
