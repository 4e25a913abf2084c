//! How many connections there may be, and which one is closed (evicted) when
//! there are too many.
//!
//! Every host that reaches a port can open connections, and say nothing or
//! little over them. If all of them counted alike, some thousands would keep
//! all others out. So each has a class: a *newcomer* has said nothing that makes sense yet,
//! a *stranger* nothing that proves who it is, and so on ([`ConnectionClass`]). Of
//! newcomers there may be so many, and of all others together; and of these
//! some places are kept for the higher classes.
//!
//! When there is no place for one more, one is closed: one of a lower class,
//! and within a class one of the caller that has most connections
//! ([`CallerId`]: a token, or an address). Of these it is the one that has been
//! without a call for longest.
//!
//! A connection is not closed for a caller that has more connections than its
//! own, idle or not. One with a call under way is not closed for a caller that
//! has as many either: then the newest is closed. So a client that has few
//! connections gets one more, however many others have, and keeps it.
//!
//! Strangers lack the second of these rights: what they may ask for is answered
//! at once, or is a watch of health, which costs nothing to hold. If a call
//! protected them, as many addresses as there are places would hold all of these
//! for good, with one connection each.
//!
//! A probe of health is answered although its connection finds no place
//! ([`ConnectionPermit::prove_or_keep`]): the connection keeps the place that it
//! has, most likely among newcomers, where each makes room for those that come
//! after it. So a probe has its answer however many others stay.
//!
//! Newcomers from addresses that belong here make no room for other newcomers
//! as long as they have at most half of the places, and the others make none
//! for them in their half.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::account::CallerId;
use super::caller_turns::{CallerTurns, TurnBudget, TurnScheduler};

/// What a connection has proven.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum ConnectionClass {
    /// Nothing: it has said nothing that makes sense.
    Newcomer,
    /// That it speaks the protocol: a probe, a call without a token that is
    /// known, a server that is no member.
    Stranger,
    /// That it belongs here: a call with a token that is known, or any call
    /// where there are none; a member.
    Known,
    /// That its token has the right admin.
    Admin,
}

const CLASSES: [ConnectionClass; 4] = [
    ConnectionClass::Newcomer,
    ConnectionClass::Stranger,
    ConnectionClass::Known,
    ConnectionClass::Admin,
];

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionCapacity {
    /// Of newcomers.
    pub(super) newcomers: usize,
    /// Of all others.
    pub(super) proven: usize,
    /// Of these, places that only the known and admins take, and places that
    /// only admins take.
    pub(super) kept: [usize; 2],
}

/// One of so many places of clients may be taken without a token that is
/// known, where there are tokens: what each connection holds beside its calls
/// is counted nowhere else.
const STRANGERS_OF: usize = 4;
/// One of so many is kept for tokens with the right admin.
const ADMINS_OF: usize = 64;

impl ConnectionCapacity {
    /// That of a port of clients, with so many places.
    pub(super) fn of_clients(newcomers: usize, places: usize) -> Self {
        let admins = places / ADMINS_OF;
        Self {
            newcomers: newcomers.min(places),
            proven: places,
            kept: [places - places / STRANGERS_OF - admins, admins],
        }
    }

    /// How many of this class and of those below it there may be, without
    /// newcomers.
    const fn upto(&self, class: ConnectionClass) -> usize {
        let [known, admins] = self.kept;
        let kept = match class {
            ConnectionClass::Newcomer | ConnectionClass::Stranger => known + admins,
            ConnectionClass::Known => admins,
            ConnectionClass::Admin => 0,
        };
        self.proven.saturating_sub(kept)
    }
}

