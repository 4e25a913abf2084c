//! What the parts of a server know of it in common.
//!
//! The event loop writes here, after each round, what others need
//! to answer at once: what to say in a greeting, who leads, whether the
//! server is ready, and how far the user log has come.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_alpo::{
    ClusterVersion, Hello, Identity, KnownStarts, LogId, Membership, Node, ServerId, SessionOpener,
    Sessions, StorageId,
};
use tenure_core::ids::Term;
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::watch;

use super::audit::Audit;
use super::data;
use super::handshakes::HandshakeQueue;
use super::log_rate_limit::LogRateLimit;
use super::metrics::{Metrics, Port};
use super::unconfirmed_contacts::UnconfirmedContacts;
use crate::transport::{
    AddressBook, CommittedMembers, Contact, Details, Greeting, PeerSecret, Prover, Settings,
};

/// The health of a server, for those that ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthStatus {
    /// Whether it does its work: it is part of a cluster and its disk takes
    /// what it is given.
    pub alive: bool,
    /// Whether it leads, or follows a leader it knows.
    pub ready: bool,
    /// Whether it leads, and has applied all that was committed before.
    pub leads: bool,
    /// Whether it was removed from its cluster, which it hears from others.
    pub removed: bool,
    /// Whether its disk was set back to an earlier copy, or is one of two
    /// copies, as others have told it; it takes part in nothing.
    pub set_back: bool,
    /// Whether it takes no part in the cluster, though it runs: one of these
    /// two, or another disk has its number, or so many servers do not let it
    /// in that the rest is no majority. `waiting` says why, and what to do.
    pub excluded: bool,
    /// Who leads, as far as it knows.
    pub leader: Option<ServerId>,
    /// Its term.
    pub term: Term,
    /// What it waits for, or why it stopped, for people.
    pub waiting: String,
    /// That a quota of registers is nearly taken, for people; empty if not.
    pub full: String,
}

/// What was written to the user log and to registers, for watches and tails.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Progress {
    /// The number that the next entry of the user log will get.
    pub(super) next: u64,
    /// The last entry that was applied.
    pub(super) applied: LogId,
}

/// Who this server is to others.
#[derive(Clone, Debug)]
pub(super) struct LocalServer {
    /// `None` while it is blank.
    pub(super) identity: Option<Identity>,
    pub(super) members: Membership,
    pub(super) hello: Hello,
    pub(super) settings: Settings,
    pub(super) address_book: AddressBook,
    /// Where others are that the log does not name.
    pub(super) unconfirmed: UnconfirmedContacts,
    /// Which start this is, how far the disk has come, and what is spoken.
    pub(super) details: Details,
    /// Those to whom a link is up, and the disk at its other end.
    pub(super) connected: BTreeMap<ServerId, StorageId>,
    /// Those of them that have proven nothing.
    pub(super) unproven: BTreeSet<ServerId>,
    /// Grows when it becomes part of a cluster: who greeted it before that
    /// must hear of it.
    pub(super) edition: u64,
}

impl LocalServer {
    /// How far the disk has come, and which version the log has: greetings
    /// say it.
    pub(super) fn update_progress(&mut self, node: &Node) {
        if let Some(disk_progress) = node.disk_progress() {
            self.details.disk_progress.advance(disk_progress);
        }
        self.details.version = node.state().version();
    }
}

/// How many of those who hold sessions a refusal names.
const HOLDERS_MAX: usize = 3;
/// How long it names the same.
const HOLDERS_FOR: Duration = Duration::from_secs(1);

/// Who holds most sessions, and since when that is known.
#[derive(Default, Debug)]
struct TopHolders {
    most: Vec<(SessionOpener, u64)>,
    at: Option<Instant>,
}

/// What one process knows of disks that were set back or copied.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// What is remembered of the disks of others.
    pub(super) starts: KnownStarts,
    /// Why this server takes part in nothing, if its own disk was set back.
    pub(super) set_back: Option<String>,
}

#[derive(Debug)]
pub(super) struct Shared {
    local_server: Mutex<LocalServer>,
    /// What is known of disks that were set back or copied.
    pub(super) copies: Mutex<Copies>,
    /// Servers that say what is not heeded, or what cannot be read.
    pub(super) objections: LogRateLimit<ServerId>,
    holders: Mutex<TopHolders>,
    /// What this server proves itself with to others.
    pub(super) prover: Prover,
    /// What others are to prove, if they have to.
    pub(super) secret: Option<PeerSecret>,
    /// The version of the log.
    pub(super) version: watch::Sender<ClusterVersion>,
    pub(super) health_status: watch::Sender<HealthStatus>,
    pub(super) progress: watch::Sender<Progress>,
    /// Whether the state has been up to date since the process started.
    pub(super) caught_up: watch::Sender<bool>,
    pub(super) metrics: Metrics,
    /// Whose turn it is to be let in as a client, and as a server.
    pub(super) client_handshakes: Arc<HandshakeQueue>,
    pub(super) server_handshakes: Arc<HandshakeQueue>,
    /// Where changes are noted.
    pub(super) audit: Audit,
    /// The edition of the face.
    pub(super) edition: watch::Sender<u64>,
    /// The members that are committed; told whenever they change, and not
    /// with each entry.
    pub(super) settled: watch::Sender<CommittedMembers>,
    /// Held while the addresses are written: by one at a time, or it could be an
    /// earlier book that stays.
    pub(super) address_book_file: Mutex<()>,
}

