//! Errors by what the caller must do next.
//!
//! Which library raised an error is of no use to a campaign; what it may
//! conclude about its write is everything. So the classes are four, and the
//! one most libraries lack is [`StoreError::Unknown`]: the write may have
//! happened and may not. Reading it as "no" loses elections, reading it as
//! "yes" makes two leaders.

use std::error::Error as StdError;
use std::fmt;

/// The cause behind a [`StoreError`], for people.
pub type Cause = Box<dyn StdError + Send + Sync>;

/// How a store's operation failed, by what the caller must do next. There will
/// be no fifth class, so it may be matched without a wildcard.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote first. Re-read, then decide.
    #[error("the register was changed by somebody else")]
    Conflict,
    /// It certainly did not happen. Retry within the lease budget.
    #[error("the store is not available: {0}")]
    Unavailable(Cause),
    /// It may or may not have happened. Treat it as neither: re-read and
    /// compare leader id, term and sequence.
    #[error("no certain answer from the store: {0}")]
    Unknown(Cause),
    /// It will not work until a person does something: wrong credentials, a
    /// table of another shape, a store that ignores preconditions.
    #[error("{0}")]
    Broken(Cause),
}

impl StoreError {
    /// [`StoreError::Unavailable`] with a sentence.
    pub fn unavailable(text: impl fmt::Display) -> Self {
        Self::Unavailable(without_bytes(&text.to_string()).into())
    }

    /// [`StoreError::Unknown`] with a sentence.
    pub fn unknown(text: impl fmt::Display) -> Self {
        Self::Unknown(without_bytes(&text.to_string()).into())
    }

    /// [`StoreError::Broken`] with a sentence that says what was expected,
    /// what was found and what to do.
    pub fn broken(text: impl fmt::Display) -> Self {
        Self::Broken(without_bytes(&text.to_string()).into())
    }

    /// [`StoreError::Broken`] of a system that was seen to break the contract of
    /// stores: another one has to be used.
    pub fn unfit(text: impl fmt::Display) -> Self {
        Self::Broken(Box::new(Unfit(text.to_string())))
    }

    /// Whether it was made by [`unfit`](Self::unfit).
    pub fn is_unfit(&self) -> bool {
        matches!(self, Self::Broken(cause) if cause.is::<Unfit>())
    }
}

/// The cause of an error of a system that breaks the contract.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unfit(String);

/// Text of a library without the bytes that it shows as a list of numbers. The library that
/// reads PEM shows so the line on which it has failed, and that line may be a private key.
#[must_use]
pub fn without_bytes(text: &str) -> String {
    /// So many numbers are shown.
    const NUMBERS_MAX: usize = 8;
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, list)) = rest.split_once('[') {
        shown.push_str(before);
        let is_of_list = |it: char| it.is_ascii_digit() || it == ',' || it == ' ';
        let behind = list.trim_start_matches(is_of_list);
        let numbers = list.len() - behind.len();
        let (numbers, _) = list.split_at(numbers);
        if numbers.split(',').count() > NUMBERS_MAX {
            shown.push_str("[…]");
            rest = behind.strip_prefix(']').unwrap_or(behind);
        } else {
            shown.push('[');
            rest = list;
        }
    }
    shown.push_str(rest);
    shown
}

/// Text of others in which no character moves the cursor, ends the line, turns
/// the direction of what is written or cannot be seen, so that none of it can
/// pass for words of this program or for another name.
///
/// The words of a server in an error are given in this form.
#[must_use]
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if moves(character) {
            plain.extend(character.escape_default());
        } else {
            plain.push(character);
        }
    }
    plain
}

/// The text of a JSON value with the same characters written as `\u` and four digits, which
/// means the same: JSON itself escapes only the first 32 of them.
#[must_use]
pub fn plain_json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if moves(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                plain.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            plain.push(character);
        }
    }
    plain
}

