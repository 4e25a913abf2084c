//! What every driver of a machine does with a store: calls with an end, and
//! watches as hints.
//!
//! A call's failure is handed on by its class and never repeated here; a
//! machine has a watch or several, and is told that they are up while all of
//! them are.
//!
//! Three timers end a call. The store's own says why there is no answer; it is a little
//! shorter than the machine's, or what it says would come when nobody waits for it any
//! more. The machine's is what it judges by (`tenure_core::call`): it is the only one in
//! the simulator, and it also ends a call whose task is gone, since a store
//! that panics in its task ends no machine. The last, a second after the
//! store's, ends the task of a store that does not keep its time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use tenure_election::{Failure, FailureClass};
use tokio::task::JoinSet;

use super::{Key, Register, Selector, Sighting, Store, Watch};
use crate::clock;
use crate::error::StoreError;
use crate::round_trip::{ADVICE, LEASE_TRIPS, RoundTripTimes, advice};

/// How many slow calls in a row are worth a warning: one may have met a
/// connection that had to be made first.
const SLOW_IN_A_ROW: u32 = 2;

/// By how much the store's timer is shorter, at most.
const HEARD_WITHIN: Duration = Duration::from_millis(20);

/// The calls and the watches of one machine. What comes of them is an `I`, an
/// input of the machine.
pub(crate) struct Calls<I> {
    store: Arc<dyn Store>,
    caller: Caller,
    under_way: JoinSet<I>,
    watches: MachineWatches,
}

impl<I: From<WatchUpdate> + Send + 'static> Calls<I> {
    /// Follows what `selectors` select, one at least; `who` is what the machine is
    /// called in the log.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        who: impl Into<String>,
        selectors: impl IntoIterator<Item = Selector>,
    ) -> Self {
        Self {
            watches: MachineWatches::new(store.as_ref(), selectors),
            store,
            caller: Caller::new(who),
            under_way: JoinSet::new(),
        }
    }

    /// Whom to call.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Begins a call that the machine waits for so long, of whose end `input` tells.
    /// `call` is handed the time that the store has for it.
    pub(crate) fn begin<T, C>(
        &mut self,
        within: Duration,
        call: impl FnOnce(Duration) -> C,
        input: impl FnOnce(Result<T, Failure>) -> I + Send + 'static,
    ) where
        C: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let within = within.saturating_sub(HEARD_WITHIN.min(within / 16));
        let (caller, call) = (self.caller.clone(), call(within));
        let ended = async move { input(caller.with_timeout(within, call).await) };
        self.under_way.spawn(ended);
    }

    /// The next input. Cancelling this loses nothing.
    pub(crate) async fn next(&mut self) -> I {
        loop {
            tokio::select! {
                // A store that panicked gives no input.
                Some(ended) = self.under_way.join_next(), if !self.under_way.is_empty() => {
                    if let Ok(input) = ended {
                        return input;
                    }
                }
                update = self.watches.next() => return update.into(),
            }
        }
    }
}

/// Calls a store for one machine, and tells when calls take so long that the
/// lease is hardly long enough for them. Clones are the same.
#[derive(Clone, Debug)]
struct Caller {
    /// What the machine is called in the log.
    who: String,
    round_trips: RoundTripTimes,
    /// How many calls in a row took more than five eighths of their time.
    slow: Arc<AtomicU32>,
}

impl Caller {
    fn new(who: impl Into<String>) -> Self {
        Self {
            who: who.into(),
            round_trips: RoundTripTimes::default(),
            slow: Arc::default(),
        }
    }

    /// Holds a store to its time. A store keeps it by itself; one that does
    /// not must not keep a task alive for ever.
    async fn with_timeout<T>(
        &self,
        within: Duration,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Failure> {
        let asked = clock::boot();
        let ended = tokio::time::timeout(within + Duration::from_secs(1), call).await;
        let took = clock::boot().since(asked);
        match ended {
            Ok(Ok(answer)) => {
                self.round_trips.record(took);
                self.count_slow(took, within);
                Ok(answer)
            }
            Ok(Err(error)) => Err(self.with_advice(failure(&error), took, within)),
            Err(_) => Err(Failure::new(
                FailureClass::Unknown,
                "the store did not answer in time",
            )),
        }
    }

    /// Tells of calls that are slow again and again: the first time, and once
    /// more when they have been quick meanwhile.
    fn count_slow(&self, took: Duration, within: Duration) {
        if took < within / 4 {
            self.slow.store(0, Ordering::Relaxed);
        }
        // More than its part of a lease of so many round trips.
        let is_slow = took > within * 5 / LEASE_TRIPS;
        if is_slow && self.slow.fetch_add(1, Ordering::Relaxed) + 1 == SLOW_IN_A_ROW {
            let advice = advice(took, within);
            tracing::warn!("{}: the store answers late: {advice}", self.who);
        }
    }

    /// Adds to a failure for want of time what calls take otherwise, unless
    /// the store knows it and has said so.
    fn with_advice(&self, mut failure: Failure, took: Duration, within: Duration) -> Failure {
        let late = took >= within / 10 * 9 && !failure.why.contains(ADVICE);
        if let Some(excuse) = self.round_trips.explain_timeout(within).filter(|_| late) {
            failure = Failure::new(failure.class, &format!("{}; {excuse}", failure.why));
        }
        failure
    }
}

fn failure(error: &StoreError) -> Failure {
    let class = match error {
        StoreError::Conflict => FailureClass::Conflict,
        StoreError::Unavailable(_) => FailureClass::Unavailable,
        StoreError::Unknown(_) => FailureClass::Unknown,
        StoreError::Broken(_) => FailureClass::Broken,
    };
    Failure::new(class, &error.to_string())
}

/// What the watches of a machine report.
pub(crate) enum WatchUpdate {
    /// This register had this state, at some time past.
    Seen(Key, Option<Register>),
    /// Whether all watches are up.
    WatchUp(bool),
}

/// The watches of a machine, one at least: of its own register, and of those that it
/// goes by.
struct MachineWatches {
    all: Vec<MachineWatch>,
    /// Which of them is asked first: none waits behind one that always has news.
    turn: usize,
}

struct MachineWatch {
    watch: Watch,
    up: bool,
}

impl MachineWatches {
    /// Follows what `selectors` select.
    fn new(store: &dyn Store, selectors: impl IntoIterator<Item = Selector>) -> Self {
        let watches = selectors.into_iter().map(|selector| MachineWatch {
            watch: store.watch(selector),
            up: false,
        });
        Self {
            all: watches.collect(),
            turn: 0,
        }
    }

