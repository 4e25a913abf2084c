//! How long a restarted server refuses to vote, so that a leader's lease reads stay
//! valid.
//!
//! A leader that reads by its lease counts on leader stickiness: a voter that answered
//! it votes for no other for a while. A server keeps that promise in memory while it
//! runs. One that starts again has forgotten whom it answered and when, and its settings
//! may have changed meanwhile. So the directory keeps the longest time for which it may
//! have promised, in a file of its own: `silence`, in nanoseconds of its own clock. There
//! is none as long as no server on this directory was set to lease reads.
//!
//! * The time is lengthened, durably, before the state machine starts under a setting that
//!   promises more: nothing is answered before.
//! * The state machine refuses to vote for that time from its own start on
//!   ([`Recovered::no_vote_time`](tenure_alpo::Recovered)).
//! * The time is shortened to what the settings promise now only when the whole of it
//!   has passed since that start. If the server ends earlier, the next start waits
//!   for all of it again.
//!
//! Why it is safe, and what it rests on: `docs/design/identity.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;
use tenure_runtime::{clock, small};

use super::data_file::{VERSION, failed, write};
use crate::wal::WalError;

const FILE: &str = "silence";

/// More than any settings ask for: a timeout is at most 60 s, a drift 10 %.
const MOST: Duration = Duration::from_secs(66);

/// For how long a server gives no votes after a start, until that is over or the server
/// ends.
#[derive(Debug)]
pub(super) struct NoVoteTime {
    dir: PathBuf,
    /// By the settings of now.
    own: Duration,
    /// By the directory.
    noted: Duration,
    /// Whether the directory is still this server's. The server that has it next
    /// may raise what this one would lower.
    held: Mutex<bool>,
}

impl NoVoteTime {
    /// Reads the time of `dir`, and raises it to `own` if that is more.
    ///
    /// # Errors
    /// If the file cannot be read or written, or is damaged.
    pub(super) fn open(dir: &Path, own: Duration) -> Result<Arc<Self>, WalError> {
        let mut noted = read(dir)?;
        if own > noted {
            noted = own;
            keep(dir, noted)?;
        }
        Ok(Arc::new(Self {
            dir: dir.to_owned(),
            own,
            noted,
            held: Mutex::new(true),
        }))
    }

    /// For how long a server that starts now gives no votes.
    pub(super) const fn time(&self) -> Duration {
        self.noted
    }

    /// Lowers the time when it is over, if it is more than the settings ask
    /// for. `start` is when the machine was started.
    pub(super) async fn wait_out(self: Arc<Self>, start: Instant) {
        if self.noted <= self.own {
            return;
        }
        tracing::info!(
            "for {:?} this server neither votes nor stands: before it was started it may have \
             answered a leader that reads by its lease for so long",
            self.noted
        );
        let over = start.after(self.noted);
        // A timer may be early by its own clock.
        while clock::boot() < over {
            tokio::time::sleep(over.since(clock::boot())).await;
        }
        // Not on this thread: it waits for the disk.
        let lowered = tokio::task::spawn_blocking(move || self.lower()).await;
        if let Ok(Err(error)) = lowered {
            tracing::warn!(
                "file {FILE}: the time without votes at the next start could not be made shorter: \
                 {error}"
            );
        }
    }

    fn lower(&self) -> Result<(), WalError> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if *held {
            keep(&self.dir, self.own)
        } else {
            Ok(())
        }
    }

    /// The directory is about to be free for another server.
    pub(super) fn let_go(&self) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

fn read(dir: &Path) -> Result<Duration, WalError> {
    let path = dir.join(FILE);
    let text = match small::read_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Duration::ZERO),
        Err(error) => return Err(failed(&path, "read")(error)),
    };
    let nanos = text.strip_prefix(VERSION);
    let nanos = nanos.and_then(|rest| rest.trim().parse().ok());
    let owed = nanos.map(Duration::from_nanos);
    owed.filter(|owed| *owed <= MOST).ok_or_else(|| {
        let expected = "a time without votes of at most 66 s, in nanoseconds; remove the file when this \
                        server has been stopped for 66 s";
        WalError::damaged(path, 0, expected, "something else")
    })
}

/// Makes `owed` durable; nothing owed is no file.
fn keep(dir: &Path, owed: Duration) -> Result<(), WalError> {
    let path = dir.join(FILE);
    if owed.is_zero() {
        let removed = fs::remove_file(&path);
        return removed.map_err(failed(&path, "remove"));
    }
    let text = format!("{VERSION}\n{}\n", owed.as_nanos());
    write(dir, FILE, &text).map_err(failed(&path, "write"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(dir: &Path) -> Option<String> {
        fs::read_to_string(dir.join(FILE)).ok()
    }

    #[test]
    fn what_is_owed_is_raised_at_once_and_lowered_only_by_who_has_waited() {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let (long, short) = (Duration::from_secs(8), Duration::from_millis(250));
        // Lease reads were never on: no file, and nothing to wait for.
        let none = NoVoteTime::open(dir, Duration::ZERO).expect("no file");
        assert_eq!((none.time(), said(dir)), (Duration::ZERO, None));
        let first = NoVoteTime::open(dir, long).expect("raised");
        assert_eq!(first.time(), long);
        assert_eq!(said(dir).as_deref(), Some("tenure 1\n8000000000\n"));
        first.let_go();
        // Stopped before it was over: the next one owes all of it again.
        let second = NoVoteTime::open(dir, short).expect("read");
        assert_eq!(second.time(), long);
        second.let_go();
        let third = NoVoteTime::open(dir, short).expect("read");
        assert_eq!(third.time(), long);
        third.lower().expect("lowered");
        assert_eq!(said(dir).as_deref(), Some("tenure 1\n250000000\n"));
        // Whose directory it is not any more changes nothing in it.
        let fourth = NoVoteTime::open(dir, long).expect("raised");
        third.let_go();
        third.lower().expect("nothing to do");
        assert_eq!(said(dir).as_deref(), Some("tenure 1\n8000000000\n"));
        fourth.let_go();
        // Lease reads are off and it was waited out.
        let last = NoVoteTime::open(dir, Duration::ZERO).expect("read");
        assert_eq!(last.time(), long);
        last.lower().expect("removed");
        assert_eq!(said(dir), None);
    }

    #[test]
    fn a_file_that_says_something_else_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        for text in ["", "tenure 1\n", "tenure 1\nx\n", "tenure 1\n66000000001\n"] {
            fs::write(dir.path().join(FILE), text).expect("written");
            let error = NoVoteTime::open(dir.path(), Duration::ZERO).expect_err("damaged");
            let error = error.to_string();
            assert!(error.contains("silence"), "{error}");
            assert!(error.contains("stopped for 66 s"), "{error}");
        }
    }
}
