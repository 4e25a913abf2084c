//! The turns that the connections of callers have.
//!
//! A runtime gives each task its turn, and each connection is one. Between two looks
//! at the network, and two turns of the event loop, it runs so many tasks, however
//! long they take. A caller with hundreds of busy connections would fill all of
//! these: what others send is seen after ten milliseconds, and a read takes some ten
//! of such rounds. A leader with a timeout of 250 ms was deposed so. Hundreds of
//! callers with one connection each do the same.
//!
//! So the connections of one caller ([`CallerId`](super::account::CallerId)) have a
//! budget of time between two looks, and all callers of a class have one together
//! ([`TurnBudget`]). Who finds one used up waits here for the next look.
//!
//! Callers that wait have their turns in the order of the time that they have had
//! (start-time fair queueing: Goyal, Vin and Cheng, "Start-Time Fair Queueing", 1996).
//! One that has asked for less than the others has had at most the budget of a caller
//! less than they, or it could keep them waiting for as long as it likes; so it is
//! before them. But every second turn is that of who has waited longest: callers that
//! are new, one after the other, would keep those waiting who have had one turn. The
//! connections of one caller have their turns in the order in which
//! they asked. Where callers wait, what one has had is processor time: on a busy host
//! all turns take long, and who needs a little would seem to take as much as any.
//!
//! *No connection is forgotten.* A caller of which connections wait is in the queue,
//! or one of its connections has a turn, whose end goes on to the next
//! ([`Schedule::end`]). A caller in the queue is reached: each look begins with the
//! first of the queue ([`TurnScheduler::give_turns`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// The least that a caller has between two looks, if anything: about one turn.
const CALLER_MIN: Duration = Duration::from_micros(250);

/// How long turns may take between two looks at the network; the last one may take
/// longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnBudget {
    /// Those of one caller; less where many wait.
    pub(super) caller: Duration,
    /// Those of all callers of the class.
    pub(super) all: Duration,
}

/// Gives the callers of one class their turns.
#[derive(Debug)]
pub(super) struct TurnScheduler {
    schedule: Mutex<Schedule>,
    due: Notify,
}

#[derive(Debug)]
struct Schedule {
    budget: TurnBudget,
    /// How many looks there were, and how long turns took since the last.
    look: u64,
    used: Duration,
    callers: HashMap<u64, Caller>,
    /// Callers with connections that wait: those that have had least first, of these
    /// who came first.
    queue: BTreeMap<(Duration, u64), u64>,
    /// The same in the order in which they came, with what they had had.
    arrivals: BTreeMap<u64, Duration>,
    /// Whether the next turn is that of who came first.
    is_for_oldest: bool,
    /// Those that have used up their part of this look.
    exhausted: Vec<u64>,
    /// What the caller had had that came last from the queue.
    virtual_time: Duration,
    next: u64,
}

#[derive(Debug, Default)]
struct Caller {
    /// How long its turns took since this look.
    used: Duration,
    look: u64,
    /// How long all of its turns took, as it counts.
    had: Duration,
    waiting: BTreeMap<u64, Waker>,
    /// Turns that were given and are not over.
    given: usize,
    is_queued: bool,
}

impl Schedule {
    /// What one caller may use of this look.
    fn share(&self) -> Duration {
        let waiting = self.queue.len() + self.exhausted.len();
        let equal = self.budget.all / u32::try_from(waiting).unwrap_or(u32::MAX).max(1);
        equal.max(CALLER_MIN).min(self.budget.caller)
    }

    /// What a caller has had at least, as it counts when it begins to ask.
    fn had_min(&self) -> Duration {
        self.virtual_time.saturating_sub(self.budget.caller)
    }

    fn waits(&self) -> bool {
        !self.queue.is_empty() || !self.exhausted.is_empty()
    }

    /// A turn at once, and whether others wait; otherwise the place among the
    /// connections of the caller, and whether the caller waits for a look since then.
    fn ask(&mut self, number: u64, waker: &Waker) -> Result<bool, (u64, bool)> {
        let (place, has_room) = (self.next, self.used < self.budget.all);
        self.next += 1;
        let (share, had_min) = (self.share(), self.had_min());
        let others_wait = self.waits();
        let Some(caller) = self.callers.get_mut(&number) else {
            return Ok(others_wait);
        };
        caller.enters(self.look, had_min);
        let is_next = caller.waiting.is_empty() && !caller.is_queued;
        if is_next && has_room && caller.used < share {
            caller.given += 1;
            return Ok(others_wait);
        }
        caller.waiting.insert(place, waker.clone());
        let is_alone = caller.given == 0;
        if is_alone {
            self.enqueue(number);
        }
        Err((place, is_alone))
    }

