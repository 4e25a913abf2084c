//! One server of a cluster: the machine of [`tenure_alpo`] on real sockets
//! and a real disk. Internal to Tenure.
//!
//! ```text
//!    servers ──▶ peers ───┐                            ┌─▶ links ──▶ servers
//!                         ├─▶ inbox ──▶ event loop ────┤
//!    clients ──▶ handle ──┘      ▲      (the machine)  ├─▶ streams ─▶ clients
//!                                │                     │
//!                                └───── persisted ◀────┴─▶ log (a thread)
//! ```
//!
//! Sockets, machine and answers run on one thread at a time. A request that
//! comes on a socket reaches the machine, and its answer the socket, without
//! waking another thread; and what several sockets bring in one turn of the
//! loop goes to the machine, the disk and the peers together. (Redis is built
//! so, for the same reason.)
//!
//! A sync may take seconds, and a leader must be heard meanwhile. So three more
//! threads exist: a second one that takes over the event loop when a small
//! batch, which the loop writes itself, takes long (`loop_threads`); one that
//! writes and syncs large batches ([`wal`]); and one that encodes snapshots and
//! writes their files.
//! Work that nothing waits for has threads too: the audit file, a spare segment
//! of the log.
//!
//! | file | what it does |
//! |---|---|
//! | `config` | how a server is started |
//! | `data`, `data_file` | the data directory |
//! | `shared`, `status_response` | what the parts of a server know in common; the server as its own machine sees it (`tenure status`) |
//! | `silence` | how long a restarted server must refuse votes |
//! | `bootstrap` | a blank server on its way into a cluster |
//! | `event_loop`, `loop_threads` | the task that drives the replicated log, and the threads that run it |
//! | `peers` | links to the other servers, and their connections to this one |
//! | `directory_copies`, `set_back` | directories that were set back, or copied |
//! | `health`, `confirm_leadership` | what is said of the server's health; whether it still leads |
//! | `removal` | learning that one is no member any more |
//! | `connection_limit` | how many connections, and which one is closed when there are too many (eviction) |
//! | `handshakes` | how often handshakes begin, and whose turn it is |
//! | `log_rate_limit` | what is wrong with those that connect is logged once |
//! | `inbox`, `handle` | how events reach the event loop, and how many requests may be under way |
//! | `keep_alive_batch` | keep-alives that are proposed together |
//! | `quota_usage` | how much room registers may take |
//! | `snapshots` | the thread that encodes snapshots, and who waits for one |
//! | `sessions`, `session_rights`, `caller_proof` | sessions as clients see them; what their callers may still have; what a caller proves to the machine |
//! | `internal_session`, `internal_requests` | sessions of the server's own, for clients without one |
//! | `watchers`, `watch_dispatch`, `watch_queue` | the watchers of registers, the task that sends them changes, and the queue of each |
//! | `watching`, `watch_start`, `inspection_queue` | a watch as a client sees it; the pages that it begins with; reads of the state that wait for their turn |
//! | `backup` | everything in one file, and back |
//! | `ended` | how a server ended |
//! | `metrics` | what is counted |
//! | `trust`, `unconfirmed_contacts`, `peer_messages` | which sender counts as a server of this cluster, and which of its messages are accepted |
//! | `dial_report`, `incompatibility`, `refusals` | why another server is not connected, or does not let this one in |
//! | `tokens`, `write_access` | who may do what; a warning if others may write the file that says so |
//! | `audit` | who changed what |
//! | `services`, `streams`, `steps`, `http`, `listen`, `protocol_detection` | what clients see: gRPC and HTTP on one port |
//! | `grpc`, `grpc_body`, `grpc_status` | the services as gRPC, bodies of its streams, errors |
//! | `translate`, `errors`, `refusal_errors` | between the words of clients and those of the machine; the errors that clients get |
//! | `pages` | calls from web pages of other sites, which are refused |
//! | `stream_rights`, `given_up` | streams whose callers are asked again who they are; calls that were given up |
//! | `objects` | messages in JSON are objects |
//! | [`transport`] | how servers reach each other |
//! | [`wal`] | the files of the log |
//! | `connection_calls`, `unsent_answers`, `unsent` | the calls of one connection, which have their turns together, and their answers that have not gone |
//! | `body_limit`, `account`, `counted_body`, `byte_gauge` | what clients make the server hold |

