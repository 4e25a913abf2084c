//! How much a server may send: the bounds on its messages.
//!
//! A message is a byte that tells its type, a length of four bytes, which counts
//! itself, and the rest. The library holds a message until all of it has come, what
//! comes before the first `ReadyForQuery` for longer, and the parameters that a server
//! tells of for as long as the connection lives. We hold the rows of an answer, from one
//! `ReadyForQuery` to the next. Notifications and notices are handed on one by one, so
//! their number is not bounded.

use std::collections::BTreeSet;

use crate::store::limited_stream::Framing;
use crate::store::{MAX_VALUE_BYTES, PAGE_MAX};

/// The longest message, in bytes. A row has one register: its value in hexadecimal,
/// which is 512 KiB, a key and some numbers. What was written by hand may be larger.
pub(super) const MESSAGE_MAX: usize = 4 * 1024 * 1024;
/// What may come before the first `ReadyForQuery`, in bytes. Servers send some hundreds:
/// the authentication and 15 parameters.
pub(super) const START_MAX: usize = 1024 * 1024;
/// The longest answer, in bytes: a page of the largest registers, and one more.
pub(super) const ANSWER_MAX: usize = (PAGE_MAX + 1) * (2 * MAX_VALUE_BYTES + 4 * 1024);
/// How many messages an answer has at most. A page has 501 rows, 32 writes together
/// some hundreds of messages.
pub(super) const MESSAGES_MAX: usize = 8_192;
/// How many parameters a server may tell of (`ParameterStatus`). Servers have 15.
pub(super) const PARAMETERS_MAX: usize = 256;
/// The longest message about one, in bytes. The longest known is a search path.
const PARAMETER_MAX: usize = 16 * 1024;

/// The type of a message, and its length.
const HEADER: usize = 5;
const NOTICE: u8 = b'N';
const NOTIFICATION: u8 = b'A';
const PARAMETER_STATUS: u8 = b'S';
const READY_FOR_QUERY: u8 = b'Z';

/// Follows the messages of a server.
pub(super) struct BackendFrames {
    /// The answer to `SSLRequest`, a byte without a length, has not come yet.
    awaits_tls_answer: bool,
    /// As much of the header as has come.
    header: Vec<u8>,
    /// How much of the message is to come.
    body_left: usize,
    /// The name of a parameter, as far as it has come, unless all of it has.
    name: Option<Vec<u8>>,
    names: BTreeSet<Vec<u8>>,
    has_started: bool,
    /// What has come since the last `ReadyForQuery`.
    answer: Answer,
}

#[derive(Default)]
struct Answer {
    bytes: usize,
    messages: usize,
}

impl BackendFrames {
    pub(super) fn new(awaits_tls_answer: bool) -> Self {
        Self {
            awaits_tls_answer,
            header: Vec::with_capacity(HEADER),
            body_left: 0,
            name: None,
            names: BTreeSet::new(),
            has_started: false,
            answer: Answer::default(),
        }
    }

    /// Takes from `bytes` what belongs to a header; the rest of them.
    fn header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let missing = HEADER - self.header.len();
        let (taken, rest) = bytes.split_at(missing.min(bytes.len()));
        self.header.extend_from_slice(taken);
        if let [tag, a, b, c, d] = *self.header.as_slice() {
            self.header.clear();
            self.begin(tag, i32::from_be_bytes([a, b, c, d]))?;
        }
        Ok(rest)
    }

    /// A message begins.
    fn begin(&mut self, tag: u8, length: i32) -> Result<(), String> {
        // The length counts its own four bytes.
        let body = usize::try_from(length)
            .ok()
            .and_then(|it| it.checked_sub(4));
        let Some(body) = body else {
            return Err(format!(
                "expected a message of PostgreSQL, found one of {length} bytes"
            ));
        };
        let most = match tag {
            PARAMETER_STATUS => PARAMETER_MAX,
            _ => MESSAGE_MAX,
        };
        if body > most {
            return Err(format!(
                "expected messages of at most {} KiB, found one of {body} bytes",
                most / 1024
            ));
        }
        self.body_left = body;
        self.name = (tag == PARAMETER_STATUS).then(Vec::new);
        self.count(tag, HEADER + body)
    }

    /// Counts a message as part of what is held until the next `ReadyForQuery`.
    fn count(&mut self, tag: u8, bytes: usize) -> Result<(), String> {
        if tag == READY_FOR_QUERY {
            self.has_started = true;
            self.answer = Answer::default();
            return Ok(());
        }
        let is_apart = [NOTICE, NOTIFICATION, PARAMETER_STATUS].contains(&tag);
        if self.has_started && is_apart {
            return Ok(());
        }
        self.answer.bytes = self.answer.bytes.saturating_add(bytes);
        self.answer.messages += 1;
        let (what, most) = match self.has_started {
            true => ("an answer", ANSWER_MAX),
            false => ("a start", START_MAX),
        };
        if self.answer.bytes > most {
            return Err(format!(
                "expected {what} of at most {} KiB, found more",
                most / 1024
            ));
        }
        if self.answer.messages > MESSAGES_MAX {
            return Err(format!(
                "expected {what} of at most {MESSAGES_MAX} messages, found more"
            ));
        }
        Ok(())
    }

    /// Takes from `bytes` what belongs to a message; the rest of them.
    fn body<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let (taken, rest) = bytes.split_at(self.body_left.min(bytes.len()));
        self.body_left -= taken.len();
        if let Some(mut name) = self.name.take() {
            let end = taken.iter().position(|byte| *byte == 0);
            name.extend_from_slice(taken.get(..end.unwrap_or(taken.len())).unwrap_or(taken));
            if end.is_none() && self.body_left > 0 {
                self.name = Some(name);
            } else {
                self.names.insert(name);
            }
        }
        if self.names.len() > PARAMETERS_MAX {
            return Err(format!(
                "expected a server that tells of at most {PARAMETERS_MAX} parameters, found more"
            ));
        }
        Ok(rest)
    }
}

