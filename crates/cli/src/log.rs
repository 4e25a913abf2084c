//! Logs, on stderr: quiet by default except what matters.

use std::fmt;
use std::io::IsTerminal as _;

use tenure::clock;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use crate::args::{Common, LogFormat};
use crate::output::timestamp;

/// What others than this program say is left out.
const OTHERS_QUIET: &str = ",h2=info,hyper=info,hyper_util=info,tower=info,rustls=info,tonic=info";

struct Calendar;

impl FormatTime for Calendar {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        out.write_str(&timestamp(clock::wall()))
    }
}

/// Begins to log in this form, as much as the flags say.
pub(crate) fn start(common: &Common, format: LogFormat) {
    let level = match (common.quiet, common.verbose) {
        (true, _) => "error",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    // Once more is for this program; what each frame of a connection was, as
    // the libraries below tell it, drowns that. Twice is for everything.
    let own = match common.verbose {
        1 => OTHERS_QUIET,
        _ => "",
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!("{level}{own}")))
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