/// How long connections have turns between two looks at the network. With less for
/// a caller, a server looks so often that it does less in all.
const TURNS: TurnBudget = TurnBudget {
    caller: Duration::from_millis(4),
    all: Duration::from_millis(6),
};
/// The same for addresses of callers without a token that is known: there may be many
/// such addresses. And for those of newcomers: who proves something does not wait for
/// all strangers first.
const STRANGERS_TURNS: TurnBudget = TurnBudget {
    caller: Duration::from_micros(250),
    all: Duration::from_millis(1),
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the connections of one port.
#[derive(Debug)]
pub(super) struct ConnectionLimit {
    inner: Mutex<Inner>,
    capacity: ConnectionCapacity,
    /// Grows with each call: the order in which connections were used last.
    used: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    next: u64,
    held: BTreeMap<u64, LimitEntry>,
    /// The connections that each caller has, by class.
    groups: HashMap<(ConnectionClass, CallerId), Arc<Group>>,
    /// How many there are of each class.
    counts: [usize; CLASSES.len()],
    /// How many newcomers there are from addresses that belong here.
    newcomers_known: usize,
    /// Of newcomers, of strangers, and of those that belong here.
    schedulers: [Arc<TurnScheduler>; 3],
}

/// What is known of a connection as long as it has its place.
#[derive(Debug)]
struct LimitEntry {
    class: ConnectionClass,
    caller_id: CallerId,
    /// Those of its caller.
    group: Arc<Group>,
    state: Arc<State>,
}

/// The connections of one caller that are of one class.
#[derive(Debug)]
struct Group {
    count: AtomicUsize,
    turns: Arc<CallerTurns>,
}

#[derive(Debug)]
struct State {
    /// The turns that it shares with others of its caller.
    turns: Mutex<Arc<CallerTurns>>,
    /// Whether it came from an address that belongs here.
    from_known: bool,
    class: AtomicU8,
    /// Calls under way.
    calls: AtomicUsize,
    /// When it was used last; of a newcomer, when it came.
    used: AtomicU64,
    gone: Notify,
}

/// Which connection makes room first: the lowest class, of that the caller with most, of that
/// one that no call protects, of those the one that was used longest ago.
type EvictionOrder = (ConnectionClass, std::cmp::Reverse<usize>, bool, u64);

impl LimitEntry {
    fn eviction_order(&self) -> EvictionOrder {
        let count = self.group.count.load(Ordering::Relaxed);
        let is_protected = self.class >= ConnectionClass::Known && self.is_busy();
        let used = self.state.used.load(Ordering::Relaxed);
        (self.class, std::cmp::Reverse(count), is_protected, used)
    }

    fn is_busy(&self) -> bool {
        self.state.calls.load(Ordering::Relaxed) > 0
    }

    /// Whether it goes for another of its class, of a caller that has those of
    /// `group` and then has `own`.
    fn goes_for_equal(&self, group: Option<&Arc<Group>>, own: usize) -> bool {
        if group.is_some_and(|group| Arc::ptr_eq(group, &self.group)) {
            // What its own caller waits for is not cut off for that caller.
            return !self.is_busy();
        }
        let (_, count, is_protected, _) = self.eviction_order();
        count.0 > own || (count.0 == own && !is_protected)
    }

    /// Whether it is a newcomer from an address that belongs here.
    fn is_newcomer_known(&self) -> bool {
        self.class == ConnectionClass::Newcomer && self.state.from_known
    }
}

impl Inner {
    fn put(
        &mut self,
        number: u64,
        (class, caller_id): (ConnectionClass, CallerId),
        state: Arc<State>,
    ) {
        let of = (class, caller_id.clone());
        let group = self.groups.entry(of);
        let [newcomers, strangers, known] = &self.schedulers;
        let scheduler = match class {
            ConnectionClass::Newcomer => newcomers,
            ConnectionClass::Stranger => strangers,
            ConnectionClass::Known | ConnectionClass::Admin => known,
        };
        let group = Arc::clone(group.or_insert_with(|| {
            Arc::new(Group {
                count: AtomicUsize::new(0),
                turns: scheduler.caller(),
            })
        }));
        group.count.fetch_add(1, Ordering::Relaxed);
        *lock(&state.turns) = Arc::clone(&group.turns);
        self.counts[class as usize] += 1;
        state.class.store(class as u8, Ordering::Relaxed);
        let held = LimitEntry {
            class,
            caller_id,
            group,
            state,
        };
        self.newcomers_known += usize::from(held.is_newcomer_known());
        self.held.insert(number, held);
    }

    fn remove(&mut self, number: u64) -> Option<LimitEntry> {
        let held = self.held.remove(&number)?;
        self.counts[held.class as usize] -= 1;
        self.newcomers_known -= usize::from(held.is_newcomer_known());
        if held.group.count.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.groups.remove(&(held.class, held.caller_id.clone()));
        }
        Some(held)
    }

    /// Whether one more of this class has a place.
    fn has_room(&self, class: ConnectionClass, capacity: &ConnectionCapacity) -> bool {
        if class == ConnectionClass::Newcomer {
            return self.counts[0] < capacity.newcomers;
        }
        let mut sum = 0;
        CLASSES[1..].iter().all(|it| {
            sum += self.counts[*it as usize];
            *it < class || sum < capacity.upto(*it)
        })
    }

    /// Which newcomer makes room for another: one from an address that belongs
    /// here if these have more than half of the places, else another one.
    fn newcomer_candidate(&self, capacity: &ConnectionCapacity) -> Option<u64> {
        let from_known = self.newcomers_known > capacity.newcomers / 2;
        self.first_of(|it| {
            it.class == ConnectionClass::Newcomer && it.state.from_known == from_known
        })
    }

    /// Which connection makes room for one more of this class, which has proven
    /// something, and this caller, if any does.
    fn eviction_candidate(&self, class: ConnectionClass, caller_id: &CallerId) -> Option<u64> {
        let group = self.groups.get(&(class, caller_id.clone()));
        let own = group.map_or(0, |it| it.count.load(Ordering::Relaxed)) + 1;
        self.first_of(|it| {
            if it.class == ConnectionClass::Newcomer || it.class >= class {
                return it.class == class && it.goes_for_equal(group, own);
            }
            true
        })
    }

    /// The first in the order in which they make room.
    fn first_of(&self, goes: impl Fn(&LimitEntry) -> bool) -> Option<u64> {
        let candidates = self.held.iter().filter(|(_, it)| goes(it));
        let candidates = candidates.map(|(number, it)| (it.eviction_order(), *number));
        candidates.min().map(|(_, number)| number)
    }
}