    /// The caller waits, for this look if it has not used up its part, or the next.
    fn enqueue(&mut self, number: u64) {
        let share = self.share();
        let Some(caller) = self.callers.get_mut(&number) else {
            return;
        };
        if std::mem::replace(&mut caller.is_queued, true) {
            return;
        }
        if caller.used < share {
            let had = caller.had;
            self.put(had, number);
        } else {
            self.exhausted.push(number);
        }
    }

    fn put(&mut self, had: Duration, number: u64) {
        self.queue.insert((had, self.next), number);
        self.arrivals.insert(self.next, had);
        self.next += 1;
    }

    /// Who is next, and what it had had.
    fn pop(&mut self) -> Option<(Duration, u64)> {
        self.is_for_oldest = !self.is_for_oldest;
        let (had, place) = if self.is_for_oldest {
            let (place, had) = self.arrivals.first_key_value()?;
            (*had, *place)
        } else {
            *self.queue.first_key_value()?.0
        };
        self.arrivals.remove(&place);
        let number = self.queue.remove(&(had, place))?;
        Some((had, number))
    }

    /// A turn is over, which took so long, and so long of it for the caller. Who has
    /// the next.
    fn end(&mut self, number: u64, [taken, cost]: [Duration; 2]) -> Option<Waker> {
        self.used += taken;
        let has_room = self.used < self.budget.all;
        let (share, had_min) = (self.share(), self.had_min());
        if let Some(caller) = self.callers.get_mut(&number) {
            caller.enters(self.look, had_min);
            caller.given = caller.given.saturating_sub(1);
            caller.used += cost;
            caller.had += cost;
            if has_room && caller.used < share && !caller.is_queued {
                if let Some((_, waker)) = caller.waiting.pop_first() {
                    caller.given += 1;
                    return Some(waker);
                }
            } else if !caller.waiting.is_empty() {
                self.enqueue(number);
            }
        }
        has_room.then(|| self.first()).flatten()
    }

    /// The turn of the first that waits.
    fn first(&mut self) -> Option<Waker> {
        loop {
            let (had, number) = self.pop()?;
            let Some(caller) = self.callers.get_mut(&number) else {
                continue;
            };
            caller.is_queued = false;
            caller.enters(self.look, had);
            if let Some((_, waker)) = caller.waiting.pop_first() {
                caller.given += 1;
                self.virtual_time = self.virtual_time.max(had);
                return Some(waker);
            }
        }
    }

    /// The runtime has looked at the network. Who has the first turn, and whether
    /// others wait.
    fn begin_look(&mut self) -> (Option<Waker>, bool) {
        self.look += 1;
        self.used = Duration::ZERO;
        for number in std::mem::take(&mut self.exhausted) {
            if let Some(caller) = self.callers.get(&number) {
                let had = caller.had;
                self.put(had, number);
            }
        }
        let first = self.first();
        (first, !self.queue.is_empty())
    }
}

impl Caller {
    /// What it has used is of this look. It does not have all the turns that it did
    /// not ask for while others had them.
    fn enters(&mut self, look: u64, had_min: Duration) {
        if std::mem::replace(&mut self.look, look) != look {
            self.used = Duration::ZERO;
        }
        if self.waiting.is_empty() {
            self.had = self.had.max(had_min);
        }
    }
}

