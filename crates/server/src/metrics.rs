//! What a server counts, in the text format that Prometheus reads.
//!
//! Counters are fed by what happens; what can simply be looked at (terms,
//! log ids, how many sessions there are) is looked at when metrics are asked for, so
//! that it cannot be out of step. Every name is explained in
//! `docs/reference/metrics.md`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tenure_api::v1::StatusResponse;
use tenure_core::time::Instant;
use tenure_runtime::clock;

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum Result {
    /// It was done, or read.
    Done,
    /// It was refused, and not done.
    Refused,
    /// It may or may not happen: the leadership was lost meanwhile.
    Interrupted,
}

/// One kind of outcome.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct Outcome {
    pub(super) result: Result,
}

/// Why a connection was closed by this server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum Closed {
    /// There were too many.
    Full,
    /// It was without a call for long.
    Idle,
    /// What came was no frame, no greeting, no request, no TLS.
    Garbage,
    /// It took too long to say who it is or what it wants.
    Slow,
    /// Who came does not belong to this cluster.
    Stranger,
    /// One side does not believe the other's certificate, or speaks no TLS.
    Untrusted,
    /// The disk of who came was set back, or another process has a copy.
    Copy,
    /// Too many of its calls were given up before this server came to them, or
    /// it sent a flood of frames that are empty or continue headers.
    GivenUp,
    /// It did not read its answers, and there was no room for more of them.
    Unread,
}

/// One reason.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct ClosedLabel {
    pub(super) reason: Closed,
}

/// One of the ports of a server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum Port {
    /// Where clients come.
    Clients,
    /// Where other servers come.
    Servers,
}

impl Port {
    /// Who comes there.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Servers => "servers",
        }
    }
}

/// What became of a handshake that did not begin at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum HandshakeFate {
    /// It had its turn.
    Waited,
    /// Its connection was closed before.
    Closed,
}

/// One of these, on one port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct HandshakeLabel {
    pub(super) port: Port,
    pub(super) fate: HandshakeFate,
}

/// Why another server that was dialled is not connected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum DialFailure {
    /// Nothing answers there, or no server.
    Unreached,
    /// One side does not believe the other's certificate, or speaks no TLS.
    Untrusted,
    /// It is another server than the one that was dialled.
    OtherServer,
    /// It did not let this one in.
    Refused,
    /// This one has nothing to do with it: another cluster, other settings.
    Stranger,
}

/// One of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct DialLabel {
    pub(super) reason: DialFailure,
}

/// Why a call was not allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum DeniedReason {
    /// It carried no token, or one that is not known.
    Unauthenticated,
    /// Its token has not the right.
    Denied,
    /// It may have come from a web page, and there are no tokens.
    CrossOrigin,
}

/// One of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct DeniedLabel {
    pub(super) reason: DeniedReason,
}

/// Where there was no room for what a call makes the server hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelValue)]
pub(super) enum Full {
    /// Of its connection.
    Connection,
    /// Of its token, or of its address.
    Caller,
    /// Of all.
    Server,
}

/// One of these.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub(super) struct ScopeLabel {
    pub(super) of: Full,
}

/// The counters and gauges of one server.
#[derive(Debug)]
pub(super) struct Metrics {
    registry: Mutex<Registry>,
    pub(super) requests: Family<Outcome, Counter>,
    pub(super) closed: Family<ClosedLabel, Counter>,
    pub(super) handshakes: Family<HandshakeLabel, Counter>,
    undialled: Family<DialLabel, Counter>,
    barred: Family<DeniedLabel, Counter>,
    pub(super) full: Family<ScopeLabel, Counter>,
    held: [Gauge; 2],
    pub(super) given_up: Counter,
    /// Writes that a quota of registers had no room for.
    pub(super) no_room: Counter,
    pub(super) reigns: Counter,
    pub(super) elections: Counter,
    pub(super) snapshots: Counter,
    pub(super) installed: Counter,
    pub(super) truncated: Counter,
    pub(super) compared: Counter,
    pub(super) disagreements: Counter,
    pub(super) watches_cut: Counter,
    /// Members that were found to lack what they had acknowledged.
    pub(super) set_back: Counter,
    pub(super) unheeded: Counter,
    pub(super) handovers: Counter,
    /// Since when the oldest batch waits for the disk, in nanoseconds of the
    /// boot-time clock; 0 if none waits.
    oldest: AtomicU64,
    waited: Gauge<f64, AtomicU64>,
    pub(super) syncs: Histogram,
    seen: StatusGauges,
}