impl Shared {
    /// The election timeout of this server.
    pub(super) fn election_timeout(&self) -> Duration {
        Duration::from_nanos(self.local_server().settings.timeout)
    }

    /// Keeps what is known of addresses by now.
    pub(super) fn save_address_book(&self, dir: &Path) {
        let one = self.address_book_file.lock();
        let address_book = self.local_server().address_book.clone();
        data::write_address_book(dir, &address_book);
        drop(one);
    }

    /// Says something else of this server from now on. Those that are
    /// connected come again, and hear it.
    pub(super) fn announce(&self, hello: Hello) {
        let mut local_server = self.local_server();
        local_server.hello = hello;
        local_server.edition += 1;
        let edition = local_server.edition;
        drop(local_server);
        self.edition.send_replace(edition);
    }

    pub(super) fn new(local_server: LocalServer, secret: Option<PeerSecret>) -> Self {
        let health_status = HealthStatus {
            alive: true,
            ready: false,
            leads: false,
            removed: false,
            set_back: false,
            excluded: false,
            leader: None,
            term: Term::ZERO,
            waiting: "starting".into(),
            full: String::new(),
        };
        let metrics = Metrics::new();
        let handshakes = |port| HandshakeQueue::new(port, metrics.handshakes.clone());
        Self {
            client_handshakes: handshakes(Port::Clients),
            server_handshakes: handshakes(Port::Servers),
            edition: watch::Sender::new(local_server.edition),
            version: watch::Sender::new(local_server.details.version),
            local_server: Mutex::new(local_server),
            copies: Mutex::default(),
            objections: LogRateLimit::default(),
            holders: Mutex::default(),
            prover: secret.clone().map_or_else(Prover::default, |secret| {
                Prover::new(move |bytes| secret.prove(bytes))
            }),
            secret,
            settled: watch::Sender::default(),
            address_book_file: Mutex::default(),
            health_status: watch::Sender::new(health_status),
            progress: watch::Sender::default(),
            caught_up: watch::Sender::default(),
            metrics,
            audit: Audit::default(),
        }
    }

    /// The same, of a server that notes changes there.
    pub(super) fn audited(self, audit: Audit) -> Self {
        self.metrics.count_lost(audit.lost());
        Self { audit, ..self }
    }

    pub(super) fn local_server(&self) -> MutexGuard<'_, LocalServer> {
        self.local_server
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What to say first to another server.
    pub(super) fn greeting(&self) -> Greeting {
        let settled = self.settled.borrow().clone();
        let local_server = self.local_server();
        Greeting {
            hello: local_server.hello.clone(),
            address_book: local_server.address_book.clone(),
            settled,
            settings: local_server.settings,
            details: Some(local_server.details),
        }
    }

    /// An operator says where a server is, unless it has said so itself.
    pub(super) fn introduce(&self, server: ServerId, peer: &str) {
        let contact = Contact {
            peer: peer.to_owned(),
            ..Contact::default()
        };
        // It is about to become a member.
        let mut local_server = self.local_server();
        let members: BTreeSet<_> = local_server.members.iter().map(|(id, _)| id).collect();
        let keeps = |id| members.contains(&id);
        local_server
            .address_book
            .learn_among(server, &contact, true, keeps);
    }

    /// Those who hold most sessions, as of the last refusal of one more.
    pub(super) fn holders(&self) -> Vec<(SessionOpener, u64)> {
        let holders = self.holders.lock();
        let holders = holders.unwrap_or_else(PoisonError::into_inner);
        holders.most.clone()
    }

    /// There are as many sessions as there may be. Who holds most of them is
    /// looked for once in [`HOLDERS_FOR`]: that may be many.
    pub(super) fn warn_sessions_full(&self, sessions: &Sessions) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::boot();
        let is_new = |at: Instant| now.since(at) < HOLDERS_FOR;
        if !holders.at.is_some_and(is_new) {
            *holders = TopHolders {
                most: sessions.holders(HOLDERS_MAX),
                at: Some(now),
            };
        }
    }

    /// Who leads and where clients reach it, as far as that is known.
    pub(super) fn leader(&self, hint: Option<ServerId>) -> Option<(ServerId, String)> {
        let leader = hint?;
        let local_server = self.local_server();
        let contact = local_server.address_book.get(leader);
        let address = contact.map(|contact| contact.client.clone());
        Some((leader, address.unwrap_or_default()))
    }
}
