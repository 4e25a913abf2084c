//! A server's data directory.
//!
//! Beside the log (`tenure wal inspect DIR` shows it) there are small files,
//! and one more where reads were ever answered by a lease (`silence`).
//! `founders` says whom the cluster began with, which is the state before the
//! log's first entry; it is empty for one that came later. `storage` holds the
//! number that was drawn when the directory was made, and by which a wiped disk
//! is known for what it is; it is there before the server first speaks.
//!
//! `addresses` holds what is known of where the others are, so that a server
//! that was away while they moved finds them; losing it loses nothing. `starts`
//! counts the starts of servers on the directory, so that others notice one
//! that was set back or copied; `set-back` is there if they did, and says what
//! they said. `restoring` is there while a backup is restored: no server starts in a
//! directory whose restore was cut short, because it would found an empty cluster.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};
use tenure_runtime::{clock, small};

use tenure_alpo::{ClusterId, MAX_NUMBER, MemberDisks, ServerId, Start, StorageId};
use tenure_alpo::{Identity, Membership, Recovered, State};
use tenure_core::time::ClockId;

use super::config::limits;
use super::data_file::{VERSION, failed, write};
use super::no_vote_time::NoVoteTime;
use crate::transport::{AddressBook, Contact};
use crate::wal::{self, Directory, LOCK, Wal, WalError};

const STORAGE: &str = "storage";
const FOUNDERS: &str = "founders";
const PROMISED: &str = "promised";
const ADDRESSES: &str = "addresses";
const STARTS: &str = "starts";
const SET_BACK: &str = "set-back";
/// Nothing is in it.
const RESTORING: &str = "restoring";

/// What a data directory holds when a server starts.
#[derive(Debug)]
pub(super) enum DataDirectory {
    /// Nothing but a storage number: the server is blank.
    Blank(StorageId, BlankDirectory),
    /// A log.
    OpenLog(Box<OpenLog>),
}

/// A log, and what its server needs beside it to start.
#[derive(Debug)]
pub(super) struct OpenLog {
    /// Whose it is.
    pub(super) identity: Identity,
    pub(super) wal: Wal,
    /// What it holds.
    pub(super) recovered: Recovered,
    /// The state before its first entry.
    pub(super) blank: State,
    /// What its directory owes; not less than what the settings owe.
    pub(super) no_vote_time: Arc<NoVoteTime>,
}

/// The directory of a server that has no log yet. It is locked as long as
/// this lives.
#[derive(Debug)]
pub(super) struct BlankDirectory {
    directory: Directory,
    path: PathBuf,
    options: wal::Options,
    /// What the settings owe ([`NoVoteTime`]).
    owes: Duration,
}

impl BlankDirectory {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a promise to found a cluster with these durable.
    pub(super) fn promise(&self, table: &MemberDisks) -> Result<(), WalError> {
        let table = table.iter().map(|(id, storage)| (*id, *storage));
        write_table(&self.path, PROMISED, table)
    }

    /// Makes the log of a server that has just become part of a cluster. Whom
    /// the cluster was founded with is durable before it.
    pub(super) fn fill(
        self,
        identity: Identity,
        members: &Membership,
    ) -> Result<OpenLog, WalError> {
        let table = members.iter().map(|(id, member)| (id, member.storage));
        write_table(&self.path, FOUNDERS, table)?;
        let disk = self.directory.with_spares_of(self.options.segment_bytes);
        let wal = Wal::create_on(Box::new(disk), &identity, self.options)?;
        OpenLog::of(&self.path, identity, (wal, Recovered::default()), self.owes)
    }
}

impl OpenLog {
    /// Raises what `dir` owes to `owes`, durably: before the state
    /// machine can answer.
    fn of(
        dir: &Path,
        identity: Identity,
        (wal, mut recovered): (Wal, Recovered),
        owes: Duration,
    ) -> Result<Self, WalError> {
        let blank = blank(dir, identity.cluster)?;
        let no_vote_time = NoVoteTime::open(dir, owes)?;
        recovered.no_vote_time = no_vote_time.time();
        Ok(Self {
            identity,
            wal,
            recovered,
            blank,
            no_vote_time,
        })
    }
}

