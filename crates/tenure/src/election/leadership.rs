//! A [`Leadership`] proves that this process leads, and stops its work at the
//! deadline.
//!
//! It holds the election: the work counts as ended when its last
//! clone is dropped. A [`LeadershipView`] tells the same of it and holds
//! nothing. Both have one state, [`Granted`], which the driver writes.
//!
//! The end of the grant is one atomic. The value zero is final: a thread that
//! reads it knows that the leadership has ended, and no renewal that is on its
//! way brings it back.

#[cfg(debug_assertions)]
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
#[cfg(debug_assertions)]
use std::panic::Location;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
#[cfg(debug_assertions)]
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tenure_core::ids::{Fence, Term};
use tenure_core::time::Instant;
use tenure_election::{Grant, Why};
use tokio::sync::watch;

use super::environment::Mailbox;
use super::lease_clock::LeaseClock;

/// The proof that this process leads. Clones share one leadership. Dropping the last
/// clone says that the work has ended, and the candidate then vacates the election, if
/// it still holds it. A clone that is never dropped (in a task that does not end, say)
/// keeps the candidate from standing again. One lease after the leadership has ended, a
/// warning says so; in debug builds it names where the remaining clones were made.
pub struct Leadership {
    hold: Arc<WorkGuard>,
    #[cfg(debug_assertions)]
    taken: u64,
}

impl Clone for Leadership {
    #[track_caller]
    fn clone(&self) -> Self {
        Self::of(Arc::clone(&self.hold))
    }
}

#[cfg(debug_assertions)]
impl Drop for Leadership {
    fn drop(&mut self) {
        self.hold.places().remove(&self.taken);
    }
}

/// How many places are named where clones were taken that are left.
#[cfg(debug_assertions)]
const PLACES_SHOWN: usize = 8;

/// Work was stopped because the election could not be held.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the leadership was lost while the work was under way: {0}")]
pub struct Deposed(pub Why);

/// What can be told of a leadership, without holding it: give it to whatever
/// asks *do we lead?*, as often as it likes and for as long as it lives. It
/// costs an [`Arc`]. It never keeps a leadership from ending, and once the
/// leadership has ended it says so for good.
#[derive(Clone)]
pub struct LeadershipView {
    facts: Arc<Granted>,
}

/// Says that the work has ended when it is dropped.
#[derive(Debug)]
struct WorkGuard {
    view: LeadershipView,
    mailbox: Arc<Mailbox>,
    /// Where the leadership and its clones were taken that are still there, by the
    /// order in which they were.
    #[cfg(debug_assertions)]
    places: Mutex<BTreeMap<u64, &'static Location<'static>>>,
}

#[cfg(debug_assertions)]
impl WorkGuard {
    fn places(&self) -> MutexGuard<'_, BTreeMap<u64, &'static Location<'static>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_place(&self, at: &'static Location<'static>) -> u64 {
        let mut places = self.places();
        let next = places.last_key_value().map_or(0, |(last, _)| last + 1);
        places.insert(next, at);
        next
    }
}

/// The driver's side of a leadership.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    view: LeadershipView,
    hold: Weak<WorkGuard>,
}

#[derive(Debug)]
struct Granted {
    fence: Fence,
    /// Nanoseconds on the boot-time clock; zero once revoked.
    valid_until: AtomicU64,
    grant: watch::Sender<Grant>,
    ending: watch::Sender<Option<Why>>,
    clock: LeaseClock,
}

impl Leadership {
    pub(super) fn new(
        fence: Fence,
        grant: Grant,
        mailbox: Arc<Mailbox>,
        clock: LeaseClock,
    ) -> Self {
        let facts = Arc::new(Granted {
            fence,
            valid_until: AtomicU64::new(grant.valid_until.as_nanos()),
            grant: watch::Sender::new(grant),
            ending: watch::Sender::new(None),
            clock,
        });
        Self::of(Arc::new(WorkGuard {
            view: LeadershipView { facts },
            mailbox,
            #[cfg(debug_assertions)]
            places: Mutex::default(),
        }))
    }

    #[track_caller]
    fn of(hold: Arc<WorkGuard>) -> Self {
        Self {
            #[cfg(debug_assertions)]
            taken: hold.take_place(Location::caller()),
            hold,
        }
    }

    pub(super) fn handle(&self) -> Handle {
        Handle {
            view: self.view(),
            hold: Arc::downgrade(&self.hold),
        }
    }

    /// What it tells, without holding it.
    pub fn view(&self) -> LeadershipView {
        self.hold.view.clone()
    }

    /// Says that the work runs and goes by `grant`, one of this leadership: that
    /// whatever ends it at its deadlines knows these. Where the candidate was
    /// told that its [work confirms](super::Builder::require_work_confirmation) the next
    /// renewal waits for this; elsewhere it means nothing.
    pub fn confirm_work(&self, grant: &Grant) {
        self.hold.mailbox.work_confirmed(grant.start);
    }

