//! Files that people write for the command line, as any bytes at all: what
//! `tenure_server::fuzzed` says of its targets holds for these too.

use std::sync::{Arc, LazyLock};

use clap::Parser as _;
use tenure::store::Memory;

#[cfg(test)]
#[path = "../../server/src/fuzzed/replay.rs"]
#[expect(dead_code, reason = "the server's tests use the rest")]
mod replay;

use crate::args::{Cli, Command, Run};
use crate::commands::serve;
use crate::config::{self, File};
use crate::failure::Failure;

/// A target: its name, which is also that of its corpus, and what takes the
/// bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets of the command line.
pub const TARGETS: &[Target] = &[("settings", settings)];

/// The longest that is said of a wrong file, in bytes.
const SAID_MAX: usize = 2_000;

static RUN: LazyLock<Run> = LazyLock::new(|| {
    let typed = Cli::parse_from(["tenure", "run", "payroll", "--", "true"]);
    match typed.command {
        Command::Run(run) => *run,
        _ => unreachable!("it was typed"),
    }
});

/// `bytes` as the file of settings (`--config`): for a server, and for one who
/// stands in an election.
fn settings(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let file: File = match config::parse(text) {
        Ok(file) => file,
        Err(said) => return is_short(&said),
    };
    if let Err(failure) = serve::meant(&file.serve) {
        is_usage(&failure);
    }
    let store = Arc::new(Memory::default());
    if let Err(failure) = config::candidate(&RUN, &file, store) {
        is_usage(&failure);
    }
}

/// What a person wrote is wrong usage, and nothing else is.
fn is_usage(failure: &Failure) {
    assert_eq!(failure.code(), 2, "{failure}");
}

/// What is said of a file that cannot be read goes to logs and terminals.
fn is_short(said: &str) {
    assert!(said.len() <= SAID_MAX, "{} bytes: {said}", said.len());
    assert!(!said.contains(char::is_control), "{said:?}");
}

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn settings() {
        replay::replay(TARGETS[0]);
    }
}
