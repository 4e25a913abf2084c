//! Where an agent keeps what belongs to this machine: a directory of its own for
//! each group and name, which only its user can enter. What is sent to its sockets
//! is asked for its user besides (`peer_check.rs`).
//!
//! ```text
//! $XDG_STATE_HOME/tenure/nodes/GROUP/NAME/
//!   agent.lock     held by the agent that lives; its process id
//!   control.sock   where commands connect
//!   steward.sock   where a restarted agent finds its shim
//!   steward.log    errors of the shim
//!   logs/WORKLOAD/INSTANCE.log, .log.1, …
//! ```
//!
//! The lock of that file and of the directory makes two agents of one name
//! impossible on one machine.
//!
//! A name may hold any character, so percent signs write it as a file name. The
//! path of a socket may be longer than the 107 bytes that the kernel takes, so
//! sockets are reached through a descriptor of their directory.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use tenure_runtime::failure::{Failure, usage};
use tokio::sync::oneshot;

/// Where commands connect.
pub(super) const CONTROL_SOCKET: &str = "control.sock";
/// Where a restarted agent finds its shim.
pub(super) const SHIM_SOCKET: &str = "steward.sock";
/// After how long without an answer a file system is slow.
const SLOW: Duration = Duration::from_secs(2);

/// Where the agents of this user keep their directories.
pub fn root(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let state = tenure::small::state_home();
    let state = state.ok_or_else(|| {
        usage("expected --state, $TENURE_STATE, or a home directory, found none of them")
    })?;
    Ok(state.join("tenure/nodes"))
}

/// The longest name of a file that file systems take, in bytes.
const FILE_NAME_MAX: usize = 255;

/// Refuses a name that is too long for the name of a file.
pub fn check_name(flag: &str, name: &str) -> Result<(), Failure> {
    let found = file_name(name).len();
    if found <= FILE_NAME_MAX {
        return Ok(());
    }
    Err(usage(format!(
        "{flag}: expected a name that fits into {FILE_NAME_MAX} bytes, of which each byte takes \
         three that is no letter or digit of ASCII and none of -_., found {found}"
    )))
}

/// A name as the name of a file.
fn file_name(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let mut text = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        if plain(byte) && !(at == 0 && byte == b'.') {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02x}"));
        }
    }
    text
}

/// The directory of a group.
pub fn group_directory(root: &Path, group: &str) -> PathBuf {
    root.join(file_name(group))
}

/// The directory of a node.
pub fn node_directory(root: &Path, group: &str, name: &str) -> PathBuf {
    group_directory(root, group).join(file_name(name))
}

/// The directories of a group's nodes on this machine, in order; only that of
/// `via`, if it is named.
///
/// # Errors
/// If they are closed to this user, who then cannot know whether there are any.
pub fn nodes(root: &Path, group: &str, via: Option<&str>) -> Result<Vec<PathBuf>, Failure> {
    let list = |directory: &Path| -> Result<Vec<PathBuf>, Failure> {
        match fs::read_dir(directory) {
            Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(not_permitted(directory))
            }
            // There are none.
            Err(_) => Ok(Vec::new()),
        }
    };
    let mut nodes = match via {
        Some(name) => vec![node_directory(root, group, name)],
        None => list(&group_directory(root, group))?,
    };
    nodes.sort();
    for node in &nodes {
        let _ = list(node)?;
    }
    Ok(nodes)
}

/// The failure of a user who may not read a directory.
fn not_permitted(directory: &Path) -> Failure {
    // The first that can be looked at is the one that is closed, or below it.
    let mut owners = directory.ancestors().filter_map(|it| fs::metadata(it).ok());
    let owner = owners.next().map_or(0, |found| found.uid());
    usage(format!(
        "expected to look into {}, found that user {} may not (permission denied); an agent \
         hears only the user that it runs as, and root: ask as user {owner}, such as with `sudo -u \
         '#{owner}' tenure …`, or name another directory with --state",
        directory.display(),
        geteuid().as_raw()
    ))
}

/// Where the output of a workload is kept, below the directory of a node.
pub fn logs(directory: &Path, workload: &str) -> PathBuf {
    directory.join("logs").join(file_name(workload))
}

/// Runs `look`, which reads files below `root`, on a thread of its own, since
/// their file system may hang. Once that has taken `SLOW`, calls `slow`.
///
/// # Errors
/// Those of `look`, and that it has taken longer than `within`.
pub async fn run_on_thread<T: Send + 'static>(
    root: &Path,
    within: Duration,
    slow: impl FnOnce(),
    look: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (sender, mut receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("tenure-files".into());
    thread.spawn(move || drop(sender.send(look())))?;
    let lost = |_| Failure::Other(anyhow::anyhow!("the thread that looked has panicked"));
    if let Ok(looked) = tokio::time::timeout(SLOW.min(within), &mut receiver).await {
        return looked.map_err(lost)?;
    }
    slow();
    match tokio::time::timeout(within.saturating_sub(SLOW), receiver).await {
        Ok(looked) => looked.map_err(lost)?,
        Err(_) => Err(Failure::Other(anyhow::anyhow!(
            "expected {} to answer within {within:?}, found that it does not: its file system \
             hangs; nothing was asked here: ask on another machine",
            root.display()
        ))),
    }
}

