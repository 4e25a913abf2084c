//! The services as gRPC.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use prost::Message as _;
use tenure_alpo::{ClientRequest, Operation, Query, SessionId};
use tenure_api::v1::cluster_server::Cluster;
use tenure_api::v1::log_server::Log;
use tenure_api::v1::pipeline_server::Pipeline;
use tenure_api::v1::registers_server::Registers;
use tenure_api::v1::sessions_server::Sessions;
use tenure_api::v1::{self};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::account::{CallerAccount, Charge, FlowControl, Pipelined, Reserved, StreamKind};
use super::audit::Entry;
use super::caller_proof::CallerProof;
use super::errors::{busy, invalid};
use super::grpc_body::{DecodedMessages, GrpcBody, MESSAGE_BYTES};
use super::grpc_status::status;
use super::handle::ServerHandle;
use super::inbox::{AnswerQueue, Event, ReplyTo, StreamRequest, TimedAnswer};
use super::sessions::ProvenSessions;
use super::tokens::{Caller, Granted};
use super::translate::{self, answer};

type Stream_<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Requests of one stream that may be under way; then it is not read further.
const STREAM_MAX: usize = 8_192;
/// How many more may come with the message that reaches that; what is on top
/// is refused.
const OVER_MAX: usize = 8_192;
/// The same for answers, which are kept small as long as nobody reads them.
const ANSWERS_MAX: usize = 2;
/// After about how many bytes a message of answers takes nothing more: clients
/// read no longer ones than 16 MiB, and one answer has at most some more than
/// 1 MiB.
const ANSWERS_BYTES: usize = 1024 * 1024;

/// About how many bytes an answer is without what was read.
const ANSWER_BYTES: usize = 128;
/// After how many requests of one message others have their turn.
const IN_A_ROW: usize = 512;
/// For how many requests one counts that is refused: its error is a text that
/// is made, sent, and written to the audit.
const REFUSED_WORK: usize = 16;
/// What a page counts for that was asked for over a stream, before it is told:
/// until then it shares its values with the state.
const PAGE_BYTES: usize = 128 * 1024;

/// What was asked, and by whom: `listen` has noted that.
fn taken<T>(request: Request<T>) -> Result<(Caller, T), Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    let caller = caller.ok_or_else(|| Status::internal("internal error: the caller is missing"))?;
    Ok((caller, request.into_inner()))
}

/// `listen` finds the messages there, and not in the stream.
fn stream<T: prost::Message + 'static>(
    streams: StreamKind,
    messages: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Response<Stream_<T>> {
    let mut response: Response<Stream_<T>> = Response::new(Box::pin(tokio_stream::empty()));
    response.extensions_mut().insert(streams);
    response.extensions_mut().insert(GrpcBody::of(messages));
    response
}

fn respond<T>(result: Result<T, v1::Error>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(status)
}

#[tonic::async_trait]
impl Registers for ServerHandle {
    type WatchStream = Stream_<v1::WatchResponse>;

    async fn read(
        &self,
        request: Request<v1::ReadRequest>,
    ) -> Result<Response<v1::ReadResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::read(self, &caller, request).await)
    }

    async fn compare_and_swap(
        &self,
        request: Request<v1::CompareAndSwapRequest>,
    ) -> Result<Response<v1::CompareAndSwapResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::compare_and_swap(self, &caller, request).await)
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::delete(self, &caller, request).await)
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::list(self, &caller, request).await)
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (caller, request) = taken(request)?;
        let news = Self::watch(self, caller, request).await.map_err(status)?;
        let messages = tokio_stream::StreamExt::map(news, |it| it.map_err(status));
        Ok(stream(StreamKind::News, messages))
    }
}

#[tonic::async_trait]
impl Log for ServerHandle {
    type TailStream = Stream_<v1::ReadLogResponse>;

