//! The services as gRPC.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::vec;

use tenure_alpo::{ClientRequest, Query, SessionId};
use tenure_api::v1::cluster_server::Cluster;
use tenure_api::v1::log_server::Log;
use tenure_api::v1::pipeline_server::Pipeline;
use tenure_api::v1::registers_server::Registers;
use tenure_api::v1::sessions_server::Sessions;
use tenure_api::v1::{self};
use tokio::task::yield_now;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::account::{CallerAccount, FlowControl, Pipelined, Reserved, StreamKind};
use super::authorization::{Asks, Authorized};
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

/// Who asks: `listen` has noted that.
fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| Status::internal("internal error: the caller is missing"))
}

impl ServerHandle {
    /// What is asked, if its caller may ask it.
    fn taken<Q: Asks>(&self, request: Request<Q>) -> Result<Authorized<Q>, Status> {
        let caller = caller(&request)?;
        Authorized::of(caller, request.into_inner(), &self.shared.audit).map_err(status)
    }
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
        respond(Self::read(self, self.taken(request)?).await)
    }

    async fn compare_and_swap(
        &self,
        request: Request<v1::CompareAndSwapRequest>,
    ) -> Result<Response<v1::CompareAndSwapResponse>, Status> {
        respond(Self::compare_and_swap(self, self.taken(request)?).await)
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        respond(Self::delete(self, self.taken(request)?).await)
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        respond(Self::list(self, self.taken(request)?).await)
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let asked = self.taken(request)?;
        let news = Self::watch(self, asked).await.map_err(status)?;
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
        respond(Self::append(self, self.taken(request)?).await)
    }

    async fn read(
        &self,
        request: Request<v1::ReadLogRequest>,
    ) -> Result<Response<v1::ReadLogResponse>, Status> {
        respond(Self::read_log(self, self.taken(request)?).await)
    }

    async fn tail(
        &self,
        request: Request<v1::TailRequest>,
    ) -> Result<Response<Self::TailStream>, Status> {
        let asked = self.taken(request)?;
        let tail = Self::tail(self, asked).await.map_err(status)?;
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
        respond(Self::open(self, self.taken(request)?).await)
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        respond(Self::keep_alive(self, self.taken(request)?).await)
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        respond(Self::close(self, self.taken(request)?).await)
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        respond(Self::list_sessions(self, self.taken(request)?).await)
    }

    async fn end(
        &self,
        request: Request<v1::EndSessionRequest>,
    ) -> Result<Response<v1::EndSessionResponse>, Status> {
        respond(Self::end_session(self, self.taken(request)?).await)
    }
}

#[tonic::async_trait]
impl Cluster for ServerHandle {
    type BackupStream = Stream_<v1::BackupResponse>;

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        respond(Self::status(self, self.taken(request)?).await)
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        respond(Self::add_member(self, self.taken(request)?).await)
    }

    async fn promote_member(
        &self,
        request: Request<v1::PromoteMemberRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        respond(Self::promote_member(self, self.taken(request)?).await)
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::MembersResponse>, Status> {
        respond(Self::remove_member(self, self.taken(request)?).await)
    }

    async fn transfer(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferResponse>, Status> {
        respond(Self::transfer(self, self.taken(request)?).await)
    }

    async fn snapshot(
        &self,
        request: Request<v1::SnapshotRequest>,
    ) -> Result<Response<v1::SnapshotResponse>, Status> {
        respond(Self::snapshot(self, self.taken(request)?).await)
    }

    async fn metrics(
        &self,
        request: Request<v1::MetricsRequest>,
    ) -> Result<Response<v1::MetricsResponse>, Status> {
        respond(Self::metrics(self, self.taken(request)?).await)
    }

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        let asked = self.taken(request)?;
        let parts = Self::backup(self, asked).await.map_err(status)?;
        let message = |part| v1::BackupResponse { part };
        let parts = parts.map(move |part| part.map(message).map_err(status));
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
        let caller = caller(&request)?;
        // A caller that is not known at all is turned away; what each request
        // needs is asked when it comes.
        caller.granted().map_err(status)?;
        let place = Self::place(&caller).map_err(status)?;
        let requests_under_way = Pipelined::new(Arc::clone(place));
        let exchange = Exchange {
            handle: self.clone(),
            room: FlowControl::new(place, StreamKind::Answers),
            place: Arc::clone(place),
            caller,
            requests,
            open: true,
            ended: None,
            unsubmitted: Vec::new().into_iter(),
            work: 0,
            sink: Arc::new(AnswerQueue::new(requests_under_way)),
            under_way: 0,
            answers: Vec::new().into_iter(),
            pages: Vec::new(),
            proven: ProvenSessions::default(),
        };
        Ok(stream(StreamKind::Answers, exchange.messages()))
    }
}

/// One stream of requests and answers.
///
/// It is the body of its call's answer, and does all it does when it is asked
/// for the next message: in the task of its connection, with no task between.
/// A client that does not read answers is asked nothing more of, either.
struct Exchange {
    handle: ServerHandle,
    caller: Caller,
    place: Arc<CallerAccount>,
    requests: DecodedMessages,
    /// Whether more of them may come.
    open: bool,
    /// Why no more come, for after the last answer.
    ended: Option<Status>,
    /// What is left of the message that was read last.
    unsubmitted: vec::IntoIter<v1::Request>,
    /// Work that was done since others had their turn.
    work: usize,
    sink: Arc<AnswerQueue>,
    under_way: usize,
    /// Answers that are in no message yet.
    answers: vec::IntoIter<(StreamRequest, TimedAnswer)>,
    /// What they wait for.
    room: FlowControl,
    /// One for each page that was asked for and not told.
    pages: Vec<Reserved>,
    /// Sessions whose secret was shown over this stream.
    proven: ProvenSessions,
}