/// Makes a directory that only this user can enter, or checks that it is one.
pub(super) fn create_private(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    let made = DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.map_err(|error| {
        let text = format!("expected to make the directory {shown}: {error}");
        match error.kind() {
            // These may pass without a person.
            io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded => Failure::Other(anyhow::Error::msg(text)),
            _ => usage(text),
        }
    })?;
    let found = fs::metadata(directory)?;
    let (owner, mode) = (found.uid(), found.mode() & 0o777);
    let me = geteuid().as_raw();
    if owner != me {
        return Err(usage(format!(
            "expected {shown} to be owned by user {me}, found user {owner}: a user who may \
             write there may command the agent; name another directory with --state"
        )));
    }
    if mode & 0o077 != 0 {
        return Err(usage(format!(
            "expected {shown} to be closed to others (0700), found {mode:04o}: a user who may \
             write there may command the agent; chmod 700 it"
        )));
    }
    Ok(())
}

/// Held for as long as an agent lives.
///
/// The directory is locked beside the file in it. Without that, an agent that
/// starts after the file was removed would make and lock another one. It would
/// then find the shim of the agent that lives, which serves one agent at a
/// time, and kill it as one that hangs. A directory that was replaced is
/// another one, with other sockets: an agent that starts there is a node of its
/// own, as on another machine, and reaches nothing that this one holds.
#[derive(Debug)]
pub(super) struct AgentLock {
    file: File,
    directory: File,
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
}

impl AgentLock {
    /// Takes the lock of a directory.
    pub(super) fn take(directory: &Path) -> Result<Self, Failure> {
        let path = directory.join("agent.lock");
        let shown = path.display().to_string();
        let named = |error: io::Error| Failure::Other(anyhow::anyhow!("{shown}: {error}"));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(named)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(io::Error::from(error).into());
            }
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = match holder.trim() {
                // It has just taken it.
                "" => "another process",
                holder => &format!("process {holder}"),
            };
            let path = path.display();
            return Err(already_running(&format!("{holder}, which holds {path}")));
        }
        let opened = File::open(directory)?;
        // Some file systems lock no directories; there the file alone counts.
        if flock(&opened, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            return Err(already_running(&format!(
                "one that holds {}, though its agent.lock was removed or replaced (`fuser {0}` \
                 names it)",
                directory.display()
            )));
        }
        let found = file.metadata()?;
        let lock = Self {
            identity: (found.dev(), found.ino()),
            directory: opened,
            file,
            path,
        };
        if !lock.is_in_place() {
            return Err(Failure::Other(anyhow::anyhow!(
                "expected {} to be the file that was just locked, found that it was removed or \
                 replaced meanwhile; start the agent again",
                lock.path.display()
            )));
        }
        lock.file.set_len(0).map_err(named)?;
        writeln!(&lock.file, "{}", std::process::id()).map_err(named)?;
        Ok(lock)
    }

    /// Whether the file at its path is the one that is locked.
    fn is_in_place(&self) -> bool {
        let found = fs::metadata(&self.path);
        found.is_ok_and(|it| (it.dev(), it.ino()) == self.identity)
    }

    /// Warns when the file, or a directory above it, was removed or replaced, or
    /// when its file system does not answer. What the agent holds is not in
    /// danger, so it goes on.
    ///
    /// Each look has a thread of its own, since it may hang with the file
    /// system.
    pub(super) async fn watch(self: Arc<Self>, every: Duration) {
        let mut was_lost = false;
        loop {
            tokio::time::sleep(every).await;
            let lost = !self.check_in_place().await;
            if lost && !was_lost {
                tracing::error!(
                    "expected {} to be the file that this agent has locked, found that it, or a \
                     directory above it, was removed or replaced: commands on this machine may \
                     not reach this agent any more, and it could not go on after a restart; end \
                     it by TERM, which hands on what runs here, and start it again",
                    self.path.display()
                );
            }
            was_lost = lost;
        }
    }

    /// Whether the file is in place, however long the answer takes.
    async fn check_in_place(self: &Arc<Self>) -> bool {
        let (directory, lock) = (self.path.parent().unwrap_or(&self.path), Arc::clone(self));
        let (shown, mut slow) = (directory.display(), false);
        let warn = || {
            slow = true;
            tracing::warn!(
                "{shown} has not answered for {SLOW:?}: its file system is slow or hangs. What \
                 runs here goes on without what it prints; nothing else can start on this node, \
                 and `tenure drain`, asked for on another machine, hands on what runs"
            );
        };
        let look = move || Ok(lock.is_in_place());
        let looked = run_on_thread(directory, Duration::MAX, warn, look).await;
        if slow {
            tracing::warn!("{shown} answers again");
        }
        // Without a thread there was no look; the next one is soon.
        looked.unwrap_or(true)
    }
}

