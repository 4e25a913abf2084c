//! What a stranger says to the servers' port.

use std::collections::BTreeSet;

use tenure::core::ids::Term;
use tenure_alpo::codec::{Reader, encode_frame, put_bytes, put_u64};
use tenure_alpo::{
    Body, ClusterId, CompareChecksums, Config, Entry, Envelope, Hello, MemberDisks, Membership,
    Payload, Position, Request, ServerId, StorageId,
};
use tenure_server::transport::{
    AddressBook, CommittedMembers, Form, Greeting, GreetingAnswer, MaybeTlsStream, Prover,
    Settings, Tls, greet,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::place::PATIENCE;

pub(crate) fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("a number")
}

pub(crate) fn term(number: u64) -> Term {
    Term::new(number).expect("a term")
}

/// What became of a greeting.
#[derive(Debug)]
pub(crate) enum Response {
    /// It was let in.
    Welcome,
    /// It was refused, and why.
    Refused(String),
    /// The connection ended without an answer.
    Nothing,
}

impl Response {
    pub(crate) fn refusal(&self) -> &str {
        match self {
            Self::Refused(why) => why,
            other => panic!("expected a refusal, found {other:?}"),
        }
    }

    pub(crate) fn is_welcome(&self) -> bool {
        matches!(self, Self::Welcome)
    }
}

/// Somebody who speaks the servers' protocol.
pub(crate) struct Stranger<'a> {
    pub(crate) form: Form,
    pub(crate) tls: Option<&'a Tls>,
    pub(crate) prover: Prover,
    pub(crate) settings: Settings,
}

impl Stranger<'_> {
    /// Says a greeting and then these messages, and waits until the other
    /// side has read them all: they end with what is none, at which it closes.
    pub(crate) async fn say(
        &self,
        address: &str,
        greeting: &Greeting,
        messages: &[Envelope],
    ) -> Response {
        let said = self.said(address, greeting, messages);
        tokio::time::timeout(PATIENCE, said).await.expect("in time")
    }

    /// Says a greeting and stays, if it was let in.
    pub(crate) async fn stay(
        &self,
        address: &str,
        greeting: &Greeting,
    ) -> Result<MaybeTlsStream, Response> {
        let stream = TcpStream::connect(address).await.expect("it listens");
        let line = match self.tls {
            None => Ok(MaybeTlsStream::Plain(stream)),
            Some(tls) => tls.connect(stream, address).await,
        };
        let Ok(mut line) = line else {
            return Err(Response::Nothing);
        };
        let greeting = Greeting {
            settings: self.settings,
            ..greeting.clone()
        };
        let answered = greet(&mut line, self.form, None, &greeting, &self.prover).await;
        match answered.map(|it| it.answer) {
            Ok(GreetingAnswer::Welcome(_)) => Ok(line),
            Ok(
                GreetingAnswer::Refused(why)
                | GreetingAnswer::Later(why)
                | GreetingAnswer::SetBack(_, why),
            ) => Err(Response::Refused(why)),
            Err(_) => Err(Response::Nothing),
        }
    }

    async fn said(&self, address: &str, greeting: &Greeting, messages: &[Envelope]) -> Response {
        let mut line = match self.stay(address, greeting).await {
            Ok(line) => line,
            Err(response) => return response,
        };
        let mut bytes = Vec::new();
        for message in messages {
            encode_frame(&mut bytes, message);
        }
        bytes.extend([255; 64]);
        // It may have closed before all of it was written.
        let _ = line.write_all(&bytes).await;
        let _ = line.flush().await;
        let mut rest = Vec::new();
        let _ = line.read_to_end(&mut rest).await;
        Response::Welcome
    }
}

/// How servers of a test are set.
pub(crate) fn settings(timeout: std::time::Duration) -> Settings {
    Settings::of(&Config {
        election_timeout: timeout,
        ..Config::default()
    })
}

/// A greeting of server `number` with that disk.
pub(crate) fn greeting(number: u64, storage: u128, cluster: Option<ClusterId>) -> Greeting {
    Greeting {
        hello: Hello {
            server: id(number),
            storage: StorageId::from_u128(storage),
            cluster,
            known: MemberDisks::new(),
            founders: if cluster.is_none() {
                BTreeSet::from([id(number)])
            } else {
                BTreeSet::new()
            },
        },
        address_book: AddressBook::default(),
        settled: CommittedMembers::default(),
        settings: settings(std::time::Duration::from_millis(250)),
        details: None,
    }
}

/// Addresses of members, and of others, that lead to `foreign`.
pub(crate) fn address_book(numbers: &[u64], edition: u64, foreign: &str) -> AddressBook {
    // Nobody would learn all of these; so they are written by hand.
    let mut bytes = Vec::new();
    put_u64(&mut bytes, numbers.len() as u64);
    for number in numbers {
        put_u64(&mut bytes, *number);
        put_u64(&mut bytes, edition);
        put_bytes(&mut bytes, foreign.as_bytes());
        put_bytes(&mut bytes, foreign.as_bytes());
    }
    AddressBook::decode(&mut Reader::new(&bytes)).expect("a book")
}

/// Nobody is a member any more, as of the end of all logs.
pub(crate) fn nobody(upto: u64) -> CommittedMembers {
    let members = Membership::default();
    CommittedMembers { upto, members }
}

pub(crate) fn request(from: u64, to: u64, in_term: u64, request: Request) -> Envelope {
    Envelope {
        from: id(from),
        to: id(to),
        term: term(in_term),
        body: Body::Request { number: 1, request },
    }
}

pub(crate) fn heartbeat(last: Position) -> Request {
    Request::Heartbeat {
        last,
        commit: last.id,
        round: 1,
        time: 0,
        compare_checksums: CompareChecksums::default(),
    }
}

pub(crate) fn vote(last: Position, transfer: bool) -> Request {
    Request::Vote { last, transfer }
}

/// An entry that nobody has proposed, after `last`.
pub(crate) fn forged(last: Position, in_term: u64, payload: Payload) -> Request {
    let entry = Entry {
        id: last.id + 1,
        term: term(in_term),
        time: u64::MAX >> 3,
        payload,
    };
    Request::Append {
        prev: last,
        entries: vec![entry],
        commit: last.id + 1,
        round: 1,
    }
}
