//! Looking for CMD before a candidate stands, so that a typing error
//! is told at once and not at the first election.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Why a program cannot be run.
#[derive(Debug)]
pub(crate) struct Unusable {
    /// What was expected, what was found and what to do.
    pub(crate) why: String,
    /// Whether there is none, rather than one that cannot be executed.
    pub(crate) is_missing: bool,
}

/// Finds the program as the system would.
pub(crate) fn find(program: &OsStr) -> Result<PathBuf, Unusable> {
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
    Err(refused.unwrap_or_else(|| Unusable {
        why: format!(
            "expected a command in $PATH, found none called {shown:?}; give its full path"
        ),
        is_missing: true,
    }))
}

fn executable(path: &Path) -> Result<(), Unusable> {
    let shown = path.display();
    let unusable = |why: String| Unusable {
        why,
        is_missing: false,
    };
    let found = std::fs::metadata(path).map_err(|error| Unusable {
        why: format!("expected a command at {shown}: {error}"),
        is_missing: error.kind() == io::ErrorKind::NotFound,
    })?;
    if !found.is_file() {
        return Err(unusable(format!(
            "expected a command at {shown}, found a directory or device"
        )));
    }
    if found.permissions().mode() & 0o111 == 0 {
        return Err(unusable(format!(
            "expected an executable command at {shown}, found one without permission to execute; \
             chmod +x it, or run it by its interpreter"
        )));
    }
    Ok(())
}
