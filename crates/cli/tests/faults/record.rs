//! What clients asked and were told, and what is to be said of it.
//!
//! All clients of a test write into one record, under one lock: a call is
//! noted before it leaves and its answer after it came, so the order in the
//! record is an order that a correct cluster must respect, and no clock needs
//! to be trusted for it. Calls that came to nothing for certain are taken
//! back; those of which nobody knows stay open for ever.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tenure::core::cas::Bytes;
use tenure::core::ids::Key;
use tenure_client::Error;
use tenure_sim::linearize::{
    Answer, Append, CallId, History, Invocation, Verdict, check, exactly_once,
};

/// The plain log with its numbers.
pub(crate) type Log = Vec<(u64, Bytes)>;

#[derive(Default)]
pub(crate) struct Record {
    inner: Mutex<Inner>,
    began: Option<Instant>,
}

/// What was written down.
#[derive(Clone, Default)]
pub(crate) struct Inner {
    pub(crate) history: History,
    /// By client and serial; what certainly came to nothing is taken out.
    pub(crate) appends: BTreeMap<(u64, u64), Append>,
    events: u64,
    pub(crate) counts: Counts,
}

/// How many calls ended how.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    pub(crate) done: u64,
    pub(crate) conflicts: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    pub(crate) appended: u64,
    pub(crate) appends_refused: u64,
    pub(crate) appends_unknown: u64,
}

impl Record {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            began: Some(Instant::now()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nanoseconds of the monotonic clock since the record was begun.
    fn now(&self) -> u64 {
        let since = self.began.map_or(0, |began| began.elapsed().as_nanos());
        u64::try_from(since).expect("not for centuries")
    }

    pub(crate) fn invokes(&self, client: u64, key: &Key, invocation: Invocation) -> CallId {
        let at = self.now();
        self.lock()
            .history
            .invoke(at, client, key.clone(), invocation)
    }

    /// What came of a call on a register.
    pub(crate) fn hears(&self, call: CallId, answer: Result<Answer, Error>) {
        let at = self.now();
        let mut inner = self.lock();
        let looks = inner.history.call(call).invocation == Invocation::Read;
        match answer {
            Ok(answer) => {
                inner.counts.done += 1;
                inner.history.answer(at, call, answer);
            }
            Err(Error::Conflict) => {
                inner.counts.conflicts += 1;
                inner.history.answer(at, call, Answer::Conflict);
            }
            // Certainly not done, or it would not have done anything.
            Err(Error::Unavailable(_)) => {
                inner.counts.refused += 1;
                inner.history.withdraw(call);
            }
            Err(Error::Unknown(_)) if looks => {
                inner.counts.unknown += 1;
                inner.history.withdraw(call);
            }
            Err(Error::Unknown(_)) => inner.counts.unknown += 1,
            Err(other) => panic!("{:?}: {other}", inner.history.call(call)),
        }
    }

    pub(crate) fn appends(&self, client: u64, serial: u64, payload: &Bytes) {
        let mut inner = self.lock();
        inner.events += 1;
        let append = Append {
            session: client,
            serial,
            payload: payload.clone(),
            invoked: inner.events,
            answered: None,
        };
        inner.appends.insert((client, serial), append);
    }

    /// What came of appends that were one call.
    pub(crate) fn appended(
        &self,
        client: u64,
        first: u64,
        came: &Result<Vec<u64>, Error>,
        of: u64,
    ) {
        let mut inner = self.lock();
        inner.events += 1;
        let event = inner.events;
        match came {
            Ok(numbers) => {
                assert_eq!(numbers.len() as u64, of, "a number for each");
                for (serial, number) in (first..).zip(numbers) {
                    let append = inner.appends.get_mut(&(client, serial));
                    append.expect("it was asked for").answered = Some((event, *number));
                }
                inner.counts.appended += of;
            }
            Err(Error::Unknown(_)) => inner.counts.appends_unknown += of,
            Err(Error::Unavailable(_)) => {
                for serial in first..first + of {
                    inner.appends.remove(&(client, serial));
                }
                inner.counts.appends_refused += of;
            }
            Err(other) => panic!("an append: {other}"),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// How many appends were acknowledged under the highest number.
    pub(crate) fn last_number(&self) -> u64 {
        let inner = self.lock();
        let told = inner.appends.values().filter_map(|it| it.answered);
        told.map(|(_, number)| number).max().unwrap_or(0)
    }

    /// All of it as it is now.
    pub(crate) fn copy(&self) -> Inner {
        self.lock().clone()
    }
}

impl Inner {
    /// Whether an order of all calls explains all answers, and the log has
    /// all that was acknowledged once, in order, and nothing else but what
    /// nobody knows of.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub(crate) fn judge(&self, log: &Log) -> Result<String, String> {
        let verdict = check(&self.history);
        let Verdict::Linearizable { configurations } = verdict else {
            return Err(format!("registers: {verdict}"));
        };
        let appends: Vec<_> = self.appends.values().cloned().collect();
        if let Err(misdeeds) = exactly_once(&appends, log) {
            let mut text = format!("log: {} misdeeds", misdeeds.len());
            for misdeed in misdeeds.iter().take(5) {
                let _ = write!(text, "\n  {misdeed}");
            }
            return Err(text);
        }
        Ok(format!(
            "registers linearizable ({} calls, {configurations} configurations); log exactly once \
             and in order ({} entries)",
            self.history.len(),
            log.len()
        ))
    }
}
