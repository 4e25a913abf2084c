//! A mark: the highest term that a resource has seen, in a file.
//!
//! The file has one line, `term 7`. It is never written in place: the new mark
//! is written to a file beside it (`FILE.new`), synced and renamed, and the
//! directory is synced. So the mark is whole at every instant, and a term that
//! was recorded is on disk before anything is done in that term. A reader needs
//! no lock.
//!
//! Writers exclude each other by a lock (`flock`) on `FILE.new`. The rename
//! takes the locked file away from that name, so a writer that has waited looks
//! whether the file that it has locked is still the one at the path, and begins
//! again if not. What a writer that died has left there is overwritten.
//!
//! A mark that cannot be read is no mark of term 0: what it had seen is not
//! known, so every term is refused until a person has written the mark again.
//! A mark that is not there has seen nothing; who knows that there was one (a
//! lock file beside it) has to look for it.
//!
//! Left out: several machines. A file on a network file system is locked and
//! renamed as well as that system does it. So is one on a file system of FUSE:
//! `tenure fence` refuses those that are not known to be local, this module takes them.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, OFlags, StatxAttributes, StatxFlags, flock, statx};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::{Deposed, Term};

/// The longest that a mark may be, in bytes; a longer file is none.
const BYTES_MAX: u64 = 64;
/// What a mark's line begins with.
const WORD: &str = "term ";

/// The mark at a path. It may not be there yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    path: PathBuf,
}

