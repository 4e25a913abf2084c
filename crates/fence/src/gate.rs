//! A service admits a request by comparing its term with one mark.
//!
//! ```text
//! a request of a lower term than the mark's    is refused
//! one of the mark's term                       goes on
//! one of a higher term                         raises the mark, on disk, waits
//!                                              until all of lower terms have ended,
//!                                              and goes on
//! ```
//!
//! The wait is what makes a fence of the comparison. A request that was let in
//! a moment ago may write for as long as it takes; were the next leader let in
//! beside it, it would read what the earlier one then changes.
//!
//! A service has one gate, in one process: the gate holds the lock of its mark
//! for as long as it lives. Two processes of a service (two machines, or the
//! old and the new one of a restart) cannot share a mark. They need a fence in
//! what they write to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::lock::MarkLock;
use crate::mark::{Mark, MarkError};
use crate::{Deposed, Term};

/// How long a request waits for those of lower terms, if nothing else is said.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// See the [module](self). Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    shared: Arc<Shared>,
    patience: Duration,
}

#[derive(Debug)]
struct Shared {
    mark: Mark,
    state: Mutex<State>,
    /// A request has ended, or the mark was raised.
    changed: Notify,
    /// Held by what raises the mark, so that one thread waits for the disk.
    raising: tokio::sync::Mutex<()>,
    lock: MarkLock,
}

#[derive(Debug, Default)]
struct State {
    /// What is on disk.
    seen: Option<Term>,
    /// How many requests are under way, by their terms.
    under_way: BTreeMap<Term, usize>,
}

/// A request that was let in; dropped when it has ended.
#[derive(Debug)]
pub struct Permit {
    shared: Arc<Shared>,
    term: Term,
}

/// Why a service has no gate.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{0}: expected to be the only process with this mark, found its lock held; end the other \
         process, or give this one a mark of its own"
    )]
    Held(String),
    /// The mark or its lock cannot be used.
    #[error(transparent)]
    Mark(#[from] MarkError),
    /// The lock is there and the mark is not.
    #[error(
        "{0}: expected the mark of a fence, found none, though {0}.lock says that there was one; \
         write the highest term that has led as `term N` and a newline, or remove {0}.lock too if \
         none has"
    )]
    Gone(String),
}

/// Why a request was not let in.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A higher term was seen.
    #[error(transparent)]
    Deposed(#[from] Deposed),
    /// Requests of a lower term have not ended in time. The term counts all the
    /// same. Ask again.
    #[error("requests of a lower term are under way still; ask again")]
    Busy,
    /// The mark could not be raised. Ask again; a person has to look.
    #[error("the mark could not be raised: {0}")]
    Mark(String),
}

