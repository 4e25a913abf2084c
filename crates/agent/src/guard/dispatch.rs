//! What this binary is started for: by a person, or as a guardian or launcher.

use std::process::ExitCode;

use super::guardian::{self, GUARDIAN};
use super::launcher::{self, LAUNCHER};

/// Runs the hidden subcommand this process was started for, if any.
///
/// To be called first of all in `main`, while there is one thread: the
/// guardian must spawn from a thread that lives as long as it does, because a
/// parent-death signal is sent when the *thread* that spawned ends.
pub fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let name = args.next()?;
    if name == GUARDIAN {
        Some(guardian::main())
    } else if name == LAUNCHER {
        Some(launcher::main(args.next().as_deref()))
    } else {
        None
    }
}
