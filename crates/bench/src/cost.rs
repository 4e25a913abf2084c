//! What a run costs: processor time, and what the disk gives.
//!
//! A figure of a durable store means little without what one `fdatasync` took
//! on the same disk in the same minutes, and a figure of a machine whose
//! processors are full is a figure of processor time.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use tenure::clock;

use tenure_runtime::failure::{Failure, usage};

/// How many times the disk is asked between two slices.
const SYNCS: u32 = 50;
/// How much is written before each sync, in bytes.
pub(super) const SYNC_BYTES: usize = 4096;
/// The file it is tried on has so many places, written in turn.
const PLACES: u32 = 256;

/// The processor time that processes have used so far.
///
/// # Errors
/// If one of them is not there (any more).
pub(super) fn used(flag: &str, pids: &[u32]) -> Result<Duration, Failure> {
    let mut total = Duration::ZERO;
    for pid in pids {
        total += used_by(&format!("/proc/{pid}/stat")).ok_or_else(|| {
            usage(format!(
                "{flag}: expected the id of a running process, found {pid}"
            ))
        })?;
    }
    Ok(total)
}

/// The processor time that this process has used so far.
pub(super) fn used_here() -> Duration {
    used_by("/proc/self/stat").unwrap_or_default()
}

fn used_by(path: &str) -> Option<Duration> {
    ticks(&std::fs::read_to_string(path).ok()?).map(|ticks| {
        let second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / second))
    })
}

/// The ticks in user and kernel space of a line of `/proc/PID/stat`. The
/// second field is the program's name, in which anything may stand.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut number = || fields.next()?.parse::<u64>().ok();
    Some(number()? + number()?)
}

/// A file on the disk that is to be judged.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    next: u32,
    /// How long syncs took, in nanoseconds.
    pub(super) syncs: Histogram<u64>,
}

impl Disk {
    /// Makes a file in `directory`, which goes when this is dropped, whatever
    /// happens: it has no name.
    pub(super) fn new(directory: &Path) -> Result<Self, Failure> {
        let fail = |error: &dyn std::fmt::Display| {
            usage(format!(
                "--disk {}: expected a directory to write in: {error}",
                directory.display()
            ))
        };
        let name = format!(".tenure-bench-{}", std::process::id());
        let path = directory.join(name);
        let mut options = std::fs::OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| fail(&error))?;
        std::fs::remove_file(&path).map_err(|error| fail(&error))?;
        // Written once, so that no sync has to make room.
        for _ in 0..PLACES {
            file.write_all(&[0; SYNC_BYTES])
                .map_err(|error| fail(&error))?;
        }
        file.sync_all().map_err(|error| fail(&error))?;
        let syncs = Histogram::new_with_bounds(1_000, 60_000_000_000, 3)?;
        Ok(Self {
            file,
            next: 0,
            syncs,
        })
    }

    /// Measures a few syncs of the disk, while nothing else is measured.
    pub(super) fn measure(&mut self) -> Result<(), Failure> {
        for _ in 0..SYNCS {
            let at = u64::from(self.next) * SYNC_BYTES as u64;
            self.next = (self.next + 1) % PLACES;
            self.file.seek(SeekFrom::Start(at))?;
            let began = clock::boot();
            self.file.write_all(&[1; SYNC_BYTES])?;
            self.file.sync_data()?;
            let took = clock::boot().since(began).as_nanos();
            let took = u64::try_from(took).unwrap_or(u64::MAX);
            self.syncs.saturating_record(took);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_past_any_name() {
        let line = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 0 0 0 31 11 5 5 20 0 1 0 9";
        assert_eq!(ticks(line), Some(42));
        assert_eq!(ticks("nonsense"), None);
        assert!(used("--server-pid", &[u32::MAX]).is_err());
    }
}
