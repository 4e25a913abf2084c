//! The only place that prints: text for people, JSON for programs.

use std::fmt::Write as _;
#[cfg(feature = "tenure")]
use std::io::IsTerminal as _;
use std::io::{self, Write as _};

#[cfg(feature = "tenure")]
use base64::Engine as _;
#[cfg(feature = "tenure")]
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure::clock;
use tenure::core::election::Record;
use tenure::election::Observation;
use tenure::error::{plain, plain_json};

pub(crate) use tenure_agent::format::{counted, quorum_of, timestamp};

use crate::args::LogFormat;
use crate::stderr;

/// How to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    log: LogFormat,
}

/// How wide a column is made at most; a longer cell stands out of it.
const WIDTH_MAX: usize = 200;

/// The same, with what could not be written.
fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

impl Output {
    pub(crate) const fn new(json: bool, log: LogFormat) -> Self {
        Self { json, log }
    }

    /// Prints a line on stdout: text, or the object in its place. A reader
    /// that has gone away (`| head`) ends the program quietly.
    pub(crate) fn line(self, text: &str, object: &Value) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let line = if self.json {
            plain_json(&object.to_string())
        } else {
            plain_lines(text)
        };
        writeln!(out, "{line}").map_err(of_stdout)?;
        out.flush().map_err(of_stdout)
    }

    /// Prints a line without waiting for its reader, nor for what becomes of
    /// it: what a program says that goes on for long, and has more to do than
    /// to be read.
    pub(crate) fn announce(self, text: &str, object: &Value) {
        let (text, object) = (text.to_owned(), object.clone());
        let print = move || drop(self.line(&text, &object));
        // Not a task: a runtime waits for those of its threads when it ends.
        let thread = std::thread::Builder::new().name("tenure-stdout".into());
        let _ = thread.spawn(print);
    }

    /// Prints an entry of a log and a newline: its data as they are, but to a
    /// terminal as [`shown`].
    #[cfg(feature = "tenure")]
    pub(crate) fn entry(self, number: u64, data: &[u8]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            let object = match std::str::from_utf8(data) {
                Ok(text) => json!({ "number": number, "data": text }),
                Err(_) => json!({ "number": number, "data_base64": STANDARD.encode(data) }),
            };
            writeln!(out, "{}", plain_json(&object.to_string()))
        } else if out.is_terminal() {
            writeln!(out, "{}", shown(data))
        } else {
            out.write_all(data).and_then(|()| out.write_all(b"\n"))
        }
        .and_then(|()| out.flush())
        .map_err(of_stdout)
    }

    /// Prints rows in columns, or an object a line in their place.
    pub(crate) fn table<const N: usize>(
        self,
        rows: &[[String; N]],
        objects: &[Value],
    ) -> io::Result<()> {
        if self.json {
            return objects.iter().try_for_each(|object| self.line("", object));
        }
        let rows: Vec<_> = rows
            .iter()
            .map(|row| row.each_ref().map(|text| plain(text)))
            .collect();
        let width = |column: usize| {
            let widths = rows.iter().map(|row| row[column].chars().count());
            widths.max().unwrap_or(0).min(WIDTH_MAX)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for row in &rows {
            let mut line = String::new();
            for (text, width) in row.iter().zip(widths) {
                let _ = write!(line, "{text:width$}  ");
            }
            self.line(line.trim_end(), &Value::Null)?;
        }
        Ok(())
    }

    /// Prints what a watch has seen, and when it did.
    pub(crate) fn change(self, text: &str, mut object: Value) -> io::Result<()> {
        let at = timestamp(clock::wall());
        let text = format!("{at} {text}");
        object["at"] = at.into();
        self.line(&text, &object)
    }

    /// Prints that an election was seen to change.
    pub(crate) fn turn(self, election: &str, seen: &Observation) -> io::Result<()> {
        self.change(&describe(election, seen), observed(election, seen, None))
    }

    /// Prints who leads an election.
    pub(crate) fn observation(
        self,
        election: &str,
        seen: &Observation,
        record: Option<&Record>,
    ) -> io::Result<()> {
        self.line(&describe(election, seen), &observed(election, seen, record))
    }

    /// Prints bytes as they are.
    pub(crate) fn raw(bytes: &[u8]) -> io::Result<()> {
        io::stdout().lock().write_all(bytes)
    }

    /// Says on stderr what is being waited for, unless only objects are read.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            stderr::say(format!("{}\n", plain_lines(text)).as_bytes());
        }
    }

    /// Prints an error on stderr, if anybody reads it: the exit code tells
    /// the same. It is the last line of the log, and has the log's form.
    pub(crate) fn error(self, text: &str) {
        let line = if self.log == LogFormat::Json {
            let at = timestamp(clock::wall());
            plain_json(&json!({ "timestamp": at, "level": "ERROR", "message": text }).to_string())
        } else if self.json {
            plain_json(&json!({ "error": text }).to_string())
        } else {
            format!("tenure: {}", plain_lines(text))
        };
        stderr::say(format!("{line}\n").as_bytes());
    }
}

