//! What becomes the command: it asks to die with its guardian, looks whether
//! the guardian is still there, and turns into CMD.
//!
//! The parent-death signal can only be asked for by the process itself, and
//! survives turning into another program. A process that asks after its
//! parent has died gets no signal, hence the look.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// As shells say: found, but not to be executed; and not found.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The command line of the shim: the guardian's process id, the control group
/// to join (empty: none), then the command.
pub(super) fn command(guardian: i32, group: Option<&Path>, command: &[OsString]) -> Command {
    let mut shim = Command::new("/proc/self/exe");
    shim.arg(super::SHIM).arg(guardian.to_string());
    shim.arg(group.unwrap_or_else(|| Path::new("")));
    shim.args(command);
    shim
}

pub(super) fn main(args: Vec<OsString>) -> ExitCode {
    let [guardian, group, program, rest @ ..] = args.as_slice() else {
        return ExitCode::from(NOT_FOUND);
    };
    if !group.is_empty() {
        super::cgroup::join(Path::new(group));
    }
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() {
        return ExitCode::from(NOT_EXECUTABLE);
    }
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    if parent.map(OsString::from).as_ref() != Some(guardian) {
        return ExitCode::from(NOT_EXECUTABLE);
    }
    let error = Command::new(program).args(rest).exec();
    match error.kind() {
        std::io::ErrorKind::NotFound => ExitCode::from(NOT_FOUND),
        _ => ExitCode::from(NOT_EXECUTABLE),
    }
}

/// Finds the program as the system would, so that a typing error is told
/// before anybody stands for office.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, String> {
    let shown = program.to_string_lossy().into_owned();
    let direct = Path::new(program);
    if shown.contains('/') {
        return executable(direct).map(|()| direct.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut refused = None;
    for directory in std::env::split_paths(&path) {
        let candidate = directory.join(direct);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(why) if candidate.exists() => refused = Some(why),
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        format!("expected a command in $PATH, found none called {shown:?}; give its full path")
    }))
}

fn executable(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let found = std::fs::metadata(path)
        .map_err(|error| format!("expected a command at {shown}: {error}"))?;
    if !found.is_file() {
        return Err(format!(
            "expected a command at {shown}, found a directory or device"
        ));
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(format!(
            "expected an executable command at {shown}, found one without permission to execute; \
             chmod +x it, or run it by its interpreter"
        ));
    }
    Ok(())
}