mod account;
mod audit;
mod authorization;
mod backup;
mod backup_places;
mod body_limit;
mod bootstrap;
mod byte_gauge;
mod caller_proof;
mod caller_turns;
mod config;
mod confirm_leadership;
mod connection_calls;
mod connection_limit;
mod counted_body;
mod data;
mod data_file;
mod dial_report;
mod directory_copies;
mod ended;
mod errors;
mod event_loop;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzed;
mod given_up;
mod grpc;
mod grpc_body;
mod grpc_status;
mod handle;
mod handshakes;
mod health;
mod http;
mod inbox;
mod incompatibility;
mod inspection_queue;
mod internal_requests;
mod internal_session;
mod keep_alive_batch;
mod listen;
mod log_rate_limit;
mod loop_threads;
mod metrics;
mod no_vote_time;
mod objects;
mod pages;
mod peer_messages;
mod peers;
mod protocol_detection;
mod quota_usage;
mod refusal_errors;
mod refusals;
mod removal;
mod services;
mod session_rights;
mod sessions;
mod set_back;
mod shared;
mod snapshots;
mod status_response;
mod steps;
mod stream_rights;
mod streams;
mod tokens;
mod translate;
pub mod transport;
mod trust;
mod unconfirmed_contacts;
mod unsent_answers;
mod unsent_count;
pub mod wal;
mod watch_dispatch;
mod watch_queue;
mod watch_start;
mod watchers;
mod watching;
mod write_access;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tenure_alpo::{Bootstrap, Hello, MAX_NUMBER, MemberDisks, Membership, Node, Start, StorageId};
use tenure_core::rng::Rng;
use tenure_core::time::Instant;
use tenure_runtime::clock;
use tokio::sync::watch;

pub use audit::AuditTo;
pub use backup::{
    RestoreError, RestoreOptions, RestoredDirectory, Summary, begins_as_backup,
    read as read_backup, restore, restore_with,
};
pub use config::Config;
pub use ended::Ended;
pub use shared::HealthStatus;
pub use tokens::{TOKENS_DANGER, check_tokens, draw_token, fingerprint};
pub use write_access::warn_if_others_may_write;

use crate::transport::{AddressBook, Contact, Details, FilesError, Settings, Tasks, Tls};
use crate::wal::{WalError, Writer};
use audit::Audit;
use data::{BlankDirectory, DataDirectory, OpenLog};
use event_loop::EventLoop;
use handle::ServerHandle;
use inbox::{Event, Inbox};
use loop_threads::LoopThreads;
use peers::Peers;
use shared::{LocalServer, Shared};
use tokens::Tokens;
use unconfirmed_contacts::UnconfirmedContacts;
use watchers::Watchers;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings make no sense.
    #[error("{0}")]
    Config(String),
    /// Files that the settings name did not answer in time.
    #[error("{0}")]
    Late(String),
    /// The data directory cannot be used.
    #[error(transparent)]
    Disk(#[from] WalError),
    /// An address cannot be listened on.
    #[error("could not listen on {address}: {why}{}", advice(.why))]
    Listen {
        /// The address.
        address: String,
        /// What the system said. Not called `source`: the message says it
        /// already, and a program that prints the chain would print it twice.
        why: std::io::Error,
    },
    /// The system gave no thread, or no event queue.
    #[error("could not start: {0}")]
    System(std::io::Error),
    /// The log's state cannot be read.
    #[error("the snapshot in the data directory cannot be read: {0}")]
    State(String),
}

impl From<FilesError> for StartError {
    fn from(unread: FilesError) -> Self {
        match unread {
            FilesError::Wrong(why) => Self::Config(why),
            FilesError::Late(why) => Self::Late(why),
        }
    }
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program uses it: stop that one or choose another port"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "; it is none of this machine's addresses: name one that is"
        }
        _ => "",
    }
}