impl ConnectionLimit {
    pub(super) fn new(capacity: ConnectionCapacity) -> Arc<Self> {
        let inner = Inner {
            next: 0,
            held: BTreeMap::new(),
            groups: HashMap::new(),
            counts: [0; CLASSES.len()],
            newcomers_known: 0,
            schedulers: [STRANGERS_TURNS, STRANGERS_TURNS, TURNS].map(TurnScheduler::new),
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            capacity,
            used: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// What gives connections their turns.
    pub(super) fn turn_schedulers(&self) -> [Arc<TurnScheduler>; 3] {
        self.lock().schedulers.clone()
    }

    fn now(&self) -> u64 {
        self.used.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets a newcomer in, in place of another if there are too many. Says
    /// whether its address belongs here.
    pub(super) fn enter(
        self: &Arc<Self>,
        caller_id: CallerId,
        from_known: bool,
    ) -> ConnectionPermit {
        let [newcomers, ..] = self.turn_schedulers();
        let state = Arc::new(State {
            // Until it has its place.
            turns: Mutex::new(newcomers.caller()),
            from_known,
            class: AtomicU8::new(0),
            calls: AtomicUsize::new(0),
            used: AtomicU64::new(self.now()),
            gone: Notify::new(),
        });
        let mut inner = self.lock();
        self.admit(&mut inner, ConnectionClass::Newcomer, &caller_id);
        let number = inner.next;
        inner.next += 1;
        inner.put(
            number,
            (ConnectionClass::Newcomer, caller_id),
            Arc::clone(&state),
        );
        drop(inner);
        ConnectionPermit {
            connection_limit: Arc::clone(self),
            number,
            state,
        }
    }

    /// Makes room for one more; whether there is.
    fn admit(&self, inner: &mut Inner, class: ConnectionClass, caller_id: &CallerId) -> bool {
        if inner.has_room(class, &self.capacity) {
            return true;
        }
        let gone = match class {
            ConnectionClass::Newcomer => inner.newcomer_candidate(&self.capacity),
            _ => inner.eviction_candidate(class, caller_id),
        };
        let gone = gone.and_then(|number| inner.remove(number));
        if let Some(gone) = &gone {
            gone.state.gone.notify_one();
        }
        gone.is_some()
    }
}

/// One connection, for as long as it is held.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    connection_limit: Arc<ConnectionLimit>,
    number: u64,
    state: Arc<State>,
}

impl ConnectionPermit {
    /// It has proven this. Whether it may stay: its place was not taken
    /// meanwhile, and there is one of this class.
    pub(super) fn prove(
        &self,
        class: ConnectionClass,
        caller_id: impl FnOnce() -> CallerId,
    ) -> bool {
        self.prove_with(class, caller_id, false)
    }

    /// The same, but where there is none of this class, it stays in the place
    /// that it has.
    pub(super) fn prove_or_keep(
        &self,
        class: ConnectionClass,
        caller_id: impl FnOnce() -> CallerId,
    ) -> bool {
        self.prove_with(class, caller_id, true)
    }

    fn prove_with(
        &self,
        class: ConnectionClass,
        caller_id: impl FnOnce() -> CallerId,
        keeps: bool,
    ) -> bool {
        if self.state.class.load(Ordering::Relaxed) >= class as u8 {
            return true;
        }
        let caller_id = caller_id();
        let mut inner = self.connection_limit.lock();
        let Some(held) = inner.remove(self.number) else {
            return false;
        };
        let LimitEntry { state, .. } = held;
        if self.connection_limit.admit(&mut inner, class, &caller_id) {
            inner.put(self.number, (class, caller_id), state);
            self.touch();
        } else if keeps {
            inner.put(self.number, (held.class, held.caller_id), state);
        } else {
            state.gone.notify_one();
            return false;
        }
        true
    }

    /// The turns that it shares with others of its caller.
    pub(super) fn turns(&self) -> Arc<CallerTurns> {
        Arc::clone(&lock(&self.state.turns))
    }

    /// Whether it has proven anything.
    pub(super) fn is_proven(&self) -> bool {
        self.state.class.load(Ordering::Relaxed) > ConnectionClass::Newcomer as u8
    }

    /// Whether it has proven that it belongs here.
    pub(super) fn is_known(&self) -> bool {
        self.state.class.load(Ordering::Relaxed) >= ConnectionClass::Known as u8
    }

    /// A call begins by this connection, and ends when what is returned is
    /// dropped.
    pub(super) fn begin(self: &Arc<Self>) -> ActiveCall {
        self.state.calls.fetch_add(1, Ordering::Relaxed);
        self.touch();
        ActiveCall(Arc::clone(self))
    }

    /// It is used now. A newcomer stays where it is in the order in which
    /// newcomers came: if calls moved it to the end, those that stay would make
    /// room later than those that wait for their handshake.
    fn touch(&self) {
        if self.is_proven() {
            let now = self.connection_limit.now();
            self.state.used.store(now, Ordering::Relaxed);
        }
    }

    /// Waits until the place of this connection is taken by another, or there
    /// was none for it when it proved itself.
    pub(super) async fn evicted(&self) {
        self.state.gone.notified().await;
    }

    /// Waits until there was no call for so long, or up to twice as long.
    pub(super) async fn is_idle(&self, for_: Duration) {
        loop {
            let used = self.state.used.load(Ordering::Relaxed);
            sleep(for_).await;
            let is_busy = self.state.calls.load(Ordering::Relaxed) > 0;
            if !is_busy && self.state.used.load(Ordering::Relaxed) == used {
                return;
            }
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.connection_limit.lock().remove(self.number);
    }
}

/// A call under way.
#[derive(Debug)]
pub(super) struct ActiveCall(Arc<ConnectionPermit>);

impl Drop for ActiveCall {
    fn drop(&mut self) {
        self.0.touch();
        self.0.state.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn from(number: u8) -> CallerId {
        CallerId::address(Ipv4Addr::new(10, 0, 0, number).into())
    }

    async fn is_gone(permit: &ConnectionPermit) -> bool {
        tokio::time::timeout(Duration::ZERO, permit.evicted())
            .await
            .is_ok()
    }

    async fn gone(passes: &[Arc<ConnectionPermit>]) -> Vec<usize> {
        let mut gone = Vec::new();
        for (number, permit) in passes.iter().enumerate() {
            if is_gone(permit).await {
                gone.push(number);
            }
        }
        gone
    }

    fn connection_limit(newcomers: usize, proven: usize, kept: [usize; 2]) -> Arc<ConnectionLimit> {
        ConnectionLimit::new(ConnectionCapacity {
            newcomers,
            proven,
            kept,
        })
    }

    fn proven(
        connection_limit: &Arc<ConnectionLimit>,
        address: u8,
        class: ConnectionClass,
    ) -> Option<Arc<ConnectionPermit>> {
        let permit = newcomer(connection_limit, address, false);
        permit.prove(class, || from(address)).then_some(permit)
    }

    fn newcomer(
        connection_limit: &Arc<ConnectionLimit>,
        address: u8,
        from_known: bool,
    ) -> Arc<ConnectionPermit> {
        Arc::new(connection_limit.enter(from(address), from_known))
    }

    #[tokio::test]
    async fn of_newcomers_the_oldest_goes_of_whoever_has_most() {
        let connection_limit = connection_limit(4, 2, [0, 0]);
        let first = newcomer(&connection_limit, 9, false);
        assert!(
            first.prove(ConnectionClass::Stranger, || from(9))
                && first.prove(ConnectionClass::Stranger, || from(9))
        );
        let passes = [1, 2, 2, 2].map(|it| newcomer(&connection_limit, it, false));
        let last = newcomer(&connection_limit, 3, false);
        assert_eq!(gone(&passes).await, [1], "the oldest of the second");
        assert!(!passes[1].prove(ConnectionClass::Stranger, || from(2)));
        assert!(!is_gone(&last).await && !is_gone(&first).await);
        drop((passes, last, first));
        let inner = connection_limit.lock();
        assert!(inner.held.is_empty() && inner.groups.is_empty());
        assert_eq!(inner.counts, [0; 4]);
    }

    #[tokio::test]
    async fn newcomers_that_belong_here_and_others_have_half_of_the_places_each() {
        let connection_limit = connection_limit(8, 2, [0, 0]);
        let enter = |address, known| newcomer(&connection_limit, address, known);
        let known: Vec<_> = (0..3).map(|_| enter(1, true)).collect();
        let strangers: Vec<_> = (10..30).map(|it| enter(it, false)).collect();
        assert_eq!(gone(&known).await, [0; 0], "one address has most");
        assert_eq!(gone(&strangers).await.len(), 15, "they have the rest");
        let more: Vec<_> = (0..20).map(|_| enter(1, true)).collect();
        assert_eq!(gone(&known).await, [0, 1, 2]);
        assert_eq!(gone(&more).await.len(), 15, "five of them, before one goes");
        let last = enter(30, false);
        assert_eq!(gone(&more).await, [15], "and four after that");
        assert_eq!(gone(&strangers).await, [15, 16], "for the known alone");
        assert!(!is_gone(&last).await);
        drop((known, strangers, more, last));
        assert_eq!(connection_limit.lock().newcomers_known, 0);
    }

    #[tokio::test]
    async fn a_call_does_not_keep_a_strangers_place() {
        let connection_limit = connection_limit(100, 4, [0, 0]);
        let enter = |address| proven(&connection_limit, address, ConnectionClass::Stranger);
        let watching: Vec<_> = (1..=4).map(|it| enter(it).expect("a place")).collect();
        let _calls: Vec<_> = watching.iter().map(ConnectionPermit::begin).collect();
        watching[0].touch();
        let kept = enter(5).expect("room");
        assert_eq!(gone(&watching).await, [1], "used longest ago");
        let _call = kept.begin();
        assert!(enter(5).is_none(), "none goes for one that has as few");
        assert_eq!(gone(&watching).await, [0; 0]);
        let more: Vec<_> = (6..=8).map(|it| enter(it).expect("room")).collect();
        assert_eq!(gone(&watching).await, [0, 2, 3]);
        assert_eq!(gone(&more).await, [0; 0]);
        assert!(!is_gone(&kept).await, "it has called since");
    }

    #[tokio::test]
    async fn a_probe_without_a_place_stays_where_it_is() {
        let connection_limit = connection_limit(2, 1, [0, 0]);
        let busy = proven(&connection_limit, 1, ConnectionClass::Known).expect("a place");
        let _call = busy.begin();
        let probe = newcomer(&connection_limit, 2, false);
        let asks = || probe.prove_or_keep(ConnectionClass::Known, || from(2));
        assert!(asks() && asks() && !probe.is_proven());
        drop(probe.begin());
        let later = [3, 4].map(|it| newcomer(&connection_limit, it, false));
        assert!(is_gone(&probe).await, "it makes room though it has called");
        assert!(!asks());
        assert!(!later[0].prove(ConnectionClass::Known, || from(3)));
        assert_eq!(gone(&later).await, [0], "no probe");
        assert!(!is_gone(&busy).await);
    }

    #[tokio::test]
    async fn whoever_has_few_gets_one_of_whoever_has_most_and_keeps_it() {
        let connection_limit = connection_limit(10, 8, [0, 0]);
        let many: Vec<_> = (0..8)
            .map(|_| proven(&connection_limit, 1, ConnectionClass::Known).expect("a place"))
            .collect();
        // It uses the first of them again, and calls by the second.
        drop(many[0].begin());
        let call = many[1].begin();
        let few = proven(&connection_limit, 2, ConnectionClass::Known).expect("it makes room");
        assert_eq!(gone(&many).await, [2], "the longest without a call");
        // It itself gets no more places than it has, and loses none to itself
        // but what is idle.
        let more = proven(&connection_limit, 1, ConnectionClass::Known).expect("an idle one goes");
        assert_eq!(gone(&many).await, [3]);
        // All that it has are busy: it has most of them all the same.
        let calls: Vec<_> = many[4..]
            .iter()
            .chain([&more])
            .map(ConnectionPermit::begin)
            .collect();
        let _busy = proven(&connection_limit, 2, ConnectionClass::Known)
            .expect("room")
            .begin();
        assert_eq!(gone(&many).await, [0], "it alone has no call");
        assert!(
            proven(&connection_limit, 1, ConnectionClass::Known).is_none(),
            "nobody goes for it"
        );
        assert!(proven(&connection_limit, 3, ConnectionClass::Known).is_some());
        assert_eq!(gone(&many).await, [1], "though it has a call");
        assert!(!is_gone(&few).await);
        drop((calls, call));
    }

    #[tokio::test]
    async fn the_known_and_admins_have_places_kept_and_go_before_strangers() {
        let connection_limit = connection_limit(100, 8, [2, 1]);
        let strangers: Vec<_> = (1..=5)
            .map(|it| proven(&connection_limit, it, ConnectionClass::Stranger).expect("a place"))
            .collect();
        let _calls: Vec<_> = strangers[..4].iter().map(ConnectionPermit::begin).collect();
        // Five places are for them; the sixth takes that of an idle one.
        let sixth = proven(&connection_limit, 6, ConnectionClass::Stranger).expect("room");
        assert_eq!(gone(&strangers).await, [4]);
        let _call = sixth.begin();
        let known: Vec<_> = (1..=4)
            .map(|it| proven(&connection_limit, it, ConnectionClass::Known).expect("a place"))
            .collect();
        assert_eq!(
            gone(&strangers).await,
            [0, 1],
            "two of them had places kept"
        );
        let admin = proven(&connection_limit, 1, ConnectionClass::Admin).expect("a place");
        assert_eq!(gone(&strangers).await, [0; 0], "one was kept");
        let _calls: Vec<_> = known.iter().map(ConnectionPermit::begin).collect();
        for number in 2..=4 {
            assert!(
                proven(&connection_limit, number, ConnectionClass::Known).is_some(),
                "{number}"
            );
        }
        // One who is known becomes an admin, and has one of their places.
        assert!(known[0].prove(ConnectionClass::Admin, || from(1)));
        assert!(!is_gone(&known[0]).await && !is_gone(&admin).await);
    }

    #[tokio::test]
    async fn one_is_idle_when_it_was_without_a_call_for_long() {
        let connection_limit = connection_limit(1, 1, [0, 0]);
        let permit = proven(&connection_limit, 1, ConnectionClass::Known).expect("a place");
        let moment = Duration::from_millis(2);
        let call = permit.begin();
        let idle = async |within: u32| {
            let idle = permit.is_idle(moment);
            tokio::time::timeout(moment * within, idle).await.is_ok()
        };
        assert!(!idle(20).await, "a call is under way");
        drop(call);
        assert!(idle(10_000).await);
    }

    #[tokio::test]
    async fn strangers_share_a_quarter_of_the_places() {
        let connection_limit = ConnectionLimit::new(ConnectionCapacity::of_clients(8, 64));
        let enter = |class| proven(&connection_limit, 1, class).expect("a place");
        let mut strangers: Vec<_> = (0..16).map(|_| enter(ConnectionClass::Stranger)).collect();
        strangers[0].touch();
        assert_eq!(gone(&strangers).await, [0; 0]);
        strangers.push(enter(ConnectionClass::Stranger));
        assert_eq!(gone(&strangers).await, [1], "idle for longest");
        // Who shows a known token leaves the quarter, and goes on.
        assert!(strangers[0].prove(ConnectionClass::Known, || from(1)));
        strangers.push(enter(ConnectionClass::Stranger));
        let known: Vec<_> = (0..46).map(|_| enter(ConnectionClass::Known)).collect();
        assert_eq!(gone(&strangers).await, [0; 0]);
        assert_eq!(gone(&known).await, [0; 0]);
    }
}
