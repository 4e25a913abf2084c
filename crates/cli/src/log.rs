//! Logs, on stderr: quiet by default except what matters.
//!
//! Nothing waits for their reader, and what could not be written is counted:
//! `stderr.rs`. A line for people is one line, whatever others have written
//! into the names and the words in it.

use std::backtrace::BacktraceStatus;
use std::fmt;
use std::io::IsTerminal as _;

use serde_json::json;
use tenure::clock;
use tenure::error::plain;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Common, LogFormat};
use crate::output::timestamp;
use crate::stderr::{self, Lines};

/// A library below that tells of each attempt to connect as an error.
const LOUD: &str = "async_nats";

/// The libraries below, whose lines name no address and come as often as a
/// stranger likes. What matters of them this program says itself.
const OTHERS: [&str; 6] = ["h2", "hyper", "hyper_util", "tower", "rustls", "tonic"];

/// What is said of lines that were dropped.
fn missing(lines: u64) -> String {
    format!(
        "{} of this log were dropped: stderr had not been read for {:?}",
        crate::output::counted(usize::try_from(lines).unwrap_or(usize::MAX), "line"),
        crate::stall::STALL_TIMEOUT
    )
}

fn missing_in_text(lines: u64) -> String {
    format!("{}  WARN {}\n", timestamp(clock::wall()), missing(lines))
}

fn missing_in_json(lines: u64) -> String {
    let (at, text) = (timestamp(clock::wall()), missing(lines));
    let object = json!({ "timestamp": at, "level": "WARN", "message": text, "dropped": lines });
    format!("{object}\n")
}

struct Calendar;

impl FormatTime for Calendar {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        out.write_str(&timestamp(clock::wall()))
    }
}

/// Writes the message or a field of a line for people.
fn in_one_line(out: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = plain(&format!("{value:?}"));
    match field.name() {
        "message" => out.write_str(&text),
        name => write!(out, "{name}={text}"),
    }
}

/// What is logged, as the flags say.
fn levels(quiet: bool, verbose: u8) -> Targets {
    let (own, others) = match (quiet, verbose) {
        (true, _) => (LevelFilter::ERROR, LevelFilter::ERROR),
        (false, 0) => (LevelFilter::INFO, LevelFilter::ERROR),
        // Once more is for this program; what each frame of a connection was,
        // as the libraries below tell it, drowns that. Twice is for everything.
        (false, 1) => (LevelFilter::DEBUG, LevelFilter::INFO),
        (false, _) => (LevelFilter::TRACE, LevelFilter::TRACE),
    };
    let loud = match others {
        LevelFilter::ERROR => LevelFilter::OFF,
        others => others,
    };
    Targets::new()
        .with_default(own)
        .with_targets(OTHERS.map(|target| (target, others)))
        .with_target(LOUD, loud)
}

/// Begins to log in this form, as much as the flags say.
pub(crate) fn start(common: &Common, format: LogFormat) {
    let log = tracing_subscriber::fmt::layer()
        .with_writer(move || match format {
            LogFormat::Human => Lines::Plain,
            LogFormat::Json => Lines::Json,
        })
        .with_target(false)
        // A reader that has gone away must not end an election: the complaint
        // would go to the same place, and panic there.
        .log_internal_errors(false)
        .with_timer(Calendar);
    stderr::start(match format {
        LogFormat::Human => missing_in_text,
        LogFormat::Json => missing_in_json,
    });
    std::panic::set_hook(Box::new(|panic| {
        // The usual one would wait for the reader, and with it the thread that
        // is to be told that this one has gone.
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let trace = std::backtrace::Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => format!("{trace}\n"),
            _ => String::new(),
        };
        stderr::say(format!("thread '{name}' {panic}\n{trace}").as_bytes());
    }));
    let filtered = tracing_subscriber::registry().with(levels(common.quiet, common.verbose));
    match format {
        LogFormat::Human => filtered
            .with(
                log.with_ansi(std::io::stderr().is_terminal())
                    .fmt_fields(debug_fn(in_one_line).delimited(" ")),
            )
            .init(),
        LogFormat::Json => filtered.with(log.json().flatten_event(true)).init(),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::levels;

    #[test]
    fn libraries_below_are_heard_when_more_is_asked_for() {
        for (quiet, verbose, own, others, loud) in [
            (false, 0, Level::INFO, Level::ERROR, None),
            (false, 1, Level::DEBUG, Level::INFO, Some(Level::INFO)),
            (false, 2, Level::TRACE, Level::TRACE, Some(Level::TRACE)),
            (true, 0, Level::ERROR, Level::ERROR, None),
        ] {
            let levels = levels(quiet, verbose);
            for (target, most) in [
                ("tenure_cli::commands", Some(own)),
                ("h2::codec", Some(others)),
                ("rustls::conn", Some(others)),
                ("async_nats::connector", loud),
            ] {
                for level in [
                    Level::ERROR,
                    Level::WARN,
                    Level::INFO,
                    Level::DEBUG,
                    Level::TRACE,
                ] {
                    let is_told = levels.would_enable(target, &level);
                    let expected = most.is_some_and(|most| level <= most);
                    assert_eq!(is_told, expected, "{quiet} {verbose} {target} {level}");
                }
            }
        }
    }
}
