//! When steps are taken.
//!
//! In a *closed loop* a client takes its next step when the last one has
//! ended. That says how fast a store is when everybody waits for it, and says
//! little about latency: while the store stands still, nobody asks, and the
//! many who would have met the delay are missing from the figures
//! (coordinated omission).
//!
//! In an *open loop* operations are due at fixed times, whatever the store
//! does, and the latency of each counts from when it was due. A client that
//! is free takes the next one, waits if it is early, and hurries if it is
//! late. Operations that were due and that no client came to are counted.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tenure::core::time::Instant;
use tenure::{StoreError, clock, drive};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::record::Record;
use super::work::Work;
use tenure_runtime::failure::{Failure, store_failure};

/// How long a client waits after a failure: a store that refuses at once
/// would be asked as fast as the processor can.
const AFTER_FAILURE: Duration = Duration::from_millis(5);

/// When steps are taken.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// When the last has ended.
    Closed,
    /// One every so often, all clients together.
    Open(Duration),
}

/// What the clients of one slice share.
#[derive(Debug)]
struct Shared {
    record: Mutex<Record>,
    begin: Instant,
    end: Instant,
    pace: Pace,
    /// In an open loop: operations that are due and that nobody has taken on.
    due: Semaphore,
    /// How many have been taken on.
    taken: AtomicU64,
    /// Somebody met what only a person can mend.
    stop: AtomicBool,
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an operation is due that nobody has taken on, and takes it
    /// on; when it was due, or `None` at the end.
    async fn take(&self, period: Duration) -> Option<Instant> {
        self.due.acquire().await.ok()?.forget();
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let after = Duration::from_nanos(nanos(period).saturating_mul(number));
        Some(self.begin.after(after))
    }

    /// Nobody is to begin anything more.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.due.close();
    }
}

/// Lets the clients work for so long, and writes down what happened.
///
/// They run on the thread that serves the stores' connections, so that no
/// answer waits for another thread to wake up.
pub(super) async fn run(
    clients: &mut Vec<Work>,
    record: Record,
    pace: Pace,
    lasting: Duration,
) -> Result<Record, Failure> {
    let begin = clock::boot();
    let shared = Arc::new(Shared {
        record: Mutex::new(record),
        begin,
        end: begin.after(lasting),
        pace,
        due: Semaphore::new(0),
        taken: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    shared.record().begin(begin);
    if let Pace::Open(period) = pace {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
        let shared = Arc::clone(&shared);
        // It ends with the slice, or soon after a stop.
        std::thread::Builder::new()
            .name("metronome".into())
            .spawn(move || metronome(&shared, period, &timer))?;
    }
    let mut tasks = JoinSet::new();
    for client in clients.drain(..) {
        tasks.spawn_on(work(client, Arc::clone(&shared)), drive::background());
    }
    let mut broken = None;
    while let Some(ended) = tasks.join_next().await {
        let (client, result) = ended?;
        clients.push(client);
        if let Err(failure) = result {
            broken = Some(failure);
        }
    }
    let ended = clock::boot().max(shared.end);
    if let Some(failure) = broken {
        return Err(failure);
    }
    let mut record = shared.record();
    record.missed += missed(&shared);
    record.end(ended);
    let empty = Record::new(record.interval());
    Ok(std::mem::replace(&mut *record, empty))
}

/// How many operations were due and not taken on.
fn missed(shared: &Shared) -> u64 {
    let Pace::Open(period) = shared.pace else {
        return 0;
    };
    let lasting = nanos(shared.end.since(shared.begin));
    let due = lasting.div_ceil(nanos(period).max(1));
    due.saturating_sub(shared.taken.load(Ordering::Relaxed))
}

async fn work(mut client: Work, shared: Arc<Shared>) -> (Work, Result<(), Failure>) {
    let result = take_steps(&mut client, &shared).await;
    if result.is_err() {
        shared.stop();
    }
    (client, result)
}

async fn take_steps(client: &mut Work, shared: &Shared) -> Result<(), Failure> {
    while clock::boot() < shared.end && !shared.stop.load(Ordering::Relaxed) {
        let due = match shared.pace {
            Pace::Closed => clock::boot(),
            Pace::Open(period) => match shared.take(period).await {
                Some(due) => due,
                None => break,
            },
        };
        let done = client.step().await;
        shared.record().add(due, clock::boot(), &done);
        match done.result {
            Ok(()) | Err(StoreError::Conflict) => {}
            Err(error @ StoreError::Broken(_)) => return Err(store_failure(error)),
            Err(error) => {
                tracing::debug!("{error}");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
    Ok(())
}

/// Lets operations fall due, to the microsecond, until the end. The runtime's
/// own timers tick in milliseconds, which is longer than what is measured; so
/// this is a thread that sleeps by a timer of the kernel's.
fn metronome(shared: &Shared, period: Duration, timer: &OwnedFd) {
    let (period, mut fallen) = (nanos(period).max(1), 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let now = clock::boot();
        if now >= shared.end {
            break;
        }
        // The first is due at once.
        let due = nanos(now.since(shared.begin)) / period + 1;
        let more = usize::try_from(due - fallen).unwrap_or(usize::MAX);
        shared.due.add_permits(more.min(Semaphore::MAX_PERMITS / 2));
        fallen = due;
        let next = Duration::from_nanos(due.saturating_mul(period));
        if sleep_until(timer, shared.begin.after(next).min(shared.end)).is_err() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    shared.due.close();
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn sleep_until(timer: &OwnedFd, at: Instant) -> rustix::io::Result<()> {
    const SECOND: u64 = 1_000_000_000;
    let at = Timespec {
        tv_sec: i64::try_from(at.as_nanos() / SECOND).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at.as_nanos() % SECOND).unwrap_or(0),
    };
    let once = Itimerspec {
        it_interval: Timespec::default(),
        it_value: at,
    };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    rustix::io::read(timer, &mut [0; 8]).map(|_| ())
}
