//! The process that becomes CMD.
//!
//! Between fork and exec some things must be done *in the new process*, and
//! doing them there needs code that the compiler cannot check. So the
//! guardian starts this same binary again, which does them at leisure and in
//! safe Rust, waits, and turns into CMD by exec at the go-ahead:
//!
//! 1. It asks the kernel for a KILL when its parent ends. Should the guardian
//!    have died before that, its parent is now another, and it gives up.
//! 2. It reports that it stands by, and waits for the go-ahead.
//! 3. It takes CMD's standard input, which came with the go-ahead, and marks
//!    every descriptor but 0, 1 and 2 to be closed by exec.
//! 4. It looks at the clock for the last time, and becomes CMD. The standard
//!    library gives CMD an empty signal mask and a default SIGPIPE; handlers
//!    are undone by exec itself.
//!
//! The socket to the guardian closes with a successful exec; that is how the
//! guardian learns of it. A failure is reported before that.
//!
//! Left out: a set-user-ID CMD loses the parent-death signal at exec, so says
//! the kernel. The guardian's own times hold for it all the same, as far as
//! it may be signalled.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::channel::Channel;
use super::exit_status::StartError;
use super::messages::{GuardianOrder, GuardianReport, StartOrder};

/// The hidden subcommand that makes this process the one that becomes CMD.
pub(super) const LAUNCHER: &str = "__exec";

/// This very binary, even if its file has been replaced meanwhile.
pub(super) const SELF: &str = "/proc/self/exe";

/// Exit codes of a launcher that never became CMD. Only the guardian sees them.
const GAVE_UP: u8 = 125;

/// Becomes CMD, or says why not.
pub(super) fn main(guardian: Option<&OsStr>) -> ExitCode {
    ExitCode::from(stand_by(guardian).unwrap_or(GAVE_UP))
}

/// Dies with the guardian (`PR_SET_PDEATHSIG`), and looks whether it is still there.
fn stand_by(guardian: Option<&OsStr>) -> io::Result<u8> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if guardian.and_then(OsStr::to_str) != Some(parent.to_string().as_str()) {
        return Ok(GAVE_UP);
    }
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let mut guardian = Channel::new(UnixStream::from(socket))?;
    guardian.send(&GuardianReport::Ready)?;
    let Some(start) = go_ahead(&mut guardian)? else {
        return Ok(GAVE_UP);
    };
    let stdin = guardian.passed();
    rustix::stdio::dup2_stdin(&stdin.ok_or(io::ErrorKind::InvalidData)?)?;
    close_fds::set_fds_cloexec(3, &[]);
    let refusal = become_cmd(&start);
    guardian.send(&GuardianReport::Refused(refusal))?;
    Ok(refusal.code())
}

/// Waits for the go-ahead; `None` if the guardian has decided otherwise.
fn go_ahead(guardian: &mut Channel) -> io::Result<Option<StartOrder>> {
    loop {
        guardian.block()?;
        let open = guardian.fill()?;
        match guardian.next()? {
            Some(GuardianOrder::Start(start)) => return Ok(Some(start)),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
            None if open => {}
            None => return Ok(None),
        }
    }
}

/// Returns only if that failed.
fn become_cmd(start: &StartOrder) -> StartError {
    let Some((program, args)) = start.argv.split_first() else {
        return StartError::NotFound(rustix::io::Errno::NOENT.raw_os_error());
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .envs(start.env.iter().map(|(key, value)| (key, value)));
    // The process may have stood still since the guardian looked.
    if tenure::clock::boot() >= start.drain_at {
        return StartError::Late;
    }
    StartError::of_exec(&command.exec())
}