/// Why a mark was not raised, by what its caller does next.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// A higher term was seen. The caller stops.
    #[error(transparent)]
    Deposed(#[from] Deposed),
    /// What is there is no mark. A person has to look; nothing was changed.
    #[error("{0}")]
    Damaged(String),
    /// The file system failed. The mark is the one before or the new one, and
    /// nothing may be done in the new term before `raise` has succeeded.
    #[error("{path}: expected to {what} the mark: {error}")]
    Io {
        /// The file that could not be used.
        path: PathBuf,
        /// What could not be done with it.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

impl Mark {
    /// The mark at `path`. Nothing is opened yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path with a suffix of its own.
    pub fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(suffix);
        name.into()
    }

    /// The highest term that was recorded; `None` if there is no file.
    ///
    /// # Errors
    /// [`MarkError::Damaged`] if what is there is no mark, and
    /// [`MarkError::Io`].
    pub fn read(&self) -> Result<Option<Term>, MarkError> {
        self.check_name()?;
        let file = match open_plain(&self.path, OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(|error| self.failed("read", error))?,
        };
        self.check(&file)?;
        let mut text = Vec::new();
        let read = file.take(BYTES_MAX + 1).read_to_end(&mut text);
        read.map_err(|error| self.failed("read", error))?;
        parse(&text).map(Some).ok_or_else(|| {
            self.damaged(
                "one line, `term` and a number",
                // A file that was named by mistake may hold a secret.
                &format!("{} bytes of other text", text.len()),
            )
        })
    }

    /// Records `term`, the fencing token, unless a higher one was recorded. When this returns the
    /// mark is `term`, and is on disk.
    ///
    /// It waits while another process raises the same mark.
    ///
    /// # Errors
    /// [`MarkError::Deposed`] if the mark is higher; the others if it is not
    /// known what the mark is. Nothing may be done in `term` then.
    pub fn raise(&self, term: Term) -> Result<(), MarkError> {
        self.check_directory()?;
        if self.is_at(term)? {
            // Another process may have renamed it and not synced yet.
            return self.sync_directory();
        }
        let (unfinished, file) = self.lock_unfinished()?;
        // Another process may have raised it while this one waited.
        let done = self.is_at(term).and_then(|is_done| match is_done {
            true => remove(&unfinished).map_err(|error| self.failed("raise", error)),
            false => self.write(&unfinished, &file, term),
        });
        if done.is_err() {
            // Nothing depends on its going: the next writer overwrites it.
            let _ = remove(&unfinished);
        }
        done?;
        self.sync_directory()
    }

    /// Whether the mark is `term` already.
    fn is_at(&self, term: Term) -> Result<bool, MarkError> {
        match self.read()? {
            Some(seen) if seen > term => Err(Deposed {
                term,
                seen: Some(seen),
            }
            .into()),
            seen => Ok(seen == Some(term)),
        }
    }

    /// Opens and locks the file that is to be the next mark.
    fn lock_unfinished(&self) -> Result<(PathBuf, File), MarkError> {
        let path = self.beside(".new");
        let failed = |error| MarkError::Io {
            path: path.clone(),
            what: "write",
            error,
        };
        loop {
            let mut options = OpenOptions::new();
            let options = options.write(true).create(true).truncate(false).mode(0o600);
            let file = open_beside(&path, options).map_err(failed)?;
            flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
            // Each turn of the loop is a mark that another process has raised.
            if is_in_place(&path, &file).map_err(failed)? {
                self.check(&file)?;
                return Ok((path, file));
            }
        }
    }

    fn write(&self, unfinished: &Path, mut file: &File, term: Term) -> Result<(), MarkError> {
        let mut write = || {
            file.set_len(0)?;
            file.write_all(text(term).as_bytes())?;
            file.sync_all()?;
            fs::rename(unfinished, &self.path)
        };
        write().map_err(|error| self.failed("raise", error))
    }

    /// Makes the rename durable.
    fn sync_directory(&self) -> Result<(), MarkError> {
        let synced = File::open(self.directory()).and_then(|it| it.sync_all());
        synced.map_err(|error| self.failed("sync the directory of", error))
    }

    fn directory(&self) -> &Path {
        let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        directory.unwrap_or_else(|| Path::new("."))
    }

    /// Refuses a directory in which any account may remove or rename the mark: lower
    /// terms would pass again. With the sticky bit the files of a user are the user's.
    fn check_directory(&self) -> Result<(), MarkError> {
        let directory = self.directory();
        // One that is not there is told of by what is to be made in it.
        let mode = fs::metadata(directory).map_or(0, |about| about.mode() & 0o7777);
        if mode & 0o002 == 0 || mode & 0o1000 != 0 {
            return Ok(());
        }
        let directory = directory.display();
        Err(MarkError::Damaged(format!(
            "{}: expected a mark in a directory whose files not every account may remove, found \
             mode {mode:04o}: without its mark a fence lets lower terms pass; chmod o-w \
             {directory}, or name a mark in a directory of its own below it",
            self.path.display()
        )))
    }

    /// Refuses what may be the next mark, or the lock, of a mark of another name.
    fn check_name(&self) -> Result<(), MarkError> {
        let ends = |suffix| self.path.as_os_str().as_bytes().ends_with(suffix);
        if ends(b".new") || ends(b".lock") {
            return Err(MarkError::Damaged(format!(
                "{}: expected a mark whose name does not end in .new or .lock, which are files \
                 beside marks of other names; name another",
                self.path.display()
            )));
        }
        Ok(())
    }

    /// Refuses a file with two names, a bind mount too. A rename replaces one of
    /// them, and the other one would go on with what it has seen.
    fn check(&self, file: &File) -> Result<(), MarkError> {
        let about = file.metadata();
        let about = about.map_err(|error| self.failed("read", error))?;
        if !about.is_file() {
            return Err(self.damaged("a plain file", "a directory, a device or a pipe"));
        }
        check_owner(&about).map_err(|error| self.failed("use", error))?;
        if is_mounted(file) {
            return Err(self.damaged(
                "a file with one name",
                "a mount of its own, which a rename does not reach; mount its directory",
            ));
        }
        match about.nlink() {
            0 | 1 => Ok(()),
            links => Err(self.damaged("a file with one name", &format!("one with {links}"))),
        }
    }

    fn damaged(&self, expected: &str, found: &str) -> MarkError {
        MarkError::Damaged(format!(
            "{}: expected the mark of a fence ({expected}), found {found}; which terms it has \
             seen is not known, so write the highest term that has led as `term N` and a newline",
            self.path.display()
        ))
    }

    pub(crate) fn failed(&self, what: &'static str, error: io::Error) -> MarkError {
        // What a symbolic link leads to would be replaced by another file than
        // the link, and the two would go on apart.
        if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
            return self.damaged("a plain file", "a symbolic link; name what it leads to");
        }
        MarkError::Io {
            path: self.path.clone(),
            what,
            error,
        }
    }
}

