//! The secret by which servers without TLS know each other.
//!
//! It is what `--peer-secret-file` says. A cluster whose servers are all on
//! one machine (each address of `--peers` is a loopback one) shares one by
//! itself: the first server that is started with an empty directory draws it
//! for its user, under `$XDG_STATE_HOME/tenure/peer-secret`, and each keeps a
//! copy in its own directory, which goes with the directory wherever the
//! server moves. A directory that has a log and no such copy is
//! of a cluster that was founded without a secret, and goes on without.

use std::fs;
use std::io::{self, Write as _};
use std::net::ToSocketAddrs as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use tenure::small;
use tenure_server::Config;
use tenure_server::transport::{FilesError, PeerSecret};

use crate::agent::state_directory;
use crate::args::Serve;
use crate::failure::{Failure, usage};

/// The name of the file, of a user and in a data directory.
const NAME: &str = "peer-secret";
/// How much is drawn, in bytes.
const BYTES: usize = 32;

/// The secret that a server is to use, if there is one.
pub(crate) fn of(args: &Serve, settings: &Config) -> Result<Option<PeerSecret>, Failure> {
    let optional = args.peer_secret_optional;
    let secret = match &args.peer_secret_file {
        Some(file) => {
            let read = PeerSecret::read(file);
            Some(read.map_err(|error| unread("--peer-secret-file: ", &error))?)
        }
        None if settings.tls.is_some() => None,
        None => by_itself(settings)?,
    };
    Ok(secret.map(|secret| secret.or_none(optional)))
}

fn unread(flag: &str, error: &FilesError) -> Failure {
    let text = format!("{flag}{error}");
    match error {
        FilesError::Wrong(_) => usage(text),
        // It may answer at the next start.
        FilesError::Late(_) => Failure::Other(anyhow::Error::msg(text)),
    }
}

/// The secret of a cluster that is on this machine alone.
fn by_itself(settings: &Config) -> Result<Option<PeerSecret>, Failure> {
    let own = settings.data.join(NAME);
    let read = |file: &Path| {
        let others = |why| usage(format!("{}: {why}", file.display()));
        check_owner(&fs::metadata(file).map_err(others)?).map_err(others)?;
        let read = PeerSecret::read(file);
        read.map(Some).map_err(|error| unread("", &error))
    };
    // Wherever its servers are by now: the others ask for the proof.
    // A link that leads nowhere is refused, too.
    if fs::symlink_metadata(&own).is_ok() {
        return read(&own);
    }
    if !settings.peers.values().all(|address| is_loopback(address)) {
        return Ok(None);
    }
    // A log that cannot be read is refused when it is opened.
    if !matches!(tenure_server::wal::identity(&settings.data), Ok(None)) {
        return Ok(None);
    }
    match shared()? {
        Some(secret) => match keep(&settings.data, &secret) {
            Ok(()) => read(&own),
            // A directory that cannot be written is named when it is opened.
            Err(error) => {
                tracing::debug!("{}: {error}", settings.data.display());
                Ok(None)
            }
        },
        None => Ok(None),
    }
}

/// The secret of this user, which is drawn if there is none; `None` if this
/// user has no home for it.
///
/// # Errors
/// If what is there is none of this user alone. A server must not be founded
/// without a secret then: its user would take it for one that has the secret.
pub(crate) fn shared() -> Result<Option<Vec<u8>>, Failure> {
    match state_directory::root(None) {
        Ok(nodes) => of_user(&nodes.with_file_name(NAME)),
        Err(_) => Ok(None),
    }
}

/// Gives a data directory the secret, unless it has one.
pub(crate) fn keep(data: &Path, secret: &[u8]) -> io::Result<()> {
    place_once(&data.join(NAME), secret, true)
}

fn of_user(shared: &Path) -> Result<Option<Vec<u8>>, Failure> {
    // A link that leads nowhere is there, too.
    if fs::symlink_metadata(shared).is_err()
        && let Err(error) = draw().and_then(|drawn| place_once(shared, drawn.as_bytes(), true))
    {
        tracing::warn!("this machine's servers share no secret: {error}");
        return Ok(None);
    }
    let read = small::read_private(shared);
    read.map(Some).map_err(|error| {
        usage(format!(
            "{}: expected the secret that the servers of this user share, found: {error}; mend it, \
             or name another by --peer-secret-file, or another place for it by $XDG_STATE_HOME",
            shared.display()
        ))
    })
}