impl Gate {
    /// Opens the gate of a mark, which is made by the first request if it is
    /// missing. This reads and locks files.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(mark: Mark) -> Result<Self, OpenError> {
        let shown = || mark.path().display().to_string();
        let lock = MarkLock::try_take(&mark)?;
        let lock = lock.ok_or_else(|| OpenError::Held(shown()))?;
        let seen = mark.read()?;
        // A lock without a term is of a service that nothing was asked of.
        let was_raised = crate::lock::held_in(&mark).ok().flatten().is_some();
        if seen.is_none() && was_raised {
            return Err(OpenError::Gone(shown()));
        }
        let state = State {
            seen,
            under_way: BTreeMap::new(),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                mark,
                state: Mutex::new(state),
                changed: Notify::new(),
                raising: tokio::sync::Mutex::new(()),
                lock,
            }),
            patience: PATIENCE,
        })
    }

    /// Lets requests wait for so long for those of lower terms.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// The highest term that was seen.
    pub fn seen(&self) -> Option<Term> {
        self.shared.state().seen
    }

    /// Lets a request of `term`, its fencing token, in, or refuses a stale one.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn admit(&self, term: Term) -> Result<Permit, Refusal> {
        self.record(term).await?;
        let admitted = tokio::time::timeout(self.patience, self.turn(term));
        admitted.await.map_err(|_| Refusal::Busy)?
    }

    /// Raises the mark to `term`, unless it is there.
    async fn record(&self, term: Term) -> Result<(), Refusal> {
        if self.shared.is_at(term)? {
            return Ok(());
        }
        let _turn = self.shared.raising.lock().await;
        if self.shared.is_at(term)? {
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        // The caller may be dropped while the disk is waited for. What it has
        // recorded counts, so the thread that records it also says so.
        let raised = tokio::task::spawn_blocking(move || {
            shared.mark.raise(term)?;
            shared.state().seen = Some(term);
            shared.changed.notify_waiters();
            shared
                .lock
                .note_term(term)
                .map_err(|error| shared.mark.failed("note the term of", error))
        });
        match raised.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(MarkError::Deposed(deposed))) => Err(deposed.into()),
            Ok(Err(error)) => Err(Refusal::Mark(error.to_string())),
            Err(error) => Err(Refusal::Mark(error.to_string())),
        }
    }

    /// Waits until no request of a lower term is under way.
    async fn turn(&self, term: Term) -> Result<Permit, Refusal> {
        loop {
            let mut changed = std::pin::pin!(self.shared.changed.notified());
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Some(permit) = self.shared.begin(term)? {
                return Ok(permit);
            }
            changed.await;
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `term` is the one that was seen last.
    fn is_at(&self, term: Term) -> Result<bool, Deposed> {
        match self.state().seen {
            Some(seen) if seen > term => Err(Deposed {
                term,
                seen: Some(seen),
            }),
            seen => Ok(seen == Some(term)),
        }
    }

    /// Begins a request, if those of lower terms have ended. The look and the
    /// beginning are one step, or a higher term might come in between.
    fn begin(self: &Arc<Self>, term: Term) -> Result<Option<Permit>, Deposed> {
        let mut state = self.state();
        if let Some(seen) = state.seen.filter(|seen| *seen > term) {
            let seen = Some(seen);
            return Err(Deposed { term, seen });
        }
        let lowest = state.under_way.first_key_value();
        if lowest.is_some_and(|(lowest, _)| *lowest < term) {
            return Ok(None);
        }
        *state.under_way.entry(term).or_default() += 1;
        let shared = Arc::clone(self);
        Ok(Some(Permit { shared, term }))
    }
}

impl Permit {
    /// The term of the request.
    pub fn term(&self) -> Term {
        self.term
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(count) = state.under_way.get_mut(&self.term) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.term);
            }
        }
        drop(state);
        self.shared.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn term(number: u64) -> Term {
        Term::new(number).expect("a term")
    }

    fn gate(directory: &tempfile::TempDir) -> Gate {
        Gate::open(Mark::at(directory.path().join("mark"))).expect("a gate")
    }

    #[tokio::test]
    async fn a_higher_term_waits_for_lower_ones_that_are_under_way() {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = gate(&directory).patience(Duration::from_secs(60));
        let first = gate.admit(term(7)).await.expect("let in");
        let second = gate.admit(term(7)).await.expect("let in");
        let waiting = tokio::spawn({
            let gate = gate.clone();
            async move { gate.admit(term(8)).await }
        });
        while gate.seen() != Some(term(8)) {
            tokio::task::yield_now().await;
        }
        // The mark is on disk before the request goes on.
        let text = fs::read_to_string(directory.path().join("mark")).expect("a mark");
        assert_eq!(text, "term 8\n");
        let late = gate.admit(term(7)).await;
        assert!(matches!(late, Err(Refusal::Deposed(it)) if it.seen == Some(term(8))));
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "one is under way still");
        drop(second);
        let permit = waiting.await.expect("it ends").expect("let in");
        assert_eq!(permit.term(), term(8));
    }

    #[tokio::test]
    async fn a_request_waits_no_longer_than_it_may() {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = gate(&directory).patience(Duration::from_millis(50));
        let stuck = gate.admit(term(7)).await.expect("let in");
        let next = gate.admit(term(8)).await;
        assert!(matches!(next, Err(Refusal::Busy)), "{next:?}");
        assert!(gate.admit(term(7)).await.is_err(), "its term counts");
        drop(stuck);
        gate.admit(term(8)).await.expect("let in");
    }

    #[tokio::test]
    async fn who_waits_is_refused_by_a_still_higher_term() {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = gate(&directory).patience(Duration::from_secs(60));
        let stuck = gate.admit(term(7)).await.expect("let in");
        let waiting = |number| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.admit(term(number)).await })
        };
        let eight = waiting(8);
        while gate.seen() != Some(term(8)) {
            tokio::task::yield_now().await;
        }
        let nine = waiting(9);
        let refused = eight.await.expect("it ends");
        assert!(matches!(refused, Err(Refusal::Deposed(it)) if it.seen == Some(term(9))));
        drop(stuck);
        nine.await.expect("it ends").expect("let in");
    }

    #[tokio::test]
    async fn what_was_seen_outlives_the_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = gate(&directory);
        first.admit(term(7)).await.expect("let in");
        let second = Gate::open(Mark::at(directory.path().join("mark")));
        assert!(matches!(second, Err(OpenError::Held(_))), "{second:?}");
        drop(first);
        let next = gate(&directory);
        assert_eq!(next.seen(), Some(term(7)));
        assert!(next.admit(term(6)).await.is_err());
        drop(next);
        fs::remove_file(directory.path().join("mark")).expect("removed");
        let gone = Gate::open(Mark::at(directory.path().join("mark")));
        assert!(matches!(gone, Err(OpenError::Gone(_))), "{gone:?}");
    }

    #[tokio::test]
    async fn a_mark_that_cannot_be_raised_lets_nothing_in() {
        let directory = tempfile::tempdir().expect("a directory");
        let gate = gate(&directory);
        gate.admit(term(7)).await.expect("let in");
        fs::write(directory.path().join("mark"), "torn").expect("written");
        let refused = gate.admit(term(8)).await;
        assert!(matches!(refused, Err(Refusal::Mark(_))), "{refused:?}");
        assert_eq!(gate.seen(), Some(term(7)));
    }
}
