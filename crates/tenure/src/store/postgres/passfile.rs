//! The file of passwords that PostgreSQL's own clients read.
//!
//! It is `$PGPASSFILE`, or `~/.pgpass`. Each line of it is
//! `host:port:database:user:password`; any of the first four may be `*`, and
//! the first line that fits counts. A backslash goes before a `:` or another
//! backslash that belongs to a field. As those clients do, a file that others
//! than its owner may read is left alone, with a warning.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::small;

/// For which connection a password is wanted.
pub(super) struct Login<'a> {
    pub(super) host: &'a str,
    pub(super) port: &'a str,
    pub(super) database: &'a str,
    pub(super) user: &'a str,
}

/// The text of the file that PostgreSQL's own clients read; empty if there is
/// none that may be used.
#[derive(Default)]
pub(super) struct PassFile(String);

impl PassFile {
    /// Reads it, wherever the environment says that it is.
    pub(super) fn of_user() -> Self {
        let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = || named("HOME").map(|home| PathBuf::from(home).join(".pgpass"));
        let path = named("PGPASSFILE").map(PathBuf::from).or_else(home);
        path.map_or_else(Self::default, |path| Self::read(&path))
    }

    fn read(path: &Path) -> Self {
        match read(path) {
            Ok(text) => Self(text),
            Err(error) => {
                // Most people have none.
                if error.kind() != io::ErrorKind::NotFound {
                    let path = path.display();
                    tracing::warn!("{path}: this file of passwords is not used: {error}");
                }
                Self::default()
            }
        }
    }

    /// The password of the first line that fits.
    pub(super) fn find(&self, wanted: &Login<'_>) -> Option<String> {
        let wanted = [wanted.host, wanted.port, wanted.database, wanted.user];
        let mut lines = self.0.lines().filter(|line| !line.starts_with('#'));
        let password = |line: &str| {
            let mut rest = line;
            for wanted in wanted {
                let (field, after) = field(rest)?;
                rest = after;
                if field != "*" && unescape(field) != wanted {
                    return None;
                }
            }
            Some(unescape(rest)).filter(|password| !password.is_empty())
        };
        lines.find_map(password)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let file = small::open(path)?;
    let mode = file.metadata()?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "expected one that its owner alone may read, found mode {mode:04o}; run `chmod 600 {}`",
            path.display()
        )));
    }
    let text = String::from_utf8(small::read_open(&file)?);
    text.map_err(|_| io::Error::other("expected text in UTF-8, found other bytes"))
}

/// The first field of a line as it stands there, and what follows its colon.
fn field(line: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (at, letter) in line.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ':' => return Some((&line[..at], &line[at + 1..])),
            _ => {}
        }
    }
    None
}

fn unescape(text: &str) -> String {
    let mut letters = text.chars();
    let mut plain = String::new();
    while let Some(letter) = letters.next() {
        plain.extend(match letter {
            '\\' => letters.next(),
            other => Some(other),
        });
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn found(text: &str, [host, port, database, user]: [&str; 4]) -> Option<String> {
        let wanted = Login {
            host,
            port,
            database,
            user,
        };
        PassFile(text.into()).find(&wanted)
    }

    #[test]
    fn the_first_line_that_fits_has_the_password() {
        let text = "# host:5432:db:u:comment\n\
                    h1:5432:db:u:one\n\
                    h1:*:*:u:t\\:w\\\\o:x\r\n\
                    ::1:1:*:*:never\n\
                    \\:\\:1:*:*:*:six\n\
                    h2:5432:db:\\*:star\n\
                    nonsense\n\
                    *:*:*:w:last";
        for (wanted, password) in [
            (["h1", "5432", "db", "u"], Some("one")),
            (["h1", "5433", "db", "u"], Some("t:w\\o:x")),
            (["::1", "5432", "db", "v"], Some("six")),
            (["h2", "5432", "db", "*"], Some("star")),
            (["h2", "5432", "db", "v"], None),
            (["h3", "1", "x", "w"], Some("last")),
            (["h3", "1", "x", "u"], None),
        ] {
            assert_eq!(found(text, wanted).as_deref(), password, "{wanted:?}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pgpass");
        std::fs::write(&path, "*:*:*:*:open").expect("written");
        let any = ["h", "1", "d", "u"];
        for (mode, used) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("set");
            let text = PassFile::read(&path).0;
            assert_eq!(found(&text, any).is_some(), used, "{mode:o}");
        }
    }
}