/// Refuses a directory's copy that another user could have placed there: who
/// knows the secret can be a server.
fn check_owner(found: &fs::Metadata) -> io::Result<()> {
    let (owner, me) = (found.uid(), geteuid().as_raw());
    if owner == me || owner == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "expected a secret of user {me} (this process) or of root, found one of user {owner}: run \
         this server as that user, or, if that user has placed it there, use another --data"
    )))
}

fn draw() -> io::Result<String> {
    let mut bits = [0; BYTES];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bits)?;
    let text: String = bits.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{text}\n"))
}

/// A secret that is kept nowhere.
pub(crate) fn drawn() -> Result<PeerSecret, Failure> {
    PeerSecret::new(draw()?.as_bytes()).map_err(usage)
}

/// Writes a file that is not there yet, whole or not at all. Of several that
/// do so at once one wins, and all others find what it wrote. Waits for the
/// disk if it is to be `synced`.
pub(super) fn place_once(path: &Path, bytes: &[u8], synced: bool) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("."));
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(dir)?;
    let unfinished = unfinished(path);
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(&unfinished)?;
    file.write_all(bytes)?;
    if synced {
        file.sync_all()?;
    }
    let linked = fs::hard_link(&unfinished, path);
    fs::remove_file(&unfinished)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.{}.tmp", std::process::id()))
}

/// Whether an address can be looked up, and is of this machine alone.
pub(super) fn is_loopback(address: &str) -> bool {
    let found = address.to_socket_addrs();
    found.is_ok_and(|mut found| found.all(|address| address.ip().is_loopback()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_secret_that_others_could_have_placed_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mine = |name: &str| {
            let path = dir.path().join(name).join(NAME);
            let drawn = of_user(&path).expect("sound").expect("drawn");
            assert_eq!(of_user(&path).expect("sound"), Some(drawn));
            path
        };
        let refused = |path: &Path, words: &str| {
            let why = of_user(path).expect_err("not sound").to_string();
            assert!(why.contains(words), "{words}: {why}");
        };
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let path = mine("open");
        mode(&path, 0o644);
        refused(&path, "with mode 644");
        let path = mine("shared");
        mode(path.parent().expect("one"), 0o777);
        refused(&path, "with mode 777");
        let path = mine("dangling");
        fs::remove_file(&path).expect("it goes");
        symlink("nowhere", &path).expect("a link");
        refused(&path, "No such file");
        fs::remove_file(&path).expect("it goes");
        symlink("/dev/zero", &path).expect("a link");
        refused(&path, "plain file");
        // Only root can give files away.
        if geteuid().is_root() {
            for (name, of) in [("theirs", false), ("their directory", true)] {
                let path = mine(name);
                let given = if of {
                    path.parent().expect("one")
                } else {
                    &path
                };
                std::os::unix::fs::chown(given, Some(65_534), None).expect("given away");
                refused(&path, "of user 65534");
            }
        }
    }

    #[test]
    fn a_copy_that_another_user_could_have_placed_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let copy = dir.path().join(NAME);
        keep(dir.path(), &[b'x'; 32]).expect("written");
        assert!(check_owner(&fs::metadata(&copy).expect("there")).is_ok());
        // Only root can give files away.
        if geteuid().is_root() {
            std::os::unix::fs::chown(&copy, Some(65_534), None).expect("given away");
        }
        let refused = check_owner(&fs::metadata(&copy).expect("there"));
        assert_eq!(refused.is_err(), geteuid().is_root());
    }

    #[test]
    fn of_many_that_write_it_at_once_one_wins() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("deep/secret");
        place_once(&path, b"the first", true).expect("written");
        place_once(&path, b"the second", true).expect("not written");
        assert_eq!(fs::read(&path).expect("read"), b"the first");
        let mode = fs::metadata(&path).expect("there").mode() & 0o777;
        assert_eq!(mode, 0o600);
        let left = fs::read_dir(path.parent().expect("one")).expect("there");
        assert_eq!(left.count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn only_this_machine_shares_one_by_itself() {
        for (address, is) in [
            ("127.0.0.1:1", true),
            ("[::1]:1", true),
            ("127.9.9.9:1", true),
            ("10.0.0.1:1", false),
            ("0.0.0.0:1", false),
            ("nowhere", false),
        ] {
            assert_eq!(is_loopback(address), is, "{address}");
        }
    }
}
