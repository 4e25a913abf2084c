//! What `tenure fence` takes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  What a job of `tenure run` writes, which sets TENURE_TERM:
    tenure fence --mark /var/lib/pay/mark -- ./write-ledger
  A leader that was stopped in mid command must not keep its successor waiting for ever:
    tenure fence --mark /var/lib/pay/mark --term 8 --wait 5s --kill -- ./write-ledger

Exit codes: that of CMD (128 + N if signal N ended it, 126 and 127 as a shell), 1 if it was
refused or had no turn, 2 wrong usage or a damaged mark.")]
pub(crate) struct Fence {
    /// The file of the highest term that was seen; made if it is missing.
    ///
    /// Beside it stays FILE.lock, which is held while CMD runs.
    #[arg(long, value_name = "FILE")]
    pub(crate) mark: PathBuf,
    /// The term of the leader that runs CMD.
    #[arg(long, env = "TENURE_TERM", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
    pub(crate) term: u64,
    /// How long to wait while another command runs.
    #[arg(
        long,
        default_value = "10s",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) wait: String,
    /// After that, kill the process group of a command of a lower term (KILL) and go on.
    #[arg(long)]
    pub(crate) kill: bool,
    /// The command, after --.
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
