//! How many connections there may be, and who goes when there are too many.
//!
//! Anybody who reaches a port can open connections, and say nothing or little
//! over them. If all of them counted alike, some thousands would keep everybody
//! out. So each has a rank: a *newcomer* has said nothing that makes sense yet,
//! a *stranger* nothing that proves who it is, and so on ([`Rank`]). Of
//! newcomers there may be so many, and of all others together; and of these
//! some places are kept for the higher ranks.
//!
//! When there is no place for one more, another one makes room: one of a lower
//! rank, and of one rank one of whoever has most connections
//! ([`Holder`]: a token, or an address). Of these the one goes that has been
//! without a call for longest. But nobody has to go, idle or not, for one who
//! has more connections than it; and nobody with a call under way for one who
//! has as many: then the newest goes. So whoever has few connections gets one
//! more, however many others have, and keeps it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::account::Holder;

/// What a connection has proven.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Rank {
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

const RANKS: [Rank; 4] = [Rank::Newcomer, Rank::Stranger, Rank::Known, Rank::Admin];

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Of newcomers.
    pub(super) newcomers: usize,
    /// Of all others.
    pub(super) proven: usize,
    /// Of these, places that only the known and admins take, and places that
    /// only admins take.
    pub(super) kept: [usize; 2],
}

impl Places {
    /// How many of this rank and of those below it there may be, without
    /// newcomers.
    const fn upto(&self, rank: Rank) -> usize {
        let [known, admins] = self.kept;
        let kept = match rank {
            Rank::Newcomer | Rank::Stranger => known + admins,
            Rank::Known => admins,
            Rank::Admin => 0,
        };
        self.proven.saturating_sub(kept)
    }
}

/// Counts the connections of one port.
#[derive(Debug)]
pub(super) struct Gate {
    inner: Mutex<Inner>,
    places: Places,
    /// Grows with each call: the order in which connections were used last.
    used: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    held: BTreeMap<u64, Held>,
    /// How many connections each holder has, by rank.
    groups: HashMap<(Rank, Holder), Arc<AtomicUsize>>,
    /// How many there are of each rank.
    counts: [usize; RANKS.len()],
}

/// What is known of a connection as long as it has its place.
#[derive(Debug)]
struct Held {
    rank: Rank,
    holder: Holder,
    /// How many its holder has.
    group: Arc<AtomicUsize>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    rank: AtomicU8,
    /// Calls under way.
    calls: AtomicUsize,
    /// When it was used last.
    used: AtomicU64,
    gone: Notify,
}

/// Who makes room first: the lowest rank, of that the largest holder, of that
/// one without calls, of those the one that was used longest ago.
type Turn = (Rank, std::cmp::Reverse<usize>, bool, u64);

impl Held {
    fn turn(&self) -> Turn {
        let count = self.group.load(Ordering::Relaxed);
        let is_busy = self.state.calls.load(Ordering::Relaxed) > 0;
        let used = self.state.used.load(Ordering::Relaxed);
        (self.rank, std::cmp::Reverse(count), is_busy, used)
    }
}

impl Inner {
    fn put(&mut self, number: u64, (rank, holder): (Rank, Holder), state: Arc<State>) {
        let of = (rank, holder.clone());
        let group = Arc::clone(self.groups.entry(of).or_default());
        group.fetch_add(1, Ordering::Relaxed);
        self.counts[rank as usize] += 1;
        state.rank.store(rank as u8, Ordering::Relaxed);
        let held = Held {
            rank,
            holder,
            group,
            state,
        };
        self.held.insert(number, held);
    }

    fn remove(&mut self, number: u64) -> Option<Arc<State>> {
        let held = self.held.remove(&number)?;
        self.counts[held.rank as usize] -= 1;
        if held.group.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.groups.remove(&(held.rank, held.holder));
        }
        Some(held.state)
    }

    /// Whether one more of this rank has a place.
    fn has_place(&self, rank: Rank, places: &Places) -> bool {
        if rank == Rank::Newcomer {
            return self.counts[0] < places.newcomers;
        }
        let mut sum = 0;
        RANKS[1..].iter().all(|it| {
            sum += self.counts[*it as usize];
            *it < rank || sum < places.upto(*it)
        })
    }

    /// Who makes room for one more of this rank and this holder, if anybody
    /// does.
    fn makes_room(&self, rank: Rank, holder: &Holder) -> Option<u64> {
        let group = self.groups.get(&(rank, holder.clone()));
        let own = group.map_or(0, |it| it.load(Ordering::Relaxed)) + 1;
        let goes = |it: &Held| {
            if rank == Rank::Newcomer || it.rank == Rank::Newcomer || it.rank > rank {
                return it.rank == rank;
            }
            let (_, count, is_busy, _) = it.turn();
            let is_own = group.is_some_and(|group| Arc::ptr_eq(group, &it.group));
            it.rank < rank || count.0 > own || (!is_busy && (is_own || count.0 == own))
        };
        let turns = self.held.iter().filter(|(_, it)| goes(it));
        let turns = turns.map(|(number, it)| (it.turn(), *number));
        turns.min().map(|(_, number)| number)
    }
}