/// A running server. Dropping the handle does not stop it.
#[derive(Debug)]
pub struct Server {
    inbox: Arc<Inbox>,
    shared: Arc<Shared>,
    clients: SocketAddr,
    ended: watch::Receiver<Option<Arc<Ended>>>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inbox")
    }
}

/// How long the end of a server waits until who changed what is written.
const LAST_LINES_WITHIN: Duration = Duration::from_secs(1);

/// How many tasks run before the event loop, and what has come over the
/// network, have their turn: an answer of a megabyte takes one for a while.
const TASKS_IN_A_ROW: u32 = 16;

/// Connections that may wait to be taken. One more waits for a second, until
/// its system tries again; a crowd of clients that connect at once fills 128
/// places within a turn of the loop. The system may allow for fewer.
const BACKLOG: i32 = 4_096;

/// What the thread of a server starts from.
struct Parts {
    config: Config,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    found: DataDirectory,
    peers: TcpListener,
    /// Where clients come, and since when.
    clients: (TcpListener, Instant),
    tls: Option<Arc<Tls>>,
    tokens: Tokens,
    /// The connections between servers.
    tasks: Tasks,
}

impl Server {
    /// Opens the data directory, listens, and starts the server's thread.
    ///
    /// # Errors
    /// If the settings, the directory or the addresses cannot be used.
    pub fn start(mut config: Config) -> Result<Self, StartError> {
        config.validate().map_err(StartError::Config)?;
        // What is mounted over a directory above it, or takes its place, is not seen from
        // within: by a relative path the old one would be found for ever.
        config.data = std::path::absolute(&config.data).map_err(StartError::System)?;
        let open = |files| Tls::open_with(files, config.rules());
        let tls = config.tls.clone().map(open).transpose();
        let tls = tls?.map(Arc::new);
        let audit = Audit::start(config.audit.clone(), config.id.get());
        let audit = audit.map_err(StartError::Config)?;
        let tokens = Tokens::open(&config, &audit)?;
        let (peers, clients) = listen_both(&config)?;
        // No other process has had that address since then.
        let listens_since = clock::boot();
        let address = clients.local_addr().map_err(StartError::System)?;
        let owes = config.node.no_vote_time();
        let found = data::open(&config.data, config.id, config.wal, owes)?;
        // Before the first greeting.
        let start = data::count_start(&config.data)?;
        let set_back = data::read_set_back(&config.data)?;
        let secret = config.peer_secret.clone();
        let shared = Shared::new(local_server(&config, &found, start), secret).audited(audit);
        let shared = Arc::new(shared);
        shared.copies().set_back = set_back;
        let inbox = Arc::new(Inbox::default());
        let (tell, ended) = watch::channel(None);
        let tasks = Tasks::default();
        let parts = Parts {
            config,
            shared: Arc::clone(&shared),
            inbox: Arc::clone(&inbox),
            found,
            peers,
            clients: (clients, listens_since),
            tls,
            tokens,
            tasks: tasks.clone(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(TASKS_IN_A_ROW)
            .build()
            .map_err(StartError::System)?;
        let loop_threads = LoopThreads::new(runtime, tasks, Arc::clone(&inbox), tell);
        let (first, second) = (Arc::clone(&loop_threads), Arc::clone(&loop_threads));
        let span = parts.config.span.clone();
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        let standby = spawn("tenure-standby").spawn(move || {
            let _speaks = span.entered();
            second.stand_by();
        });
        if let Err(error) = standby {
            loop_threads.shut();
            return Err(StartError::System(error));
        }
        let server = spawn("tenure-server").spawn(move || {
            // All of its tasks run on these threads, so all that they say is
            // said by it.
            let _speaks = parts.config.span.clone().entered();
            first.begin(run(parts));
        });
        if let Err(error) = server {
            loop_threads.shut();
            return Err(StartError::System(error));
        }
        Ok(Self {
            inbox,
            shared,
            clients: address,
            ended,
        })
    }

    /// Where it listens for clients.
    pub const fn address(&self) -> SocketAddr {
        self.clients
    }

    /// How it stands, and each change of that.
    pub fn health_status(&self) -> watch::Receiver<HealthStatus> {
        self.shared.health_status.subscribe()
    }

    /// Asks it to hand over its leadership, if it has it, and to end.
    pub fn stop(&self) {
        self.inbox.put(Event::Stop);
    }

    /// Waits until it has ended, and says why.
    pub async fn ended(&self) -> Arc<Ended> {
        let mut ended = self.ended.clone();
        loop {
            if let Some(ended) = &*ended.borrow_and_update() {
                self.shared.audit.finish(LAST_LINES_WITHIN);
                return Arc::clone(ended);
            }
            if ended.changed().await.is_err() {
                return Arc::new(Ended::Fault("its thread panicked; this is a bug".into()));
            }
        }
    }
}

/// Listens for servers and for clients. It looks both names up at the same time: with one
/// dead name server out of two each lookup takes five seconds.
fn listen_both(config: &Config) -> Result<(TcpListener, TcpListener), StartError> {
    std::thread::scope(|scope| {
        let peers = std::thread::Builder::new()
            .name("tenure-listen".into())
            .spawn_scoped(scope, || listen(config.listens_for_peers()))
            .map_err(StartError::System)?;
        let clients = listen(&config.listen);
        let panicked =
            |_| StartError::System(std::io::Error::other("a thread that listens panicked"));
        Ok((peers.join().map_err(panicked)??, clients?))
    })
}

fn listen(address: &str) -> Result<TcpListener, StartError> {
    let failed = |why| StartError::Listen {
        address: address.to_owned(),
        why,
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    // The library asks for 128.
    let longer = rustix::net::listen(&listener, BACKLOG);
    longer.map_err(|error| failed(error.into()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// What this server says of itself before it has read its log.
fn local_server(config: &Config, found: &DataDirectory, start: Start) -> LocalServer {
    let (storage, identity) = match found {
        DataDirectory::Blank(storage, _) => (*storage, None),
        DataDirectory::OpenLog(log) => (log.identity.storage, Some(log.identity)),
    };
    let mut address_book = AddressBook::from_flags(&config.peers);
    address_book.learn(&data::read_address_book(&config.data));
    let own = address_book.get(config.id).cloned().unwrap_or_default();
    let contact = Contact {
        edition: own.edition,
        peer: config.peers[&config.id].clone(),
        client: config.advertised().to_owned(),
    };
    if contact != own || own.edition == 0 {
        // Higher than what others may remember of a directory that is gone.
        let edition = own.edition.saturating_add(1);
        let edition = edition.max(clock::wall().as_millis()).min(MAX_NUMBER);
        address_book.learn_one(config.id, &Contact { edition, ..contact });
    }
    LocalServer {
        identity,
        members: Membership::default(),
        hello: Hello {
            server: config.id,
            storage,
            cluster: identity.map(|identity| identity.cluster),
            known: MemberDisks::new(),
            founders: match identity {
                Some(_) => BTreeSet::new(),
                None => config.peers.keys().copied().chain([config.id]).collect(),
            },
        },
        settings: Settings::of(&config.node),
        address_book,
        details: Details {
            start,
            newest_version: config.node.version,
            ..Details::default()
        },
        unconfirmed: UnconfirmedContacts::default(),
        connected: BTreeMap::new(),
        unproven: BTreeSet::new(),
        edition: 0,
    }
}

async fn run(parts: Parts) -> Result<EventLoop, Ended> {
    let Parts {
        config,
        shared,
        inbox,
        found,
        peers,
        clients: (clients, listens_since),
        tls,
        tokens,
        tasks,
    } = parts;
    if let Some(concern) = config.concern() {
        tracing::warn!("{concern}");
    }
    let watchers = Arc::new(Watchers::new(config.watches));
    let cut_off = shared.metrics.watches_cut.clone();
    tokio::spawn(Arc::clone(&watchers).dispatch(cut_off));
    let handle = ServerHandle::new(&config, &shared, &inbox, &watchers, tokens);
    let accept = match (
        tokio::net::TcpListener::from_std(peers),
        tokio::net::TcpListener::from_std(clients),
    ) {
        (Ok(peers), Ok(clients)) => {
            let listener_limits = listen::ListenerLimits::new(&config, tls.clone(), listens_since);
            tokio::spawn(listen::serve(clients, handle, listener_limits));
            peers
        }
        (Err(error), _) | (_, Err(error)) => return Err(Ended::Fault(error.to_string())),
    };
    tasks.spawn(peers::accept(
        accept,
        tls.clone(),
        Arc::clone(&shared),
        Arc::clone(&inbox),
        (tasks.clone(), config.connections),
    ));
    let flags = AddressBook::from_flags(&config.peers);
    let mut links = Peers::new(
        config.id,
        flags,
        tls,
        (Arc::clone(&shared), Arc::clone(&inbox)),
        tasks,
    );
    let known = matches!(found, DataDirectory::OpenLog(..));
    let log = match found {
        DataDirectory::OpenLog(log) => *log,
        DataDirectory::Blank(storage, blank_directory) => {
            join(
                &config,
                storage,
                blank_directory,
                &mut links,
                &shared,
                &inbox,
            )
            .await?
        }
    };
    let surroundings = (shared, inbox, watchers);
    let mut event_loop = own(&config, log, links, surroundings)?;
    if known {
        warn_of_peers(&config, &event_loop.node);
    }
    event_loop.begin();
    Ok(event_loop)
}

/// Flags may name servers that the log does not know.
fn warn_of_peers(config: &Config, node: &Node) {
    let (peers, end) = (config.peers.keys().copied(), node.log().last().id);
    if let Some(text) = bootstrap::beyond(peers, node.members(), (&config.data, end)) {
        tracing::warn!("{text}");
    }
}

/// A blank server becomes part of a cluster.
async fn join(
    config: &Config,
    storage: StorageId,
    blank_directory: BlankDirectory,
    links: &mut Peers,
    shared: &Shared,
    inbox: &Arc<Inbox>,
) -> Result<OpenLog, Ended> {
    tracing::info!(%storage, "this server is blank and looks for the others");
    let bootstrap = Bootstrap::new(config.id, storage, config.peers.keys().copied());
    let bootstrap = bootstrap.resumed(data::read_promise(&config.data)?);
    shared.announce(bootstrap.hello());
    let log = bootstrap::found(bootstrap, links, shared, inbox, blank_directory).await?;
    tracing::info!(cluster = %log.identity.cluster, "this server is part of a cluster");
    Ok(log)
}

/// Starts the machine and the disk's thread.
fn own(
    config: &Config,
    log: OpenLog,
    links: Peers,
    (shared, inbox, watchers): (Arc<Shared>, Arc<Inbox>, Arc<Watchers>),
) -> Result<EventLoop, Ended> {
    let OpenLog {
        identity,
        wal,
        recovered,
        blank,
        no_vote_time,
    } = log;
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| Ended::Fault(error.to_string()))?;
    let rng = Rng::from_seed(u64::from_le_bytes(seed));
    let now = clock::boot();
    tokio::spawn(Arc::clone(&no_vote_time).wait_out(now));
    let node = Node::start(config.node.clone(), identity, recovered, blank, rng, now)
        .map_err(|error| Ended::Fault(error.to_string()))?;
    let report = {
        let inbox = Arc::clone(&inbox);
        move |result| inbox.put(Event::written(result))
    };
    let writer = Writer::start(wal, report)?;
    let members = node.members().clone();
    let edition = {
        let mut local_server = shared.local_server();
        local_server.identity = Some(identity);
        local_server.hello.cluster = Some(identity.cluster);
        local_server.hello.known = members.iter().map(|(id, it)| (id, it.storage)).collect();
        local_server.hello.founders.clear();
        // What a log that names members has kept is known by its rules.
        local_server.members = members.clone();
        local_server.admit(members);
        local_server.update_progress(&node);
        local_server.edition += 1;
        local_server.edition
    };
    let mut event_loop = EventLoop::new(node, shared, inbox, links, writer, watchers, config);
    event_loop.no_vote_time = Some(no_vote_time);
    event_loop.save_address_book();
    let members = event_loop.node.members().clone();
    event_loop.peers.start_again(&members);
    event_loop.shared.edition.send_replace(edition);
    Ok(event_loop)
}
