//! What comes to the port of servers, before the other side has proven anything
//! ([`crate::fuzzed`]).

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tenure_alpo::codec::{FRAME_HEADER_BYTES, Reader, decode_frame, encode_frame};
use tenure_alpo::{Envelope, MAX_NUMBER, ServerId};
use tokio::io::AsyncReadExt as _;

use super::address_book::{AddressBook, Contact, MAX_ADDRESS_BYTES, MOST};
use super::frames::{FrameReader, KEEP_ALIVE, PeerKeepAlive, ReadError};
use super::greeting::{Greeting, GreetingAnswer, MAX_REASON_BYTES};
use super::handshake::{Form, Piece};

/// What comes of a future that waits for nothing.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).as_mut().poll(&mut context) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("expected a future that waits for nothing"),
    }
}

/// `bytes` as a piece of a handshake, and as the greeting or the answer that
/// is in one, in both forms.
pub(crate) fn greeting(bytes: &[u8]) {
    piece(bytes);
    if let Some((form, body)) = bytes.split_first() {
        let form = [Form::First, Form::Second][usize::from(form % 2)];
        let mut whole = form.magic().to_vec();
        whole.extend_from_slice(&(body.len() as u32).to_le_bytes());
        whole.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
        whole.extend_from_slice(body);
        piece(&whole);
        greeted(body);
    }
}

fn piece(bytes: &[u8]) {
    let mut rest = bytes;
    let Ok(piece) = at_once(Piece::read(&mut rest)) else {
        return;
    };
    let mut again = Vec::new();
    at_once(piece.write(&mut again)).expect("memory takes it");
    let read = bytes.len() - rest.len();
    assert_eq!(again, bytes[..read], "a piece is written in one way");
    let _ = (piece.nonce(), piece.opened());
    if let Ok((body, _)) = piece.parts() {
        greeted(body);
    }
    if let Ok(greeting) = piece.greeted() {
        is_sound(&greeting);
    }
    if let Ok(answer) = piece.answer() {
        is_fit(&answer);
    }
}

fn greeted(bytes: &[u8]) {
    if let Ok(greeting) = Greeting::decode(bytes) {
        is_sound(&greeting);
        let again = Greeting::decode(&greeting.encode()).expect("a greeting");
        assert_eq!(again, greeting, "what is written reads the same");
    }
    if let Ok(greeting) = Greeting::decode_first(bytes) {
        is_sound(&greeting);
        let again = Greeting::decode_first(&greeting.encode_first()).expect("a greeting");
        assert_eq!(again, greeting, "what is written reads the same");
    }
    if let Ok(answer) = GreetingAnswer::decode(bytes) {
        is_fit(&answer);
        let again = GreetingAnswer::decode(&answer.encode()).expect("an answer");
        assert_eq!(again, answer, "what is written reads the same");
    }
    if let Ok(answer) = GreetingAnswer::decode_first(bytes) {
        is_fit(&answer);
        let again = GreetingAnswer::decode_first(&answer.encode_first()).expect("an answer");
        assert_eq!(again, answer, "what is written reads the same");
    }
}

/// No number is above what is taken from others, and no text moves a cursor.
fn is_sound(greeting: &Greeting) {
    assert!(greeting.settled.upto <= MAX_NUMBER);
    assert!(greeting.settings.timeout <= MAX_NUMBER);
    if let Some(details) = greeting.details {
        let disk_progress = details.disk_progress;
        for number in [
            details.start.counter,
            disk_progress.term.get(),
            disk_progress.last.id,
            disk_progress.settled,
        ] {
            assert!(number <= MAX_NUMBER);
        }
    }
    are_sound(&greeting.address_book);
}

fn is_fit(answer: &GreetingAnswer) {
    match answer {
        GreetingAnswer::Welcome(greeting) => is_sound(greeting),
        GreetingAnswer::Refused(reason)
        | GreetingAnswer::Later(reason)
        | GreetingAnswer::SetBack(_, reason) => {
            assert!(reason.len() <= MAX_REASON_BYTES, "{} bytes", reason.len());
            assert!(!reason.contains(char::is_control), "{reason:?}");
        }
    }
}

fn are_sound(address_book: &AddressBook) {
    for (_, contact) in address_book.iter() {
        assert!(contact.edition <= MAX_NUMBER);
        for address in [&contact.peer, &contact.client] {
            assert!(address.len() <= MAX_ADDRESS_BYTES);
            assert!(!address.contains(char::is_control));
        }
    }
}

