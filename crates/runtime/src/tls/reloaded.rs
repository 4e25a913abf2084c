//! What is made of files, and made again when they change.
//!
//! The files are looked at when what they make is wanted, at most once a
//! second, so they need not be watched. Files that cannot be used leave what
//! was in use in use, and a warning: a certificate that is half written, or
//! whose key is not there yet, is no reason to turn anybody away.
//!
//! A file system may hang, as one on a network does. So each look has a thread
//! of its own. The one that wants to know waits for it for [`WITHIN`] and goes
//! on with what was in use; until that look is over no other call waits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, SystemTime};

use tenure_core::time::Instant;

use crate::clock;

/// How often the files are looked at, at most.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long a caller waits for a look: a small part of an election timeout.
const WITHIN: Duration = Duration::from_millis(50);
/// How long the first look may take: nothing is in use yet.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// After this long without an end of a look it is said.
const SLOW: Duration = Duration::from_secs(2);

/// Why files could not be used at a start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilesError {
    /// They are not as they should be, and a person must mend them.
    #[error("{0}")]
    Wrong(String),
    /// Their file system did not answer in time. It may do so later.
    #[error("{0}")]
    Late(String),
}

impl From<String> for FilesError {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

/// Does what reads a file on a thread of its own, and waits so long for it as
/// for the first look at any file: `what` it is, in the singular, is for
/// people.
pub fn read_in_time<T: Send + 'static>(
    what: &str,
    file: &Path,
    read: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, FilesError> {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::Builder::new().name("tenure-files".into());
    let begun = thread.spawn(move || drop(tell.send(read())));
    begun.map_err(|error| FilesError::Late(format!("no thread: {error}")))?;
    match told.recv_timeout(FIRST_WITHIN) {
        Ok(read) => read.map_err(FilesError::Wrong),
        Err(_) => Err(FilesError::Late(format!(
            "expected to read {what} in {} within {FIRST_WITHIN:?}, found no answer: its file \
             system hangs",
            file.display()
        ))),
    }
}

/// What is made of files, and made again when they have changed.
pub struct Reloaded<T>(Arc<Files<T>>);

impl<T> Clone for Reloaded<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Files<T> {
    /// What they are, for people.
    what: &'static str,
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    state: Mutex<FilesState<T>>,
    /// A look is over.
    over: Condvar,
}

struct FilesState<T> {
    /// When the last look began.
    last_check: Instant,
    check: CheckState,
    /// When they were written; `None`: they could not be asked.
    stamps: Vec<Option<SystemTime>>,
    /// `None` before they were read for the first time.
    value: Option<Result<T, String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckState {
    Over,
    UnderWay,
    /// It takes long, and that was said.
    Slow,
}

impl<T: Clone + Send + 'static> Reloaded<T> {
    /// Reads the files. `what` they are, in the plural, is for people.
    ///
    /// # Errors
    /// What is wrong with them, or that they could not be read in time.
    pub fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, FilesError> {
        let state = FilesState {
            last_check: clock::boot(),
            check: CheckState::Over,
            stamps: Vec::new(),
            value: None,
        };
        let reloaded = Self(Arc::new(Files {
            what,
            files,
            make: Box::new(make),
            state: Mutex::new(state),
            over: Condvar::new(),
        }));
        let state = reloaded.0.check(reloaded.0.lock(), FIRST_WITHIN);
        match &state.value {
            Some(Ok(_)) => {}
            Some(Err(why)) => return Err(FilesError::Wrong(why.clone())),
            None => {
                let files: Vec<_> = reloaded.0.files.iter().map(|it| it.display()).collect();
                return Err(FilesError::Late(format!(
                    "expected to read the {what} within {FIRST_WITHIN:?}, found no answer: the \
                     file system of one of {files:?} hangs"
                )));
            }
        }
        drop(state);
        Ok(reloaded)
    }

    /// What is in use now; what the files make, if they have changed.
    pub fn current(&self) -> T {
        self.current_within(WITHIN)
    }

    /// What is in use now. If the files have changed it is what they make the
    /// next time, or the time after that: nobody waits for the look.
    pub fn latest(&self) -> T {
        self.current_within(Duration::ZERO)
    }