impl Framing for BackendFrames {
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        if self.awaits_tls_answer
            && let Some((_, rest)) = bytes.split_first()
        {
            self.awaits_tls_answer = false;
            bytes = rest;
        }
        while !bytes.is_empty() {
            bytes = match self.body_left {
                0 => self.header(bytes)?,
                _ => self.body(bytes)?,
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::limited_stream::followed;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("short");
        [&[tag][..], &length.to_be_bytes(), body].concat()
    }

    fn started() -> BackendFrames {
        let mut frames = BackendFrames::new(false);
        let ready = frames.follow(&message(READY_FOR_QUERY, b"I"));
        ready.expect("a start");
        frames
    }

    fn refused(new: impl Fn() -> BackendFrames, bytes: &[u8], why: &str) {
        let found = followed(new, bytes).expect_err(why);
        assert!(found.contains(why), "{found}");
    }

    #[test]
    fn what_servers_send_is_followed_wherever_it_is_cut() {
        let all = [
            b"N".to_vec(),
            message(b'R', &[0; 4]),
            message(PARAMETER_STATUS, b"TimeZone\0UTC\0"),
            message(b'K', &[1; 8]),
            message(READY_FOR_QUERY, b"I"),
            message(b'T', b"\0\x01now\0"),
            message(b'D', b"\0\x01\0\0\0\x01x"),
            // Empty: nothing follows the length.
            message(b'n', b""),
            message(PARAMETER_STATUS, b"TimeZone\0CET\0"),
            message(b'C', b"SELECT 1\0"),
            message(READY_FOR_QUERY, b"I"),
        ];
        assert_eq!(followed(|| BackendFrames::new(true), &all.concat()), Ok(()));
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_header_alone() {
        for (length, why) in [
            (i32::MAX, "at most 4096 KiB, found one of 2147483643 bytes"),
            (4 * 1024 * 1024 + 5, "at most 4096 KiB"),
            (-16, "found one of -16 bytes"),
            (3, "found one of 3 bytes"),
        ] {
            let header = [&b"D"[..], &length.to_be_bytes()].concat();
            refused(started, &header, why);
        }
        let longest = [&b"D"[..], &(4 * 1024 * 1024 + 4_i32).to_be_bytes()].concat();
        assert_eq!(followed(started, &longest), Ok(()));
    }

    #[test]
    fn a_start_without_end_is_refused() {
        let notice = message(NOTICE, &[b'x'; 60_000]);
        let mut frames = BackendFrames::new(false);
        let refused = (0..100).find_map(|_| frames.follow(&notice).err());
        let why = refused.expect("a bound");
        assert!(why.contains("a start of at most 1024 KiB"), "{why}");
        // Later each is handed on by itself.
        let mut frames = started();
        assert!((0..100).all(|_| frames.follow(&notice).is_ok()));
    }

    #[test]
    fn parameters_without_end_are_refused_and_changes_of_one_are_not() {
        let mut frames = started();
        let change = message(PARAMETER_STATUS, b"search_path\0x\0");
        assert!((0..10_000).all(|_| frames.follow(&change).is_ok()));
        let more = (0..PARAMETERS_MAX).find_map(|number| {
            let name = format!("k{number}\0v\0");
            frames
                .follow(&message(PARAMETER_STATUS, name.as_bytes()))
                .err()
        });
        let why = more.expect("a bound");
        assert!(why.contains("at most 256 parameters"), "{why}");
        let long = message(PARAMETER_STATUS, &[b'k'; 20_000]);
        refused(started, &long[..10], "at most 16 KiB");
    }

    #[test]
    fn an_answer_without_end_is_refused() {
        let row = message(b'D', b"\0\x01\0\0\0\x01x");
        let mut frames = started();
        let answer = |frames: &mut BackendFrames, rows: usize| {
            (0..rows).find_map(|_| frames.follow(&row).err())
        };
        assert_eq!(answer(&mut frames, MESSAGES_MAX), None);
        frames
            .follow(&message(READY_FOR_QUERY, b"I"))
            .expect("another answer may begin");
        let why = answer(&mut frames, MESSAGES_MAX + 1).expect("a bound");
        assert!(why.contains("at most 8192 messages"), "{why}");
        // By their bytes, of which no more than the header has to come.
        let row = message(b'D', &vec![0; MESSAGE_MAX]);
        let mut frames = started();
        let bytes = (0..100).find_map(|_| frames.follow(&row).err());
        let why = bytes.expect("a bound");
        assert!(why.contains("an answer of at most 258516 KiB"), "{why}");
    }
}
