//! How often handshakes begin, and whose turn it is.
//!
//! A handshake, of TLS or of two servers, costs the one thread of a server
//! some tenths of a millisecond, and everybody who reaches a port can ask for
//! one. Without a bound, a stranger that sends nothing but the first message
//! of TLS takes the thread from the leader's heartbeats. So each port begins
//! handshakes at a bounded rate ([`HandshakeRates`]), and a connection waits
//! until it has its turn.
//!
//! Addresses have turns one after the other, however many connections wait of
//! each (an address is an IPv4 address, or a network of IPv6 of 64 bits, as in
//! [`network`]). Of one address the newest is first: the client of one that
//! has waited for long has most likely given it up. Addresses that belong here, of
//! members and of callers that were let in before, have a rate of their own, so
//! that they do not wait behind strangers.
//!
//! Where more wait than can have their turns in time ([`WAIT_WITHIN`]), the
//! oldest of the address that has most is closed without a handshake. What waits
//! has a place among the newcomers of its port all the while
//! ([`ConnectionLimit`](super::connection_limit::ConnectionLimit)).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::account::network;
use super::log_rate_limit::LogRateLimit;
use super::metrics::{HandshakeFate, HandshakeLabel, Port};
use crate::transport::AddressBook;

/// How long a connection waits for its turn, at most.
const WAIT_WITHIN: Duration = Duration::from_secs(2);
/// How many addresses are remembered of callers that were let in. Beyond that
/// the one that was let in longest ago is forgotten.
const REMEMBERED_MAX: usize = 4_096;
/// How often it is looked which address has most, to say so: four times a minute
/// at most, since in a flood from thousands of addresses it is another one each
/// time.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// So many handshakes in a second, and so many more at once after a while
/// without.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeRate {
    every: Duration,
    burst: u32,
}

/// How often handshakes begin on one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeRates {
    strangers: HandshakeRate,
    known: HandshakeRate,
}

/// Of clients. One handshake takes about 0.3 ms of a core, so strangers take
/// about a 16th of a core for as long as they like. A burst is for a server that
/// was started: all its clients come at once, and it knows none of them. It
/// takes about 80 ms of a core.
pub(super) const OF_CLIENTS: HandshakeRates = HandshakeRates {
    strangers: HandshakeRate {
        every: Duration::from_millis(5),
        burst: 256,
    },
    known: HandshakeRate {
        every: Duration::from_micros(2_500),
        burst: 256,
    },
};

/// Of servers, of which there are few. One that is not let in comes again
/// every half second, so that 25 of these have their turns. A burst is one
/// connection of each of as many servers as may be known.
pub(super) const OF_SERVERS: HandshakeRates = HandshakeRates {
    strangers: HandshakeRate {
        every: Duration::from_millis(20),
        burst: 64,
    },
    known: HandshakeRate {
        every: Duration::from_millis(10),
        burst: 64,
    },
};

/// When as many handshakes have begun as may.
#[derive(Debug)]
struct Bucket {
    rate: HandshakeRate,
    /// When there will be room for a whole burst again.
    full_at: Instant,
}

impl Bucket {
    fn new(rate: HandshakeRate) -> Self {
        Self {
            rate,
            full_at: clock::boot(),
        }
    }

    /// How long it takes until the next may begin.
    fn next_in(&self, now: Instant) -> Duration {
        // One that begins needs room for itself alone.
        let ahead = self.rate.every * (self.rate.burst - 1);
        self.full_at.since(now).saturating_sub(ahead)
    }

    /// Whether one begins now.
    fn take(&mut self, now: Instant) -> bool {
        let may = self.next_in(now).is_zero();
        if may {
            self.full_at = self.full_at.max(now).after(self.rate.every);
        }
        may
    }
}