/// The log's time, as the clock of a store that all of a cluster share.
pub(super) fn clock(cluster: ClusterId) -> ClockId {
    let bits = cluster.to_u128();
    ClockId {
        boot: (bits >> 64) as u64,
        namespace: bits as u64,
    }
}

/// Says so if others than its owner may read the directory. One that is made
/// here is the owner's alone; one that was there stays as it is.
fn warn_if_others_may_read(dir: &Path) {
    let Ok(found) = fs::metadata(dir) else {
        return;
    };
    let (mode, owner, me) = (found.mode() & 0o777, found.uid(), geteuid().as_raw());
    // Whose root is may do everything anyway.
    if owner != me && owner != 0 {
        tracing::warn!(
            "{}: expected a directory of user {me} (this process) or of root, found one of user \
             {owner}, who can read and change what it holds",
            dir.display()
        );
    }
    if mode & 0o077 != 0 {
        let dir = dir.display();
        tracing::warn!(
            "{dir}: expected a directory that only its owner may enter (mode 0700), found mode \
             {mode:04o}: other accounts of this machine can read what it holds; chmod 700 {dir}"
        );
    }
}

/// Opens the data directory of `server`, or makes one. Its settings owe a
/// time without votes of `owes`.
pub(super) fn open(
    dir: &Path,
    server: ServerId,
    options: wal::Options,
    owes: Duration,
) -> Result<DataDirectory, WalError> {
    warn_if_others_may_read(dir);
    refuse_half_restored(dir)?;
    if let Some(mut identity) = wal::identity(dir)? {
        // Whose it is must be the number that was asked for; the rest is its
        // own.
        identity.server = server;
        let opened = Wal::open(dir, &identity, options)?;
        let log = OpenLog::of(dir, identity, opened, owes)?;
        return Ok(DataDirectory::OpenLog(Box::new(log)));
    }
    let (storage, blank) = without_log(Directory::lock(dir)?, dir, options, owes)?;
    Ok(DataDirectory::Blank(storage, blank))
}

fn without_log(
    directory: Directory,
    dir: &Path,
    options: wal::Options,
    owes: Duration,
) -> Result<(StorageId, BlankDirectory), WalError> {
    let storage = match read_storage(dir)? {
        Some(storage) => storage,
        None => draw_storage(dir)?,
    };
    let blank_directory = BlankDirectory {
        directory,
        path: dir.to_owned(),
        options,
        owes,
    };
    Ok((storage, blank_directory))
}

/// Locks a directory, or makes one, to restore a backup into it.
pub(super) fn lock_to_restore(dir: &Path) -> Result<Directory, WalError> {
    warn_if_others_may_read(dir);
    Directory::lock(dir)
}

/// Begins to restore a backup into a directory that has no log. No server starts in it
/// until [`end_restore`].
pub(super) fn begin_restore(
    directory: Directory,
    dir: &Path,
) -> Result<(StorageId, BlankDirectory), WalError> {
    write(dir, RESTORING, "").map_err(failed(&dir.join(RESTORING), "write"))?;
    without_log(directory, dir, wal::Options::default(), Duration::ZERO)
}

/// Everything that is restored is on the disk.
pub(super) fn end_restore(dir: &Path) -> Result<(), WalError> {
    let mark = dir.join(RESTORING);
    let removed = fs::remove_file(&mark).and_then(|()| fs::File::open(dir)?.sync_all());
    removed.map_err(failed(&mark, "remove"))
}

/// Fails if a restore into the directory has begun and not ended.
pub(super) fn refuse_half_restored(dir: &Path) -> Result<(), WalError> {
    let mark = dir.join(RESTORING);
    if mark.exists() {
        return Err(WalError::half_restored(mark));
    }
    Ok(())
}

