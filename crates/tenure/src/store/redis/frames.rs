//! How much a server may send: the bounds on its answers.
//!
//! An answer is a line, which ends with CR and LF, a string of bytes whose length a
//! line tells, or a list of answers. The library holds an answer until all of it has
//! come. What is bounded is one answer; a call has as many as it asked for.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use super::backlog::Backlog;
use crate::store::limited_stream::Framing;
use crate::store::{MAX_VALUE_BYTES, PAGE_MAX};

/// The longest string of bytes, in bytes: twice the largest value, for what was written
/// by hand. What a server says of itself (`INFO`) has some 10 KiB.
pub(super) const STRING_MAX: usize = 2 * MAX_VALUE_BYTES;
/// The longest list: twice a page of names.
pub(super) const LIST_MAX: usize = 2 * (PAGE_MAX + 1);
/// The longest answer, in bytes: a list of that many of the longest names has less, and
/// a register half of it.
pub(super) const ANSWER_MAX: usize = 1024 * 1024;
/// The longest line, in bytes. Errors have some hundreds.
pub(super) const LINE_MAX: usize = 64 * 1024;
/// How deep lists are within lists. `ROLE` has two levels.
pub(super) const DEPTH_MAX: usize = 8;
/// So much is kept of the first refusal, in bytes.
const REFUSAL_MAX: usize = 256;
/// The longest line that tells a length, in bytes: an `i64` has 20.
const LENGTH_MAX: usize = 32;

/// Follows the answers of a server.
#[derive(Default)]
pub(super) struct AnswerFrames {
    part: Part,
    /// How many answers are to come of each list that has begun, the outermost first.
    lists: Vec<usize>,
    /// The length of the answer so far.
    bytes: usize,
    /// Counts answers, where each is a message that a listener takes.
    backlog: Option<Arc<Backlog>>,
    refusal: FirstRefusal,
}

/// The first error that a server has answered, once it has. Of one that comes while a
/// client logs in the library says only that the password was refused.
#[derive(Clone, Default)]
pub(super) struct FirstRefusal(Arc<OnceLock<String>>);