    fn current_within(&self, within: Duration) -> T {
        let mut state = self.0.lock();
        let since = clock::boot().since(state.last_check);
        match state.check {
            CheckState::Over if since >= CHECK_EVERY => state = self.0.check(state, within),
            CheckState::UnderWay if since >= SLOW => {
                state.check = CheckState::Slow;
                tracing::warn!(
                    "the {} could not be looked at for {SLOW:?}, and stay as they were: the file \
                     system of one of {:?} is slow or hangs",
                    self.0.what,
                    self.0.files
                );
            }
            _ => {}
        }
        match &state.value {
            Some(Ok(value)) => value.clone(),
            _ => unreachable!("it is opened with a value, which is replaced by values alone"),
        }
    }
}

impl<T: Clone + Send + 'static> Files<T> {
    fn lock(&self) -> MutexGuard<'_, FilesState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the files, and waits for that so long.
    fn check<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, FilesState<T>>,
        within: Duration,
    ) -> MutexGuard<'a, FilesState<T>> {
        state.last_check = clock::boot();
        let (files, span) = (Arc::clone(self), tracing::Span::current());
        let thread = std::thread::Builder::new().name("tenure-files".into());
        let begun = thread.spawn(move || {
            let _speaks = span.entered();
            let guard = CheckGuard(files);
            guard.0.reload();
        });
        if let Err(error) = begun {
            tracing::warn!("the {} stay as they were: no thread: {error}", self.what);
            return state;
        }
        state.check = CheckState::UnderWay;
        let looks = |state: &mut FilesState<T>| state.check != CheckState::Over;
        let waited = self.over.wait_timeout_while(state, within, looks);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Makes anew what has changed.
    fn reload(&self) {
        // Before they are read: what changes in between is read again.
        let stamps = stamps(&self.files);
        let state = self.lock();
        let first = state.value.is_none();
        if !first && stamps == state.stamps {
            return;
        }
        drop(state);
        let new = (self.make)();
        let mut state = self.lock();
        match new {
            Err(why) if !first => tracing::warn!("the {} stay as they were: {why}", self.what),
            new => {
                if !first {
                    tracing::info!("{} were renewed", self.what);
                }
                (state.stamps, state.value) = (stamps, Some(new));
            }
        }
    }
}

/// A look, until it is over however it ends.
struct CheckGuard<T: Clone + Send + 'static>(Arc<Files<T>>);

impl<T: Clone + Send + 'static> Drop for CheckGuard<T> {
    fn drop(&mut self) {
        self.0.lock().check = CheckState::Over;
        self.0.over.notify_all();
    }
}

impl<T> std::fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Renewed").field(&self.0.files).finish()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<SystemTime>> {
    let stamp = |file: &PathBuf| std::fs::metadata(file).ok()?.modified().ok();
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is made hangs until the test lets it go on.
    #[test]
    fn who_asks_waits_a_moment_for_files_that_hang() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "1").expect("written");
        let (go_on, gate) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let gate = Mutex::new(gate);
        let from = file.clone();
        let make = move || {
            let text = std::fs::read_to_string(&from).map_err(|why| why.to_string())?;
            if text != "1" {
                let _ = begun.send(());
                let _ = gate.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            Ok(text)
        };
        let reloaded = Reloaded::open("files", vec![file.clone()], make).expect("a value");
        assert_eq!(reloaded.current(), "1");

        std::fs::write(&file, "2").expect("written");
        reloaded.0.lock().last_check = Instant::ZERO;
        assert_eq!(reloaded.current(), "1", "what was in use stays");
        begins.recv().expect("it is read");
        let before = clock::boot();
        for _ in 0..1_000 {
            assert_eq!(reloaded.current(), "1");
        }
        assert!(
            clock::boot().since(before) < WITHIN * 20,
            "nobody waits again"
        );
        go_on.send(()).expect("it waits");
        let looks = |state: &mut FilesState<String>| state.check != CheckState::Over;
        drop(reloaded.0.over.wait_while(reloaded.0.lock(), looks));
        assert_eq!(reloaded.current(), "2");
    }

    #[test]
    fn files_that_cannot_be_used_leave_what_was_in_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        let from = file.clone();
        let make = move || std::fs::read_to_string(&from).map_err(|why| why.to_string());
        let open = || Reloaded::open("files", vec![file.clone()], make.clone());
        assert!(
            open()
                .expect_err("it is not there")
                .to_string()
                .contains("No such file")
        );
        std::fs::write(&file, "1").expect("written");
        let reloaded = open().expect("a value");
        std::fs::remove_file(&file).expect("it goes");
        reloaded.0.lock().last_check = Instant::ZERO;
        assert_eq!(reloaded.current(), "1");
        std::fs::write(&file, "2").expect("written");
        reloaded.0.lock().last_check = Instant::ZERO;
        assert_eq!(reloaded.current(), "2");
    }
}
