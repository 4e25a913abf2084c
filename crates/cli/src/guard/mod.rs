//! The guardian: what keeps a command on the leash even when the process
//! that holds the leash is killed or stopped.
//!
//! ```text
//! tenure run            supervisor: stands in the election
//!    │  control socket: start, extend, stop … │ started, exited, gone
//! tenure __guardian     its own session, subreaper, keeps the deadlines
//!    │  parent-death signal
//! CMD and its group, and whatever it forks away
//! ```
//!
//! A supervisor that is stopped (`kill -STOP`) cannot end its command in
//! time, and one that is killed cannot end it at all. So the command is the
//! child of a second process that does one thing: it knows the deadlines, on
//! the machine's boot-time clock, and they only ever move later. At
//! `drain_at` it sends TERM, at `kill_at` it kills the group and everything
//! that it adopted, and when the control socket ends it kills at once.
//!
//! # Why do never two commands run?
//!
//! | what happens | what ends the command |
//! |---|---|
//! | supervisor killed | the control socket ends; the guardian kills at once |
//! | supervisor stopped | no extension comes; the guardian kills at `kill_at` |
//! | guardian killed | the parent-death signal kills CMD; the supervisor, a subreaper too, adopts and kills the rest |
//! | guardian stopped | after `kill_at` the supervisor kills the guardian, and the line above follows |
//! | go-ahead arrives late | the guardian looks at its own clock and starts nothing |
//!
//! Not covered: both stopped at once, and a machine that is frozen whole.
//! There the fence (`TENURE_TERM`) protects whoever checks it. A set-user-id
//! CMD loses the parent-death signal.
//!
//! All of it by safe calls: the guardian and the shim that becomes CMD are
//! this same binary, executed again under hidden names.

mod cgroup;
mod end;
mod guardian;
mod handle;
mod shim;
mod timer;
mod wire;

use std::ffi::OsStr;
use std::process::ExitCode;

pub(crate) use handle::{Event, Guardian, become_subreaper};
pub(crate) use shim::find;
pub(crate) use wire::Deadlines;

/// The hidden name of the guardian.
const GUARDIAN: &str = "__guardian";
/// The hidden name of the shim.
const SHIM: &str = "__exec";

/// If this process was started as a guardian or a shim, be one.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let first = args.next()?;
    if first == OsStr::new(GUARDIAN) {
        return Some(guardian::main(args.collect()));
    }
    if first == OsStr::new(SHIM) {
        return Some(shim::main(args.collect()));
    }
    None
}