/// With whom this directory has promised to found a cluster; nothing, if it
/// has not.
pub(super) fn read_promise(dir: &Path) -> Result<Option<MemberDisks>, WalError> {
    if !dir.join(PROMISED).exists() {
        return Ok(None);
    }
    let expected = "the servers with which this one has agreed to found a cluster; stop all of \
                    them, and empty --data of each that has founded nothing";
    read_table(dir, PROMISED, expected).map(|table| Some(table.into_iter().collect()))
}

fn write_table(
    dir: &Path,
    name: &str,
    table: impl Iterator<Item = (ServerId, StorageId)>,
) -> Result<(), WalError> {
    let mut text = format!("{VERSION}\n");
    for (server, storage) in table {
        text.push_str(&format!("{} {storage}\n", server.get()));
    }
    write(dir, name, &text).map_err(failed(&dir.join(name), "write"))
}

fn read_table(
    dir: &Path,
    name: &str,
    expected: &'static str,
) -> Result<Vec<(ServerId, StorageId)>, WalError> {
    let path = dir.join(name);
    let text = small::read_text(&path).map_err(failed(&path, "read"))?;
    let parse = |line: &str| {
        let (server, storage) = line.split_once(' ')?;
        let server = ServerId::new(server.parse().ok()?)?;
        Some((server, StorageId::parse(storage)?))
    };
    let mut lines = text.lines();
    let version = lines.next() == Some(VERSION);
    let members: Option<Vec<_>> = lines.map(parse).collect();
    let found = members.filter(|_| version);
    found.ok_or_else(|| WalError::damaged(path, 0, expected, "something else"))
}

/// The state before the first entry of the log.
fn blank(dir: &Path, cluster: ClusterId) -> Result<State, WalError> {
    let expected = "the servers that founded the cluster; restore the file, or replace this \
                    server by an empty one";
    let bootstrapped = Membership::bootstrapped(read_table(dir, FOUNDERS, expected)?);
    Ok(State::bootstrapped(limits(), clock(cluster), bootstrapped))
}

fn read_storage(dir: &Path) -> Result<Option<StorageId>, WalError> {
    let path = dir.join(STORAGE);
    let text = match small::read_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&path, "read")(error)),
    };
    let storage = text
        .strip_prefix(VERSION)
        .and_then(|rest| StorageId::parse(rest.trim()));
    let Some(storage) = storage else {
        let expected = "the number of a data directory; remove the directory if it was never used";
        return Err(WalError::damaged(path, 0, expected, "something else"));
    };
    Ok(Some(storage))
}

fn draw_storage(dir: &Path) -> Result<StorageId, WalError> {
    let path = dir.join(STORAGE);
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        failed(&path, "draw a number for")(std::io::Error::other(error.to_string()))
    })?;
    let storage = StorageId::from_u128(u128::from_le_bytes(bits));
    write(dir, STORAGE, &format!("{VERSION}\n{storage}\n")).map_err(failed(&path, "write"))?;
    Ok(storage)
}

/// Counts one more start of a server on this directory, which is locked, and
/// draws its random number.
///
/// The count is on the disk before it is told: a count that another server
/// has heard is never given out again by this directory, whatever crashes.
pub(super) fn count_start(dir: &Path) -> Result<Start, WalError> {
    let path = dir.join(STARTS);
    let before = match small::read_text(&path) {
        Ok(text) => {
            let rest = text.strip_prefix(VERSION).map(str::trim);
            rest.and_then(|rest| rest.parse::<u64>().ok())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(0),
        Err(error) => return Err(failed(&path, "read")(error)),
    };
    let Some(counter) = before.and_then(|before| before.checked_add(1)) else {
        let expected = "the number of starts of a server on this directory; replace this server \
                        by an empty one";
        return Err(WalError::damaged(path, 0, expected, "something else"));
    };
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        failed(&path, "draw a number for")(std::io::Error::other(error.to_string()))
    })?;
    write(dir, STARTS, &format!("{VERSION}\n{counter}\n")).map_err(failed(&path, "write"))?;
    Ok(Start {
        counter,
        random: u128::from_le_bytes(bits),
        lock: lock_of(dir, clock::id()).unwrap_or(0),
    })
}