/// Whether a character does more than take its place in a line, or less.
fn moves(character: char) -> bool {
    // Controls, those of C1 among them.
    character.is_control()
        || matches!(character,
            // What turns the direction, and what ends a line elsewhere.
            '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // What cannot be seen (Unicode: default-ignorable).
            | '\u{ad}' | '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}'
            | '\u{206a}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// What is quoted of a request in an answer to it: no more than this, since
/// the request may be of megabytes.
pub fn cut(text: &str) -> &str {
    const CHARACTERS_MAX: usize = 200;
    let end = text.char_indices().nth(CHARACTERS_MAX);
    end.map_or(text, |(at, _)| &text[..at])
}

/// The longest text of others in an error, in characters.
pub const QUOTED_MAX: usize = 1_000;

/// What others say, as an error quotes it: in the form of [`plain`], and cut with ` …` behind
/// [`QUOTED_MAX`] characters. An error is logged as often as the call is repeated, and a server
/// may say megabytes.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut quoted = String::new();
    let mut room = QUOTED_MAX;
    for character in text.chars() {
        let escaped = moves(character).then(|| character.escape_default());
        let length = escaped.as_ref().map_or(1, ExactSizeIterator::len);
        let Some(left) = room.checked_sub(length) else {
            quoted.push_str(" …");
            break;
        };
        room = left;
        match escaped {
            Some(escaped) => quoted.extend(escaped),
            None => quoted.push(character),
        }
    }
    quoted
}

/// A duration as people say it, to two digits: what is left of a limit differs
/// from call to call, and the same trouble is to be told in the same words.
pub fn about(duration: std::time::Duration) -> String {
    let micros = duration.as_micros();
    let unit = 10_u128.pow(micros.checked_ilog10().unwrap_or(0).saturating_sub(1));
    let rounded = (micros + unit / 2) / unit * unit;
    let rounded = u64::try_from(rounded).unwrap_or(u64::MAX);
    format!("{:?}", std::time::Duration::from_micros(rounded))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bytes_of_a_file_are_not_shown() {
        let key = "missing section end marker: [80, 82, 73, 86, 65, 84, 69, 32, 75, 69, 89] (x)";
        assert_eq!(without_bytes(key), "missing section end marker: […] (x)");
        let cut = "illegal section start: [80, 82, 73, 86, 65, 84, 69, 32, 75, 6";
        assert_eq!(without_bytes(cut), "illegal section start: […]");
        let twice = "[1, 2, 3, 4, 5, 6, 7, 8, 9] and [1, 2, 3, 4, 5, 6, 7, 8, 9]";
        assert_eq!(without_bytes(twice), "[…] and […]");
        for other in ["[::1]:80", "servers [1, 2, 3]", "[", "[[]", "a[1", ""] {
            assert_eq!(without_bytes(other), other);
        }
        let error = StoreError::broken(key).to_string();
        assert!(!error.contains("80"), "{error}");
    }

    #[test]
    fn a_store_that_breaks_the_contract_is_told_from_one_to_be_mended() {
        let unfit = StoreError::unfit("it forgets");
        assert!(unfit.is_unfit() && !StoreError::broken("it forgets").is_unfit());
        assert_eq!(unfit.to_string(), "it forgets");
    }

    #[test]
    fn what_is_quoted_is_cut() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ä".repeat(3_000_000)), "ä".repeat(200));
    }

    #[test]
    fn what_others_say_is_plain_and_has_an_end() {
        assert_eq!(quoted("short\n"), plain("short\n"));
        assert_eq!(quoted(&"ä".repeat(QUOTED_MAX)), "ä".repeat(QUOTED_MAX));
        let long = quoted(&"ä".repeat(3_000_000));
        assert_eq!(long, "ä".repeat(QUOTED_MAX) + " …");
        // An escape is not cut in two, and what was cut is not cut again.
        let escapes = quoted(&"\u{1b}".repeat(QUOTED_MAX));
        assert_eq!(escapes, r"\u{1b}".repeat(QUOTED_MAX / 6) + " …");
        for cut in [long, escapes] {
            assert_eq!(quoted(&cut), cut);
        }
    }

    #[test]
    fn no_character_of_others_moves_the_cursor_or_ends_a_line() {
        let text = "a\n\u{1b}[31m\u{9b}2J\u{202e}\u{2066}\u{61c}\u{2028}\té\\";
        let shown = r"a\n\u{1b}[31m\u{9b}2J\u{202e}\u{2066}\u{61c}\u{2028}\té\";
        assert_eq!(plain(text), shown);
        assert_eq!(plain(&plain(text)), shown);
    }

    #[test]
    fn no_name_of_others_passes_for_another_one() {
        for odd in ['\u{200b}', '\u{feff}', '\u{3164}', '\u{ad}', '\u{e0041}'] {
            let name = format!("admin{odd}");
            assert_eq!(plain(&name), format!("admin{}", odd.escape_unicode()));
        }
        assert_eq!(
            plain_json("\u{e0041}\u{200b}\u{fc}"),
            "\\udb40\\udc41\\u200b\u{fc}"
        );
    }

    #[test]
    fn a_duration_is_said_to_two_digits() {
        for (nanos, said) in [
            (539_990_000, "540ms"),
            (540_000_000, "540ms"),
            (1_234_567_890, "1.2s"),
            (59_999_999_999, "60s"),
            (4_500_000, "4.5ms"),
            (7_000, "7µs"),
            (900, "0ns"),
            (0, "0ns"),
        ] {
            assert_eq!(about(Duration::from_nanos(nanos)), said);
        }
    }
}
