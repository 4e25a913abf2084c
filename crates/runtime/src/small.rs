//! Small files that a person has named: certificates, tokens, settings.

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::plain;

/// The largest that is read, in bytes.
pub const SMALL_BYTES_MAX: u64 = 1024 * 1024;

/// What is in a small file. A device or a pipe may never end, nor even open,
/// so only plain files are read (a symbolic link to one is followed).
///
/// # Errors
/// If it is no plain file, is longer than [`SMALL_BYTES_MAX`], or cannot be
/// read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_open(&open(path)?)
}

/// The same, as text.
///
/// # Errors
/// Those of [`read`], and if it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read(path)?);
    text.map_err(|_| wrong("expected text in UTF-8, found other bytes".into()))
}

/// Opens a plain file, to look at it before it is read: what a path leads to
/// may change in between.
///
/// # Errors
/// If it is no plain file, or cannot be opened.
pub fn open(path: &Path) -> io::Result<File> {
    // Without `NONBLOCK` the opening of a pipe waits for a writer; plain files
    // do not heed it.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        let found = "expected a plain file, found a directory, a device or a pipe";
        Err(wrong(found.into()))
    }
}

/// What is in a file that [`open`] has opened.
///
/// # Errors
/// If it is longer than [`SMALL_BYTES_MAX`], or cannot be read.
pub fn read_open(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(SMALL_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    // It may have grown since its length was asked for.
    if bytes.len() as u64 > SMALL_BYTES_MAX {
        return Err(wrong(format!(
            "expected a file of at most {SMALL_BYTES_MAX} bytes, found a longer one"
        )));
    }
    Ok(bytes)
}

/// What is in a file that only its owner, and at most a group, can read.
///
/// # Errors
/// What was expected of the file, and what was found: also if it is longer
/// than `bytes_max` bytes.
pub fn read_secret(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let name = path.display();
    let unread = |error: io::Error| format!("{name}: expected a secret, found: {error}");
    let open = open(path).map_err(unread)?;
    let about = open.metadata().map_err(unread)?;
    let mode = about.mode() & 0o777;
    if mode & 0o027 != 0 {
        return Err(format!(
            "{name}: expected a secret that only its owner reads (or a group, mode 640), found \
             mode {mode:03o}; run `chmod 600 {name}`"
        ));
    }
    if about.len() > bytes_max {
        return Err(format!(
            "{name}: expected a secret of at most {bytes_max} bytes, found {}",
            about.len()
        ));
    }
    read_open(&open).map_err(unread)
}

/// What is in a file that this user alone can have put there, and that only its
/// owner, and at most a group, can read.
///
/// # Errors
/// If the file or its directory is another user's, or others may write there
/// or read it; those of [`read`].
pub fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    let directory = path.parent().unwrap_or_else(|| Path::new("."));
    // Who may write there may put another file in its place.
    check_private(&std::fs::metadata(directory)?, 0o022, "directory")?;
    let file = open(path)?;
    check_private(&file.metadata()?, 0o027, "file")?;
    read_open(&file)
}

/// Refuses what others than this user own, or have one of the rights `not` to.
fn check_private(found: &Metadata, not: u32, what: &str) -> io::Result<()> {
    let me = rustix::process::geteuid().as_raw();
    let (owner, mode) = (found.uid(), found.mode() & 0o777);
    if owner == me && mode & not == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "a {what} of user {owner} with mode {mode:03o}, where one of user {me} without the rights \
         {not:03o} was expected"
    )))
}

/// Where programs of this user keep what outlives them: `$XDG_STATE_HOME`, or
/// `~/.local/state`. `None` if this user has no home.
pub fn state_home() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let state = named("XDG_STATE_HOME").map(PathBuf::from);
    state.or_else(|| named("HOME").map(|home| PathBuf::from(home).join(".local/state")))
}

/// What is wrong with a file of settings, and where: for errors of TOML, whose
/// own words quote the file. A file that was named by mistake may be a secret,
/// so no value that is in it is said; names of settings are.
pub fn misread(text: &str, at: Option<Range<usize>>, why: &str) -> String {
    let why = plain(&without_value(why));
    let Some(before) = at.and_then(|at| text.get(..at.start)) else {
        return why;
    };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default();
    format!("line {line}, column {}: {why}", column.chars().count() + 1)
}

/// The same sentence without the value that was found, which serde quotes. The
/// name of a setting that there is not is cut where it is long.
fn without_value(why: &str) -> Cow<'_, str> {
    const NAME_MAX: usize = 200;
    if let Some(rest) = why.strip_prefix("unknown field `") {
        let (name, expected) = rest.rsplit_once("`, ").unwrap_or((rest, ""));
        if let Some((end, _)) = name.char_indices().nth(NAME_MAX) {
            return format!("unknown field `{}…`, {expected}", &name[..end]).into();
        }
    }
    const QUOTING: [&str; 3] = ["invalid type: ", "invalid value: ", "unknown variant "];
    let Some(begin) = QUOTING.iter().find(|begin| why.starts_with(**begin)) else {
        return why.into();
    };
    let rest = &why[begin.len()..];
    let parts = rest.rsplit_once(", expected ");
    let (found, expected) = parts.unwrap_or((rest, "something else"));
    let kind = found.split(['"', '`']).next().unwrap_or_default();
    format!(
        "{}, expected {expected}",
        format!("{begin}{kind}").trim_end()
    )
    .into()
}

fn wrong(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_of_a_misread_file_is_said() {
        for (why, said) in [
            (
                "invalid type: string \"se, expected cret\", expected a map",
                "invalid type: string, expected a map",
            ),
            (
                "invalid type: integer `1234`, expected a string",
                "invalid type: integer, expected a string",
            ),
            (
                "unknown variant `secret`, expected one of `read`, `append`",
                "unknown variant, expected one of `read`, `append`",
            ),
            ("unknown field `date`", "unknown field `date`"),
            ("missing field `sha256`", "missing field `sha256`"),
        ] {
            let text = "é\nab c";
            let there = format!("line 2, column 3: {said}");
            assert_eq!(misread(text, Some(5..6), why), there);
            assert_eq!(misread(text, None, why), said);
        }
        let long = format!("unknown field `{}`, expected `a`", "é".repeat(10_000));
        let said = format!("unknown field `{}…`, expected `a`", "é".repeat(200));
        assert_eq!(misread("", None, &long), said);
        assert_eq!(misread("", Some(0..0), "no"), "line 1, column 1: no");
        assert_eq!(misread("", Some(7..9), "no"), "no");
    }

    #[test]
    fn only_plain_files_up_to_a_bound_are_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name| directory.path().join(name);
        std::fs::write(path("plain"), "text").expect("a file");
        std::os::unix::fs::symlink("plain", path("link")).expect("a link");
        assert_eq!(read_text(&path("link")).expect("text"), "text");
        let most = usize::try_from(SMALL_BYTES_MAX).expect("it fits");
        std::fs::write(path("most"), vec![b'x'; most]).expect("a file");
        assert_eq!(read(&path("most")).expect("bytes").len(), most);
        std::fs::write(path("more"), vec![b'x'; most + 1]).expect("a file");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .expect("a pipe");
        for (name, words) in [
            (path("more"), "at most 1048576 bytes"),
            (path("pipe"), "expected a plain file"),
            (path(""), "expected a plain file"),
            ("/dev/zero".into(), "expected a plain file"),
        ] {
            let why = read(&name).expect_err("no small file").to_string();
            assert!(why.contains(words), "{}: {why}", name.display());
        }
        let gone = read(&path("gone")).expect_err("nothing");
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