impl FirstRefusal {
    pub(super) fn get(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// What comes next.
#[derive(Default)]
enum Part {
    /// The byte that tells the kind of an answer.
    #[default]
    Kind,
    Line {
        kind: u8,
        length: usize,
        /// What a line that tells a length says so far.
        text: Vec<u8>,
        /// The last byte was a CR.
        ends: bool,
    },
    /// So many bytes of a string, with the CR and LF behind them.
    Bytes(usize),
}

/// Whether a line of this kind tells a length.
fn has_length(kind: u8) -> bool {
    b"$!=*~>%|".contains(&kind)
}

impl AnswerFrames {
    /// Of a connection that listens: it is read as its messages are taken.
    pub(super) fn listening(backlog: Arc<Backlog>) -> Self {
        Self {
            backlog: Some(backlog),
            ..Self::default()
        }
    }

    /// Tells of it when the frames are with the stream.
    pub(super) fn refusal(&self) -> FirstRefusal {
        self.refusal.clone()
    }

    /// Takes a part from `bytes`, or some of one; the rest of them.
    fn part<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        match std::mem::take(&mut self.part) {
            Part::Kind => {
                let (kind, rest) = bytes.split_first().unwrap_or((&0, bytes));
                self.part = Part::Line {
                    kind: *kind,
                    length: 0,
                    text: Vec::new(),
                    ends: false,
                };
                Ok(rest)
            }
            Part::Bytes(left) => {
                let (taken, rest) = bytes.split_at(left.min(bytes.len()));
                if taken.len() == left {
                    self.complete();
                } else {
                    self.part = Part::Bytes(left - taken.len());
                }
                Ok(rest)
            }
            Part::Line {
                kind,
                length,
                text,
                ends,
            } => self.line(kind, length, text, ends, bytes),
        }
    }

    fn line<'a>(
        &mut self,
        kind: u8,
        length: usize,
        mut text: Vec<u8>,
        ends: bool,
        bytes: &'a [u8],
    ) -> Result<&'a [u8], String> {
        // Up to the first LF behind a CR.
        let mut last = if ends { b'\r' } else { 0 };
        let end = bytes.iter().position(|byte| {
            let is_end = last == b'\r' && *byte == b'\n';
            last = *byte;
            is_end
        });
        let taken = end.map_or(bytes.len(), |at| at + 1);
        let (line, rest) = bytes.split_at(taken);
        let length = length + taken;
        let most = if has_length(kind) {
            LENGTH_MAX
        } else {
            LINE_MAX
        };
        if length > most {
            return Err(format!(
                "expected lines of at most {most} bytes, found one of more"
            ));
        }
        if has_length(kind) {
            text.extend_from_slice(line);
        } else if kind == b'-' && self.refusal.get().is_none() {
            let room = REFUSAL_MAX.saturating_sub(text.len());
            text.extend(line.iter().take(room));
        }
        if end.is_some() {
            self.said(kind, &text)?;
        } else {
            self.part = Part::Line {
                kind,
                length,
                text,
                ends: last == b'\r',
            };
        }
        Ok(rest)
    }

    /// A line has come.
    fn said(&mut self, kind: u8, text: &[u8]) -> Result<(), String> {
        if !has_length(kind) {
            if kind == b'-' {
                let words = || String::from_utf8_lossy(text).trim().to_owned();
                self.refusal.0.get_or_init(words);
            }
            self.complete();
            return Ok(());
        }
        let length = std::str::from_utf8(text).ok();
        let length = length.and_then(|text| text.trim().parse::<i64>().ok());
        match (kind, length) {
            // There is none.
            (b'$' | b'*', Some(-1)) => self.complete(),
            (b'$' | b'!' | b'=', Some(length)) => {
                let most = most("strings of at most", STRING_MAX, "bytes", length)?;
                self.part = Part::Bytes(most + 2);
            }
            (b'*' | b'~' | b'>', Some(length)) => {
                let answers = most("lists of at most", LIST_MAX, "answers", length)?;
                self.list(answers)?;
            }
            // Pairs; those that are about an answer come before it.
            (_, Some(length)) => {
                let pairs = most("lists of at most", LIST_MAX / 2, "pairs", length)?;
                self.list(2 * pairs + usize::from(kind == b'|'))?;
            }
            (_, None) => return Err("expected a length, found another text".into()),
        }
        Ok(())
    }

    /// A list begins.
    fn list(&mut self, answers: usize) -> Result<(), String> {
        if answers == 0 {
            self.complete();
            return Ok(());
        }
        if self.lists.len() == DEPTH_MAX {
            return Err(format!(
                "expected lists of at most {DEPTH_MAX} levels, found one of more"
            ));
        }
        self.lists.push(answers);
        Ok(())
    }

    /// An answer has come, and with it perhaps the lists that it is the last of.
    fn complete(&mut self) {
        while let Some(left) = self.lists.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.lists.pop();
        }
    }
}

/// The length, if it is one that may be.
fn most(what: &str, most: usize, unit: &str, length: i64) -> Result<usize, String> {
    let fits = usize::try_from(length).ok().filter(|it| *it <= most);
    fits.ok_or_else(|| format!("expected {what} {most} {unit}, found one of {length}"))
}

