//! The other servers: a link to each, and the connections that come in.
//!
//! There is a link to every member, and to every server of the same cluster
//! that is connected to this one: one that has just been admitted must be able
//! to answer a leader that its own log does not tell it of yet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_alpo::{Envelope, Membership, ServerId, Start, StorageId};
use tenure_runtime::clock;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::account::CallerId;
use super::connection_limit::{
    ConnectionCapacity, ConnectionClass, ConnectionLimit, ConnectionPermit,
};
use super::dial_report::DialReporter;
use super::directory_copies;
use super::handshakes::is_in;
use super::inbox::{ClosedBy, Event, Inbox, PeerConnection};
use super::incompatibility::judge;
use super::log_rate_limit::{DialLogLimit, LogRateLimit};
use super::metrics::Closed;
use super::shared::Shared;
use super::trust;
use crate::transport::{
    AddressBook, CommittedMembers, Demand, FrameReader, GreetingAnswer, GreetingError, Introduced,
    Link, MaybeTlsStream, PeerKeepAlive, Prover, ReadError, Tasks, Tls, accept_plain,
    explain_tls_error, introduced,
};

/// How long a newcomer may take to introduce itself, from its turn on, or an
/// election timeout if that is longer.
const GREET_WITHIN: Duration = Duration::from_secs(3);
/// Connections of servers that have greeted, at most, and how many of these
/// places are kept for members. And of those that have not greeted.
const GREETED_MAX: usize = 256;
const KEPT: usize = 128;
const NEWCOMERS_MAX: usize = 256;

/// The links, and who is connected.
pub(super) struct Peers {
    own: ServerId,
    flags: AddressBook,
    tls: Option<Arc<Tls>>,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    tasks: Tasks,
    links: BTreeMap<ServerId, Link>,
    /// The newest connection of each server to this one, by its disk: two
    /// disks may have one number, a member's and one that was removed.
    incoming: BTreeMap<(ServerId, StorageId), u64>,
    /// The disks of the members when links were looked after last.
    known: BTreeMap<ServerId, StorageId>,
}

