//! The files that SQLite keeps beside the database.
//!
//! SQLite believes them without a question: a journal beside a database that
//! somebody left in the middle of a write is rolled back into it, and a
//! write-ahead log is read in place of it. In a directory where others may
//! make files, `/tmp` for one, somebody can put such a file there first. Then
//! SQLite writes old pages into a file that he may read, and rolls back what
//! he writes into it: the database is his, and its terms fall. So before a
//! file is opened, after that, and before each transaction, what lies beside
//! it is looked at. It has to be a plain file of somebody who may write the
//! database anyway, and nobody else may write it.
//!
//! Who may write it anyway is the owner of the database, root, and this user;
//! of a database that its group may write, the members of the group, whose
//! journals have that group; of one that anybody may write, anybody.
//!
//! A journal stays when its database gets another mode or group, and SQLite reads no
//! database whose journal it may not read. So a writer whose URL lets the group use the
//! database lets it use the journal as well, as far as the database does.
//!
//! A look and the use that follows it are two moments, and SQLite has no means
//! to make one of them. So a directory in which others may make files is
//! warned of at each start.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::error::StoreError;
use crate::store::FileMode;

/// What SQLite adds to the name of the database.
const ENDS: [&str; 3] = ["-journal", "-wal", "-shm"];
/// A file that is made in such a directory has the directory's group.
const GIVES_ITS_GROUP: u32 = 0o2000;

/// Who may do what with a file or a directory.
#[derive(Clone, Copy, Debug)]
struct Rights {
    owner: u32,
    group: u32,
    mode: u32,
}

impl From<&Metadata> for Rights {
    fn from(found: &Metadata) -> Self {
        Self {
            owner: found.uid(),
            group: found.gid(),
            mode: found.mode() & 0o7777,
        }
    }
}

/// Refuses a file beside the database by which others could change it.
/// `opening`: the file is not in use here yet.
pub(super) fn check(path: &Path, mode: FileMode, opening: bool) -> Result<(), StoreError> {
    let real = real(path);
    for end in ENDS {
        let beside = beside(&real, end);
        let Ok(found) = fs::symlink_metadata(&beside) else {
            continue;
        };
        // Looked at after the file beside it, which is made after it: who
        // starts at the same instant is not taken for a stranger.
        let database = fs::metadata(&real).ok();
        let database = database.as_ref().map(Rights::from);
        let kind = found.file_type();
        let odd = if kind.is_symlink() {
            Some("a symbolic link")
        } else if kind.is_dir() {
            Some("a directory")
        } else if !kind.is_file() {
            Some("a device, a pipe or a socket")
        } else if opening && found.nlink() > 1 {
            Some("a file that has another name as well (a hard link)")
        } else {
            None
        };
        let rights = Rights::from(&found);
        let directory = || fs::metadata(directory(&real)).map_or(0, |it| it.mode());
        if odd.is_some() || !is_trusted(rights, database, me(), mode, directory) {
            return Err(refused(&beside, odd, rights, database, mode));
        }
    }
    Ok(())
}

/// Warns where the directory, the owner of the database, or what lies beside
/// it lets others do what the mode does not say.
pub(super) fn warn(path: &Path, mode: FileMode) {
    let real = real(path);
    let Ok(database) = fs::metadata(&real).as_ref().map(Rights::from) else {
        return;
    };
    let place = real.display();
    if geteuid().is_root() && database.owner != 0 {
        tracing::warn!(
            "{place}: expected a file of root, found one of user {}: that user can change at any \
             time who leads, and which terms were used; run as that user, or use a file of your \
             own",
            database.owner
        );
    }
    let allowed = allowed(Some(database), mode);
    for end in ENDS {
        let beside = beside(&real, end);
        let found = fs::symlink_metadata(&beside).map_or(0, |it| it.mode() & 0o777);
        if found & !allowed & 0o077 != 0 {
            let beside = beside.display();
            tracing::warn!(
                "{beside}: expected mode {allowed:04o}, found {found:04o}: other accounts of this \
                 machine can read there what the database holds; chmod {allowed:04o} {beside}"
            );
        }
    }
    // Of a link the directory that it lies in as well: who makes files there
    // may put another in its place.
    let named = fs::canonicalize(path.parent().unwrap_or(path)).ok();
    let named = named.filter(|it| it != directory(&real));
    for directory in named.iter().map(PathBuf::as_path).chain([directory(&real)]) {
        let Ok(found) = fs::metadata(directory).as_ref().map(Rights::from) else {
            continue;
        };
        let Some(who) = who_else_makes_files(found, database, mode) else {
            continue;
        };
        let shown = directory.display();
        tracing::warn!(
            "{place}: expected a directory in which only user {} makes files, found {shown} with \
             mode {:04o} of user {}: {who} can put a journal beside the database that SQLite \
             rolls back, and so change who leads; use a directory of your own (mode 0700)",
            database.owner,
            found.mode,
            found.owner
        );
    }
}