/// The number of the lock that this process holds on the directory; `None`
/// where it cannot be told from a lock on another machine, or of another boot.
fn lock_of(dir: &Path, boot: Option<ClockId>) -> Option<u128> {
    let file = fs::metadata(dir.join(LOCK)).ok()?;
    let boot = boot?;
    let mut hash = Sha256::new();
    for part in [boot.boot, boot.namespace, file.dev(), file.ino()] {
        hash.update(part.to_le_bytes());
    }
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().copied().map(u128::from_le_bytes)
}

/// What others have said of this directory, if they found it to be set back.
pub(super) fn read_set_back(dir: &Path) -> Result<Option<String>, WalError> {
    let path = dir.join(SET_BACK);
    match small::read_text(&path) {
        Ok(text) => {
            let said = text.strip_prefix(VERSION).unwrap_or(&text);
            Ok(Some(said.trim().to_owned()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&path, "read")(error)),
    }
}

/// Writes down that this directory was set back. The counter of its starts
/// grows, and after some of them others could not tell any more.
pub(super) fn write_set_back(dir: &Path, said: &str) {
    if let Err(error) = write(dir, SET_BACK, &format!("{VERSION}\n{said}\n")) {
        tracing::warn!("it could not be written down that this directory was set back: {error}");
    }
}

/// The addresses that were known when the server last ran; none if there are
/// none that can be read.
pub(super) fn read_address_book(dir: &Path) -> AddressBook {
    let mut address_book = AddressBook::default();
    let text = small::read_text(&dir.join(ADDRESSES)).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() != Some(VERSION) {
        return address_book;
    }
    for line in lines {
        let mut words = line.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        if let (Some(id), Some(edition)) = (number().and_then(ServerId::new), number())
            && let (Some(peer), Some(client)) = (words.next(), words.next())
        {
            let contact = Contact {
                edition,
                peer: peer.to_owned(),
                client: client.trim_matches('-').to_owned(),
            };
            if edition > MAX_NUMBER {
                tracing::warn!(
                    server = id.get(),
                    "{}: expected an edition of at most 2^62, found {edition} for {peer}: the \
                     address is dropped, and learnt again from that server (was it forged?)",
                    dir.join(ADDRESSES).display()
                );
                continue;
            }
            address_book.learn_one(id, &contact);
        }
    }
    address_book
}

/// Keeps the addresses; a failure costs nothing but a warning.
pub(super) fn write_address_book(dir: &Path, address_book: &AddressBook) {
    let mut text = format!("{VERSION}\n");
    for (id, contact) in address_book.iter() {
        let client = if contact.client.is_empty() {
            "-"
        } else {
            &contact.client
        };
        let line = format!(
            "{} {} {} {client}\n",
            id.get(),
            contact.edition,
            contact.peer
        );
        text.push_str(&line);
    }
    let known = small::read_text(&dir.join(ADDRESSES));
    if known.is_ok_and(|known| known == text) {
        return;
    }
    if let Err(error) = write(dir, ADDRESSES, &text) {
        tracing::warn!("the addresses of the other servers could not be kept: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_are_too_new_are_dropped_and_the_others_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let most = MAX_NUMBER;
        let text = format!(
            "{VERSION}\n1 {max} forged:1 forged:2\n2 {beyond} forged:1 -\n3 {most} h:1 h:2\n\
             4 7 h:1 -\n",
            max = u64::MAX,
            beyond = most + 1,
        );
        fs::write(dir.path().join(ADDRESSES), text).expect("written");
        let address_book = read_address_book(dir.path());
        let known: Vec<_> = address_book
            .iter()
            .map(|(id, it)| (id.get(), it.edition))
            .collect();
        assert_eq!(known, [(3, most), (4, 7)]);
    }
}
