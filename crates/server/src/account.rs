//! What clients make a server hold, and who holds how much.
//!
//! Two things are counted, in bytes. *Requests*: each call under way, with its
//! head and what has come of its body. *Answers*: what was made for a client
//! and has not gone to the system yet, because the client does not read it.
//! Both are counted three times: for the connection, for the caller (its
//! token; its address, if it has none) and for all. Only atomic numbers are
//! touched for that, and none of them is locked.
//!
//! What goes beyond a bound is refused with BUSY, with who holds how much; a
//! stream waits instead, and holds nothing while it waits. A connection that
//! is not read thus fills its own part, and a caller with many connections
//! the caller's. Health probes and the calls of operators have room of their
//! own above the bounds of all others.
//!
//! Of requests over exchanges their number is counted too ([`Pipelined`]): a
//! server has places for so many at a time.

mod bounds;
mod connection;
mod unsent;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tenure_api::v1::{self, Cause};

use bounds::{
    ANSWERS, ANSWERS_KEPT, ANSWERS_STRANGERS, ANSWERS_STRANGERS_KEPT, BODIES, BULK, Bounds, CALLS,
    CALLS_KEPT, MIB, NEWS, PIPELINED, SCARCE, STRANGERS, STRANGERS_KEPT,
};

pub(super) use connection::Connection;
pub(super) use unsent::UnsentCharge;

use super::byte_gauge::{ByteGauge, WaiterKind};
use super::errors::error;
use super::metrics::{Full, ScopeLabel};
use super::unsent_count::UnsentCount;

/// What a call under way counts for, beside its head and its body: about what
/// it costs until its answer is made.
const CALL_BYTES: usize = 8 * 1024;
/// What a connection may hold for probes to find room in any case.
const PROBES_BYTES: usize = 64 * 1024;
/// What probes may hold in all for that. Without tokens one address may have all
/// connections, and the probes of all would leave no room to other callers.
const PROBES_ALL: usize = 24 * MIB;
/// A caller that holds no more holds little. There is room that is kept for such callers:
/// others can fill it only from many addresses, or with many tokens.
const LITTLE_BYTES: usize = 64 * 1024;
/// What an error calls the bytes of answers.
const UNREAD_ANSWERS: &str = "answers that were not read";
/// So many callers are remembered before those are looked for that have gone.
const CALLERS_MIN: usize = 1_024;

/// What a stream carries, and what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamKind {
    /// The log, or a backup: it waits for room before each message.
    Bulk,
    /// Changes: the same, with more room.
    News,
    /// Answers, which have waited before they were made. Were they to wait
    /// again, they would wait for each other.
    Answers,
}

impl StreamKind {
    const fn bounds(self) -> Bounds {
        match self {
            Self::Bulk => BULK,
            Self::News => NEWS,
            Self::Answers => ANSWERS,
        }
    }
}

/// What is held of a connection, of a caller, or of all.
#[derive(Debug, Default)]
struct Usage {
    requests: AtomicUsize,
    /// Of these, calls of probes and operators. Counted of callers.
    kept: AtomicUsize,
    answers: ByteGauge,
    /// Of answers, what streams have made.
    streamed: ByteGauge,
    /// How many requests over exchanges are under way.
    pipelined: AtomicUsize,
    /// Of answers, what waits in the HTTP library.
    unsent: AtomicUsize,
    /// Bytes of values in messages that wait for watches and have no room in the account
    /// ([`Reserved`]). Counted of callers.
    unreserved: AtomicUsize,
}

/// Who is counted as one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum CallerId {
    /// All who have the token with this fingerprint and this name.
    Token([u8; 32], String),
    /// All who call without a token from this address; of IPv6 from this /64.
    Address(IpAddr),
}

impl CallerId {
    pub(super) fn address(address: IpAddr) -> Self {
        Self::Address(network(address))
    }
}

/// What is counted as one address: of IPv6 a network of 64 bits.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(it) => it.into(),
        IpAddr::V6(it) => Ipv6Addr::from_bits(it.to_bits() >> 64 << 64).into(),
    }
}

/// The account of a server.
#[derive(Debug)]
pub(super) struct Account {
    all: Usage,
    /// Of the requests of all, what strangers hold.
    strangers: AtomicUsize,
    /// Of the requests of all, what probes hold.
    probes: AtomicUsize,
    callers: Mutex<Callers>,
    refused: Family<ScopeLabel, Counter>,
    /// Whether callers have tokens: those without are strangers.
    tokens: bool,
}