impl Exchange {
    fn messages(self) -> impl Stream<Item = Result<v1::Answers, Status>> {
        futures_util::stream::unfold(self, async |mut exchange| {
            let message = exchange.next().await?;
            Some((message, exchange))
        })
    }

    /// The next message of answers.
    async fn next(&mut self) -> Option<Result<v1::Answers, Status>> {
        loop {
            if self.answers.len() > 0 {
                poll_fn(|context| self.room.poll(context)).await;
                return Some(Ok(message(
                    &self.handle,
                    &self.place,
                    &mut self.pages,
                    &mut self.answers,
                )));
            }
            if self.unsubmitted.len() > 0 {
                let refused = self.submit_next().await;
                if !refused.is_empty() {
                    return Some(Ok(v1::Answers { answers: refused }));
                }
                continue;
            }
            if !self.open && self.under_way == 0 {
                return self.ended.take().map(Err);
            }
            let reads = self.open && self.may_read();
            tokio::select! {
                answers = self.sink.take() => {
                    self.under_way -= answers.len();
                    self.sink.requests.end(answers.len());
                    self.answers = answers.into_iter();
                }
                message = self.requests.message::<v1::Requests>(), if reads => match message {
                    Ok(Some(message)) => self.unsubmitted = message.requests.into_iter(),
                    Ok(None) => self.open = false,
                    // What is under way is answered where it was asked for in
                    // earlier messages of the stream.
                    Err(why) => {
                        self.open = false;
                        self.ended = Some(why);
                    }
                },
            }
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

    /// Hands requests of a message on, and answers those that are refused. Others
    /// have their turn after each [`IN_A_ROW`] of work.
    async fn submit_next(&mut self) -> Vec<v1::Answer> {
        if self.work >= IN_A_ROW {
            self.work = 0;
            yield_now().await;
        }
        let granted = self.caller.granted();
        let mut left = self.left();
        let (mut events, mut refused) = (Vec::new(), Vec::new());
        while self.work < IN_A_ROW
            && let Some(request) = self.unsubmitted.next()
        {
            let number = request.number;
            // Whatever becomes of the request itself.
            let proof = self.proven.by(&request, self.handle.proof(&self.caller));
            let may_be = match (session_to_check(&request, &granted), &proof) {
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
                    (left, self.work) = (left - 1, self.work + 1);
                }
                Err(error) => {
                    let what = Some(v1::answer::What::Error(error));
                    refused.push(v1::Answer {
                        number,
                        what,
                        owned: false,
                    });
                    self.work += REFUSED_WORK;
                }
            }
        }
        self.under_way += events.len();
        self.sink.requests.begin(events.len());
        self.handle.inbox.put_all(events);
        refused
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
        let (audit, what) = (&self.handle.shared.audit, request.what.as_ref());
        let entry = what.and_then(|what| what.noted(audit, &self.caller));
        let client_request = match request.what {
            Some(what) => granted.as_ref().map_err(Clone::clone).and_then(|granted| {
                granted.may(what.need())?;
                let client_request = translate::pipelined(what, &proof?)?;
                Ok((
                    has_room(&self.place, &self.caller, client_request)?,
                    granted.quota(),
                ))
            }),
            None => Err(invalid("expected a request, found none")),
        };
        match client_request {
            Ok((client_request, quota)) => {
                let page = is_page(&client_request);
                if page {
                    self.pages.push(self.place.reserve(PAGE_BYTES));
                }
                let ticket = StreamRequest {
                    number: request.number,
                    deletes: translate::deletes(&client_request),
                    page,
                    entry,
                };
                let reply = ReplyTo::Stream(Arc::clone(&self.sink), ticket);
                Ok(Event::ClientRequest(client_request, quota, reply))
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
fn session_to_check<'a>(
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

/// The next of these answers in one message. What they hold is shared with the
/// state until it is copied here.
fn message(
    handle: &ServerHandle,
    place: &CallerAccount,
    pages: &mut Vec<Reserved>,
    answers: &mut vec::IntoIter<(StreamRequest, TimedAnswer)>,
) -> v1::Answers {
    let (clock, shared) = (handle.clock(), &handle.shared);
    let mut message = Vec::new();
    let mut bytes = 0;
    while bytes < ANSWERS_BYTES
        && let Some((ticket, told)) = answers.next()
    {
        if ticket.page {
            pages.pop();
        }
        let weight = told.weight();
        // One without weight is small. It may be that of a write that took effect, and is always
        // told.
        let room = match weight {
            0 => Ok(()),
            weight => place.room_for_answer(bytes + weight, false),
        };
        match room {
            Err(error) => message.push(v1::Answer {
                number: ticket.number,
                what: Some(v1::answer::What::Error(error)),
                owned: told.owned,
            }),
            Ok(()) => {
                bytes += weight + ANSWER_BYTES;
                message.push(answer(ticket, told, shared, clock));
            }
        }
    }
    v1::Answers { answers: message }
}

const fn is_page(client_request: &ClientRequest) -> bool {
    matches!(
        client_request,
        ClientRequest::Read(Query::List { .. } | Query::UserLog { .. })
    )
}

/// Whether what it reads may be held until it is told.
fn has_room(
    place: &CallerAccount,
    caller: &Caller,
    client_request: ClientRequest,
) -> Result<ClientRequest, v1::Error> {
    if is_page(&client_request) {
        place.may_reserve()?;
    }
    if matches!(client_request, ClientRequest::Read(_)) {
        ServerHandle::room(caller)?;
    }
    Ok(client_request)
}