impl Peers {
    pub(super) fn new(
        own: ServerId,
        flags: AddressBook,
        tls: Option<Arc<Tls>>,
        (shared, inbox): (Arc<Shared>, Arc<Inbox>),
        tasks: Tasks,
    ) -> Self {
        Self {
            own,
            flags,
            tls,
            shared,
            inbox,
            tasks,
            links: BTreeMap::new(),
            incoming: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Queues a message for the server it is for, if that is at the other end
    /// with the disk it is for. A link forgets what waits when its connection
    /// ends, so that what is queued here reaches the server that is there now.
    pub(super) fn send(&self, envelope: &Envelope, storage: Option<StorageId>) {
        let there = self
            .shared
            .local_server()
            .connected
            .get(&envelope.to)
            .copied();
        let meant = storage.is_none() || storage == there;
        if let Some(link) = self.links.get(&envelope.to).filter(|_| meant) {
            link.send(envelope);
        }
    }

    /// A server has connected.
    pub(super) fn connected(&mut self, peer_connection: PeerConnection, members: &Membership) {
        let PeerConnection {
            server,
            storage,
            number,
        } = peer_connection;
        self.incoming.insert((server, storage), number);
        if members.has(server, storage) && self.is_elsewhere(server, storage) {
            // The member is there, and the link ends at another disk.
            self.close(server);
        }
        self.greeted(members);
        if let Some(link) = self.links.get(&server) {
            link.dial_now();
        }
    }

    /// A connection has ended; whether it was the newest of its server.
    pub(super) fn closed(&mut self, peer_connection: PeerConnection) -> bool {
        let of = (peer_connection.server, peer_connection.storage);
        let newest = self.incoming.get(&of) == Some(&peer_connection.number);
        if newest {
            self.incoming.remove(&of);
        }
        newest
    }

    /// Whether the link to `server` ends at another disk than this.
    fn is_elsewhere(&self, server: ServerId, storage: StorageId) -> bool {
        let local_server = self.shared.local_server();
        local_server
            .connected
            .get(&server)
            .is_some_and(|it| *it != storage)
    }

    fn close(&mut self, server: ServerId) {
        self.links.remove(&server);
        self.shared.local_server().connected.remove(&server);
    }

    /// Closes the links to numbers that have gone to other disks since this
    /// was called last, and to those alone. A link to a server that was there
    /// before with the disk it has stays, whatever the members say: they may
    /// be old, and it may be the one that knows the newer ones.
    fn follow(&mut self, members: &Membership) {
        let now: BTreeMap<_, _> = members.iter().map(|(id, it)| (id, it.storage)).collect();
        for (server, storage) in &now {
            let changed = self.known.get(server) != Some(storage);
            if changed && self.is_elsewhere(*server, *storage) {
                self.close(*server);
            }
        }
        self.known = now;
    }

    /// This server has become part of a cluster, and says so to everybody.
    pub(super) fn start_again(&mut self, members: &Membership) {
        self.links.clear();
        self.shared.local_server().connected.clear();
        self.greeted(members);
    }

    /// From now on only those count who have proven to know the secret.
    pub(super) fn proven_only(&mut self, members: &Membership) {
        let unproven = std::mem::take(&mut self.shared.local_server().unproven);
        self.links.retain(|server, _| !unproven.contains(server));
        self.shared
            .local_server()
            .connected
            .retain(|server, _| !unproven.contains(server));
        self.greeted(members);
    }

    /// This server takes part in nothing any more: it says nothing to others.
    pub(super) fn fall_silent(&mut self) {
        self.links.clear();
        self.shared.local_server().connected.clear();
    }

    /// Members or addresses may have changed: links go where they should.
    pub(super) fn greeted(&mut self, members: &Membership) {
        if self.shared.copies().set_back.is_some() {
            return;
        }
        self.follow(members);
        let heard = self.incoming.keys().map(|(server, _)| *server);
        let mut wanted = others(members, heard, self.own);
        if members.is_empty() {
            // The leader must hear of this server before this one's log can
            // tell who leads: it connects to every server it has heard of.
            let known = self.shared.local_server().address_book.ids();
            wanted.extend(known.into_iter().filter(|id| *id != self.own));
        }
        self.links.retain(|server, _| wanted.contains(server));
        self.shared
            .local_server()
            .connected
            .retain(|server, _| wanted.contains(server));
        for server in wanted {
            let addresses = self.addresses(server);
            let as_it_is = self
                .links
                .get(&server)
                .is_some_and(|link| link.addresses() == addresses);
            if !as_it_is && !addresses.is_empty() {
                let link = self.link(server, addresses);
                self.links.insert(server, link);
            }
        }
    }

    /// Where `server` may be: where it said last, and where the flags say.
    fn addresses(&self, server: ServerId) -> Vec<String> {
        let local_server = self.shared.local_server();
        let contacts = [
            local_server.address_book.get(server),
            local_server.unconfirmed_contact(server),
            self.flags.get(server),
        ];
        let contacts = contacts.into_iter().flatten().map(|it| it.peer.clone());
        let mut addresses: Vec<_> = contacts.filter(|address| !address.is_empty()).collect();
        addresses.dedup();
        addresses
    }

    fn link(&self, server: ServerId, addresses: Vec<String>) -> Link {
        let (shared, inbox) = (Arc::clone(&self.shared), Arc::clone(&self.inbox));
        let greet = {
            let shared = Arc::clone(&shared);
            move || shared.greeting()
        };
        let mut teller = DialReporter {
            server,
            shared,
            inbox,
            log_limit: DialLogLimit::default(),
            refused: None,
        };
        // What was said to the one before is over.
        teller.told(None);
        let tell = move |address: &str, event| teller.tell(address, event);
        let trust = (self.tls.clone(), self.shared.prover.clone());
        let election_timeout = self.shared.election_timeout();
        let shared = Arc::clone(&self.shared);
        let live = move || PeerKeepAlive {
            disk_progress: shared.local_server().details.disk_progress,
        };
        Link::start(
            &self.tasks,
            addresses,
            server,
            trust,
            greet,
            (election_timeout, live),
            tell,
        )
    }
}

fn greet_within(shared: &Shared) -> Duration {
    GREET_WITHIN.max(shared.election_timeout())
}

/// Takes connections of other servers until it is dropped; at most `most` of
/// them, where the system allows for few, before they greet.
pub(super) async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    (tasks, most): (Tasks, usize),
) {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let connection_limit = ConnectionLimit::new(ConnectionCapacity {
        newcomers: NEWCOMERS_MAX.min(most),
        proven: GREETED_MAX,
        kept: [KEPT, 0],
    });
    let handshakes = Arc::clone(&shared.server_handshakes);
    tasks.spawn(async move { handshakes.give_turns().await });
    let own = shared.local_server().hello.server;
    let log_rate_limit = Arc::new(LogRateLimit::default());
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there are too many files open.
                tracing::warn!("a server's connection could not be taken: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let caller_id = CallerId::address(from.ip());
        let is_known = is_known(&shared, from.ip());
        let permit = connection_limit.enter(caller_id.clone(), is_known);
        let (shared, inbox, tls) = (Arc::clone(&shared), Arc::clone(&inbox), tls.clone());
        let log_rate_limit = Arc::clone(&log_rate_limit);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        tasks.spawn(async move {
            let met = async {
                let has_turn = shared.server_handshakes.turn(from.ip(), is_known).await;
                let introduce = introduce(stream, tls.clone(), own);
                has_turn
                    .then_some(timeout(greet_within(&shared), introduce))?
                    .await
                    .into()
            };
            let met = tokio::select! {
                met = met => met,
                () = permit.evicted() => None,
            };
            let Some(met) = met else {
                return shared.metrics.close(Closed::Full);
            };
            let (why, reason) = match met {
                Ok(Ok((line, introduced))) => {
                    let known = (&*shared, tls.as_deref(), &*log_rate_limit);
                    let proven = trust::doubt(known, (&line, from.ip()), &introduced);
                    let class = class(&shared, &introduced, &proven);
                    if !permit.prove(class, || caller_id) {
                        return shared.metrics.close(Closed::Full);
                    }
                    if class == ConnectionClass::Known {
                        shared.server_handshakes.remember(from.ip());
                    }
                    let answer = answer(&shared, &introduced, &proven);
                    directory_copies::tell(&log_rate_limit, from.ip(), &answer);
                    let (peer_connection, answer) = ((number, &permit), (answer, proven));
                    return serve(line, introduced, peer_connection, answer, &shared, &inbox).await;
                }
                Ok(Err(error)) => refused(&error, from.ip(), tls.as_deref(), &log_rate_limit),
                Err(_) => ("it did not introduce itself".into(), Closed::Slow),
            };
            shared.metrics.close(reason);
            tracing::debug!("a connection is closed: {why}");
        });
    }
}

/// Whether the address belongs here.
fn is_known(shared: &Shared, address: IpAddr) -> bool {
    let is_member = || is_in(&shared.local_server().address_book, address);
    shared.server_handshakes.is_known(address, is_member)
}

/// Members have places kept.
fn class(
    shared: &Shared,
    introduced: &Introduced,
    proven: &Result<bool, String>,
) -> ConnectionClass {
    let hello = &introduced.greeting.hello;
    let is_member = || shared.local_server().is_member(hello.server, hello.storage);
    if proven.is_ok() && is_member() {
        ConnectionClass::Known
    } else {
        ConnectionClass::Stranger
    }
}

/// Why a connection is closed over which no server introduced itself.
fn refused(
    error: &GreetingError,
    from: IpAddr,
    tls: Option<&Tls>,
    log_rate_limit: &LogRateLimit,
) -> (String, Closed) {
    let Some(why) = suspicion(error, tls) else {
        return (error.to_string(), Closed::Garbage);
    };
    if log_rate_limit.should_log(from, &why, clock::boot()) {
        tracing::warn!(%from, "not let in as a server: {why}");
    }
    (why, Closed::Untrusted)
}

/// Why one side does not believe the other, if that is what went wrong.
fn suspicion(error: &GreetingError, tls: Option<&Tls>) -> Option<String> {
    let GreetingError::Io(error) = error else {
        return None;
    };
    match tls {
        Some(tls) => tls.explain_tls_error(error),
        None => explain_tls_error(error, Path::new("")),
    }
}

/// A peer that connects says which server it is.
async fn introduce(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    own: ServerId,
) -> Result<(MaybeTlsStream, Introduced), GreetingError> {
    let mut line = secure(stream, tls).await?;
    let introduced = introduced(&mut line, own).await?;
    Ok((line, introduced))
}

async fn secure(stream: TcpStream, tls: Option<Arc<Tls>>) -> std::io::Result<MaybeTlsStream> {
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => tls.accept(stream, Demand::Server).await,
        None => accept_plain(stream).await,
    }
}