#[derive(Debug)]
struct Callers {
    known: HashMap<CallerId, Weak<Usage>>,
    /// How many there may be before those that have gone are looked for.
    sweep_at: usize,
}

impl Account {
    /// With nothing in it; what is refused is counted there, and callers have
    /// tokens or not.
    pub(super) fn new(refused: Family<ScopeLabel, Counter>, tokens: bool) -> Arc<Self> {
        Arc::new(Self {
            refused,
            tokens,
            all: Usage::default(),
            strangers: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            callers: Mutex::new(Callers {
                known: HashMap::new(),
                sweep_at: CALLERS_MIN,
            }),
        })
    }

    /// How many bytes of requests and of answers are held.
    pub(super) fn held(&self) -> [usize; 2] {
        let requests = self.all.requests.load(Ordering::Relaxed);
        let answers = self.all.answers.held() + self.all.streamed.held();
        [requests, answers]
    }

    fn caller(&self, caller_id: &CallerId) -> Arc<Usage> {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = callers.known.get(caller_id).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            if callers.known.len() >= callers.sweep_at {
                callers.known.retain(|_, it| it.strong_count() > 0);
                callers.sweep_at = CALLERS_MIN.max(2 * callers.known.len());
            }
            let new = Arc::default();
            let known = Arc::downgrade(&new);
            callers.known.insert(caller_id.clone(), known);
            new
        })
    }
}

/// One caller on one connection: where what it makes the server hold is
/// counted.
#[derive(Debug)]
pub(super) struct CallerAccount {
    connection: Arc<Usage>,
    unsent: Arc<UnsentCount>,
    caller: Arc<Usage>,
    account: Arc<Account>,
    caller_id: CallerId,
}

impl CallerAccount {
    const fn usages(&self) -> [(&Arc<Usage>, Full); 2] {
        [
            (&self.connection, Full::Connection),
            (&self.caller, Full::Caller),
        ]
    }

    fn usage(&self, of: Full) -> &Usage {
        match of {
            Full::Connection => &self.connection,
            Full::Caller => &self.caller,
            Full::Server => &self.account.all,
        }
    }

    /// What calls with one answer have made, and exchanges; or what streams
    /// have. Each has bounds of its own, so that unread streams keep
    /// no call out, not even of their own connection, and calls no stream.
    fn answers(&self, of: Full, made_by: Option<StreamKind>) -> &ByteGauge {
        let usage = self.usage(of);
        match made_by {
            None | Some(StreamKind::Answers) => &usage.answers,
            Some(StreamKind::Bulk | StreamKind::News) => &usage.streamed,
        }
    }

    /// What is unsent of the connection.
    pub(super) fn unsent(&self) -> &UnsentCount {
        &self.unsent
    }

    fn is_stranger(&self) -> bool {
        self.account.tokens && matches!(self.caller_id, CallerId::Address(_))
    }

    /// How many bytes of requests the connection, the caller or the server holds. Probes are
    /// left out of the server's sum: they have a bound of their own.
    fn requests(&self, of: Full) -> usize {
        let held = self.usage(of).requests.load(Ordering::Relaxed);
        match of {
            Full::Server => held.saturating_sub(self.account.probes.load(Ordering::Relaxed)),
            Full::Connection | Full::Caller => held,
        }
    }

    /// Whether a call finds the room that is kept for probes and operators: of one caller
    /// few do. Without tokens everybody may call as an operator does.
    fn has_room_kept(&self, kept: bool) -> bool {
        kept && self.caller.kept.load(Ordering::Relaxed) <= LITTLE_BYTES
    }