/// Lets the group of the database use a journal of this user, as far as the URL and the
/// database let it.
pub(super) fn share_journal(path: &Path, mode: FileMode) {
    let journal = beside(&real(path), ENDS[0]);
    if let Err(error) = try_to_share(path, &journal, mode) {
        let journal = journal.display();
        tracing::warn!(
            "{journal}: expected to give it the group and the rights of the database: {error}; \
             others read the database only if they may read this file: chgrp and chmod it as the \
             database"
        );
    }
}

fn try_to_share(path: &Path, journal: &Path, mode: FileMode) -> io::Result<()> {
    let database = Rights::from(&fs::metadata(path)?);
    // What another user has put there in between is not followed.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(journal);
    let Ok(file) = opened else {
        return Ok(());
    };
    let found = file.metadata()?;
    let is_plain = found.is_file() && found.nlink() == 1;
    let Some(wanted) = shared_bits(Rights::from(&found), database, me(), mode) else {
        return Ok(());
    };
    if !is_plain {
        return Ok(());
    }
    if found.gid() != database.group {
        fchown(&file, None, Some(database.group))?;
    }
    file.set_permissions(Permissions::from_mode(wanted))
}

/// The mode that this user's journal should have; none if it is to stay as it is. It
/// gets no right that the URL or the database does not give.
fn shared_bits(journal: Rights, database: Rights, me: u32, mode: FileMode) -> Option<u32> {
    let given = mode.bits() & database.mode & 0o060;
    let has = journal.mode & 0o060;
    let is_done = has == given && journal.group == database.group;
    // Rights that it has beside these another group must not get.
    let has_more = has & !given != 0;
    let is_left = given == 0 || is_done || has_more || journal.owner != me;
    (!is_left).then_some(journal.mode & 0o777 | given)
}

/// What to say of a journal that this user may not read, beside a database that this
/// user may.
pub(super) fn unreadable(path: &Path) -> Option<StoreError> {
    without_rights(path, Access::READ_OK, "read")
}

/// The same of one that this user may not write.
pub(super) fn unwritable(path: &Path) -> Option<StoreError> {
    without_rights(path, Access::READ_OK | Access::WRITE_OK, "write")
}

fn without_rights(path: &Path, rights: Access, to: &str) -> Option<StoreError> {
    let real = real(path);
    let journal = beside(&real, ENDS[0]);
    let found = fs::symlink_metadata(&journal).ok()?;
    let database = fs::metadata(&real).ok()?.mode() & 0o666;
    if access(&journal, rights) != Err(Errno::ACCESS) {
        return None;
    }
    let (mode, owner, journal) = (found.mode() & 0o777, found.uid(), journal.display());
    Some(StoreError::broken(format!(
        "expected {journal} to be a file that this user may {to}, as the database is, found mode \
         {mode:04o} of user {owner}; chmod {database:04o} {journal}, as the database is, or for a \
         group say ?mode=0640 or ?mode=0660 in the URL of the writer, which gives it that mode"
    )))
}