/// Refuses what another user has made, or may write: it would choose what the mark
/// has seen, and whom a fence takes for the holder of the lock.
pub(crate) fn check_owner(about: &Metadata) -> io::Result<()> {
    let (user, mode) = (geteuid().as_raw(), about.mode() & 0o7777);
    if about.uid() == user && mode & 0o002 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "expected a file of user {user}, who runs this, which not everybody may write, found \
             one of user {} with mode {mode:o}; one user runs all commands of a mark",
            about.uid()
        ),
    ))
}

/// Whether a file is mounted by itself. A kernel before Linux 5.8 does not say.
fn is_mounted(file: &File) -> bool {
    let about = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    about.is_ok_and(|it| it.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn text(term: Term) -> String {
    format!("{WORD}{term}\n")
}

/// The term of a mark; `None` for any other way to write it. A line that was
/// cut off has no end, so it is not taken for a lower term.
fn parse(bytes: &[u8]) -> Option<Term> {
    let text_of = std::str::from_utf8(bytes).ok()?;
    let number = text_of.strip_prefix(WORD)?.strip_suffix('\n')?;
    let term = Term::new(number.parse().ok()?)?;
    (text(term) == text_of).then_some(term)
}

/// Opens a file, and neither follows a symbolic link nor waits for a pipe.
pub(crate) fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    options.custom_flags(flags).open(path)
}

/// The same of a file beside a mark. Where it is of another kind the error says so.
pub(crate) fn open_beside(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let opened = open_plain(path, options).and_then(|file| match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Errno::NXIO.into()),
    });
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => io::Error::other(
            "expected a plain file, found a link, a directory, a device or a pipe; remove it",
        ),
        _ => error,
    })
}