    async fn append(
        &self,
        request: Request<v1::AppendRequest>,
    ) -> Result<Response<v1::AppendResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::append(self, &caller, request).await)
    }

    async fn read(
        &self,
        request: Request<v1::ReadLogRequest>,
    ) -> Result<Response<v1::ReadLogResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(self.read_log(&caller, request).await)
    }

    async fn tail(
        &self,
        request: Request<v1::TailRequest>,
    ) -> Result<Response<Self::TailStream>, Status> {
        let (caller, request) = taken(request)?;
        let tail = Self::tail(self, caller, request.from).await;
        let tail = tail.map_err(status)?;
        let messages = tokio_stream::StreamExt::map(tail, |it| it.map_err(status));
        Ok(stream(StreamKind::Bulk, messages))
    }
}

#[tonic::async_trait]
impl Sessions for ServerHandle {
    async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::open(self, &caller, request).await)
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        let (caller, request) = taken(request)?;
        let done = self.session(&caller, request.numbered, Operation::KeepAlive);
        respond(done.await.map(|()| v1::KeepAliveResponse {}))
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let (caller, request) = taken(request)?;
        let done = self.session(&caller, request.numbered, Operation::Close);
        respond(done.await.map(|()| v1::CloseSessionResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(self.list_sessions(&caller, request).await)
    }

    async fn end(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> Result<Response<v1::EndSessionResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(self.end_session(&caller, request).await)
    }
}

#[tonic::async_trait]
impl Cluster for ServerHandle {
    type BackupStream = Stream_<v1::BackupResponse>;

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::status(self, &caller, request).await)
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::add_member(self, &caller, request).await)
    }

    async fn promote_member(
        &self,
        request: Request<v1::PromoteMemberRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::promote_member(self, &caller, request).await)
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::remove_member(self, &caller, request).await)
    }

    async fn transfer(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferResponse>, Status> {
        let (caller, request) = taken(request)?;
        respond(Self::transfer(self, &caller, request.to).await)
    }

    async fn snapshot(
        &self,
        request: Request<v1::SnapshotRequest>,
    ) -> Result<Response<v1::SnapshotResponse>, Status> {
        let (caller, _) = taken(request)?;
        respond(Self::snapshot(self, &caller).await)
    }

    async fn metrics(
        &self,
        request: Request<v1::MetricsRequest>,
    ) -> Result<Response<v1::MetricsResponse>, Status> {
        let (caller, _) = taken(request)?;
        respond(Self::metrics(self, &caller).await)
    }

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let (caller, _) = taken(request)?;
        let parts = Self::backup(self, &caller).await.map_err(status)?;
        let parts = parts.map(|part| Ok(v1::BackupResponse { part }));
        Ok(stream(StreamKind::Bulk, tokio_stream::iter(parts)))
    }
}

#[tonic::async_trait]
impl Pipeline for ServerHandle {
    type ExchangeStream = Stream_<v1::Answers>;

    async fn exchange(
        &self,
        request: Request<Streaming<v1::Requests>>,
    ) -> Result<Response<Self::ExchangeStream>, Status> {
        // `listen` has put the body there.
        let body = request.extensions().get().and_then(GrpcBody::take);
        let body = body.ok_or_else(|| Status::internal("internal error: the body is missing"))?;
        let requests = DecodedMessages::new(body, MESSAGE_BYTES);
        let (caller, _) = taken(request)?;
        // A caller that is not known at all is turned away; what each request
        // needs is asked when it comes.
        caller.granted().map_err(status)?;
        let (sender, messages) = mpsc::channel(ANSWERS_MAX);
        let place = Self::place(&caller).map_err(status)?;
        let requests_under_way = Pipelined::new(Arc::clone(place));
        let exchange = Exchange {
            handle: self.clone(),
            room: FlowControl::new(place, StreamKind::Answers),
            place: Arc::clone(place),
            caller,
            pages: Vec::new(),
            sender,
            sink: Arc::new(AnswerQueue::new(requests_under_way)),
            under_way: 0,
            proven: ProvenSessions::default(),
        };
        tokio::spawn(exchange.run(requests));
        // What was made is counted with its body from here on.
        let messages = ReceiverStream::new(messages);
        let messages = tokio_stream::StreamExt::map(messages, |it| Ok(it?.0));
        Ok(stream(StreamKind::Answers, messages))
    }
}

