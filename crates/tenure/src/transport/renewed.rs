//! What is made of files, and made again when they change.
//!
//! The files are looked at when what they make is wanted, at most once a
//! second, so nobody has to watch them. Files that cannot be used leave what
//! was in use in use, and a warning: a certificate that is half written, or
//! whose key is not there yet, is no reason to turn anybody away.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tenure_core::time::Instant;

use crate::clock;

/// How often the files are looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is made of files, and made again when they have changed.
pub(crate) struct Renewed<T> {
    /// What they are, for people.
    what: &'static str,
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    made: Mutex<Made<T>>,
}

struct Made<T> {
    /// When the files were looked at.
    looked: Instant,
    /// When they were written; `None`: they could not be asked.
    stamps: Vec<Option<SystemTime>>,
    value: T,
}

impl<T: Clone> Renewed<T> {
    /// Reads the files. `what` they are, in the plural, is for people.
    pub(crate) fn open(
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        // Before they are read: what changes in between is read again.
        let stamps = stamps(&files);
        let made = Made {
            looked: clock::boot(),
            stamps,
            value: make()?,
        };
        Ok(Self {
            what,
            files,
            make: Box::new(make),
            made: Mutex::new(made),
        })
    }

    /// What is in use now; reads the files again if they have changed.
    pub(crate) fn current(&self) -> T {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::boot();
        if now.since(made.looked) >= LOOK_EVERY {
            made.looked = now;
            let stamps = stamps(&self.files);
            if stamps != made.stamps {
                match (self.make)() {
                    Ok(new) => {
                        tracing::info!("{} were renewed", self.what);
                        (made.stamps, made.value) = (stamps, new);
                    }
                    Err(why) => tracing::warn!("the {} stay as they were: {why}", self.what),
                }
            }
        }
        made.value.clone()
    }
}

impl<T> std::fmt::Debug for Renewed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Renewed").field(&self.files).finish()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<SystemTime>> {
    let stamp = |file: &PathBuf| std::fs::metadata(file).ok()?.modified().ok();
    files.iter().map(stamp).collect()
}