impl TurnScheduler {
    pub(super) fn new(budget: TurnBudget) -> Arc<Self> {
        let schedule = Schedule {
            budget,
            look: 0,
            used: Duration::ZERO,
            callers: HashMap::new(),
            queue: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            is_for_oldest: false,
            exhausted: Vec::new(),
            virtual_time: Duration::ZERO,
            next: 0,
        };
        Arc::new(Self {
            schedule: Mutex::new(schedule),
            due: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more caller.
    pub(super) fn caller(self: &Arc<Self>) -> Arc<CallerTurns> {
        let mut schedule = self.lock();
        let number = schedule.next;
        schedule.next += 1;
        // One that is new has had no less than those who wait.
        let new = Caller {
            had: schedule.virtual_time,
            ..Caller::default()
        };
        schedule.callers.insert(number, new);
        drop(schedule);
        let scheduler = Arc::clone(self);
        Arc::new(CallerTurns { number, scheduler })
    }

    /// Begins each look with who waits, until it is dropped.
    pub(super) async fn give_turns(&self) {
        loop {
            self.due.notified().await;
            loop {
                // Comes back when the runtime has looked.
                yield_now().await;
                let (first, others_wait) = self.lock().begin_look();
                if let Some(first) = first {
                    first.wake();
                }
                if !others_wait {
                    break;
                }
            }
        }
    }

    fn end(&self, number: u64, times: [Duration; 2]) {
        let mut schedule = self.lock();
        let next = schedule.end(number, times);
        let waits = schedule.waits();
        drop(schedule);
        if let Some(next) = next {
            next.wake();
        }
        if waits {
            self.due.notify_one();
        }
    }
}

/// The turns of one caller.
#[derive(Debug)]
pub(super) struct CallerTurns {
    number: u64,
    scheduler: Arc<TurnScheduler>,
}

impl CallerTurns {
    /// Whether others wait, if there is a turn at once; if not, which place the
    /// connection has.
    fn ask(&self, waker: &Waker) -> Result<bool, u64> {
        let asked = self.scheduler.lock().ask(self.number, waker);
        asked.map_err(|(place, waits)| {
            if waits {
                self.scheduler.due.notify_one();
            }
            place
        })
    }

    /// Keeps the place of one that waits; whether it does.
    fn waits(&self, place: u64, waker: &Waker) -> bool {
        let mut schedule = self.scheduler.lock();
        let caller = schedule.callers.get_mut(&self.number);
        let kept = caller.and_then(|caller| caller.waiting.get_mut(&place));
        kept.map(|kept| kept.clone_from(waker)).is_some()
    }

    /// Gives a place up; whether it was waited at.
    fn gives_up(&self, place: u64) -> bool {
        let mut schedule = self.scheduler.lock();
        let caller = schedule.callers.get_mut(&self.number);
        caller.is_some_and(|caller| caller.waiting.remove(&place).is_some())
    }
}

impl Drop for CallerTurns {
    fn drop(&mut self) {
        self.scheduler.lock().callers.remove(&self.number);
    }
}

/// What one connection has of its caller's turns.
#[derive(Debug, Default)]
pub(super) struct Turn(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    None,
    /// It has asked, and has its turn when it does not wait any more.
    Asked(Arc<CallerTurns>, u64),
    /// It has its turn.
    Given(Arc<CallerTurns>, Begin),
}

/// When a turn began.
#[derive(Debug)]
struct Begin {
    at: Instant,
    /// The thread's processor time, where others wait.
    cpu: Option<Duration>,
}

impl Begin {
    fn now(others_wait: bool) -> Self {
        Self {
            at: clock::boot(),
            cpu: others_wait.then(clock::thread_cpu),
        }
    }

    /// How long that is ago, and how long of it for this turn.
    fn times(&self) -> [Duration; 2] {
        let taken = clock::boot().since(self.at);
        let cost = self.cpu.map(|cpu| clock::thread_cpu().saturating_sub(cpu));
        [taken, cost.unwrap_or(taken)]
    }
}

impl Turn {
    /// Asks for a turn among those of `turns`, which may be another caller's than
    /// the last time: a connection proves who it is on its way.
    pub(super) fn poll(
        &mut self,
        turns: impl FnOnce() -> Arc<CallerTurns>,
        context: &Context<'_>,
    ) -> Poll<()> {
        let (given, others_wait) = match &self.0 {
            State::Given(..) => return Poll::Ready(()),
            State::Asked(turns, place) => {
                if turns.waits(*place, context.waker()) {
                    return Poll::Pending;
                }
                (Arc::clone(turns), true)
            }
            State::None => {
                let turns = turns();
                match turns.ask(context.waker()) {
                    Ok(others_wait) => (turns, others_wait),
                    Err(place) => {
                        self.0 = State::Asked(turns, place);
                        return Poll::Pending;
                    }
                }
            }
        };
        self.0 = State::Given(given, Begin::now(others_wait));
        Poll::Ready(())
    }

    /// The turn is over.
    pub(super) fn end(&mut self) {
        match std::mem::take(&mut self.0) {
            State::None => {}
            State::Asked(turns, place) => {
                // If it does not wait any more, it was given its turn.
                if !turns.gives_up(place) {
                    turns.scheduler.end(turns.number, [Duration::ZERO; 2]);
                }
            }
            State::Given(turns, begin) => turns.scheduler.end(turns.number, begin.times()),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::ready;

    use futures_util::task::noop_waker_ref;
    use tenure_core::rng::Rng;

    use super::*;

    const TURN: Duration = Duration::from_micros(250);

    /// So many turns of a caller, and of all.
    fn scheduler(caller: u32, all: u32) -> Arc<TurnScheduler> {
        TurnScheduler::new(TurnBudget {
            caller: TURN * caller,
            all: TURN * all,
        })
    }

    fn asks(turn: &mut Turn, turns: &Arc<CallerTurns>) -> bool {
        let context = Context::from_waker(noop_waker_ref());
        turn.poll(|| Arc::clone(turns), &context).is_ready()
    }

    /// A turn that takes as long as the budget counts one.
    fn ends(turn: &mut Turn) {
        if let State::Given(turns, _) = std::mem::take(&mut turn.0) {
            turns.scheduler.end(turns.number, [TURN; 2]);
        }
    }

    fn looks(scheduler: &TurnScheduler) {
        if let (Some(first), _) = scheduler.lock().begin_look() {
            first.wake();
        }
    }

    #[test]
    fn a_caller_that_has_used_its_budget_waits_for_a_look_in_order() {
        let scheduler = scheduler(1, 100);
        let turns = scheduler.caller();
        let mut all: Vec<Turn> = (0..4).map(|_| Turn::default()).collect();
        assert!(asks(&mut all[3], &turns));
        ends(&mut all[3]);
        for next in (0..4).cycle().take(8) {
            // The one that has had its turn asks again, behind all others.
            let have = all
                .iter_mut()
                .filter_map(|it| asks(it, &turns).then_some(()));
            assert_eq!(have.count(), 0);
            looks(&scheduler);
            let have: Vec<_> = all.iter_mut().map(|it| asks(it, &turns)).collect();
            let first = have.iter().position(|it| *it);
            assert_eq!(
                (first, have.iter().filter(|it| **it).count()),
                (Some(next), 1)
            );
            ends(&mut all[next]);
        }
    }

    #[test]
    fn a_connection_that_ends_takes_no_turn_along() {
        let scheduler = scheduler(1, 100);
        let turns = scheduler.caller();
        let [mut first, mut told, mut gone, mut waits] = <[Turn; 4]>::default();
        assert!(asks(&mut first, &turns));
        ends(&mut first);
        for turn in [&mut told, &mut gone, &mut waits] {
            assert!(!asks(turn, &turns));
        }
        drop(gone);
        looks(&scheduler);
        // Given to one that ends before it takes it.
        drop(told);
        assert!(asks(&mut waits, &turns));
        drop((waits, first, turns));
        let schedule = scheduler.lock();
        assert!(schedule.callers.is_empty(), "{schedule:?}");
    }

    #[test]
    fn who_asks_for_little_is_among_the_next_however_many_ask_for_much() {
        let scheduler = scheduler(1, 4);
        let mut greedy: Vec<_> = (0..300)
            .map(|_| (scheduler.caller(), Turn::default()))
            .collect();
        let (honest, mut turn) = (scheduler.caller(), Turn::default());
        let mut all_had = 0;
        for look in 0..1_000 {
            // All that have a turn use it, and ask again.
            let (mut had, mut before) = (0, None);
            while before != Some(had) {
                before = Some(had);
                for (turns, turn) in &mut greedy {
                    if asks(turn, turns) {
                        had += 1;
                        ends(turn);
                        asks(turn, turns);
                    }
                }
            }
            assert!(had <= 5, "{had} turns between two looks");
            all_had += had;
            // Before that some have had nothing either. All have one turn in 75 looks.
            if look > 100 && look % 100 == 0 {
                assert!(!asks(&mut turn, &honest), "the budget of all is used up");
                looks(&scheduler);
                assert!(asks(&mut turn, &honest), "in look {look}");
                ends(&mut turn);
            } else {
                looks(&scheduler);
            }
        }
        assert!(all_had > 1_000, "the budget is used: {all_had}");
    }

    #[test]
    fn callers_that_are_new_keep_nobody_from_a_second_turn() {
        let scheduler = scheduler(1, 4);
        let (turns, mut turn) = (scheduler.caller(), Turn::default());
        let mut fresh: Vec<_> = Vec::new();
        let (mut had, mut waited) = (0, 0);
        for look in 0..2_000 {
            // More come than have turns, and each goes when it has had one.
            fresh.extend((0..6).map(|_| (scheduler.caller(), Turn::default())));
            let mut before = usize::MAX;
            while before != fresh.len() {
                before = fresh.len();
                fresh.retain_mut(|(turns, turn)| {
                    let has = asks(turn, turns);
                    if has {
                        ends(turn);
                    }
                    !has
                });
            }
            // A port has room for so many of them.
            let most = fresh.len().saturating_sub(300);
            fresh.drain(..most);
            waited += 1;
            if asks(&mut turn, &turns) {
                ends(&mut turn);
                had += 1;
                waited = 0;
            }
            assert!(waited < 200, "in look {look}, after {had} turns");
            looks(&scheduler);
        }
        assert!(had > 10, "{had} turns");
    }

    /// What each has at the end does not depend on how it asks.
    #[test]
    fn no_connection_waits_for_ever_whatever_comes_and_goes() {
        for seed in 0..200 {
            let mut rng = Rng::from_seed(seed);
            let scheduler = scheduler(1 + rng.below(3) as u32, 1 + rng.below(6) as u32);
            let callers: Vec<_> = (0..1 + rng.below(6)).map(|_| scheduler.caller()).collect();
            let mut turns: Vec<_> = (0..12).map(|_| (0, Turn::default())).collect();
            for _ in 0..400 {
                let (of, turn) = &mut turns[rng.below(12) as usize];
                match rng.below(8) {
                    0 => looks(&scheduler),
                    1 => turn.end(),
                    2 => {
                        turn.end();
                        *of = rng.below(callers.len() as u64) as usize;
                    }
                    _ if asks(turn, &callers[*of]) && rng.below(2) == 0 => ends(turn),
                    _ => {}
                }
                let schedule = scheduler.lock();
                for (number, it) in &schedule.callers {
                    let is_in = schedule.queue.values().any(|of| of == number)
                        || schedule.exhausted.contains(number);
                    assert_eq!(it.is_queued, is_in, "seed {seed}: {it:?}");
                    let is_forgotten = !it.waiting.is_empty() && it.given == 0 && !is_in;
                    assert!(!is_forgotten, "seed {seed}: {it:?}");
                }
            }
            // Those that wait have their turns within as many looks.
            let mut left: Vec<_> = turns
                .iter_mut()
                .filter(|(_, it)| !matches!(it.0, State::None))
                .collect();
            for _ in 0..=12 {
                left.retain_mut(|(of, turn)| {
                    let has = asks(turn, &callers[*of]);
                    if has {
                        ends(turn);
                    }
                    !has
                });
                looks(&scheduler);
            }
            assert!(left.is_empty(), "seed {seed}: {left:?}");
        }
    }

    /// Two connections of a caller always have something to do.
    #[tokio::test]
    async fn turns_pause_until_the_runtime_has_looked_at_the_network() {
        let scheduler = scheduler(4, 100);
        let turns = scheduler.caller();
        let giver = tokio::spawn(async move { scheduler.give_turns().await });
        let count = Arc::new(AtomicU32::new(0));
        let busy = [(); 2].map(|()| {
            let (turns, count) = (Arc::clone(&turns), Arc::clone(&count));
            let mut turn = Turn::default();
            tokio::spawn(poll_fn(move |context| {
                ready!(turn.poll(|| Arc::clone(&turns), context));
                let since = clock::boot();
                while clock::boot().since(since) < TURN {
                    std::hint::spin_loop();
                }
                count.fetch_add(1, Ordering::Relaxed);
                turn.end();
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            }))
        });
        let (mut most, mut before) = (0, 0);
        for _ in 0..50 {
            // Comes back when the runtime has looked.
            yield_now().await;
            let now = count.load(Ordering::Relaxed);
            most = most.max(now - before);
            before = now;
        }
        busy.iter().for_each(tokio::task::JoinHandle::abort);
        giver.abort();
        // Without pauses as many as tasks run in a row, which are 61 here.
        assert!((2..=8).contains(&most), "{most}");
        assert!(before >= 50, "{before}");
    }
}
