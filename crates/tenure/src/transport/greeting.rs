//! The first thing said on a connection between servers.
//!
//! A greeting is 16 bytes of header (eight of a magic that names the
//! protocol, the length of the body and its CRC-32C) and a body: who speaks
//! ([`Hello`]), what it knows of addresses ([`Book`]) and of the members that
//! are committed ([`Settled`]), and the settings on which all servers of a
//! cluster must agree, since one server's stickiness is what another's lease
//! rests on ([`Settings`]).

use std::collections::BTreeSet;
use std::io;

use tenure_core::alpo::codec::{DecodeError, Reader, crc32c, put_bytes, put_u64};
use tenure_core::alpo::{
    ClusterId, Config, Hello, LogId, Member, Membership, Part, ServerId, StorageId, Table,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::book::Book;

/// What a connection between servers begins with. The digit is the version of
/// everything that is said on it.
const MAGIC: &[u8; 8] = b"tenure-1";
/// The longest greeting that is read.
const MAX_BYTES: u32 = 64 * 1024;
/// The longest reason of a refusal.
const MAX_REASON_BYTES: usize = 2_000;

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
            timeout: u64::try_from(config.timeout.as_nanos()).unwrap_or(u64::MAX),
            drift: config.drift.ppm(),
            lease_reads: config.lease_reads,
            fast_detection: config.fast_detection,
        }
    }
}

/// The members of a cluster as far as they can change no more.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Settled {
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
    pub book: Book,
    /// The members that it knows to be committed.
    pub settled: Settled,
    /// How it is set.
    pub settings: Settings,
}

/// What is answered to a greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The same from the other side.
    Welcome(Greeting),
    /// Why the other side does not talk to this server.
    Refused(String),
}

/// Why there was no greeting.
#[derive(Debug, thiserror::Error)]
pub enum GreetingError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something else came.
    #[error(
        "expected a server of a Tenure cluster (protocol tenure-1), found something else: is \
         this the address of its peers, and the same release?"
    )]
    Magic,
    /// It was damaged, too long, or made by another version.
    #[error("expected a greeting, found one that cannot be read: {0}")]
    Body(&'static str),
    /// It was damaged.
    #[error("expected a greeting, found one that cannot be read: {0}")]
    Decode(#[from] DecodeError),
}

/// Writes what a dialler says first.
///
/// # Errors
/// If the connection breaks.
pub async fn write_greeting(to: &mut (impl AsyncWrite + Unpin), it: &Greeting) -> io::Result<()> {
    let mut body = Vec::new();
    put_greeting(&mut body, it);
    write(to, &body).await
}

/// Reads what a dialler says first.
///
/// # Errors
/// If that is no greeting, or the connection breaks.
pub async fn read_greeting(from: &mut (impl AsyncRead + Unpin)) -> Result<Greeting, GreetingError> {
    let body = read(from).await?;
    let mut reader = Reader::new(&body);
    let greeting = take_greeting(&mut reader)?;
    reader.end()?;
    Ok(greeting)
}

/// Writes what an acceptor answers.
///
/// # Errors
/// If the connection breaks.
pub async fn write_answer(to: &mut (impl AsyncWrite + Unpin), it: &Answer) -> io::Result<()> {
    let mut body = Vec::new();
    match it {
        Answer::Welcome(greeting) => {
            body.push(0);
            put_greeting(&mut body, greeting);
        }
        Answer::Refused(reason) => {
            body.push(1);
            let end = reason.floor_char_boundary(MAX_REASON_BYTES);
            put_bytes(&mut body, &reason.as_bytes()[..end]);
        }
    }
    write(to, &body).await
}

/// Reads what an acceptor answers.
///
/// # Errors
/// If that is no answer, or the connection breaks.
pub async fn read_answer(from: &mut (impl AsyncRead + Unpin)) -> Result<Answer, GreetingError> {
    let body = read(from).await?;
    let mut reader = Reader::new(&body);
    let answer = match reader.u8()? {
        0 => Answer::Welcome(take_greeting(&mut reader)?),
        1 => {
            let reason = String::from_utf8_lossy(reader.bytes()?);
            // It goes to logs and terminals.
            Answer::Refused(reason.replace(char::is_control, " "))
        }
        kind => return Err(DecodeError::Kind(kind).into()),
    };
    reader.end()?;
    Ok(answer)
}

async fn write(to: &mut (impl AsyncWrite + Unpin), body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(body.len() + 16);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&crc32c(body).to_le_bytes());
    bytes.extend_from_slice(body);
    to.write_all(&bytes).await?;
    to.flush().await
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, GreetingError> {
    let mut magic = [0; 8];
    from.read_exact(&mut magic).await?;
    if magic != *MAGIC {
        return Err(GreetingError::Magic);
    }
    let length = from.read_u32_le().await?;
    let crc = from.read_u32_le().await?;
    if length > MAX_BYTES {
        return Err(GreetingError::Body("it is too long"));
    }
    let mut body = vec![0; length as usize];
    from.read_exact(&mut body).await?;
    if crc32c(&body) != crc {
        return Err(GreetingError::Body("it was damaged on its way"));
    }
    Ok(body)
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
    it.book.encode(to);
    put_settled(to, &it.settled);
    put_u64(to, it.settings.timeout);
    put_u64(to, it.settings.drift.into());
    to.push(u8::from(it.settings.lease_reads));
    to.push(u8::from(it.settings.fast_detection));
}

fn take_greeting(reader: &mut Reader<'_>) -> Result<Greeting, DecodeError> {
    let server = take_server(reader)?;
    let storage = take_storage(reader)?;
    let founded = reader.bool()?;
    let cluster = ClusterId::from_u128(u128::from_le_bytes(reader.array()?));
    let count = reader.count()?;
    let mut known = Table::new();
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
            cluster: founded.then_some(cluster),
            known,
            founders,
        },
        book: Book::decode(reader)?,
        settled: take_settled(reader)?,
        settings: Settings {
            timeout: reader.u64()?,
            drift: u32::try_from(reader.u64()?).map_err(|_| DecodeError::Number)?,
            lease_reads: reader.bool()?,
            fast_detection: reader.bool()?,
        },
    })
}