    fn charge_request(&self, bytes: usize) {
        for (usage, _) in self.usages() {
            usage.requests.fetch_add(bytes, Ordering::Relaxed);
        }
        let all = &self.account.all.requests;
        all.fetch_add(bytes, Ordering::Relaxed);
        if self.is_stranger() {
            let strangers = &self.account.strangers;
            strangers.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn release_request(&self, bytes: usize) {
        for (usage, _) in self.usages() {
            usage.requests.fetch_sub(bytes, Ordering::Relaxed);
        }
        let all = &self.account.all.requests;
        all.fetch_sub(bytes, Ordering::Relaxed);
        if self.is_stranger() {
            let strangers = &self.account.strangers;
            strangers.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Whether one more answer may be made.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn room(&self, kept: bool) -> Result<(), v1::Error> {
        let held = |of| self.answers(of, None).held();
        let bounds = match (self.is_stranger(), self.has_room_kept(kept)) {
            (false, false) => ANSWERS,
            (false, true) => ANSWERS_KEPT,
            (true, false) => ANSWERS_STRANGERS,
            (true, true) => ANSWERS_STRANGERS_KEPT,
        };
        self.within(bounds, held, UNREAD_ANSWERS)
    }

    /// Whether an answer of this many bytes may be made. [`Self::room`] is asked first. Beyond
    /// the bound for all, only callers that hold at most [`LITTLE_BYTES`] with this answer may,
    /// and operators.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn room_for_answer(&self, bytes: usize, kept: bool) -> Result<(), v1::Error> {
        let held = |of| self.answers(of, None).held();
        let (of, all) = (Full::Server, held(Full::Server));
        if all <= ANSWERS.all
            || held(Full::Caller) + bytes <= LITTLE_BYTES
            || self.has_room_kept(kept)
        {
            return Ok(());
        }
        self.account.refused.get_or_create(&ScopeLabel { of }).inc();
        Err(self.busy(of, all, ANSWERS.all, UNREAD_ANSWERS))
    }

    fn within(
        &self,
        bounds: Bounds,
        held: impl Fn(Full) -> usize,
        what: &str,
    ) -> Result<(), v1::Error> {
        // What is free for all is free for each once more, and no more: so
        // there is always room for those who hold little, however many hold
        // as much as they can (the dynamic thresholds of Choudhury and Hahne,
        // "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches").
        // That counts on callers that give back what they hold. Of others each takes half
        // of what those before it have left, and a dozen of them leave nothing. So a part
        // is kept for those who hold little.
        let is_little = held(Full::Caller) <= LITTLE_BYTES;
        let all = bounds.all + if is_little { bounds.little } else { 0 };
        let free = all.saturating_sub(held(Full::Server));
        for (of, most) in [
            (Full::Connection, bounds.connection),
            (Full::Server, all),
            (Full::Caller, bounds.caller.min(free)),
        ] {
            let held = held(of);
            if held > most {
                self.account.refused.get_or_create(&ScopeLabel { of }).inc();
                return Err(self.busy(of, held, most, what));
            }
        }
        Ok(())
    }

    fn busy(&self, of: Full, held: usize, most: usize, what: &str) -> v1::Error {
        let who = match (of, &self.caller_id) {
            (Full::Connection, _) => "this connection".to_owned(),
            (Full::Caller, CallerId::Token(_, name)) => format!("the token {name}"),
            (Full::Caller, CallerId::Address(it)) => format!("the address {it}"),
            (Full::Server, _) => "all clients".to_owned(),
        };
        let text = if of == Full::Caller && held <= MIB {
            // It is not this caller that holds much.
            format!(
                "expected room for {what} of {who}, found that other callers hold nearly all that \
                 there may be; ask again later"
            )
        } else {
            let (most, held) = (most / MIB, held.div_ceil(MIB));
            format!(
                "expected at most {most} MiB of {what} held for {who}, found {held}; read what was \
                 asked for, and ask for less at a time"
            )
        };
        error(Cause::Busy, text)
    }

    /// What a stream has to wait for before it goes on.
    fn full(&self, streams: StreamKind) -> Option<Full> {
        let bounds = streams.bounds();
        let held = |of| self.answers(of, Some(streams)).held();
        let (connection, all) = (held(Full::Connection), held(Full::Server));
        let more = match self.waiter_kind(streams) {
            WaiterKind::Little => bounds.little,
            WaiterKind::Bulk | WaiterKind::Other => 0,
        };
        if connection >= bounds.connection || (all >= SCARCE && connection > 0) {
            return Some(Full::Connection);
        }
        if held(Full::Caller) >= bounds.caller {
            return Some(Full::Caller);
        }
        (all >= bounds.all + more).then_some(Full::Server)
    }

    /// Which bound applies to such streams of this caller.
    fn waiter_kind(&self, streams: StreamKind) -> WaiterKind {
        let held = self.answers(Full::Caller, Some(streams)).held();
        match streams {
            StreamKind::Bulk => WaiterKind::Bulk,
            StreamKind::News | StreamKind::Answers if held <= LITTLE_BYTES => WaiterKind::Little,
            StreamKind::News | StreamKind::Answers => WaiterKind::Other,
        }
    }

    /// Counts so many bytes of requests until what is returned is dropped:
    /// what was asked for, and cannot be sent yet.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize) -> Reserved {
        self.charge_request(bytes);
        let place = Arc::clone(self);
        Reserved { place, bytes }
    }

    /// The same for changes that wait for a watch, if there is room for them: what
    /// waits so leaves half of the room to calls.
    pub(super) fn reserve_for_watch(self: &Arc<Self>, bytes: usize) -> Option<Reserved> {
        let reserved = self.reserve(bytes);
        let bounds = self.calls(false).half();
        let fits = self.requests_within(bounds).is_ok();
        fits.then_some(reserved)
    }

    /// Bytes of values that wait for watches of this caller and have no room in the account.
    /// Those that several watches share count once for each.
    pub(super) fn unreserved(&self) -> usize {
        self.caller.unreserved.load(Ordering::Relaxed)
    }

    /// Counts so many bytes of such values until what is returned is dropped.
    pub(super) fn count_unreserved(self: &Arc<Self>, bytes: usize) -> Unreserved {
        self.caller.unreserved.fetch_add(bytes, Ordering::Relaxed);
        let caller = Arc::clone(&self.caller);
        Unreserved { caller, bytes }
    }

    /// Whether more may be reserved.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn may_reserve(&self) -> Result<(), v1::Error> {
        self.requests_within(self.calls(false))
    }

    fn calls(&self, kept: bool) -> Bounds {
        match (self.is_stranger(), kept) {
            (false, kept) if self.has_room_kept(kept) => CALLS_KEPT,
            (false, _) => CALLS,
            (true, _) => STRANGERS,
        }
    }

    fn requests_within(&self, bounds: Bounds) -> Result<(), v1::Error> {
        self.within(bounds, |of| self.requests(of), "requests")
    }

    /// Whether there is room for one more call. Probes of strangers find it
    /// however much others hold, and leave it to others however many they are:
    /// so they are bounded by what strangers hold.
    fn room_for_call(&self, kept: bool) -> Result<(), v1::Error> {
        if !kept || !self.is_stranger() {
            return self.requests_within(self.calls(kept));
        }
        let held = |of| match of {
            Full::Server => self.account.strangers.load(Ordering::Relaxed),
            of => self.requests(of),
        };
        self.within(STRANGERS_KEPT, held, "requests")?;
        self.requests_within(CALLS_KEPT)
    }

    /// Counts so many bytes of answers until what is returned is dropped.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize, made_by: Option<StreamKind>) -> Charge {
        for of in [Full::Connection, Full::Caller, Full::Server] {
            self.answers(of, made_by).take(bytes);
        }
        let place = Arc::clone(self);
        Charge {
            place,
            bytes,
            made_by,
        }
    }
}