/// What is looked at.
#[derive(Debug, Default)]
struct StatusGauges {
    leads: Gauge,
    ready: Gauge,
    term: Gauge,
    last: Gauge,
    durable: Gauge,
    commit: Gauge,
    applied: Gauge,
    snapshot: Gauge,
    sessions: Gauge,
    registers: Gauge,
    register_bytes: Gauge,
    quota_bytes: Gauge,
    quota_registers: Gauge,
    bound: Gauge,
    revision: Gauge,
    log_next: Gauge,
    members: Gauge,
    connected: Gauge,
    removed: Gauge,
}

impl Metrics {
    pub(super) fn new() -> Self {
        // From a tenth of a millisecond to some seconds.
        let buckets = (0..16).map(|n| 0.000_1 * f64::from(1_u32 << n));
        let mut metrics = Self {
            registry: Mutex::new(Registry::with_prefix("tenure")),
            requests: Family::default(),
            closed: Family::default(),
            handshakes: Family::default(),
            undialled: Family::default(),
            barred: Family::default(),
            full: Family::default(),
            held: Default::default(),
            given_up: Counter::default(),
            no_room: Counter::default(),
            reigns: Counter::default(),
            elections: Counter::default(),
            snapshots: Counter::default(),
            installed: Counter::default(),
            truncated: Counter::default(),
            compared: Counter::default(),
            disagreements: Counter::default(),
            watches_cut: Counter::default(),
            set_back: Counter::default(),
            unheeded: Counter::default(),
            handovers: Counter::default(),
            oldest: AtomicU64::new(0),
            waited: Gauge::default(),
            syncs: Histogram::new(buckets),
            seen: StatusGauges::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let counters = self
            .counters()
            .map(|(name, help, counter)| (name, help, counter.clone()));
        let registry = self.registry.get_mut();
        let registry = registry.unwrap_or_else(PoisonError::into_inner);
        registry.register(
            "requests",
            "Requests of clients, by what became of them",
            self.requests.clone(),
        );
        registry.register(
            "connections_closed",
            "Connections that this server closed, by why",
            self.closed.clone(),
        );
        registry.register(
            "handshakes_delayed",
            "Handshakes that did not begin at once, by what became of them",
            self.handshakes.clone(),
        );
        registry.register(
            "dials_failed",
            "How often another server was dialled and is not connected, by why",
            self.undialled.clone(),
        );
        registry.register(
            "calls_barred",
            "Calls that their tokens did not allow, by why",
            self.barred.clone(),
        );
        registry.register(
            "calls_without_room",
            "Calls refused for what clients make this server hold, by who holds too much",
            self.full.clone(),
        );
        registry.register(
            "held_requests_bytes",
            "What is held of calls under way",
            self.held[0].clone(),
        );
        registry.register(
            "held_answers_bytes",
            "What is held of answers that were not read",
            self.held[1].clone(),
        );
        for (name, help, counter) in counters {
            registry.register(name, help, counter);
        }
        registry.register(
            "disk_sync_seconds",
            "How long it took until a batch was durable, its wait included",
            self.syncs.clone(),
        );
        registry.register(
            "disk_waits_seconds",
            "For how long the oldest batch that is not durable has waited for the disk",
            self.waited.clone(),
        );
        for (name, help, gauge) in self.seen.all() {
            registry.register(name, help, gauge.clone());
        }
    }

    /// Counts lines about changes that are written nowhere.
    pub(super) fn count_lost(&self, lost: Counter) {
        let registry = self.registry.lock();
        registry.unwrap_or_else(PoisonError::into_inner).register(
            "audit_lost",
            "Lines about changes that were not written",
            lost,
        );
    }

    /// What is counted and has no reasons.
    fn counters(&self) -> [(&'static str, &'static str, &Counter); 13] {
        [
            (
                "writes_without_room",
                "Writes that a quota of registers had no room for",
                &self.no_room,
            ),
            (
                "calls_given_up",
                "Calls that clients gave up before they were answered",
                &self.given_up,
            ),
            ("reigns", "How often this server came to lead", &self.reigns),
            ("elections", "How often this server stood", &self.elections),
            ("snapshots", "Snapshots taken", &self.snapshots),
            (
                "snapshots_installed",
                "Snapshots taken over from a leader",
                &self.installed,
            ),
            (
                "truncations",
                "How often entries that were never committed were removed",
                &self.truncated,
            ),
            (
                "states_compared",
                "How often a majority was found to have the same state",
                &self.compared,
            ),
            (
                "states_disagreed",
                "How often no majority had the same state",
                &self.disagreements,
            ),
            (
                "watches_cut",
                "Watches cut off because they were not read",
                &self.watches_cut,
            ),
            (
                "members_set_back",
                "Members that were found to lack what they had acknowledged",
                &self.set_back,
            ),
            (
                "messages_unheeded",
                "Messages of other servers that cannot be, or contradict what is known",
                &self.unheeded,
            ),
            (
                "disk_handovers",
                "How often this server, leading, handed over because its disk lagged",
                &self.handovers,
            ),
        ]
    }

    /// A connection was closed.
    pub(super) fn close(&self, reason: Closed) {
        self.closed.get_or_create(&ClosedLabel { reason }).inc();
    }

    /// A server that was dialled is not connected.
    pub(super) fn undialled(&self, reason: DialFailure) {
        self.undialled.get_or_create(&DialLabel { reason }).inc();
    }

    /// A call was not allowed.
    pub(super) fn bar(&self, reason: DeniedReason) {
        self.barred.get_or_create(&DeniedLabel { reason }).inc();
    }

    /// A request was refused before the machine saw it.
    pub(super) fn refused(&self) {
        let result = Result::Refused;
        self.requests.get_or_create(&Outcome { result }).inc();
    }

    /// A batch was durable after this time.
    pub(super) fn synced(&self, after: Duration) {
        self.syncs.observe(after.as_secs_f64());
    }

    /// The oldest batch that waits for the disk, if one does, and since when.
    pub(super) fn waits(&self, oldest: Option<&(u64, Instant)>) {
        let since = oldest.map_or(0, |(_, at)| at.as_nanos());
        self.oldest.store(since, Ordering::Relaxed);
    }

    /// Everything as text; `status` is how the server stands now, and `held`
    /// what it holds for clients of requests and of answers.
    pub(super) fn text(&self, status: &StatusResponse, held: [usize; 2]) -> String {
        self.seen.look(status);
        for (gauge, bytes) in self.held.iter().zip(held) {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        let waits = match self.oldest.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => clock::boot().since(Instant::from_nanos(since)),
        };
        self.waited.set(waits.as_secs_f64());
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        if encode(&mut text, &registry).is_err() {
            // Writing to a string does not fail.
            text.clear();
        }
        text
    }
}

impl StatusGauges {
    fn all(&self) -> [(&'static str, &'static str, &Gauge); 19] {
        [
            ("leads", "Whether this server leads", &self.leads),
            ("ready", "Whether it leads or follows a leader", &self.ready),
            ("term", "The term", &self.term),
            ("log_last", "The last entry of the log", &self.last),
            ("log_durable", "The last entry on this disk", &self.durable),
            ("log_commit", "The last entry known committed", &self.commit),
            ("log_applied", "The last entry applied", &self.applied),
            (
                "log_snapshot",
                "The last entry of the snapshot",
                &self.snapshot,
            ),
            ("sessions", "Open sessions", &self.sessions),
            ("registers", "Registers", &self.registers),
            (
                "register_bytes",
                "Bytes of keys, values and last wills of registers",
                &self.register_bytes,
            ),
            (
                "quota_bytes",
                "How much that may be while this server leads",
                &self.quota_bytes,
            ),
            (
                "quota_registers",
                "How many registers there may be while this server leads",
                &self.quota_registers,
            ),
            (
                "registers_bound",
                "Registers that are bound to sessions",
                &self.bound,
            ),
            ("revision", "Changes of registers so far", &self.revision),
            (
                "entries_next",
                "The next number of the user log",
                &self.log_next,
            ),
            ("members", "Members of the cluster", &self.members),
            (
                "peers_connected",
                "Members this one is connected to",
                &self.connected,
            ),
            (
                "removed",
                "Whether this server was removed from the cluster",
                &self.removed,
            ),
        ]
    }

    fn look(&self, status: &StatusResponse) {
        let leads = status.role() == tenure_api::v1::Role::Leader;
        let connected = status.members.iter().filter(|it| it.connected).count();
        for (gauge, value) in [
            (&self.leads, u64::from(leads)),
            (&self.ready, u64::from(status.ready)),
            (&self.term, status.term),
            (&self.last, status.last_log_id),
            (&self.durable, status.durable),
            (&self.commit, status.commit),
            (&self.applied, status.applied),
            (&self.snapshot, status.snapshot),
            (&self.sessions, status.sessions),
            (&self.registers, status.registers),
            (&self.register_bytes, status.register_bytes),
            (&self.quota_bytes, status.quota_bytes),
            (&self.quota_registers, status.quota_registers),
            (&self.bound, status.bound),
            (&self.revision, status.revision),
            (&self.log_next, status.log_next),
            (&self.members, status.members.len() as u64),
            (&self.connected, connected as u64),
            (&self.removed, u64::from(status.removed)),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}