impl Gate {
    pub(super) fn new(places: Places) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::default(),
            places,
            used: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.used.fetch_add(1, Ordering::Relaxed)
    }

    /// Lets a newcomer in, in place of another if there are too many.
    pub(super) fn enter(self: &Arc<Self>, holder: Holder) -> Pass {
        let state = Arc::new(State {
            rank: AtomicU8::new(0),
            calls: AtomicUsize::new(0),
            used: AtomicU64::new(self.now()),
            gone: Notify::new(),
        });
        let mut inner = self.lock();
        self.admit(&mut inner, Rank::Newcomer, &holder);
        let number = inner.next;
        inner.next += 1;
        inner.put(number, (Rank::Newcomer, holder), Arc::clone(&state));
        drop(inner);
        Pass {
            gate: Arc::clone(self),
            number,
            state,
        }
    }

    /// Makes room for one more; whether there is.
    fn admit(&self, inner: &mut Inner, rank: Rank, holder: &Holder) -> bool {
        if inner.has_place(rank, &self.places) {
            return true;
        }
        let gone = inner.makes_room(rank, holder);
        let gone = gone.and_then(|number| inner.remove(number));
        if let Some(gone) = &gone {
            gone.gone.notify_one();
        }
        gone.is_some()
    }
}

/// One connection, for as long as it is held.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u64,
    state: Arc<State>,
}

impl Pass {
    /// It has proven this. Whether it may stay: its place was not taken
    /// meanwhile, and there is one of this rank.
    pub(super) fn prove(&self, rank: Rank, holder: impl FnOnce() -> Holder) -> bool {
        if self.state.rank.load(Ordering::Relaxed) >= rank as u8 {
            return true;
        }
        let holder = holder();
        let mut inner = self.gate.lock();
        let Some(state) = inner.remove(self.number) else {
            return false;
        };
        let stays = self.gate.admit(&mut inner, rank, &holder);
        if stays {
            inner.put(self.number, (rank, holder), state);
        } else {
            state.gone.notify_one();
        }
        stays
    }

    /// Whether it has proven anything.
    pub(super) fn is_proven(&self) -> bool {
        self.state.rank.load(Ordering::Relaxed) > Rank::Newcomer as u8
    }

