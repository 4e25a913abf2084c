//! How requests of clients reach the replicated log, and how many at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::HeaderMap;
use tenure_alpo::{
    Answer, ClientRequest, ClusterVersion, Node, OpenSession, OwnershipProof, QueryResult, Refusal,
    SessionId,
};
use tenure_api::v1;
use tenure_runtime::clock;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use super::account::{Account, CallerAccount};
use super::backup_places::BackupPlaces;
use super::config::Config;
use super::errors::error;
use super::inbox::{Event, Inbox, Inspection, ReplyTo, TimedAnswer, weight};
use super::inspection_queue;
use super::internal_session::InternalSessions;
use super::pages::Pages;
use super::quota_usage::{Quota, Size};
use super::session_rights::SessionRights;
use super::shared::Shared;
use super::tokens::{Caller, Granted, Need, Tokens};
use super::watchers::Watchers;
use crate::transport::Arrival;

/// Everything that serves clients has one of these.
#[derive(Clone, Debug)]
pub(super) struct ServerHandle {
    pub(super) inbox: Arc<Inbox>,
    pub(super) shared: Arc<Shared>,
    pub(super) watchers: Arc<Watchers>,
    pub(super) internal_sessions: Arc<InternalSessions>,
    pub(super) tokens: Tokens,
    pub(super) session_rights: Arc<SessionRights>,
    /// What keeps web pages out; with tokens there is no need.
    pub(super) pages: Option<Arc<Pages>>,
    pub(super) started: tenure_core::time::Instant,
    /// How this server was started.
    pub(super) protection: v1::Protection,
    /// What clients make this server hold.
    pub(super) account: Arc<Account>,
    /// Leave to read a page of the log or of registers ([`PAGES_MAX`]), after
    /// a majority has confirmed that this server leads, and at once.
    pub(super) reads: Arc<[Semaphore; 2]>,
    pub(super) backups: BackupPlaces,
    /// How long a message may take from its first byte to its last.
    pub(super) message_within: Duration,
    /// Reads of the state that wait for their turn.
    in_turn: mpsc::UnboundedSender<Inspection>,
    under_way: Arc<AtomicUsize>,
    most: usize,
    /// Sessions of one token, or of one address, at most.
    pub(super) sessions_each: u64,
    /// How much registers may take, while this server leads.
    pub(super) quota: Size,
}

/// Counts one request as under way until it is dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long a question may go unanswered: longer than any election, so that
/// only a server that has come to a stop lets it pass.
const WITHIN: Duration = Duration::from_secs(60);
/// How long a call that opens a session waits for the cluster's version to
/// rise. A leader lets it wait for less ([`Refusal::UpgradeUnderWay`]), unless its entry
/// finds no majority.
const RISE_WITHIN: Duration = Duration::from_secs(5);
/// How often it asks meanwhile.
const RISE_AGAIN: Duration = Duration::from_millis(50);
/// Pages of the log or of registers that are read at the same time: each is up
/// to a megabyte, and what is asked for beyond that waits without it.
const PAGES_MAX: usize = 16;

impl ServerHandle {
    pub(super) fn new(
        config: &Config,
        shared: &Arc<Shared>,
        inbox: &Arc<Inbox>,
        watchers: &Arc<Watchers>,
        tokens: Tokens,
    ) -> Self {
        let (in_turn, waiting) = mpsc::unbounded_channel();
        tokio::spawn(inspection_queue::in_turn(waiting, Arc::clone(inbox)));
        Self {
            in_turn,
            inbox: Arc::clone(inbox),
            shared: Arc::clone(shared),
            watchers: Arc::clone(watchers),
            internal_sessions: Arc::default(),
            tokens,
            session_rights: Arc::default(),
            pages: Pages::new(config).map(Arc::new),
            started: clock::boot(),
            protection: config.protection(),
            account: Account::new(shared.metrics.full.clone(), config.asks_for_tokens()),
            reads: Arc::new([(); 2].map(|()| Semaphore::new(PAGES_MAX))),
            backups: BackupPlaces::default(),
            message_within: config.message_within,
            under_way: Arc::default(),
            most: config.requests,
            sessions_each: config.sessions_each,
            quota: Size {
                bytes: config.quota_bytes,
                registers: config.quota_registers,
            },
        }
    }

    /// Who calls, by what the call carries and how it has come.
    pub(super) fn caller(
        &self,
        headers: &HeaderMap,
        address: IpAddr,
        arrival: Option<Arrival>,
    ) -> Caller {
        self.tokens
            .caller(headers, (address, arrival), &self.shared)
    }

    /// Whether an answer may be made for this caller now: others of its calls
    /// may have been answered since this one began, and not been read.
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn room(caller: &Caller) -> Result<(), v1::Error> {
        let place = caller.place();
        place.map_or(Ok(()), |(place, kept)| place.room(*kept))
    }

    /// Whether this may be told to it: see [`CallerAccount::room_for_answer`].
    ///
    /// # Errors
    /// BUSY, with who holds how much.
    pub(super) fn room_for(caller: &Caller, found: &QueryResult) -> Result<(), v1::Error> {
        Self::room(caller)?;
        let place = caller.place();
        place.map_or(Ok(()), |(place, kept)| {
            place.room_for_answer(weight(found), *kept)
        })
    }

