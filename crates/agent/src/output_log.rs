//! The output of a workload, in files of bounded size.
//!
//! Each instance writes into a pipe, and two threads keep what it writes:
//!
//! ```text
//!   CMD ──pipe──► tenure-output ──queue, at most 256 KiB──► tenure-log ──► N.log
//! ```
//!
//! When `N.log` is full it is renamed to `N.log.1`, and so on; the oldest is
//! deleted. So an instance that floods its output takes a bounded part of the
//! disk and slows itself down, not the agent: while the disk is slow, the queue
//! and the pipe are full.
//!
//! Output is dropped in two cases. A line says how much once there is room again.
//!
//! * The disk is full.
//! * The disk has not moved for [`STALL_TIMEOUT`](crate::stall::STALL_TIMEOUT). A
//!   disk that hangs must not stop an instance that prints.
//!
//! These are threads and not tasks because files block, and a disk that hangs
//! must hang nothing but them. An instance whose log cannot be opened within
//! `OPENED_WITHIN` is not started: another node may have a disk that answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};

use super::messages::LogLimits;
use super::output_queue::OutputQueue;
use super::state_directory;

/// The most workloads whose output is kept after they have gone.
const ENDED_WORKLOADS_MAX: usize = 256;
/// How many logs may be opened at a time. More wait for their turn.
const OPENINGS_MAX: usize = 64;
/// How long it may take until the log of an instance is open.
const OPENED_WITHIN: Duration = Duration::from_secs(2);

/// The log of an instance.
pub fn log_path(logs: &Path, instance: u32) -> PathBuf {
    logs.join(format!("{instance}.log"))
}

/// The same log, so many rotations ago.
pub fn rotated_path(path: &Path, age: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{age}"));
    name.into()
}

/// Keeps the output of the workloads of a node. Clones are the same one.
#[derive(Clone)]
pub(super) struct OutputLogs(Arc<Shared>);

struct Shared {
    /// The directory of the node.
    directory: PathBuf,
    /// A thread that works on the files of the node, but for writing output,
    /// holds one of these until that is done. So a disk that hangs takes no more
    /// threads.
    file_permits: Arc<Semaphore>,
    directories: Mutex<Directories>,
    /// A directory has been deleted.
    deleted: Condvar,
    /// A log has no writer any more.
    writer_ended: Notify,
}

#[derive(Default)]
struct Directories {
    /// Those that instances write into, and how many of each.
    live: BTreeMap<PathBuf, usize>,
    /// Those that are being deleted. None of them is made again until that is
    /// done.
    deleting: BTreeSet<PathBuf>,
}