    /// A call begins by this connection, and ends when what is returned is
    /// dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Call {
        self.state.calls.fetch_add(1, Ordering::Relaxed);
        self.use_it();
        Call(Arc::clone(self))
    }

    fn use_it(&self) {
        self.state.used.store(self.gate.now(), Ordering::Relaxed);
    }

    /// Waits until the place of this connection is taken by another, or there
    /// was none for it when it proved itself.
    pub(super) async fn ousted(&self) {
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

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.lock().remove(self.number);
    }
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Call(Arc<Pass>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.use_it();
        self.0.state.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn from(number: u8) -> Holder {
        Holder::address(Ipv4Addr::new(10, 0, 0, number).into())
    }

    async fn is_gone(pass: &Pass) -> bool {
        tokio::time::timeout(Duration::ZERO, pass.ousted())
            .await
            .is_ok()
    }

    async fn gone(passes: &[Arc<Pass>]) -> Vec<usize> {
        let mut gone = Vec::new();
        for (number, pass) in passes.iter().enumerate() {
            if is_gone(pass).await {
                gone.push(number);
            }
        }
        gone
    }

    fn gate(newcomers: usize, proven: usize, kept: [usize; 2]) -> Arc<Gate> {
        Gate::new(Places {
            newcomers,
            proven,
            kept,
        })
    }

    fn proven(gate: &Arc<Gate>, address: u8, rank: Rank) -> Option<Arc<Pass>> {
        let pass = Arc::new(gate.enter(from(address)));
        pass.prove(rank, || from(address)).then_some(pass)
    }

    #[tokio::test]
    async fn of_newcomers_the_oldest_goes_of_whoever_has_most() {
        let gate = gate(4, 2, [0, 0]);
        let first = Arc::new(gate.enter(from(9)));
        assert!(first.prove(Rank::Stranger, || from(9)) && first.prove(Rank::Stranger, || from(9)));
        let passes = [1, 2, 2, 2].map(|it| Arc::new(gate.enter(from(it))));
        let last = gate.enter(from(3));
        assert_eq!(gone(&passes).await, [1], "the oldest of the second");
        assert!(!passes[1].prove(Rank::Stranger, || from(2)));
        assert!(!is_gone(&last).await && !is_gone(&first).await);
        drop((passes, last, first));
        let inner = gate.lock();
        assert!(inner.held.is_empty() && inner.groups.is_empty());
        assert_eq!(inner.counts, [0; 4]);
    }

    #[tokio::test]
    async fn whoever_has_few_gets_one_of_whoever_has_most_and_keeps_it() {
        let gate = gate(10, 8, [0, 0]);
        let many: Vec<_> = (0..8)
            .map(|_| proven(&gate, 1, Rank::Known).expect("a place"))
            .collect();
        // It uses the first of them again, and calls by the second.
        drop(many[0].begin());
        let call = many[1].begin();
        let few = proven(&gate, 2, Rank::Known).expect("it makes room");
        assert_eq!(gone(&many).await, [2], "the longest without a call");
        // It itself gets no more places than it has, and loses none to itself
        // but what is idle.
        let more = proven(&gate, 1, Rank::Known).expect("an idle one goes");
        assert_eq!(gone(&many).await, [3]);
        // All that it has are busy: it has most of them all the same.
        let calls: Vec<_> = many[4..].iter().chain([&more]).map(Pass::begin).collect();
        let _busy = proven(&gate, 2, Rank::Known).expect("room").begin();
        assert_eq!(gone(&many).await, [0], "it alone has no call");
        assert!(
            proven(&gate, 1, Rank::Known).is_none(),
            "nobody goes for it"
        );
        assert!(proven(&gate, 3, Rank::Known).is_some());
        assert_eq!(gone(&many).await, [1], "though it has a call");
        assert!(!is_gone(&few).await);
        drop((calls, call));
    }

    #[tokio::test]
    async fn the_known_and_admins_have_places_kept_and_go_before_strangers() {
        let gate = gate(100, 8, [2, 1]);
        let strangers: Vec<_> = (1..=5)
            .map(|it| proven(&gate, it, Rank::Stranger).expect("a place"))
            .collect();
        let _calls: Vec<_> = strangers[..4].iter().map(Pass::begin).collect();
        // Five places are for them; the sixth takes that of an idle one.
        let sixth = proven(&gate, 6, Rank::Stranger).expect("room");
        assert_eq!(gone(&strangers).await, [4]);
        let _call = sixth.begin();
        assert!(proven(&gate, 7, Rank::Stranger).is_none(), "all are busy");
        let known: Vec<_> = (1..=4)
            .map(|it| proven(&gate, it, Rank::Known).expect("a place"))
            .collect();
        assert_eq!(
            gone(&strangers).await,
            [0, 1],
            "two of them had places kept"
        );
        let admin = proven(&gate, 1, Rank::Admin).expect("a place");
        assert_eq!(gone(&strangers).await, [0; 0], "one was kept");
        let _calls: Vec<_> = known.iter().map(Pass::begin).collect();
        for number in 2..=4 {
            assert!(proven(&gate, number, Rank::Known).is_some(), "{number}");
        }
        // One who is known becomes an admin, and has one of their places.
        assert!(known[0].prove(Rank::Admin, || from(1)));
        assert!(!is_gone(&known[0]).await && !is_gone(&admin).await);
    }

    #[tokio::test]
    async fn one_is_idle_when_it_was_without_a_call_for_long() {
        let gate = gate(1, 1, [0, 0]);
        let pass = proven(&gate, 1, Rank::Known).expect("a place");
        let moment = Duration::from_millis(2);
        let call = pass.begin();
        let idle = async |within: u32| {
            let idle = pass.is_idle(moment);
            tokio::time::timeout(moment * within, idle).await.is_ok()
        };
        assert!(!idle(20).await, "a call is under way");
        drop(call);
        assert!(idle(10_000).await);
    }
}
