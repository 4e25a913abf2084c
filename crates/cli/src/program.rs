//! Looking for CMD before anybody stands, so that a typing error
//! is told at once and not at the first election.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Finds the program as the system would, so that a typing error is told
/// before anybody stands.
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