/// One stream of requests and answers.
struct Exchange {
    handle: ServerHandle,
    caller: Caller,
    place: Arc<CallerAccount>,
    /// What its answers wait for.
    room: FlowControl,
    sender: mpsc::Sender<Result<(v1::Answers, Charge), Status>>,
    sink: Arc<AnswerQueue>,
    under_way: usize,
    /// One for each page that was asked for and not told.
    pages: Vec<Reserved>,
    /// Sessions whose secret was shown over this stream.
    proven: ProvenSessions,
}

impl Exchange {
    async fn run(mut self, mut requests: DecodedMessages) {
        let (mut open, mut ended) = (true, None);
        while open || self.under_way > 0 {
            tokio::select! {
                answers = self.sink.take() => {
                    self.under_way -= answers.len();
                    self.sink.requests.end(answers.len());
                    let mut answers = answers.into_iter();
                    while answers.len() > 0 {
                        let sent = async {
                            poll_fn(|context| self.room.poll(context)).await;
                            self.sender.reserve().await.ok()
                        };
                        let sender = self.sender.clone();
                        let place = tokio::select! {
                            place = sent => place,
                            () = sender.closed() => None,
                        };
                        let Some(place) = place else { return };
                        let (message, bytes) = message(&self.handle, &mut self.pages, &mut answers);
                        place.send(Ok((message, self.place.charge(bytes, None))));
                    }
                }
                message = requests.message::<v1::Requests>(), if open && self.may_read() => {
                    match message {
                        Ok(Some(message)) => {
                            if self.ask(message).await.is_err() {
                                return;
                            }
                        }
                        Ok(None) => open = false,
                        // What is under way is answered where it was asked for
                        // in earlier messages of the stream.
                        Err(why) => {
                            open = false;
                            ended = Some(why);
                        }
                    }
                }
                () = self.sender.closed() => return,
            }
        }
        if let Some(why) = ended {
            // Who asked may have gone.
            let _ = self.sender.send(Err(why)).await;
        }
    }

    /// Whether another message may be read. If none of this stream is under
    /// way, no answer would be the occasion to ask again.
    fn may_read(&self) -> bool {
        self.under_way == 0 || self.under_way < STREAM_MAX && self.sink.requests.left() > 0
    }

    /// How many more requests of a message are handed on.
    fn left(&self) -> usize {
        (STREAM_MAX + OVER_MAX - self.under_way).min(self.sink.requests.left())
    }

    /// Hands the requests of a message on, and answers those that are refused.
    /// Others have their turn after each [`IN_A_ROW`] of work. Fails once
    /// nobody waits for answers any more.
    async fn ask(&mut self, message: v1::Requests) -> Result<(), Closed> {
        let granted = self.caller.granted();
        let (mut left, mut work) = (self.left(), 0);
        let (mut events, mut refused) = (Vec::new(), Vec::new());
        for request in message.requests {
            let number = request.number;
            // Whatever becomes of the request itself.
            let proof = self.proven.by(&request, self.handle.proof(&self.caller));
            let may_be = match (asks_as(&request, &granted), &proof) {
                _ if left == 0 => Err(self.busy()),
                (Some((granted, session)), Ok(proof)) => {
                    self.handle.may_hold(granted, session, proof.claim).await
                }
                _ => Ok(()),
            };
            let proof = may_be.and(proof);
            match self.judge(request, &granted, proof) {
                Ok(event) => {
                    events.push(event);
                    (left, work) = (left - 1, work + 1);
                }
                Err(error) => {
                    let what = Some(v1::answer::What::Error(error));
                    refused.push(v1::Answer {
                        number,
                        what,
                        owned: false,
                    });
                    work += REFUSED_WORK;
                }
            }
            if work >= IN_A_ROW {
                work = 0;
                self.hand_on(&mut events, &mut refused).await?;
                yield_now().await;
                left = self.left();
            }
        }
        self.hand_on(&mut events, &mut refused).await
    }

    async fn hand_on(
        &mut self,
        events: &mut Vec<Event>,
        refused: &mut Vec<v1::Answer>,
    ) -> Result<(), Closed> {
        self.under_way += events.len();
        self.sink.requests.begin(events.len());
        self.handle.inbox.put_all(events.drain(..));
        if refused.is_empty() {
            return Ok(());
        }
        let message = v1::Answers {
            answers: std::mem::take(refused),
        };
        let charge = self.place.charge(message.encoded_len(), None);
        let sent = self.sender.send(Ok((message, charge))).await;
        sent.map_err(|_| Closed)
    }