    /// The next of what they report. Cancelling this loses nothing.
    async fn next(&mut self) -> WatchUpdate {
        let (watch, sighting) = self.sighting().await;
        match sighting {
            Sighting::State(key, register) => return WatchUpdate::Seen(key, register),
            Sighting::Live => {
                tracing::debug!("the watch is up");
                watch.up = true;
            }
            Sighting::Down(why) => {
                tracing::debug!(why, "the watch is down; polling meanwhile");
                watch.up = false;
            }
        }
        WatchUpdate::WatchUp(self.all.iter().all(|watch| watch.up))
    }

    /// What any of them sights next.
    async fn sighting(&mut self) -> (&mut MachineWatch, Sighting) {
        let count = self.all.len();
        self.turn = (self.turn + 1) % count.max(1);
        let mut all = self.all.iter_mut();
        if count == 1
            && let Some(only) = all.next()
        {
            let sighting = only.watch.next().await;
            return (only, sighting);
        }
        let nexts = all.map(|watch| {
            let next = async move {
                let sighting = watch.watch.next().await;
                (watch, sighting)
            };
            Box::pin(next)
        });
        let mut nexts: Vec<_> = nexts.collect();
        nexts.rotate_left(self.turn);
        poll_fn(move |context| {
            let mut polled = nexts.iter_mut().map(|next| next.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Expect, Memory, Stamp, Write};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[tokio::test]
    async fn each_of_several_watches_is_heard() {
        let store = Memory::new();
        let keys = ["a", "b", "c"].map(|name| Key::new(name).expect("a key"));
        let mut watches = MachineWatches::new(&store, keys.clone().map(Selector::Key));
        let mut up = false;
        while !up {
            if let WatchUpdate::WatchUp(now) = watches.next().await {
                up = now;
            }
        }
        for key in keys {
            let write = Write {
                key: key.clone(),
                expect: Expect::Absent,
                value: [].into(),
                stamp: Stamp::Now,
            };
            let written = store.compare_and_swap(write, ms(1_000)).await;
            written.expect("nobody else writes");
            loop {
                let update = watches.next().await;
                if matches!(update, WatchUpdate::Seen(seen, Some(_)) if seen == key) {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_failure_for_want_of_time_says_what_calls_take_and_which_lease_would_do() {
        let caller = Caller::new("payroll");
        let late = || Failure::new(FailureClass::Unknown, "no answer");
        let said = caller.with_advice(late(), ms(200), ms(200)).why;
        assert_eq!(&*said, "no answer", "nothing was measured");
        caller.round_trips.record(ms(500));
        let said = caller.with_advice(late(), ms(200), ms(200)).why;
        for words in ["no answer; ", "takes 500ms", "had 200ms", "5s would do"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        // One that failed at once failed for something else.
        let said = caller.with_advice(late(), ms(10), ms(200)).why;
        assert_eq!(&*said, "no answer");
    }

    #[test]
    fn calls_that_are_slow_again_and_again_are_told_of_once() {
        let caller = Caller::new("payroll");
        let slow = || caller.slow.load(Ordering::Relaxed);
        caller.count_slow(ms(600), ms(1_000));
        assert_eq!(slow(), 0, "eight round trips fit into the lease");
        caller.count_slow(ms(700), ms(1_000));
        caller.count_slow(ms(300), ms(1_000));
        assert_eq!(slow(), 1, "not quick enough to forget it");
        caller.count_slow(ms(700), ms(1_000));
        assert_eq!(slow(), SLOW_IN_A_ROW, "told");
        caller.count_slow(ms(700), ms(1_000));
        assert!(slow() > SLOW_IN_A_ROW, "not told again");
        caller.count_slow(ms(200), ms(1_000));
        assert_eq!(slow(), 0);
    }
}