    /// Runs `work` and drops it when it must stop. No poll of it begins at or
    /// after `drain_at` of the last grant that was confirmed: the boot-time
    /// clock is read right before each poll. What a poll does before it returns
    /// is not seen.
    ///
    /// Work that blocks is one long poll: it asks
    /// [`is_valid`](LeadershipView::is_valid) before each effect, and attaches
    /// the [`fence`](LeadershipView::fence) to it. So does work that may be
    /// paused within a poll (a stopped process, a machine that sleeps): only
    /// the fence stops what it does then.
    ///
    /// # Errors
    /// [`Deposed`] if it was dropped unfinished.
    pub async fn guard<T>(&self, work: impl Future<Output = T>) -> Result<T, Deposed> {
        let until_deadline = self.until_deadline(work, || self.facts.clock.now());
        until_deadline.await.map_err(Deposed)
    }

    /// [`guard`](Self::guard) by the clock that is handed in.
    async fn until_deadline<T>(
        &self,
        work: impl Future<Output = T>,
        clock: impl Fn() -> Instant,
    ) -> Result<T, Why> {
        let (mut work, mut cancelled) = (pin!(work), pin!(self.cancelled()));
        poll_fn(|context| {
            // The end first: no step of the work once it has been told to stop.
            // Its timer is the background thread's, which wakes this task.
            if let Poll::Ready(why) = cancelled.as_mut().poll(context) {
                return Poll::Ready(Err(why));
            }
            // The timer only wakes. A process that was stopped beyond the end
            // of its grant may run this task before the thread that tells it to
            // stop, so the comparison decides, and nothing stands between it
            // and the poll but the poll itself.
            if !self.grant().may_step(clock()) {
                return Poll::Ready(Err(Why::Unconfirmed));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

impl LeadershipView {
    /// Whether the election is held *now*: an atomic load and a look at the
    /// boot-time clock, no lock, no await. True means that no rival can have
    /// been elected yet; it may turn false right after, so attach the
    /// [`fence`](Self::fence) to whatever leaves the process.
    #[inline]
    pub fn is_valid(&self) -> bool {
        // Acquire pairs with the release of the driver: a thread that sees a
        // revocation also sees what was done before it.
        self.facts.clock.now().as_nanos() < self.facts.valid_until.load(Ordering::Acquire)
    }

    /// The term of this leadership.
    pub fn term(&self) -> Term {
        self.facts.fence.term
    }

    /// What to attach to every effect outside this process. What is written to
    /// has to remember the highest term, and refuse lower ones:
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # fn demo(db: &rusqlite::Connection, leadership: &tenure::Leadership)
    /// #     -> Result<(), Box<dyn std::error::Error>> {
    /// let term = i64::try_from(leadership.term().get())?;
    /// let sql = "UPDATE payments SET paid = 1, term = ?1 WHERE id = 7 AND term <= ?1";
    /// if db.execute(sql, [term])? == 0 {
    ///     return Err("a later leader has written this payment".into());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn fence(&self) -> Fence {
        self.facts.fence
    }

    /// Until when [`is_valid`](Self::is_valid) stays true if nothing more is
    /// confirmed, on the boot-time clock ([`clock::boot`](crate::clock::boot));
    /// [`Instant::ZERO`] once the leadership is lost.
    pub fn valid_until(&self) -> Instant {
        Instant::from_nanos(self.facts.valid_until.load(Ordering::Acquire))
    }

    /// How long [`is_valid`](Self::is_valid) stays true if nothing more is
    /// confirmed.
    pub fn remaining(&self) -> Duration {
        self.valid_until().since(self.facts.clock.now())
    }

    /// The whole time table of the latest grant.
    pub fn grant(&self) -> Grant {
        *self.facts.grant.borrow()
    }

    /// Waits for the next grant that is confirmed from now on; `None` once the
    /// leadership is ending. One that is confirmed between two calls is not
    /// returned by the second: for the latest, see
    /// [`grant`](Self::grant).
    pub async fn extended(&self) -> Option<Grant> {
        let mut grant = self.facts.grant.subscribe();
        let cancelled = pin!(self.cancelled());
        let changed = pin!(grant.changed());
        let extended = either(changed, cancelled).await.is_ok();
        extended.then(|| self.grant())
    }

    /// Waits until the work must begin to stop, and says why. Drop the
    /// leadership when it has.
    pub async fn cancelled(&self) -> Why {
        let mut ending = self.facts.ending.subscribe();
        match ending.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or(Why::Replaced),
            Err(_) => Why::Replaced,
        }
    }
}

impl Deref for Leadership {
    type Target = LeadershipView;

    fn deref(&self) -> &LeadershipView {
        &self.hold.view
    }
}

/// The first of two futures, the second one being asked first.
async fn either<T, E>(
    mut first: impl Future<Output = T> + Unpin,
    mut end: impl Future<Output = E> + Unpin,
) -> Result<T, E> {
    poll_fn(|context| {
        if let Poll::Ready(why) = std::pin::Pin::new(&mut end).poll(context) {
            return Poll::Ready(Err(why));
        }
        std::pin::Pin::new(&mut first).poll(context).map(Ok)
    })
    .await
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(self, f.debug_struct("Leadership"))
    }
}

impl fmt::Debug for LeadershipView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shown(self, f.debug_struct("LeadershipView"))
    }
}