/// What to say to a server that has introduced itself.
fn answer(
    shared: &Shared,
    introduced: &Introduced,
    proven: &Result<bool, String>,
) -> GreetingAnswer {
    let refusal = match proven {
        Ok(_) => judge(shared, &introduced.greeting, introduced.form),
        Err(why) => Some(GreetingAnswer::Refused(why.clone())),
    };
    refusal.unwrap_or_else(|| GreetingAnswer::Welcome(Box::new(shared.greeting())))
}

async fn serve(
    mut stream: MaybeTlsStream,
    mut introduced: Introduced,
    (number, permit): (u64, &ConnectionPermit),
    (answer, proven): (GreetingAnswer, Result<bool, String>),
    shared: &Shared,
    inbox: &Inbox,
) {
    let mut edition = shared.edition.subscribe();
    let settled = shared.settled.subscribe();
    let reason = match &answer {
        GreetingAnswer::Later(_) | GreetingAnswer::SetBack(..) => Closed::Copy,
        _ if proven.is_err() => Closed::Untrusted,
        _ => Closed::Stranger,
    };
    // Who has proven nothing gets no proof: it could try secrets against it.
    let silent = Prover::default();
    let prover = match proven {
        Ok(true) => &shared.prover,
        Ok(false) | Err(_) => &silent,
    };
    let answering = introduced.answer(&mut stream, &answer, prover);
    let answered = timeout(greet_within(shared), answering).await;
    let greeting = introduced.greeting;
    let (server, storage) = (greeting.hello.server, greeting.hello.storage);
    // Which disk this server has told it that its number has.
    let told = match &answer {
        GreetingAnswer::Welcome(own) => own.settled.members.storage(server),
        GreetingAnswer::Refused(_) | GreetingAnswer::Later(_) | GreetingAnswer::SetBack(..) => None,
    };
    let ours = matches!(answer, GreetingAnswer::Welcome(_));
    let blank = greeting.hello.cluster.is_none();
    let start = greeting.details.map(|it| it.start);
    if !ours {
        shared.metrics.close(reason);
    }
    if !matches!(answered, Ok(Ok(()))) || !ours {
        let _ = stream.shutdown().await;
        return;
    }
    let dialled = false;
    inbox.put(Event::Greeted {
        greeting: Box::new(greeting),
        dialled,
    });
    if blank {
        // It has nothing more to say, and comes again when it has founded or
        // been admitted; until then this tells it that nothing has changed.
        let _ = timeout(BLANK_WAITS, edition.changed()).await;
        return;
    }
    let peer_connection = PeerConnection {
        server,
        storage,
        number,
    };
    inbox.put(Event::Connected(peer_connection));
    let ends = (edition, settled, told, permit);
    let proven = matches!(proven, Ok(true));
    let ending = listen(
        stream,
        (peer_connection, start, proven),
        ends,
        shared,
        inbox,
    )
    .await;
    inbox.put(Event::Closed(peer_connection, ending));
}