/// The same in a text of several lines of ours. No text of others that comes
/// here ends a line: names cannot, and words of servers come as [`plain`].
fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// What others have appended, on one line of a terminal: it neither moves the
/// cursor nor passes for another entry. Bytes that are no text are escaped, too.
#[cfg(feature = "tenure")]
fn shown(data: &[u8]) -> String {
    let mut shown = String::with_capacity(data.len());
    for chunk in data.utf8_chunks() {
        shown += &plain(chunk.valid());
        shown.extend(chunk.invalid().escape_ascii().map(char::from));
    }
    shown
}

/// A text of others as one of a list: in quotes if it might be taken for more
/// than one.
fn listed(text: &str) -> String {
    let plain = plain(text);
    let is_apart = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '"');
    if plain.contains(is_apart) || plain.is_empty() {
        return format!("\"{}\"", plain.replace('"', "\\\""));
    }
    plain
}

/// Who leads, in a sentence.
pub(crate) fn describe(election: &str, seen: &Observation) -> String {
    let Some(leader) = &seen.leader else {
        return format!(
            "{election}: nobody leads (term {}, {})",
            seen.term, seen.certainty
        );
    };
    let mut text = format!("{election}: {} leads in term {}", leader.name, leader.term);
    if !leader.addresses.is_empty() {
        let addresses = leader.addresses.iter().map(|it| listed(it.as_str()));
        let addresses: Vec<String> = addresses.collect();
        let _ = write!(text, " at {}", addresses.join(", "));
    }
    if let Some(over_at) = seen.expires_at {
        let left = over_at.since(clock::boot()).as_secs_f64();
        let _ = write!(text, ", {left:.1}s left unless renewed");
    } else {
        text.push_str(", held by a session");
    }
    let _ = write!(text, " ({}; id {})", seen.certainty, leader.id);
    text
}

/// The same as an object.
fn observed(election: &str, seen: &Observation, record: Option<&Record>) -> Value {
    let mut object = json!({
        "election": election,
        "led": seen.leader.is_some(),
        "term": seen.term.get(),
        "certainty": seen.certainty.to_string(),
    });
    if let Some(leader) = &seen.leader {
        let addresses: Vec<&str> = leader.addresses.iter().map(tenure::Name::as_str).collect();
        object["leader_id"] = leader.id.to_string().into();
        object["name"] = leader.name.as_str().into();
        object["addresses"] = addresses.into();
    }
    if let Some(over_at) = seen.expires_at {
        let left = over_at.since(clock::boot()).as_millis();
        object["left_ms"] = u64::try_from(left).unwrap_or(u64::MAX).into();
    }
    if let (Some(record), true) = (record, seen.leader.is_some()) {
        object["acquired_at"] = timestamp(record.acquired_at).into();
        object["renewed_at"] = timestamp(record.renewed_at).into();
        let lease = u64::try_from(record.lease.as_millis()).unwrap_or(u64::MAX);
        object["lease_ms"] = lease.into();
    }
    object
}

#[cfg(test)]
mod tests {
    use super::{listed, plain, plain_json};

    #[test]
    fn a_text_of_a_list_does_not_pass_for_several() {
        for (text, shown) in [
            ("10.0.0.7:8443", "10.0.0.7:8443"),
            ("[::1]:1", "[::1]:1"),
            ("a, b", "\"a, b\""),
            ("a b", "\"a b\""),
            ("a\"", "\"a\\\"\""),
            ("a\nb\u{202e}", r"a\nb\u{202e}"),
        ] {
            assert_eq!(listed(text), shown);
        }
    }

    #[test]
    #[cfg(feature = "tenure")]
    fn an_entry_stays_on_its_line_of_a_terminal() {
        let data = b"a\n2 b\x1b[2J\r\x9b31m\xff\xc2\x9b\xe2\x80\xae\\";
        let wanted = r"a\n2 b\u{1b}[2J\r\x9b31m\xff\u{9b}\u{202e}\";
        assert_eq!(super::shown(data), wanted);
        assert_eq!(super::shown("é ü".as_bytes()), "é ü");
    }

    #[test]
    fn what_others_say_stays_on_its_line() {
        let host = "a\nweb  1  ha\u{1b}[2J\0\u{202e}\u{9b}é\\".to_owned();
        let shown = r"a\nweb  1  ha\u{1b}[2J\u{0}\u{202e}\u{9b}é\";
        assert_eq!(plain(&host), shown);
        let shown = plain_json(&super::json!({ "host": host }).to_string());
        let wanted = r#"{"host":"a\nweb  1  ha\u001b[2J\u0000\u202e\u009bé\\"}"#;
        assert_eq!(shown, wanted);
        let back: super::Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(back["host"], host);
    }
}