/// Bytes of answers that are held.
#[derive(Debug)]
pub(super) struct Charge {
    place: Arc<CallerAccount>,
    bytes: usize,
    made_by: Option<StreamKind>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        for of in [Full::Connection, Full::Caller, Full::Server] {
            self.place.answers(of, self.made_by).give(self.bytes);
        }
    }
}

/// Bytes of requests that are held beside their calls.
#[derive(Debug)]
pub(super) struct Reserved {
    place: Arc<CallerAccount>,
    bytes: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.place.release_request(self.bytes);
    }
}

/// Values that wait for a watch and have no room in the account.
#[derive(Debug)]
pub(super) struct Unreserved {
    caller: Arc<Usage>,
    bytes: usize,
}

impl Drop for Unreserved {
    fn drop(&mut self) {
        self.caller
            .unreserved
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The requests of one exchange that are under way: asked for, and not answered
/// or, if the client has gone, not done.
#[derive(Debug)]
pub(super) struct Pipelined {
    place: Arc<CallerAccount>,
    count: AtomicUsize,
}

impl Pipelined {
    pub(super) const fn new(place: Arc<CallerAccount>) -> Self {
        let count = AtomicUsize::new(0);
        Self { place, count }
    }

    fn counts(&self) -> [&AtomicUsize; 3] {
        let CallerAccount {
            caller, account, ..
        } = &*self.place;
        [&self.count, &caller.pipelined, &account.all.pipelined]
    }

    /// How many more there may be: then as many are of this caller as are free
    /// for all once more (see [`CallerAccount::within`]).
    pub(super) fn left(&self) -> usize {
        let [_, caller, all] = self.counts().map(|it| it.load(Ordering::Relaxed));
        PIPELINED.saturating_sub(all).saturating_sub(caller) / 2
    }

    /// So many more are under way.
    pub(super) fn begin(&self, requests: usize) {
        for count in self.counts() {
            count.fetch_add(requests, Ordering::Relaxed);
        }
    }

    /// So many are no more.
    pub(super) fn end(&self, requests: usize) {
        for count in self.counts() {
            count.fetch_sub(requests, Ordering::Relaxed);
        }
    }
}

impl Drop for Pipelined {
    fn drop(&mut self) {
        self.end(self.count.load(Ordering::Relaxed));
    }
}

/// Waits until a stream may go on.
#[derive(Debug)]
pub(super) struct FlowControl {
    place: Arc<CallerAccount>,
    streams: StreamKind,
    /// Where it waits, and under which number.
    waits: Option<(Full, u64)>,
}

impl FlowControl {
    pub(super) fn new(place: &Arc<CallerAccount>, streams: StreamKind) -> Self {
        Self {
            place: Arc::clone(place),
            streams,
            waits: None,
        }
    }

    fn byte_gauge(&self, of: Full) -> &ByteGauge {
        self.place.answers(of, Some(self.streams))
    }

    pub(super) fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        let before = self.waits.take();
        if let Some((of, number)) = before {
            self.byte_gauge(of).forget(number);
        }
        let full = loop {
            let Some(of) = self.place.full(self.streams) else {
                break None;
            };
            let kind = self.place.waiter_kind(self.streams);
            let number = self.byte_gauge(of).wait(context.waker(), kind);
            // It may have fallen before anybody knew that this one waits.
            if self.place.full(self.streams) == Some(of) {
                self.waits = Some((of, number));
                break Some(of);
            }
            self.byte_gauge(of).forget(number);
        };
        if let Some((of, _)) = before
            && full != Some(of)
        {
            self.byte_gauge(of).wake_one();
        }
        if full.is_some() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

impl Drop for FlowControl {
    fn drop(&mut self) {
        if let Some((of, number)) = self.waits {
            self.byte_gauge(of).forget(number);
            self.byte_gauge(of).wake_one();
        }
    }
}

/// A call under way: what it has sent, counted until it is over.
#[derive(Debug)]
pub(super) struct RequestCharge {
    place: Arc<CallerAccount>,
    bytes: AtomicUsize,
    /// Whether there is room for it where others find none: for its beginning,
    /// and for what follows.
    kept: bool,
    /// What its beginning counts for among those of its caller that have room kept.
    of_kept: usize,
    /// What it counts for among probes.
    of_probe: usize,
}

impl RequestCharge {
    /// A call begins with a head of so many bytes.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn begin(
        place: Arc<CallerAccount>,
        head: usize,
        kept: bool,
    ) -> Result<Arc<Self>, v1::Error> {
        let charge = Self::new(place, head, kept);
        charge.place.room_for_call(kept)?;
        charge.place.room(kept)?;
        Ok(Arc::new(charge))
    }

    /// The same of a probe that has come whole. It is answered at once, so a few
    /// of each connection find room whatever others hold, of the same address
    /// as well. A client that does not read the answers holds more.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn begin_probe(
        place: Arc<CallerAccount>,
        head: usize,
    ) -> Result<Arc<Self>, v1::Error> {
        let mut charge = Self::new(place, head, true);
        charge.of_probe = CALL_BYTES + head;
        let probes = &charge.place.account.probes;
        let of_all = probes.fetch_add(charge.of_probe, Ordering::Relaxed);
        if charge.place.requests(Full::Connection) > PROBES_BYTES || of_all > PROBES_ALL {
            charge.place.room_for_call(true)?;
        }
        charge.place.room(true)?;
        Ok(Arc::new(charge))
    }

    fn new(place: Arc<CallerAccount>, head: usize, kept: bool) -> Self {
        let bytes = CALL_BYTES + head;
        place.charge_request(bytes);
        let of_kept = if kept { bytes } else { 0 };
        place.caller.kept.fetch_add(of_kept, Ordering::Relaxed);
        Self {
            place,
            bytes: AtomicUsize::new(bytes),
            kept,
            of_kept,
            of_probe: 0,
        }
    }

    pub(super) const fn place(&self) -> &Arc<CallerAccount> {
        &self.place
    }

    /// So many bytes more of its body have come; `large` if it is more than a
    /// beginning. They are counted even if they are refused.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn take(&self, bytes: usize, large: bool) -> Result<(), v1::Error> {
        self.place.charge_request(bytes);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if large && !self.place.is_stranger() {
            self.place.requests_within(BODIES)
        } else {
            self.place.room_for_call(self.kept)
        }
    }

    /// So many bytes of it are held no more.
    pub(super) fn give(&self, bytes: usize) {
        self.place.release_request(bytes);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for RequestCharge {
    fn drop(&mut self) {
        self.place.release_request(*self.bytes.get_mut());
        let probes = &self.place.account.probes;
        probes.fetch_sub(self.of_probe, Ordering::Relaxed);
        let kept = &self.place.caller.kept;
        kept.fetch_sub(self.of_kept, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