/// Passes on what a server says, until its connection ends.
async fn listen(
    stream: MaybeTlsStream,
    (peer_connection, start, proven): (PeerConnection, Option<Start>, bool),
    (mut edition, mut settled, told, permit): (
        watch::Receiver<u64>,
        watch::Receiver<CommittedMembers>,
        Option<StorageId>,
        &ConnectionPermit,
    ),
    shared: &Shared,
    inbox: &Inbox,
) -> ClosedBy {
    let mut frames = FrameReader::new(stream);
    // What ends it from this side.
    let mut over = pin!(async {
        tokio::select! {
            _ = edition.changed() => {}
            () = dismissed((&mut settled, told), (peer_connection.server, peer_connection.storage)) => {}
            () = shared.until_proven_only(), if !proven => {}
            () = permit.evicted() => shared.metrics.close(Closed::Full),
        }
    });
    let mut events = Vec::new();
    let mut ending = ClosedBy::There;
    let ended = loop {
        let next = frames.next(|envelope| {
            // Nobody speaks for anybody else.
            if envelope.from == peer_connection.server {
                events.push(Event::Received(envelope, peer_connection.storage));
            }
        });
        let next = tokio::select! {
            next = next => next,
            () = &mut over => {
                ending = ClosedBy::Here;
                Err(ReadError::Closed)
            }
        };
        let keep_alive = next.as_ref().ok().copied().flatten();
        let now = clock::boot();
        if !shared.hears(
            (peer_connection.server, peer_connection.storage),
            start,
            keep_alive,
            now,
        ) {
            // Another process with this disk was let in.
            ending = ClosedBy::Here;
            break ReadError::Closed;
        }
        inbox.put_all(events.drain(..));
        if let Err(error) = next {
            break error;
        }
    };
    if let ReadError::Frame(error) = &ended {
        ending = ClosedBy::Here;
        shared.metrics.close(Closed::Garbage);
        let server = peer_connection.server;
        // It may connect again at once, and do the same.
        if shared.objections.should_log(server, "frame", clock::boot()) {
            tracing::warn!(server = server.get(), "a connection is closed: {error}");
        }
    }
    ending
}

/// Waits until the number of the server that is connected is taken from its
/// disk, or goes to another one. No member sends it the entry that says so, but it
/// connects again, and the greeting tells it ([`super::removal`]).
async fn dismissed(
    (settled, mut told): (&mut watch::Receiver<CommittedMembers>, Option<StorageId>),
    (server, storage): (ServerId, StorageId),
) {
    loop {
        let changed = |settled: &CommittedMembers| settled.members.storage(server) != told;
        let Ok(now) = settled.wait_for(changed).await else {
            return std::future::pending().await;
        };
        told = now.members.storage(server);
        if told != Some(storage) {
            return;
        }
    }
}

/// How long a blank server is kept on the line before it has to ask again
/// whether it has been admitted.
const BLANK_WAITS: Duration = Duration::from_millis(500);

/// The servers that `members` and `heard` name, without `own`.
fn others(
    members: &Membership,
    heard: impl Iterator<Item = ServerId>,
    own: ServerId,
) -> BTreeSet<ServerId> {
    let members = members.iter().map(|(id, _)| id);
    members.chain(heard).filter(|id| *id != own).collect()
}