impl OutputLogs {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(Arc::new(Shared {
            directory,
            file_permits: Arc::new(Semaphore::new(OPENINGS_MAX)),
            directories: Mutex::default(),
            deleted: Condvar::new(),
            writer_ended: Notify::new(),
        }))
    }

    /// Begins to keep the output of an instance. Returns where it is to write.
    ///
    /// # Errors
    /// Why its log cannot be opened; also if that takes longer than
    /// [`OPENED_WITHIN`].
    pub(super) async fn open(
        &self,
        workload: &str,
        instance: u32,
        limits: LogLimits,
    ) -> io::Result<OwnedFd> {
        let logs = state_directory::logs(&self.0.directory, workload);
        let path = log_path(&logs, instance);
        let (read, write) = io::pipe()?;
        let queue = Arc::new(OutputQueue::default());
        let reads = Arc::clone(&queue);
        let reader = std::thread::Builder::new().name("tenure-output".into());
        // It ends with the other end of the pipe.
        reader.spawn(move || reads.read(read))?;
        let opened = async {
            let permit = Arc::clone(&self.0.file_permits).acquire_owned().await;
            let permit = permit.map_err(io::Error::other)?;
            let (sender, receiver) = oneshot::channel();
            let live = LiveDirectory::of(Arc::clone(&self.0), logs.clone());
            let thread = std::thread::Builder::new().name("tenure-log".into());
            thread.spawn(move || {
                let opened = live.open(log_path(&live.logs, instance), limits);
                drop(permit);
                match opened {
                    // If the caller has given up, nothing was started.
                    Ok(mut rotating_log) => {
                        if sender.send(Ok(())).is_ok() {
                            while let Some((dropped, chunk)) = queue.next() {
                                rotating_log.lost_bytes += dropped;
                                rotating_log.append(&chunk);
                            }
                        }
                    }
                    Err(error) => drop(sender.send(Err(error))),
                }
            })?;
            receiver.await.map_err(io::Error::other)?
        };
        match tokio::time::timeout(OPENED_WITHIN, opened).await {
            Ok(opened) => opened.map(|()| write.into()),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "expected to open {} within {OPENED_WITHIN:?}, found no answer: its file \
                     system is slow or hangs",
                    path.display()
                ),
            )),
        }
    }

    /// Reads a file of this node on a thread of its own, in turn with those that
    /// open logs.
    ///
    /// # Errors
    /// Those of `look`, and that it takes longer than [`OPENED_WITHIN`].
    pub(super) async fn read_file<T: Send + 'static>(
        &self,
        path: &Path,
        look: impl FnOnce(&Path) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let file = path.to_owned();
        let looked = async {
            let permit = Arc::clone(&self.0.file_permits).acquire_owned().await;
            let permit = permit.map_err(|error| error.to_string())?;
            let (sender, receiver) = oneshot::channel();
            let thread = std::thread::Builder::new().name("tenure-files".into());
            let begun = thread.spawn(move || {
                let found = look(&file);
                drop(permit);
                drop(sender.send(found));
            });
            begun.map_err(|error| error.to_string())?;
            receiver.await.map_err(|error| error.to_string())?
        };
        let looked = tokio::time::timeout(OPENED_WITHIN, looked).await;
        looked.unwrap_or_else(|_| {
            Err(format!(
                "expected to read {} within {OPENED_WITHIN:?}, found no answer: its file system is \
                 slow or hangs",
                path.display()
            ))
        })
    }

    /// Waits until all output of instances that have ended is written.
    pub(super) async fn finish(&self) {
        loop {
            let writer_ended = self.0.writer_ended.notified();
            if self.0.lock().live.is_empty() {
                return;
            }
            writer_ended.await;
        }
    }

    /// Deletes the output of workloads that ended longest ago, beyond
    /// [`ENDED_WORKLOADS_MAX`], on a thread of its own.
    pub(super) fn prune(&self) {
        let Ok(permit) = Arc::clone(&self.0.file_permits).try_acquire_owned() else {
            return;
        };
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("tenure-prune".into());
        // Without a thread it is done at the next start.
        let _ = thread.spawn(move || {
            shared.prune();
            drop(permit);
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Directories> {
        let locked = self.directories.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    fn prune(&self) {
        let entries = fs::read_dir(self.directory.join("logs"));
        let mut old: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| !self.lock().live.contains_key(path))
            .map(|path| {
                let changed = fs::metadata(&path).and_then(|found| found.modified());
                (changed.ok(), path)
            })
            .collect();
        old.sort();
        let surplus = old.len().saturating_sub(ENDED_WORKLOADS_MAX);
        for (_, path) in old.drain(..surplus) {
            let mut directories = self.lock();
            if directories.live.contains_key(&path) || !directories.deleting.insert(path.clone()) {
                continue;
            }
            drop(directories);
            let _ = fs::remove_dir_all(&path);
            self.lock().deleting.remove(&path);
            self.deleted.notify_all();
        }
    }
}

/// An instance writes into this directory.
struct LiveDirectory {
    shared: Arc<Shared>,
    logs: PathBuf,
}

impl LiveDirectory {
    fn of(shared: Arc<Shared>, logs: PathBuf) -> Self {
        *shared.lock().live.entry(logs.clone()).or_default() += 1;
        Self { shared, logs }
    }

    fn open(&self, path: PathBuf, limits: LogLimits) -> io::Result<RotatingLog> {
        let (shared, deleting) = (&self.shared, |it: &mut Directories| {
            it.deleting.contains(&self.logs)
        });
        drop(shared.deleted.wait_while(shared.lock(), deleting));
        let mut directory = fs::DirBuilder::new();
        directory.recursive(true).mode(0o700).create(&self.logs)?;
        RotatingLog::open(path, limits)
    }
}

impl Drop for LiveDirectory {
    fn drop(&mut self) {
        let live = &mut self.shared.lock().live;
        if let Some(count) = live.get_mut(&self.logs) {
            *count -= 1;
            if *count == 0 {
                live.remove(&self.logs);
            }
        }
        self.shared.writer_ended.notify_one();
    }
}

struct RotatingLog {
    path: PathBuf,
    limits: LogLimits,
    file: File,
    size: u64,
    lost_bytes: u64,
}

impl RotatingLog {
    fn open(path: PathBuf, limits: LogLimits) -> io::Result<Self> {
        let file = Self::file(&path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path,
            limits,
            file,
            size,
            lost_bytes: 0,
        })
    }

    fn file(path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(path)
    }

    fn append(&mut self, bytes: &[u8]) {
        if self.lost_bytes > 0 {
            let note = format!("\ntenure: {} bytes of output were lost\n", self.lost_bytes);
            if self.write(note.as_bytes()).is_ok() {
                self.lost_bytes = 0;
            }
        }
        if self.write(bytes).is_err() {
            self.lost_bytes += bytes.len() as u64;
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.limits.bytes.saturating_sub(self.size);
            if room == 0 {
                self.rotate()?;
                continue;
            }
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let (part, after) = rest.split_at(rest.len().min(room));
            self.file.write_all(part)?;
            self.size += part.len() as u64;
            rest = after;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        for age in (0..self.limits.files).rev() {
            let from = if age == 0 {
                self.path.clone()
            } else {
                rotated_path(&self.path, age)
            };
            match fs::rename(from, rotated_path(&self.path, age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.limits.files == 0 {
            self.file.set_len(0)?;
        } else {
            self.file = Self::file(&self.path)?;
        }
        self.size = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::output_queue::{CHUNK, QUEUE_MAX};
    use super::*;

    const LIMITS: LogLimits = LogLimits {
        bytes: 100_000,
        files: 1,
    };

    #[tokio::test]
    async fn what_is_written_is_kept_to_the_last_byte() {
        let directory = tempfile::tempdir().expect("a directory");
        let output_logs = OutputLogs::new(directory.path().to_owned());
        let end = output_logs
            .open("w", 0, LIMITS)
            .await
            .expect("it is opened");
        let text = "x".repeat(90_000);
        File::from(end).write_all(text.as_bytes()).expect("written");
        output_logs.finish().await;
        let logs = state_directory::logs(directory.path(), "w");
        assert!(fs::read_to_string(log_path(&logs, 0)).expect("kept") == text);
    }

    /// Opening a named pipe waits for its reader. So a pipe without one stands
    /// for a file whose disk hangs.
    #[tokio::test]
    async fn a_log_that_cannot_be_opened_in_time_is_a_start_that_failed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (logs, path) = fifo(directory.path());
        let output_logs = OutputLogs::new(directory.path().to_owned());
        let failed = output_logs
            .open("w", 0, LIMITS)
            .await
            .expect_err("it hangs");
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut, "{failed}");
        assert!(failed.to_string().contains("0.log"), "{failed}");
        assert!(
            output_logs.0.lock().live.contains_key(&logs),
            "its thread waits"
        );
        // It answers, and nothing of that start is left.
        let reader = File::open(path).expect("opened");
        output_logs.finish().await;
        drop(reader);
    }

    /// A named pipe that is open and full stands for a disk that hangs later.
    /// The instance goes on writing, and the log says how much is missing.
    #[tokio::test]
    async fn output_is_dropped_while_the_disk_hangs() {
        let directory = tempfile::tempdir().expect("a directory");
        let (_, path) = fifo(directory.path());
        let opening = std::thread::spawn(|| File::open(path).expect("opened"));
        let output_logs = OutputLogs::new(directory.path().to_owned());
        let end = output_logs.open(
            "w",
            0,
            LogLimits {
                bytes: 1 << 40,
                files: 0,
            },
        );
        let mut end = File::from(end.await.expect("it is opened"));
        let mut reader = opening.join().expect("it is read");
        let all = 64 * CHUNK;
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(end.write_all(&vec![b'x'; all])));
        let written = receiver.recv_timeout(Duration::from_secs(60));
        written.expect("it goes on").expect("written");
        // The disk answers again.
        let mut kept = String::new();
        reader.read_to_string(&mut kept).expect("read");
        output_logs.finish().await;
        let said = kept
            .split("tenure: ")
            .nth(1)
            .expect("a line says what is lost");
        let lost: usize = said
            .split(' ')
            .next()
            .and_then(|it| it.parse().ok())
            .expect("a number");
        let there = kept.bytes().filter(|byte| *byte == b'x').count();
        assert_eq!(there + lost, all);
        assert!(there >= QUEUE_MAX, "{there}");
    }

    /// A named pipe where the log of instance 0 of `w` is to be.
    fn fifo(directory: &Path) -> (PathBuf, PathBuf) {
        let logs = state_directory::logs(directory, "w");
        fs::create_dir_all(&logs).expect("a directory");
        let path = log_path(&logs, 0);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).expect("a pipe");
        (logs, path)
    }

    #[test]
    fn a_flood_takes_a_bounded_part_of_the_disk_and_its_end_is_kept() {
        for files in [0, 1, 3] {
            let directory = tempfile::tempdir().expect("a directory");
            let limits = LogLimits {
                bytes: 1_000,
                files,
            };
            let path = log_path(directory.path(), 0);
            let mut rotating_log = RotatingLog::open(path.clone(), limits).expect("a file");
            for line in 0..2_000 {
                rotating_log.append(format!("line {line}\n").as_bytes());
            }
            let sizes = fs::read_dir(directory.path())
                .expect("a directory")
                .flatten();
            let sizes: Vec<u64> = sizes
                .map(|entry| entry.metadata().expect("a file").len())
                .collect();
            assert_eq!(sizes.len(), usize::try_from(files).expect("few") + 1);
            assert!(sizes.iter().all(|size| *size <= 1_000), "{sizes:?}");
            let last = fs::read_to_string(&path).expect("text");
            assert!(last.ends_with("line 1999\n"), "{last:?}");
            // What is there is one piece: nothing between two files is lost.
            if files > 0 {
                let before = fs::read_to_string(rotated_path(&path, 1)).expect("text");
                assert_eq!(before.len(), 1_000);
            }
            // The next log goes on where this one ended.
            let again = RotatingLog::open(path, limits).expect("a file");
            assert_eq!(again.size, rotating_log.size);
        }
    }
}