    /// Where a caller is counted.
    ///
    /// # Errors
    /// If it did not come by a connection, which cannot be.
    pub(super) fn place(caller: &Caller) -> Result<&Arc<CallerAccount>, v1::Error> {
        let place = caller.place().map(|(place, _)| place);
        place.ok_or_else(|| {
            error(
                v1::Cause::Unspecified,
                "internal error: the connection is missing",
            )
        })
    }

    /// Leave to have one more request under way.
    pub(super) fn permit(&self) -> Option<Permit> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(Arc::clone(&self.under_way));
        if before >= self.most {
            self.shared.metrics.refused();
            return None;
        }
        Some(permit)
    }

    /// Submits a request to the machine and waits for its answer.
    pub(super) async fn submit(&self, request: ClientRequest) -> TimedAnswer {
        self.submit_within_quota(request, None).await
    }

    /// The same for a token with this quota of registers.
    pub(super) async fn submit_within_quota(
        &self,
        request: ClientRequest,
        quota: Option<Arc<Quota>>,
    ) -> TimedAnswer {
        let Some(_permit) = self.permit() else {
            let answer = Answer::Refused(Refusal::Busy);
            return TimedAnswer::from(answer);
        };
        let (sender, answer) = oneshot::channel();
        let event = Event::ClientRequest(request, quota, ReplyTo::One(sender));
        self.inbox.put(event);
        Self::answer(answer).await
    }

    /// Submits the opening of a session. As long as the cluster's version may be
    /// about to rise, it is submitted again when that has happened, and now and
    /// then: a member may have told meanwhile that it speaks less. Between two of
    /// these no request is under way.
    pub(super) async fn submit_open(&self, opening: OpenSession) -> TimedAnswer {
        let mut version = self.shared.version.subscribe();
        let until = clock::boot().after(RISE_WITHIN);
        loop {
            let told = self.submit(ClientRequest::Open(opening)).await;
            let rising = told.answer == Answer::Refused(Refusal::UpgradeUnderWay);
            if !rising || clock::boot() >= until {
                return told;
            }
            let risen = version.wait_for(|version| *version >= ClusterVersion::SECOND);
            // Submitted again in any case.
            let _ = timeout(RISE_AGAIN, risen).await;
        }
    }

    /// What came of something that was asked.
    pub(super) async fn answer(answer: oneshot::Receiver<TimedAnswer>) -> TimedAnswer {
        let answer = timeout(WITHIN, answer).await;
        let told = answer.ok().and_then(Result::ok);
        told.unwrap_or_else(|| TimedAnswer::from(Answer::Interrupted))
    }

    /// Reads the machine's state.
    ///
    /// # Errors
    /// [`v1::Cause::NotReady`] while there is none.
    pub(super) async fn inspect<T: Send + 'static>(
        &self,
        inspect: impl FnOnce(&Node) -> T + Send + 'static,
    ) -> Result<T, v1::Error> {
        let (inspect, seen) = noted(inspect);
        self.inbox.put(Event::Inspection(inspect));
        self.seen(seen).await
    }

    /// Reads the machine's state when others that ask in this way, and ask for as
    /// much, have had their turn.
    ///
    /// # Errors
    /// [`v1::Cause::NotReady`] while there is none.
    pub(super) async fn inspect_in_turn<T: Send + 'static>(
        &self,
        inspect: impl FnOnce(&Node) -> T + Send + 'static,
    ) -> Result<T, v1::Error> {
        let (inspect, seen) = noted(inspect);
        // It is passed on for as long as the server runs.
        let _ = self.in_turn.send(inspect);
        self.seen(seen).await
    }

    async fn seen<T>(&self, seen: oneshot::Receiver<T>) -> Result<T, v1::Error> {
        seen.await.map_err(|_| v1::Error {
            cause: v1::Cause::NotReady.into(),
            message: self.shared.health_status.borrow().waiting.clone(),
            ..v1::Error::default()
        })
    }

    /// Refuses a command under this session to its owner, if that may not write
    /// what is bound to it.
    ///
    /// # Errors
    /// [`v1::Cause::Denied`], with the register.
    pub(super) async fn may_hold(
        &self,
        granted: &Granted,
        session: SessionId,
        claim: OwnershipProof,
    ) -> Result<(), v1::Error> {
        let Some(rights) = granted.limited() else {
            return Ok(());
        };
        let now = clock::boot();
        if self.session_rights.knows(session, rights, now) {
            return Ok(());
        }
        let of = Arc::clone(rights);
        let lacks = move |node: &Node| {
            let open = node.state().sessions().get(session)?;
            // The machine refuses whom the session does not belong to. What it
            // holds is not looked at, and not told.
            if !open.owner().admits(&claim) {
                return None;
            }
            let mut bound = node.state().bound_to(session);
            Some(bound.find(|key| !of.may_hold(key.as_str())).cloned())
        };
        match self.inspect(lacks).await? {
            Some(Some(key)) => return Err(granted.denied(Need::Hold(key.as_str()))),
            Some(None) => self.session_rights.note(session, rights, now),
            None => {}
        }
        Ok(())
    }
}

/// A read, and where its result is found. If its caller has gone,
/// it is not taken.
fn noted<T: Send + 'static>(
    inspect: impl FnOnce(&Node) -> T + Send + 'static,
) -> (Inspection, oneshot::Receiver<T>) {
    let (sender, seen) = oneshot::channel();
    let inspect = move |node: Option<&Node>| {
        if let Some(node) = node
            && !sender.is_closed()
        {
            let _ = sender.send(inspect(node));
        }
    };
    (Box::new(inspect), seen)
}