/// Symbolic links to the database are followed, and the journal lies beside
/// what they lead to.
fn real(path: &Path) -> PathBuf {
    let within = |directory: &Path| Some(fs::canonicalize(directory).ok()?.join(path.file_name()?));
    let real = fs::canonicalize(path).ok();
    real.or_else(|| within(path.parent()?))
        .unwrap_or_else(|| path.to_owned())
}

fn beside(real: &Path, end: &str) -> PathBuf {
    let mut name = real.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn directory(real: &Path) -> &Path {
    real.parent().unwrap_or(real)
}

fn me() -> u32 {
    geteuid().as_raw()
}

/// The rights of others that a file beside the database may give: SQLite gives
/// it those of the database.
fn allowed(database: Option<Rights>, mode: FileMode) -> u32 {
    let rights = database.map_or(0, |it| it.mode & 0o666);
    rights | mode.bits()
}

/// Whether nobody may write a file beside the database who may not write the
/// database. One that others may merely read is no danger to it, and an old
/// journal stays so when its database gets another mode: that is warned of.
fn is_trusted(
    found: Rights,
    database: Option<Rights>,
    me: u32,
    mode: FileMode,
    directory: impl FnOnce() -> u32,
) -> bool {
    if found.mode & !allowed(database, mode) & 0o022 != 0 {
        return false;
    }
    let Some(database) = database else {
        // Left by a database of this user that was removed.
        return found.owner == me;
    };
    if [me, 0, database.owner].contains(&found.owner) || database.mode & 0o002 != 0 {
        return true;
    }
    // Only members of a group can give a file to it, unless the directory
    // does so for anybody.
    let for_anybody = GIVES_ITS_GROUP | 0o002;
    database.mode & 0o020 != 0
        && found.group == database.group
        && directory() & for_anybody != for_anybody
}

fn refused(
    beside: &Path,
    odd: Option<&str>,
    found: Rights,
    database: Option<Rights>,
    mode: FileMode,
) -> StoreError {
    let beside = beside.display();
    let (owner, allowed) = (
        database.map_or_else(me, |it| it.owner),
        allowed(database, mode),
    );
    let odd = odd.unwrap_or("a file");
    let (when, advice) = match database {
        None => (
            ", and no database beside it",
            "remove it, or use a directory of your own".to_owned(),
        ),
        Some(_) => (
            "",
            format!(
                "if a process that you trust left it in the middle of a write, chown it to user \
                 {owner} and chmod {allowed:04o} it, else remove it; and use a directory of your \
                 own"
            ),
        ),
    };
    StoreError::broken(format!(
        "expected {beside} to be a plain file of user {owner} with mode {allowed:04o} at most, or \
         not there, found {odd} of user {} with mode {:04o}{when}: who may write it can change \
         the database, since SQLite brings back what it says; {advice}",
        found.owner,
        found.mode & 0o777
    ))
}

/// Who can make files in this directory beside root, this user, the owner of
/// the database, and the group that is meant to.
fn who_else_makes_files(
    directory: Rights,
    database: Rights,
    mode: FileMode,
) -> Option<&'static str> {
    // A group of this user's own is on many systems the user alone.
    let meant = mode == FileMode::GroupWrites || directory.group == getegid().as_raw();
    if directory.mode & 0o002 != 0 {
        Some("any account of this machine")
    } else if ![me(), 0, database.owner].contains(&directory.owner) {
        Some("its owner")
    } else if directory.mode & 0o020 != 0 && !meant {
        Some("its group")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u32 = 1000;
    const OTHER: u32 = 2001;

    fn rights(owner: u32, group: u32, mode: u32) -> Rights {
        Rights { owner, group, mode }
    }

    fn trusted(found: Rights, database: Option<Rights>, mode: FileMode) -> bool {
        is_trusted(found, database, ME, mode, || 0o1777)
    }

    #[test]
    fn before_there_is_a_database_only_ones_own_file_may_lie_there() {
        for (owner, mode, is) in [
            (ME, 0o600, true),
            (ME, 0o644, true),
            (ME, 0o666, false),
            (OTHER, 0o600, false),
            (OTHER, 0o666, false),
            (0, 0o600, false),
        ] {
            let found = rights(owner, owner, mode);
            assert_eq!(trusted(found, None, FileMode::Owner), is, "{found:?}");
        }
    }

    #[test]
    fn a_file_beside_the_database_is_of_those_who_may_write_the_database() {
        let (mine, theirs) = (rights(ME, ME, 0o600), rights(OTHER, OTHER, 0o644));
        let shared = rights(ME, 50, 0o660);
        let anybodys = rights(ME, ME, 0o666);
        for (found, database, is) in [
            (rights(ME, ME, 0o600), mine, true),
            (rights(0, 0, 0o600), mine, true),
            (rights(OTHER, OTHER, 0o600), mine, false),
            (rights(ME, ME, 0o620), mine, false),
            (rights(OTHER, OTHER, 0o644), theirs, true),
            (rights(7, 7, 0o644), theirs, false),
            (rights(OTHER, 50, 0o660), shared, true),
            (rights(OTHER, 51, 0o660), shared, false),
            (rights(OTHER, 50, 0o666), shared, false),
            (rights(OTHER, OTHER, 0o666), anybodys, true),
        ] {
            let judged = trusted(found, Some(database), FileMode::Owner);
            assert_eq!(judged, is, "{found:?} beside {database:?}");
        }
    }

    #[test]
    fn a_journal_is_shared_as_far_as_the_url_and_the_database_say() {
        use FileMode::{GroupReads, GroupWrites, Owner};
        let journal = rights(ME, 50, 0o600);
        for (database, mode, wanted) in [
            (rights(ME, 50, 0o640), GroupReads, Some(0o640)),
            (rights(ME, 50, 0o660), GroupWrites, Some(0o660)),
            (rights(ME, 51, 0o640), GroupReads, Some(0o640)),
            // The URL asks for less than the database gives, or for more.
            (rights(ME, 50, 0o644), Owner, None),
            (rights(ME, 50, 0o664), GroupReads, Some(0o640)),
            (rights(ME, 50, 0o640), GroupWrites, Some(0o640)),
            (rights(ME, 50, 0o600), GroupWrites, None),
        ] {
            let found = shared_bits(journal, database, ME, mode);
            assert_eq!(found, wanted, "{database:?} {mode:?}");
        }
        let database = rights(ME, 50, 0o640);
        for (journal, why) in [
            (rights(OTHER, 50, 0o600), "of another user"),
            (rights(ME, 50, 0o640), "done"),
            (rights(ME, 51, 0o660), "its group may write it"),
        ] {
            let found = shared_bits(journal, database, ME, GroupReads);
            assert_eq!(found, None, "{why}");
        }
    }

    #[test]
    fn a_group_that_the_directory_gives_to_anybody_proves_nothing() {
        let (found, shared) = (rights(OTHER, 50, 0o660), rights(ME, 50, 0o660));
        for (directory, is) in [(0o2770, true), (0o1777, true), (0o3777, false)] {
            let mode = FileMode::GroupWrites;
            let judged = is_trusted(found, Some(shared), ME, mode, || directory);
            assert_eq!(judged, is, "{directory:o}");
        }
    }

    #[test]
    fn a_directory_where_others_make_files_is_told() {
        let (user, group) = (me(), getegid().as_raw());
        let database = rights(user, group, 0o600);
        let elsewhere = group + 1;
        for (directory, mode, told) in [
            (rights(user, group, 0o755), FileMode::Owner, false),
            (rights(user, group, 0o775), FileMode::Owner, false),
            (rights(0, 0, 0o755), FileMode::Owner, false),
            (rights(0, 0, 0o1777), FileMode::Owner, true),
            (rights(user + 1, group, 0o755), FileMode::Owner, true),
            (rights(user, elsewhere, 0o2770), FileMode::Owner, true),
            (
                rights(user, elsewhere, 0o2770),
                FileMode::GroupWrites,
                false,
            ),
        ] {
            let who = who_else_makes_files(directory, database, mode);
            assert_eq!(who.is_some(), told, "{directory:?}: {who:?}");
        }
    }
}
