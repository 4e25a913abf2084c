//! Logs, on stderr: quiet by default except what matters.

use std::fmt;
use std::io::IsTerminal as _;

use tenure::clock;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::args::{Common, LogFormat};
use crate::output::timestamp;

struct Calendar;

impl FormatTime for Calendar {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        out.write_str(&timestamp(clock::wall()))
    }
}

/// Begins to log in this form, as much as the flags say.
pub(crate) fn start(common: &Common, format: LogFormat) {
    let level = match (common.quiet, common.verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::INFO,
        (false, 1) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        // A reader that has gone away must not end an office: the complaint
        // would go to the same place, and panic there.
        .log_internal_errors(false)
        .with_timer(Calendar);
    match format {
        LogFormat::Human => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
