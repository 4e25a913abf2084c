//! The arguments of a command, read once each.

use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use goldenscript::{ArgumentConsumer, Command};
use tenure_core::ids::Name;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// What is left of a command's arguments.
pub(crate) struct Args<'a>(ArgumentConsumer<'a>);

impl<'a> Args<'a> {
    pub(crate) fn new(command: &'a Command) -> Self {
        Self(command.consume_args())
    }

    /// The next argument without a key.
    pub(crate) fn word(&mut self) -> Outcome<&'a str> {
        self.0.next_pos().ok_or_else(|| "a word is missing".into())
    }

    pub(crate) fn maybe_word(&mut self) -> Option<&'a str> {
        self.0.next_pos()
    }

    pub(crate) fn key(&mut self, key: &str) -> Option<&'a str> {
        self.0.take_key(key)
    }

    pub(crate) fn parsed<T: FromStr>(&mut self, key: &str) -> Outcome<Option<T>> {
        let Some(text) = self.key(key) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("{key}={text} cannot be read").into()),
        }
    }

    pub(crate) fn name(&mut self, key: &str) -> Outcome<Option<Name>> {
        Ok(self.key(key).map(Name::new).transpose()?)
    }

    pub(crate) fn span(&mut self, key: &str) -> Outcome<Option<Duration>> {
        self.key(key).map(span).transpose()
    }

    /// Nanoseconds, with a sign.
    pub(crate) fn shift(&mut self, key: &str) -> Outcome<Option<i128>> {
        self.key(key).map(shift).transpose()
    }

    /// Passes over what has not been read.
    pub(crate) fn forget(&mut self) {
        while self.0.next().is_some() {}
    }

    pub(crate) fn finish(self) -> Outcome<()> {
        self.0.reject_next()
    }
}

/// Reads `90s`, `1.5s`, `250ms`, `2h`, `7d`, `5us`, `3ns`.
pub(crate) fn span(text: &str) -> Outcome<Duration> {
    let nanos = shift(text)?;
    let nanos = u128::try_from(nanos).map_err(|_| format!("{text} is negative"))?;
    let seconds = u64::try_from(nanos / 1_000_000_000)?;
    Ok(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// Reads a span that may be negative, in nanoseconds.
pub(crate) fn shift(text: &str) -> Outcome<i128> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let unit_at = rest
        .find(|c: char| c.is_ascii_alphabetic())
        .ok_or_else(|| format!("{text} has no unit"))?;
    let (number, unit) = rest.split_at(unit_at);
    let unit: i128 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(format!("{text} has an unknown unit").into()),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let mut nanos = whole.parse::<i128>()? * unit;
    let mut place = unit;
    for digit in part.chars() {
        place /= 10;
        let digit = digit.to_digit(10).ok_or("a digit was expected")?;
        nanos += i128::from(digit) * place;
    }
    Ok(sign * nanos)
}
