//! A file of variables for a workload (`--env-file`), on the node that has it.
//!
//! Secrets belong there and not into the store. The shim reads the file when it
//! starts an instance, and gives the variables to that instance alone. The format
//! is that of Docker: `NAME=VALUE` a line, the value as it stands there. Lines
//! that are blank or begin with `#` do not count.

use std::ffi::OsString;
use std::path::Path;

use tenure::small;

/// The longest file, in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The variables in the file, which only its owner, and at most a group, may
/// read.
///
/// # Errors
/// What was expected, and what was found; no value that is in it.
pub(super) fn read(path: &Path) -> Result<Vec<(OsString, OsString)>, String> {
    let bytes = small::read_secret(path, BYTES_MAX)?;
    let wrong = |why: String| format!("{}: {why}", path.display());
    let text = String::from_utf8(bytes)
        .map_err(|_| wrong("expected text in UTF-8, found other bytes".into()))?;
    let mut variables = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let named = line.split_once('=').filter(|(name, _)| {
            !name.is_empty() && !name.contains(char::is_whitespace) && !line.contains('\0')
        });
        let (name, value) = named.ok_or_else(|| {
            wrong(format!(
                "line {}: expected NAME=VALUE, found something else",
                at + 1
            ))
        })?;
        variables.push((name.into(), value.into()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_has_a_variable_a_line() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("env");
        let write = |text: &str, mode| {
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let missing = read(&path).expect_err("there is none");
        assert!(missing.contains("No such file"), "{missing}");
        write("# a comment\n\nA=b c=\"d\"\nEMPTY=\n", 0o600);
        let pair = |name: &str, value: &str| (name.into(), value.into());
        assert_eq!(
            read(&path),
            Ok(vec![pair("A", "b c=\"d\""), pair("EMPTY", "")])
        );
        for text in [
            "A=b\n5ecre7\n",
            "A=b\n=5ecre7",
            "A=b\nexport B=5ecre7",
            "A=b\nB=5ecre7\0",
        ] {
            write(text, 0o600);
            let why = read(&path).expect_err(text);
            assert!(why.contains("line 2") && !why.contains("5ecre7"), "{why}");
        }
        write("A=b", 0o644);
        let why = read(&path).expect_err("others may read it");
        assert!(why.contains("found mode 644"), "{why}");
    }
}