/// Whether an open file is the one at a path.
pub(crate) fn is_in_place(path: &Path, file: &File) -> io::Result<bool> {
    let held = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn term(number: u64) -> Term {
        Term::new(number).expect("a term")
    }

    #[test]
    fn a_mark_only_rises() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        assert_eq!(mark.read().expect("none"), None);
        for (number, seen) in [(7, 7), (7, 7), (6, 7), (9, 9), (8, 9)] {
            let raised = mark.raise(term(number));
            match raised {
                Ok(()) => assert_eq!(number, seen),
                Err(MarkError::Deposed(deposed)) => {
                    assert_eq!(
                        (deposed.term, deposed.seen),
                        (term(number), Some(term(seen)))
                    );
                    assert!(number < seen);
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(mark.read().expect("a mark"), Some(term(seen)));
        }
        let text = fs::read_to_string(mark.path()).expect("text");
        assert_eq!(text, "term 9\n");
        let mode = fs::metadata(mark.path()).expect("it").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let names = fs::read_dir(directory.path()).expect("names").count();
        assert_eq!(names, 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_no_mark_refuses_every_term_and_stays() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        let long = "term 1\n".repeat(1_000);
        for text in [
            "",
            "term 7",
            "term 7\n\n",
            "term 07\n",
            "term +7\n",
            "term -1\n",
            "7\n",
            "term \n",
            "Term 7\n",
            "term 9223372036854775808\n",
            "\0\0\0\0\0\0\0",
            "\u{e9}",
            &long,
        ] {
            fs::write(mark.path(), text).expect("written");
            let refused = mark.raise(term(i64::MAX as u64));
            assert!(
                matches!(refused, Err(MarkError::Damaged(_))),
                "{text:?}: {refused:?}"
            );
            assert_eq!(fs::read_to_string(mark.path()).expect("text"), text);
        }
        fs::write(mark.path(), "term 9223372036854775807\n").expect("written");
        mark.raise(Term::MAX).expect("the largest is one");
    }

    #[test]
    fn a_mark_has_one_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let (there, other) = (
            directory.path().join("mark"),
            directory.path().join("other"),
        );
        Mark::at(&there).raise(term(1)).expect("raised");
        symlink(&there, &other).expect("a link");
        let refused = Mark::at(&other).raise(term(2)).expect_err("a link");
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        fs::remove_file(&other).expect("removed");
        fs::hard_link(&there, &other).expect("a link");
        for path in [&there, &other] {
            let refused = Mark::at(path).raise(term(2)).expect_err("two names");
            assert!(refused.to_string().contains("one with 2"), "{refused}");
        }
        let refused = Mark::at(directory.path())
            .raise(term(1))
            .expect_err("a directory");
        assert!(matches!(refused, MarkError::Damaged(_)), "{refused:?}");

        // What it is to be next is a file of its own as well.
        fs::remove_file(&other).expect("removed");
        let mark = Mark::at(&there);
        symlink(&other, mark.beside(".new")).expect("a link");
        let refused = mark.raise(term(2)).expect_err("a link");
        assert!(refused.to_string().contains("found a link"), "{refused}");
        assert_eq!(mark.read().expect("a mark"), Some(term(1)));
    }

    #[test]
    fn what_others_may_write_is_not_used() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        mark.raise(term(9)).expect("raised");
        for name in ["mark", "mark.new"] {
            let path = directory.path().join(name);
            fs::write(&path, "term 9\n").expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("a mode");
            let refused = mark.raise(term(10)).expect_err("everybody may write it");
            assert!(refused.to_string().contains("mode 666"), "{refused}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
        }
        fs::write(mark.beside(".lock"), "").expect("written");
        fs::set_permissions(mark.beside(".lock"), fs::Permissions::from_mode(0o666))
            .expect("a mode");
        let refused = crate::lock::MarkLock::try_take(&mark).expect_err("everybody may write it");
        assert!(refused.to_string().contains("mode 666"), "{refused}");
        assert_eq!(mark.read().expect("a mark"), Some(term(9)));
        // Nor what may be a file beside another mark.
        for suffix in [".new", ".lock"] {
            let beside = Mark::at(mark.beside(suffix));
            let refused = beside.raise(term(9)).expect_err("a name of others");
            assert!(refused.to_string().contains("does not end in"), "{refused}");
        }
    }

    #[test]
    fn a_directory_whose_files_anybody_may_remove_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let mode = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(directory.path(), mode).expect("a mode");
        };
        let mark = Mark::at(directory.path().join("mark"));
        mode(0o777);
        let refused = mark.raise(term(1)).expect_err("anybody may remove it");
        assert!(refused.to_string().contains("found mode 0777"), "{refused}");
        assert_eq!(mark.read().expect("none"), None);
        for mode_of_one in [0o1777, 0o775, 0o755] {
            mode(mode_of_one);
            mark.raise(term(1)).expect("its own");
        }
        mode(0o757);
        let refused = mark.raise(term(2)).expect_err("anybody may remove it");
        assert!(matches!(refused, MarkError::Damaged(_)), "{refused:?}");
        assert_eq!(mark.read().expect("a mark"), Some(term(1)));
    }

    #[test]
    fn what_a_dead_writer_left_is_overwritten() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        fs::write(mark.beside(".new"), "term 99 and much more").expect("written");
        mark.raise(term(3)).expect("raised");
        assert_eq!(mark.read().expect("a mark"), Some(term(3)));
        assert!(!mark.beside(".new").exists());
    }

    /// Each thread sees the mark at or above what it recorded, and the highest stays.
    #[test]
    fn writers_exclude_each_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let mark = Mark::at(directory.path().join("mark"));
        std::thread::scope(|scope| {
            for first in 1..=8 {
                let mark = &mark;
                scope.spawn(move || {
                    for number in (first..200).step_by(8) {
                        match mark.raise(term(number)) {
                            Ok(()) => {
                                let seen = mark.read().expect("a mark");
                                assert!(seen >= Some(term(number)), "{seen:?} {number}");
                            }
                            Err(MarkError::Deposed(it)) => assert!(it.seen > Some(it.term)),
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
        });
        assert_eq!(mark.read().expect("a mark"), Some(term(199)));
    }
}