    fn busy(&self) -> v1::Error {
        self.handle.shared.metrics.refused();
        busy()
    }

    /// What is handed on for this request, or why it is refused.
    fn judge(
        &mut self,
        request: v1::Request,
        granted: &Result<Granted, v1::Error>,
        proof: Result<CallerProof, v1::Error>,
    ) -> Result<Event, v1::Error> {
        let entry = audited(&self.handle, &self.caller, request.what.as_ref());
        let ask = match request.what {
            Some(what) => granted.as_ref().map_err(Clone::clone).and_then(|granted| {
                granted.may_ask(&what)?;
                let ask = translate::pipelined(what, &proof?)?;
                Ok((has_room(&self.place, &self.caller, ask)?, granted.quota()))
            }),
            None => Err(invalid("expected a request, found none")),
        };
        match ask {
            Ok((ask, quota)) => {
                let page = is_page(&ask);
                if page {
                    self.pages.push(self.place.reserve(PAGE_BYTES));
                }
                let ticket = StreamRequest {
                    number: request.number,
                    deletes: translate::deletes(&ask),
                    page,
                    entry,
                };
                let reply = ReplyTo::Stream(Arc::clone(&self.sink), ticket);
                Ok(Event::ClientRequest(ask, quota, reply))
            }
            Err(error) => {
                if let Some(entry) = entry {
                    entry.ends(Err(&error));
                }
                Err(error)
            }
        }
    }
}

/// The session of whose registers it must be asked whether this caller may hold
/// them, which may not do everything. To close a session gives them up.
fn asks_as<'a>(
    request: &v1::Request,
    granted: &'a Result<Granted, v1::Error>,
) -> Option<(&'a Granted, SessionId)> {
    let granted = granted.as_ref().ok().filter(|it| it.limited().is_some())?;
    match &request.what {
        Some(v1::request::What::Command(command)) => match command.operation {
            Some(v1::command::Operation::Close(_)) => None,
            _ => Some((granted, command.session)),
        },
        _ => None,
    }
}

/// Nobody waits for the answers of a stream any more.
struct Closed;

/// What is to be noted of a request, if it changes a leadership.
fn audited(
    handle: &ServerHandle,
    caller: &Caller,
    what: Option<&v1::request::What>,
) -> Option<Entry> {
    let Some(v1::request::What::Command(command)) = what else {
        return None;
    };
    match &command.operation {
        Some(v1::command::Operation::Swap(swap)) => handle.shared.audit.begin_swap(caller, swap),
        Some(v1::command::Operation::Delete(delete)) => {
            handle.shared.audit.begin_delete(caller, &delete.key)
        }
        _ => None,
    }
}

/// The next of these answers in one message, and about how many bytes it is.
/// What they hold is shared with the state until it is copied here.
fn message(
    handle: &ServerHandle,
    pages: &mut Vec<Reserved>,
    answers: &mut impl Iterator<Item = (StreamRequest, TimedAnswer)>,
) -> (v1::Answers, usize) {
    let (clock, shared) = (handle.clock(), &handle.shared);
    let mut message = Vec::new();
    let mut bytes = 0;
    while bytes < ANSWERS_BYTES
        && let Some((ticket, told)) = answers.next()
    {
        if ticket.page {
            pages.pop();
        }
        bytes += told.weight() + ANSWER_BYTES;
        message.push(answer(ticket, told, shared, clock));
    }
    (v1::Answers { answers: message }, bytes)
}

const fn is_page(ask: &ClientRequest) -> bool {
    matches!(
        ask,
        ClientRequest::Read(Query::List { .. } | Query::UserLog { .. })
    )
}

/// Whether what it reads may be held until it is told.
fn has_room(
    place: &CallerAccount,
    caller: &Caller,
    ask: ClientRequest,
) -> Result<ClientRequest, v1::Error> {
    if is_page(&ask) {
        place.may_reserve()?;
    }
    if matches!(ask, ClientRequest::Read(_)) {
        ServerHandle::room(caller)?;
    }
    Ok(ask)
}