impl Drop for AgentLock {
    fn drop(&mut self) {
        // Closing is not enough if another thread is just starting a process,
        // which holds everything open until it is another program.
        let _ = flock(&self.directory, FlockOperation::Unlock);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Not usage: the other one may be about to end, and then the next try succeeds.
fn already_running(found: &str) -> Failure {
    Failure::Other(anyhow::anyhow!(
        "expected to be the only agent of this name and group on this machine, found {found}; \
         stop it, or give this one another --name"
    ))
}

/// A directory held open, so that the sockets in it have short paths.
pub(super) struct SocketDirectory(File);

impl SocketDirectory {
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        File::open(directory).map(Self)
    }

    /// The path of a socket in it, for as long as this is held.
    pub(super) fn path(&self, socket: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{socket}", self.0.as_raw_fd()))
    }

    /// Listens on a socket in it that only this user can reach, in place of
    /// one that was left behind.
    pub(super) fn listen(&self, socket: &str) -> io::Result<tokio::net::UnixListener> {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.path(socket);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = tokio::net::UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    pub(super) async fn connect(&self, socket: &str) -> io::Result<tokio::net::UnixStream> {
        tokio::net::UnixStream::connect(self.path(socket)).await
    }

    /// The same on a thread that may be held up.
    pub(super) fn connect_blocking(
        &self,
        socket: &str,
    ) -> io::Result<std::os::unix::net::UnixStream> {
        let stream = std::os::unix::net::UnixStream::connect(self.path(socket))?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Removes a socket. It stays if the file system fails, or does not answer
    /// within [`SLOW`]; the next [`listen`](Self::listen) removes it then.
    pub(super) async fn remove(&self, socket: &str) {
        let Ok(directory) = self.0.try_clone().map(Self) else {
            return;
        };
        let name = socket.to_owned();
        let remove = move || Ok(fs::remove_file(directory.path(&name))?);
        let _ = run_on_thread(Path::new(socket), SLOW, || (), remove).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_name_that_is_too_long_for_a_file_is_refused() {
        assert!(check_name("--name", &"a".repeat(255)).is_ok());
        assert!(check_name("--name", &"é".repeat(42)).is_ok());
        let refused = check_name("--name", &"é".repeat(43)).expect_err("258 bytes");
        assert!(refused.to_string().contains("found 258"), "{refused}");
    }

    #[test]
    fn names_stay_apart_as_files() {
        let names = [
            "a/b",
            "a%2fb",
            "..",
            ".",
            "a b",
            "a/../b",
            "ä",
            "__DEFAULT__",
            "web-1.x",
        ];
        let files: std::collections::BTreeSet<String> =
            names.iter().map(|name| file_name(name)).collect();
        assert_eq!(files.len(), names.len());
        for file in files {
            assert!(!file.contains('/') && !file.starts_with('.'), "{file}");
        }
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let inner = directory.path().join("inner");
        create_private(&inner).expect("made");
        create_private(&inner).expect("checked");
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o750)).expect("opened");
        let refused = create_private(&inner).expect_err("it is open").to_string();
        assert!(refused.contains("0750"), "{refused}");
    }

    #[test]
    fn the_second_agent_of_a_name_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let held = AgentLock::take(directory.path()).expect("taken");
        let refused = AgentLock::take(directory.path()).expect_err("held");
        let text = refused.to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        drop(held);
        AgentLock::take(directory.path()).expect("free again");
    }

    #[test]
    fn a_lock_that_was_removed_is_held_by_its_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let (inner, aside) = (directory.path().join("inner"), directory.path().join("x"));
        create_private(&inner).expect("made");
        let held = AgentLock::take(&inner).expect("taken");
        assert!(held.is_in_place());
        fs::remove_file(inner.join("agent.lock")).expect("removed");
        let refused = AgentLock::take(&inner).expect_err("held").to_string();
        assert!(refused.contains("agent.lock was removed"), "{refused}");
        assert!(!held.is_in_place());
        // Another directory is another place.
        fs::rename(&inner, &aside).expect("moved");
        create_private(&inner).expect("made");
        let other = AgentLock::take(&inner).expect("free");
        assert!(other.is_in_place() && !held.is_in_place());
        drop((held, other));
        AgentLock::take(&aside).expect("free again");
    }
}