/// The connections of one address that wait.
#[derive(Debug)]
struct AddressQueue {
    /// When the address has its turn, among others.
    turn: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// Connections that wait, of those who belong here or of strangers.
#[derive(Debug)]
struct TurnQueue {
    bucket: Bucket,
    addresses: BTreeMap<IpAddr, AddressQueue>,
    turns: BTreeMap<u64, IpAddr>,
    /// How many connections wait.
    waiting: usize,
    next: u64,
}

impl TurnQueue {
    /// Whether more wait than can have their turns in time.
    fn is_overfull(&self) -> bool {
        self.waiting as u128 * self.bucket.rate.every.as_nanos() > WAIT_WITHIN.as_nanos()
    }

    /// The oldest goes, of the address that has most.
    fn evict(&mut self) {
        let most = self.addresses.iter();
        let most = most.max_by_key(|(_, queue)| queue.waiting.len());
        let oldest = most.and_then(|(address, queue)| {
            let (number, _) = queue.waiting.first_key_value()?;
            Some((*address, *number))
        });
        if let Some((address, number)) = oldest {
            self.remove(address, number);
        }
    }

    fn new(rate: HandshakeRate) -> Self {
        Self {
            bucket: Bucket::new(rate),
            addresses: BTreeMap::new(),
            turns: BTreeMap::new(),
            waiting: 0,
            next: 0,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// One more waits.
    fn push(&mut self, address: IpAddr) -> (u64, oneshot::Receiver<()>) {
        let (give, turn) = oneshot::channel();
        let number = self.number();
        let turns = &mut self.turns;
        let queue = self.addresses.entry(address).or_insert_with(|| {
            turns.insert(number, address);
            AddressQueue {
                turn: number,
                waiting: BTreeMap::new(),
            }
        });
        queue.waiting.insert(number, give);
        self.waiting += 1;
        (number, turn)
    }

    /// One waits no more.
    fn remove(&mut self, address: IpAddr, number: u64) {
        if let Some(queue) = self.addresses.get_mut(&address) {
            self.waiting -= usize::from(queue.waiting.remove(&number).is_some());
            if queue.waiting.is_empty() {
                self.turns.remove(&queue.turn);
                self.addresses.remove(&address);
            }
        }
    }

    /// Whose turn it is.
    fn pop(&mut self) -> Option<oneshot::Sender<()>> {
        let (_, address) = self.turns.pop_first()?;
        let turn = self.number();
        let queue = self.addresses.get_mut(&address)?;
        let (_, next) = queue.waiting.pop_last()?;
        self.waiting -= 1;
        if queue.waiting.is_empty() {
            self.addresses.remove(&address);
        } else {
            queue.turn = turn;
            self.turns.insert(turn, address);
        }
        Some(next)
    }

    /// Gives as many turns as may be now. Says how long the next takes, if any
    /// waits.
    fn give(&mut self, now: Instant) -> Option<Duration> {
        while !self.turns.is_empty() {
            let next = self.bucket.next_in(now);
            if !next.is_zero() {
                return Some(next);
            }
            // One that has gone meanwhile begins nothing.
            if self.pop().is_some_and(|next| next.send(()).is_ok()) {
                self.bucket.take(now);
            }
        }
        None
    }
}

/// Addresses of callers that were let in.
#[derive(Default, Debug)]
struct Remembered {
    /// When each was let in last.
    by_address: BTreeMap<IpAddr, u64>,
    in_order: BTreeMap<u64, IpAddr>,
    next: u64,
}

impl Remembered {
    fn insert(&mut self, address: IpAddr) {
        self.next += 1;
        if let Some(before) = self.by_address.insert(address, self.next) {
            self.in_order.remove(&before);
        }
        self.in_order.insert(self.next, address);
        if self.in_order.len() > REMEMBERED_MAX
            && let Some((_, oldest)) = self.in_order.pop_first()
        {
            self.by_address.remove(&oldest);
        }
    }
}

#[derive(Debug)]
struct Inner {
    strangers: TurnQueue,
    known: TurnQueue,
    remembered: Remembered,
    looked: Option<Instant>,
}

impl Inner {
    const fn queue(&mut self, is_known: bool) -> &mut TurnQueue {
        if is_known {
            &mut self.known
        } else {
            &mut self.strangers
        }
    }
}

/// The handshakes of one port.
#[derive(Debug)]
pub(super) struct HandshakeQueue {
    port: Port,
    inner: Mutex<Inner>,
    /// One waits where none did.
    waits: Notify,
    counted: Family<HandshakeLabel, Counter>,
    log_rate_limit: LogRateLimit,
}

impl HandshakeQueue {
    /// Those of `port`, which are counted there.
    pub(super) fn new(port: Port, counted: Family<HandshakeLabel, Counter>) -> Arc<Self> {
        let rates = match port {
            Port::Clients => OF_CLIENTS,
            Port::Servers => OF_SERVERS,
        };
        Arc::new(Self {
            port,
            inner: Mutex::new(Inner {
                strangers: TurnQueue::new(rates.strangers),
                known: TurnQueue::new(rates.known),
                remembered: Remembered::default(),
                looked: None,
            }),
            waits: Notify::new(),
            counted,
            log_rate_limit: LogRateLimit::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that came from there was let in.
    pub(super) fn remember(&self, address: IpAddr) {
        let address = network(address);
        self.lock().remembered.insert(address);
    }

    /// Whether the address belongs here.
    pub(super) fn is_known(&self, address: IpAddr, is_member: impl FnOnce() -> bool) -> bool {
        let network = network(address);
        let remembered = self.lock().remembered.by_address.contains_key(&network);
        remembered || is_member()
    }

    /// Waits until a connection from there may begin its handshake. Whether it
    /// may: it does not wait for longer than [`WAIT_WITHIN`].
    pub(super) async fn turn(&self, address: IpAddr, is_known: bool) -> bool {
        let Some((mut waiting, turn)) = self.enter(address, is_known) else {
            return true;
        };
        waiting.is_over = matches!(timeout(WAIT_WITHIN, turn).await, Ok(Ok(())));
        waiting.is_over
    }

    /// Begins at once, or waits.
    fn enter(
        &self,
        address: IpAddr,
        is_known: bool,
    ) -> Option<(WaitingHandshake<'_>, oneshot::Receiver<()>)> {
        let address = network(address);
        let mut inner = self.lock();
        let queue = inner.queue(is_known);
        let is_empty = queue.turns.is_empty();
        if is_empty && queue.bucket.take(clock::boot()) {
            return None;
        }
        let (number, turn) = queue.push(address);
        if queue.is_overfull() {
            queue.evict();
        }
        drop(inner);
        if is_empty {
            self.waits.notify_one();
        }
        let waiting = WaitingHandshake {
            handshakes: self,
            address,
            is_known,
            number,
            is_over: false,
        };
        Some((waiting, turn))
    }

    /// Gives the turns that may be now. Says how long the next takes, if any
    /// waits.
    fn give(&self) -> Option<Duration> {
        let now = clock::boot();
        let mut inner = self.lock();
        let next = [inner.known.give(now), inner.strangers.give(now)];
        next.into_iter().flatten().min()
    }

    /// Gives turns for as long as it is polled.
    pub(super) async fn give_turns(&self) {
        loop {
            let next = self.give();
            let waits = self.waits.notified();
            match next {
                Some(next) => tokio::select! {
                    () = sleep(next) => {}
                    () = waits => {}
                },
                None => waits.await,
            }
        }
    }

    fn count(&self, fate: HandshakeFate) {
        let label = HandshakeLabel {
            port: self.port,
            fate,
        };
        self.counted.get_or_create(&label).inc();
    }

    /// Which address has most that wait, how many, and how many wait in all;
    /// not more often than it may be said.
    fn most(&self, inner: &mut Inner) -> Option<(IpAddr, usize, usize)> {
        let now = clock::boot();
        if inner.looked.is_some_and(|it| now.since(it) < LOOK_EVERY) {
            return None;
        }
        inner.looked = Some(now);
        let queues = inner
            .known
            .addresses
            .iter()
            .chain(&inner.strangers.addresses);
        let counts = queues.map(|(address, queue)| (queue.waiting.len(), address));
        let sum = counts.clone().map(|(count, _)| count).sum();
        let (count, address) = counts.max_by_key(|(count, _)| *count)?;
        Some((*address, count, sum))
    }

    /// One is closed without a handshake.
    fn close(&self, inner: MutexGuard<'_, Inner>, most: Option<(IpAddr, usize, usize)>) {
        drop(inner);
        self.count(HandshakeFate::Closed);
        let Some((address, count, sum)) = most else {
            return;
        };
        if self
            .log_rate_limit
            .should_log(address, FLOOD, clock::boot())
        {
            let port = self.port.name();
            tracing::warn!(
                %address,
                count,
                "more connections come to the port for {port} than handshakes may begin: {sum} \
                 wait, {count} of them from {address}, which has most; those that wait for too \
                 long, and the oldest of the address that has most, are closed without a handshake \
                 (tenure_handshakes_delayed_total); said again of this address after a minute \
                 without, and four times a minute at most of all addresses"
            );
        }
    }
}

/// What is wrong with an address, as it is remembered that it was said.
const FLOOD: &str = "handshakes";

/// A connection that waits for its turn.
#[derive(Debug)]
struct WaitingHandshake<'a> {
    handshakes: &'a HandshakeQueue,
    address: IpAddr,
    is_known: bool,
    number: u64,
    /// It had its turn.
    is_over: bool,
}

impl Drop for WaitingHandshake<'_> {
    fn drop(&mut self) {
        if self.is_over {
            self.handshakes.count(HandshakeFate::Waited);
            return;
        }
        let mut inner = self.handshakes.lock();
        let most = self.handshakes.most(&mut inner);
        let queue = inner.queue(self.is_known);
        queue.remove(self.address, self.number);
        self.handshakes.close(inner, most);
    }
}

/// Whether a server that is known is at this address. What is known by a name
/// is not looked up: a member that was let in is remembered.
pub(super) fn is_in(address_book: &AddressBook, address: IpAddr) -> bool {
    let address = network(address);
    let contacts = address_book.iter();
    let hosts = contacts.flat_map(|(_, it)| [it.peer.as_str(), it.client.as_str()]);
    let known = hosts.filter_map(|it| it.parse::<SocketAddr>().ok());
    let mut known = known.map(|it| network(it.ip()));
    known.any(|it| it == address)
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    const SLOW: HandshakeRate = HandshakeRate {
        every: Duration::from_secs(3_600),
        burst: 2,
    };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// A queue of which two handshakes begin at once, and one more in a tenth of
    /// a second.
    fn queue() -> Arc<HandshakeQueue> {
        let every = Duration::from_millis(100);
        let rate = HandshakeRate { every, burst: 2 };
        let queue = HandshakeQueue::new(Port::Clients, Family::default());
        let mut inner = queue.lock();
        inner.strangers.bucket = Bucket::new(rate);
        inner.known.bucket = Bucket::new(rate);
        drop(inner);
        queue
    }

    #[test]
    fn a_burst_begins_at_once_and_then_as_many_as_the_rate_says() {
        let every = Duration::from_millis(5);
        let mut bucket = Bucket::new(HandshakeRate { every, burst: 10 });
        let begun = bucket.full_at;
        let count = |bucket: &mut Bucket, at| (0..100).filter(|_| bucket.take(at)).count();
        assert_eq!(count(&mut bucket, begun), 10);
        assert_eq!(bucket.next_in(begun), every);
        assert_eq!(count(&mut bucket, begun.after(every * 3)), 3);
        assert_eq!(count(&mut bucket, begun.after(every * 3)), 0);
        assert_eq!(count(&mut bucket, begun.after(every * 1_000)), 10);
    }

    #[test]
    fn addresses_have_turns_and_of_each_the_newest_is_first() {
        let mut queue = TurnQueue::new(SLOW);
        let mut turns = [1, 1, 1, 2, 3, 2].map(|it| queue.push(address(it)));
        let gone = turns[4].0;
        queue.remove(address(3), gone);
        let mut order = Vec::new();
        while let Some(next) = queue.pop() {
            if next.send(()).is_ok() {
                let given = turns.iter_mut().position(|it| it.1.try_recv().is_ok());
                order.push(given.expect("one of them"));
            }
        }
        assert_eq!(order, [2, 5, 1, 3, 0]);
        assert!(queue.addresses.is_empty() && queue.turns.is_empty());
        assert_eq!(queue.waiting, 0);
    }

    #[test]
    fn the_oldest_goes_of_the_address_that_has_most() {
        let mut queue = TurnQueue::new(SLOW);
        let mut turns = [1, 2, 1].map(|it| queue.push(address(it)));
        assert!(queue.is_overfull(), "none has a turn within an hour");
        queue.evict();
        let gone = turns.each_mut().map(|(_, turn)| turn.try_recv());
        let [
            Err(TryRecvError::Closed),
            Err(TryRecvError::Empty),
            Err(TryRecvError::Empty),
        ] = gone
        else {
            panic!("{gone:?}")
        };
        assert_eq!(queue.waiting, 2);
    }

    #[tokio::test]
    async fn whoever_belongs_here_does_not_wait_behind_strangers() {
        let queue = queue();
        let begins = |last, is_member: bool| {
            let is_known = queue.is_known(address(last), || is_member);
            queue.enter(address(last), is_known)
        };
        let strangers: Vec<_> = (0..20).map(|_| begins(1, false)).collect();
        let waiting = strangers.iter().filter(|it| it.is_some()).count();
        assert_eq!(waiting, 18, "a burst has begun");
        assert!(begins(2, false).is_some(), "another stranger waits as well");
        assert!(begins(2, true).is_none(), "a member does not");
        queue.remember(address(3));
        assert!(begins(3, false).is_none(), "nor one that was let in");
        drop(strangers);
        let inner = queue.lock();
        assert!(inner.strangers.addresses.is_empty());
        assert!(inner.strangers.turns.is_empty());
        drop(inner);
        let closed = HandshakeLabel {
            port: Port::Clients,
            fate: HandshakeFate::Closed,
        };
        assert_eq!(queue.counted.get_or_create(&closed).get(), 19);
    }

    #[tokio::test]
    async fn one_that_waits_begins_when_there_is_room() {
        let queue = queue();
        queue.lock().strangers.bucket = Bucket::new(HandshakeRate {
            every: Duration::from_millis(1),
            burst: 1,
        });
        let all = async {
            for _ in 0..5 {
                let turns = (0..3).map(|it| queue.turn(address(it), false));
                let turns = futures_util::future::join_all(turns).await;
                assert_eq!(turns, [true; 3]);
            }
        };
        tokio::select! {
            () = all => {}
            () = queue.give_turns() => {}
        }
        let waited = HandshakeLabel {
            port: Port::Clients,
            fate: HandshakeFate::Waited,
        };
        assert!(queue.counted.get_or_create(&waited).get() > 5);
    }

    #[test]
    fn addresses_are_forgotten_where_there_are_too_many() {
        let mut remembered = Remembered::default();
        let number = |it: usize| {
            let bits = u32::try_from(it).expect("few");
            IpAddr::from(bits.to_be_bytes())
        };
        remembered.insert(number(0));
        remembered.insert(number(1));
        remembered.insert(number(0));
        (2..=REMEMBERED_MAX).for_each(|it| remembered.insert(number(it)));
        assert_eq!(remembered.by_address.len(), REMEMBERED_MAX);
        assert!(remembered.by_address.contains_key(&number(0)));
        assert!(!remembered.by_address.contains_key(&number(1)));
    }

    #[test]
    fn members_are_known_by_their_addresses() {
        let server = |number| tenure_alpo::ServerId::new(number).expect("a number");
        let hosts = ["10.0.0.1:7500", "[2001:db8::7]:7500", "db-3.internal:7500"];
        let hosts = (1..).map(server).zip(hosts.map(str::to_owned)).collect();
        let address_book = AddressBook::from_flags(&hosts);
        let known = |text: &str| is_in(&address_book, text.parse().expect("an address"));
        assert!(known("10.0.0.1") && known("::ffff:10.0.0.1") && known("2001:db8::99"));
        assert!(!known("10.0.0.2") && !known("2001:db8:0:1::7"));
    }
}