fn put_settled(to: &mut Vec<u8>, it: &Settled) {
    put_u64(to, it.upto);
    put_u64(to, it.members.len() as u64);
    for (server, member) in it.members.iter() {
        put_u64(to, server.get());
        to.extend_from_slice(&member.storage.to_u128().to_le_bytes());
        to.push(u8::from(member.part == Part::Voter));
    }
}

fn take_settled(reader: &mut Reader<'_>) -> Result<Settled, DecodeError> {
    let upto = reader.u64()?;
    let mut members = Vec::new();
    for _ in 0..reader.count()? {
        let (server, storage) = (take_server(reader)?, take_storage(reader)?);
        let part = match reader.bool()? {
            true => Part::Voter,
            false => Part::Learner,
        };
        members.push((server, Member { part, storage }));
    }
    let members = members.into_iter().collect();
    Ok(Settled { upto, members })
}

fn take_server(reader: &mut Reader<'_>) -> Result<ServerId, DecodeError> {
    ServerId::new(reader.u64()?).ok_or(DecodeError::Number)
}

fn take_storage(reader: &mut Reader<'_>) -> Result<StorageId, DecodeError> {
    Ok(StorageId::from_u128(u128::from_le_bytes(reader.array()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        let id = |number| ServerId::new(number).expect("a number");
        let storage = StorageId::from_u128(7);
        Greeting {
            hello: Hello {
                server: id(1),
                storage,
                cluster: Some(ClusterId::from_u128(9)),
                known: Table::from([(id(1), storage), (id(2), storage)]),
                founders: BTreeSet::from([id(1), id(3)]),
            },
            book: Book::from_flags(&[(id(1), "host:1".to_owned())].into()),
            settled: Settled {
                upto: 11,
                members: Membership::founded([(id(1), storage), (id(4), storage)]),
            },
            settings: Settings::of(&Config::default()),
        }
    }

    #[tokio::test]
    async fn it_reads_what_it_wrote_and_no_flipped_bit() {
        let mut bytes = Vec::new();
        let wanted = Answer::Welcome(greeting());
        write_answer(&mut bytes, &wanted).await.expect("written");
        assert_eq!(read_answer(&mut &bytes[..]).await.expect("read"), wanted);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read_answer(&mut &bad[..]).await.is_err(), "bit {bit}");
        }
    }

    #[tokio::test]
    async fn another_protocol_is_told_from_damage() {
        let error = read_greeting(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).await;
        assert!(matches!(error, Err(GreetingError::Magic)));
    }
}