impl Framing for AnswerFrames {
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let rest = self.part(bytes)?;
            self.bytes += bytes.len() - rest.len();
            if self.bytes > ANSWER_MAX {
                return Err(format!(
                    "expected answers of at most {ANSWER_MAX} bytes, found one of more"
                ));
            }
            if self.lists.is_empty() && matches!(self.part, Part::Kind) {
                self.bytes = 0;
                if let Some(backlog) = &self.backlog {
                    backlog.come();
                }
            }
            bytes = rest;
        }
        Ok(())
    }

    fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        match &self.backlog {
            Some(backlog) => backlog.poll_room(context),
            None => Poll::Ready(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::limited_stream::followed;

    fn refused(bytes: &[u8], why: &str) {
        let found = followed(AnswerFrames::default, bytes).expect_err(why);
        assert!(found.contains(why), "{found}");
    }

    #[test]
    fn what_servers_send_is_followed_wherever_it_is_cut() {
        let all = [
            &b"+OK\r\n-ERR no\r\n:17\r\n$3\r\na\r\n\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"[..],
            b"*3\r\n$6\r\nmaster\r\n:17\r\n*1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n",
            b"+a\rb\r\r\n%1\r\n+k\r\n+v\r\n|1\r\n+k\r\n+v\r\n:1\r\n~1\r\n#t\r\n_\r\n",
            b"!3\r\nERR\r\n=5\r\ntxt:x\r\n>2\r\n+message\r\n+x\r\n,1.5\r\n(17\r\n",
        ];
        let all = all.concat();
        assert_eq!(followed(AnswerFrames::default, &all), Ok(()));
        let mut frames = AnswerFrames::default();
        frames.follow(&all).expect("answers");
        assert!(frames.lists.is_empty() && matches!(frames.part, Part::Kind));
        // Answers have no bound together.
        assert!((0..10_000).all(|_| frames.follow(&all).is_ok()));
    }

    #[test]
    fn the_first_refusal_is_kept_wherever_it_is_cut() {
        let bytes = b"+OK\r\n-ERR max number of clients reached\r\n-NOAUTH no\r\n";
        for at in 0..=bytes.len() {
            let (mut frames, (first, second)) = (AnswerFrames::default(), bytes.split_at(at));
            let refusal = frames.refusal();
            frames.follow(first).expect("answers");
            frames.follow(second).expect("answers");
            assert_eq!(
                refusal.get(),
                Some("ERR max number of clients reached"),
                "{at}"
            );
        }
        let (mut frames, long) = (AnswerFrames::default(), "x".repeat(1_000));
        let refusal = frames.refusal();
        frames
            .follow(format!("-{long}\r\n").as_bytes())
            .expect("a line");
        assert_eq!(refusal.get().map(str::len), Some(REFUSAL_MAX));
    }

    #[test]
    fn a_length_that_is_too_long_is_refused_before_anything_comes() {
        for (line, why) in [
            (
                "$2147483647",
                "at most 524288 bytes, found one of 2147483647",
            ),
            ("$9223372036854775807", "at most 524288 bytes"),
            ("$-5", "found one of -5"),
            ("!-1", "found one of -1"),
            ("*2147483647", "at most 1002 answers"),
            ("*-7", "found one of -7"),
            ("%9223372036854775807", "at most 501 pairs"),
            ("|-1", "found one of -1"),
            ("$?", "expected a length"),
            ("*18446744073709551615", "expected a length"),
        ] {
            refused(format!("{line}\r\n").as_bytes(), why);
        }
        refused(&[b"*", &[b'1'; 64][..]].concat(), "at most 32 bytes");
        refused(&b"*1\r\n".repeat(9), "at most 8 levels");
    }

    #[test]
    fn a_line_or_an_answer_without_end_is_refused() {
        for kind in ["+", "-ERR ", "(", "."] {
            let mut frames = AnswerFrames::default();
            frames.follow(kind.as_bytes()).expect("a line");
            let refused = (0..100).find_map(|_| frames.follow(&[b'a'; 1024]).err());
            let why = refused.expect("a bound");
            assert!(why.contains("lines of at most 65536 bytes"), "{why}");
        }
        let string = [&b"$500000\r\n"[..], &vec![b'x'; 500_000], b"\r\n"].concat();
        let mut frames = AnswerFrames::default();
        frames.follow(b"*3\r\n").expect("a list");
        let refused = (0..3).find_map(|_| frames.follow(&string).err());
        let why = refused.expect("a bound");
        assert!(why.contains("answers of at most 1048576 bytes"), "{why}");
        let mut frames = AnswerFrames::default();
        assert!((0..100).all(|_| frames.follow(&string).is_ok()));
    }
}