fn shown(view: &LeadershipView, mut f: fmt::DebugStruct<'_, '_>) -> fmt::Result {
    f.field("fence", &view.fence())
        .field("valid_until", &view.valid_until())
        .finish()
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        // Before anybody may vacate the election, views know.
        self.view.facts.valid_until.store(0, Ordering::Release);
        self.mailbox.drained();
    }
}

impl Handle {
    pub(super) fn term(&self) -> Term {
        self.view.term()
    }

    /// What to warn of if the leadership, which is over, is still held.
    pub(super) fn leak(&self) -> Option<String> {
        let hold = self.hold.upgrade()?;
        let term = self.term();
        #[cfg(debug_assertions)]
        let where_taken = {
            let places = hold.places();
            let shown = places.values().take(PLACES_SHOWN).map(ToString::to_string);
            let shown: Vec<String> = shown.collect();
            format!(
                "; {} of it are left, taken at {}",
                places.len(),
                shown.join(", ")
            )
        };
        #[cfg(not(debug_assertions))]
        let where_taken = "; a debug build says where they were taken";
        drop(hold);
        Some(format!(
            "expected the Leadership of term {term} and its clones to be dropped, for it is over, found \
             some that are still held: this candidate does not stand again before the last of \
             them is dropped{where_taken}"
        ))
    }

    pub(super) fn extend(&self, grant: Grant) {
        let until = grant.valid_until.as_nanos();
        let later = |now| (now != 0).then_some(until);
        let (set, fetch) = (Ordering::Release, Ordering::Relaxed);
        // Whether it has ended meanwhile makes no difference to who asks.
        let _ = self.view.facts.valid_until.fetch_update(set, fetch, later);
        self.view.facts.grant.send_replace(grant);
    }

    /// Tells the work to stop; the grant stays valid.
    pub(super) fn cancel(&self, why: Why) {
        self.view.facts.ending.send_if_modified(|ending| {
            let first = ending.is_none();
            ending.get_or_insert(why);
            first
        });
    }

    /// Takes the leadership away: invalid first, told second.
    pub(super) fn revoke(&self, why: Why) {
        self.view.facts.valid_until.store(0, Ordering::Release);
        self.cancel(why);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tenure_core::ids::{LeaderId, Name};
    use tenure_election::Config;

    use super::*;

    fn leadership(config: &Config) -> Leadership {
        let fence = Fence {
            term: Term::new(1).expect("a term"),
            leader: LeaderId::from_u128(1),
        };
        let grant = Grant::new(Instant::from_nanos(1_000_000_000), config);
        Leadership::new(fence, grant, Arc::default(), LeaseClock::Boot)
    }

    /// No timer is heard here, and nothing cancels the leadership: what ends the
    /// work is the comparison alone.
    #[tokio::test]
    async fn no_poll_of_guarded_work_begins_at_the_end_of_the_grant() {
        let name = Name::new("payroll").expect("a name");
        let config = Config::new(name.clone(), name);
        let leadership = leadership(&config);
        let end = leadership.grant().drain_at;
        let (now, steps) = (Cell::new(end.before(Duration::from_nanos(2))), Cell::new(0));
        let work = poll_fn(|context| {
            steps.set(steps.get() + 1);
            now.set(now.get().after(Duration::from_nanos(1)));
            context.waker().wake_by_ref();
            // So that it ends where nothing ends it.
            if steps.get() < 9 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        });
        let ended = leadership.until_deadline(work, || now.get()).await;
        assert_eq!(ended, Err(Why::Unconfirmed));
        // One at two nanoseconds before the end, one at one, none at the end.
        assert_eq!(steps.get(), 2);
    }

    /// The grant that counts is the last one that was confirmed.
    #[tokio::test]
    async fn guarded_work_goes_on_under_a_later_grant() {
        let name = Name::new("payroll").expect("a name");
        let config = Config::new(name.clone(), name);
        let leadership = leadership(&config);
        let handle = leadership.handle();
        let later = Grant::new(leadership.grant().drain_at, &config);
        let now = Cell::new(leadership.grant().drain_at.before(Duration::from_nanos(1)));
        let work = poll_fn(|context| {
            if now.get() == later.start {
                return Poll::Ready(7);
            }
            handle.extend(later);
            now.set(later.start);
            context.waker().wake_by_ref();
            Poll::Pending
        });
        assert_eq!(leadership.until_deadline(work, || now.get()).await, Ok(7));
    }
}