/// `bytes` as books of addresses, one after the other, from which a server
/// learns. The first is that of its own flags.
pub(crate) fn address_book(bytes: &[u8]) {
    let mut reader = Reader::foreign(bytes);
    let own = ServerId::new(1).expect("a number");
    let mut known = AddressBook::default();
    known.learn_one(own, &Contact::default());
    while let Ok(told) = AddressBook::decode(&mut reader) {
        are_sound(&told);
        let mut again = Vec::new();
        told.encode(&mut again);
        let again = AddressBook::decode(&mut Reader::foreign(&again));
        assert_eq!(again.as_ref(), Ok(&told), "what is written reads the same");
        let before = known.clone();
        let mut other = known.clone();
        other.learn(&told);
        are_newer(&before, &other);
        for (id, contact) in told.iter() {
            known.learn_among(id, contact, contact.edition % 2 == 0, |it| it == own);
            known.learn_first_hand(id, contact);
            assert!(known.get(own).is_some(), "its own address is kept");
        }
        are_sound(&known);
        assert!(known.ids().len() <= MOST && other.ids().len() <= MOST);
    }
}

/// Nothing older comes back.
fn are_newer(before: &AddressBook, after: &AddressBook) {
    for (id, contact) in before.iter() {
        let now = after.get(id).expect("nobody is forgotten by learning");
        assert!(now == contact || now.edition > contact.edition);
    }
}

/// `bytes` as what comes after the greetings, in one piece and in two.
pub(crate) fn frames(bytes: &[u8]) {
    one_by_one(bytes);
    let mut reset = bytes.to_vec();
    mend(&mut reset);
    one_by_one(&reset);
}

fn one_by_one(bytes: &[u8]) {
    let whole = heard(bytes, &[]);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let parts = heard(first, second);
    assert_eq!(whole, parts, "it does not matter how it is cut");
    // The decoder of the core, whose checksum is another.
    let mut rest = bytes;
    for envelope in &whole.0 {
        while let Some((_, length)) = rest
            .starts_with(&KEEP_ALIVE)
            .then(|| keep_alive(rest))
            .flatten()
        {
            rest = &rest[length..];
        }
        let (found, length) = decode_frame(rest).expect("a frame").expect("all of it");
        assert_eq!(found, *envelope);
        let mut again = Vec::new();
        encode_frame(&mut again, envelope);
        assert_eq!(again, rest[..length], "a frame is written in one way");
        rest = &rest[length..];
    }
}

fn keep_alive(bytes: &[u8]) -> Option<(PeerKeepAlive, usize)> {
    let (keep_alive, length) = PeerKeepAlive::decode(bytes).ok().flatten()?;
    let mut again = Vec::new();
    keep_alive.encode(&mut again);
    let (same, _) = PeerKeepAlive::decode(&again)
        .expect("a frame")
        .expect("all of it");
    assert_eq!(same, keep_alive, "what is written reads the same");
    Some((keep_alive, length))
}

/// The messages, the newest keep-alive, and how it ended.
fn heard(first: &[u8], second: &[u8]) -> (Vec<Envelope>, Option<PeerKeepAlive>, String) {
    let mut frames = FrameReader::new(first.chain(second));
    let (mut messages, mut last) = (Vec::new(), None);
    loop {
        match at_once(frames.next(|envelope| messages.push(envelope))) {
            Ok(keep_alive) => last = keep_alive.or(last),
            Err(ReadError::Io(error)) => panic!("memory does not fail: {error}"),
            // Keep-alives in the same piece as what is wrong are not told.
            Err(ReadError::Frame(error)) => return (messages, None, error.to_string()),
            Err(ReadError::Closed) => return (messages, last, "closed".to_owned()),
        }
    }
}

/// Makes the headers of frames right: version, length within what is there,
/// and checksum.
fn mend(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some((header, rest)) = bytes
        .get_mut(at..)
        .and_then(|it| it.split_first_chunk_mut::<FRAME_HEADER_BYTES>())
    {
        let said = usize::from(header[4]) | usize::from(header[5]) << 8;
        let body = &rest[..said.min(rest.len())];
        let is_life = header[1] % 4 == 1;
        header[..4].copy_from_slice(if is_life { &KEEP_ALIVE } else { &[1, 0, 0, 0] });
        header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[8..12].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
        at += FRAME_HEADER_BYTES + body.len();
    }
}
