//! A fence before a service of HTTP or gRPC: a layer of `tower`, for axum, tonic
//! and all others that are made of it.
//!
//! ```text
//! POST /payments            the leader of term 8 has been here:
//! Tenure-Term: 7       →    409 Conflict
//!                           Tenure-Term-Seen: 8
//! ```
//!
//! Over gRPC the same is the metadatum `tenure-term`, and the refusal is
//! `FAILED_PRECONDITION` with `tenure-term-seen` in its metadata.
//!
//! A leader attaches its term to *every* request, and to one that reads before
//! it writes by what it has read: the first request of a term records the term,
//! and what it returns can then not be changed any more by an earlier leader.
//! [`Attach`] does that on the side of the client.
//!
//! A request counts as under way until the body of its answer has ended or was
//! dropped, so a stream of gRPC does, too. What a handler leaves to a task that
//! outlives its answer is not seen.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use tower_layer::Layer;
use tower_service::Service;

use crate::gate::{Gate, Permit, Refusal};
use crate::{Deposed, Term};

/// In which term a request is made.
pub const TERM: HeaderName = HeaderName::from_static("tenure-term");
/// The highest term that was seen, in a refusal.
pub const SEEN: HeaderName = HeaderName::from_static("tenure-term-seen");

/// The codes of gRPC that are answered here.
const INVALID_ARGUMENT: u16 = 3;
const FAILED_PRECONDITION: u16 = 9;
const UNAVAILABLE: u16 = 14;

/// Refuses requests of deposed leaders, on the side of the server.
#[derive(Clone, Debug)]
pub struct FenceLayer {
    gate: Gate,
    readers_pass: bool,
}

/// A service behind a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    gate: Gate,
    readers_pass: bool,
}

/// In the extensions of a request that was let in: its term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted(pub Term);

/// The body of an answer: the service's own, or a refusal.
#[derive(Debug)]
pub struct FencedBody<B> {
    kind: Kind<B>,
}

#[derive(Debug)]
enum Kind<B> {
    /// The request is under way for as long as there is a permit.
    Own(Pin<Box<B>>, Option<Permit>),
    Refusal(Option<Bytes>),
}

impl FenceLayer {
    /// By this gate. A layer for each of several services may have a clone.
    pub fn new(gate: Gate) -> Self {
        Self {
            gate,
            readers_pass: false,
        }
    }

    /// Lets `GET` and `HEAD` pass without a term: they are of no leader, and
    /// change nothing. With a term they are judged as all others.
    #[must_use]
    pub fn let_readers_pass(mut self) -> Self {
        self.readers_pass = true;
        self
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Fenced<S> {
        Fenced {
            inner,
            gate: self.gate.clone(),
            readers_pass: self.readers_pass,
        }
    }
}

impl<S, Q, A> Service<Request<Q>> for Fenced<S>
where
    S: Service<Request<Q>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    Q: Send + 'static,
    A: Body<Data = Bytes>,
{
    type Response = Response<FencedBody<A>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        // The one that was found ready is called, and not its clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (gate, readers_pass) = (self.gate.clone(), self.readers_pass);
        Box::pin(async move {
            let is_grpc = is_grpc(request.headers());
            let permit = match term_of(request.headers()) {
                Ok(Some(term)) => match gate.admit(term).await {
                    Ok(permit) => Some(permit),
                    Err(refusal) => return Ok(refused(is_grpc, &refusal)),
                },
                Ok(None) if readers_pass && is_read(request.method()) => None,
                Ok(None) => return Ok(without_term(is_grpc)),
                Err(found) => return Ok(malformed(is_grpc, &found)),
            };
            if let Some(permit) = &permit {
                request.extensions_mut().insert(Admitted(permit.term()));
            }
            let answer = inner.call(request).await?;
            Ok(answer.map(|body| FencedBody {
                kind: Kind::Own(Box::pin(body), permit),
            }))
        })
    }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|it| it.starts_with(b"application/grpc"))
}

/// The term of a request, if it has one; what was found instead.
fn term_of(headers: &HeaderMap) -> Result<Option<Term>, String> {
    let mut values = headers.get_all(TERM).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err("more than one".to_owned());
    }
    match number(value) {
        Some(term) => Ok(Some(term)),
        None => Err("another value".to_owned()),
    }
}

/// Digits alone, without a zero before them, from 1 on.
fn number(value: &HeaderValue) -> Option<Term> {
    let text = value.to_str().ok()?;
    let number: u64 = text.parse().ok()?;
    let term = Term::new(number).filter(|it| *it > Term::ZERO)?;
    (text == number.to_string()).then_some(term)
}

/// The highest term that the other side has seen, if it has refused a request
/// by its fence: of the headers of an answer, or of the metadata of a status.
pub fn seen(headers: &HeaderMap) -> Option<Term> {
    headers.get(SEEN).and_then(number)
}

fn refused<A>(is_grpc: bool, refusal: &Refusal) -> Response<FencedBody<A>> {
    let (status, code) = match refusal {
        Refusal::Deposed(_) => (StatusCode::CONFLICT, FAILED_PRECONDITION),
        Refusal::Busy | Refusal::Mark(_) => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
    };
    // What is wrong with a file of the server is for its log.
    if let Refusal::Mark(error) = refusal {
        tracing::error!("{error}; requests of a higher term are refused until it can be raised");
    }
    let text = match refusal {
        Refusal::Mark(_) => "the fence could not record the term; ask again".to_owned(),
        refusal => refusal.to_string(),
    };
    let mut answer = answer(is_grpc, status, code, text);
    let headers = answer.headers_mut();
    match refusal {
        Refusal::Deposed(Deposed {
            seen: Some(seen), ..
        }) => {
            headers.insert(SEEN, HeaderValue::from(seen.get()));
        }
        Refusal::Deposed(_) => {}
        Refusal::Busy | Refusal::Mark(_) => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
    }
    answer
}

fn without_term<A>(is_grpc: bool) -> Response<FencedBody<A>> {
    let text = "expected the header Tenure-Term with the term of the leader, found none";
    let status = StatusCode::PRECONDITION_REQUIRED;
    answer(is_grpc, status, FAILED_PRECONDITION, text.to_owned())
}

fn malformed<A>(is_grpc: bool, found: &str) -> Response<FencedBody<A>> {
    let text = format!(
        "expected one header Tenure-Term with a number from 1 to {}, found {found}",
        Term::MAX
    );
    answer(is_grpc, StatusCode::BAD_REQUEST, INVALID_ARGUMENT, text)
}

/// An answer without the service. Over gRPC it is one of headers alone, which
/// may have no bytes but those that a header takes: the texts above are so.
fn answer<A>(
    is_grpc: bool,
    status: StatusCode,
    code: u16,
    text: String,
) -> Response<FencedBody<A>> {
    let body = |text: Option<Bytes>| FencedBody {
        kind: Kind::Refusal(text),
    };
    if !is_grpc {
        let mut answer = Response::new(body(Some(Bytes::from(text + "\n"))));
        *answer.status_mut() = status;
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, plain);
        return answer;
    }
    let mut answer = Response::new(body(None));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(code));
    if let Ok(text) = HeaderValue::from_str(&text) {
        headers.insert("grpc-message", text);
    }
    answer
}

impl<B: Body<Data = Bytes>> Body for FencedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.kind {
            Kind::Own(body, permit) => {
                let polled = body.as_mut().poll_frame(context);
                if matches!(polled, Poll::Ready(None)) {
                    *permit = None;
                }
                polled
            }
            Kind::Refusal(text) => Poll::Ready(text.take().map(|it| Ok(Frame::data(it)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Own(body, _) => body.is_end_stream(),
            Kind::Refusal(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Own(body, _) => body.size_hint(),
            Kind::Refusal(text) => {
                let bytes = text.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }
}

/// Attaches the term of a leader to each request, on the side of the client: a
/// layer of a `tower` client of HTTP, or of a channel of tonic.
///
/// A leader makes one for its leadership. Its successor has another.
#[derive(Clone, Debug)]
pub struct Attach {
    term: Term,
}

/// A client with an [`Attach`].
#[derive(Clone, Debug)]
pub struct Attaching<S> {
    inner: S,
    term: Term,
}

impl Attach {
    /// Of this term.
    pub fn new(term: Term) -> Self {
        Self { term }
    }
}

impl<S> Layer<S> for Attach {
    type Service = Attaching<S>;

    fn layer(&self, inner: S) -> Attaching<S> {
        let term = self.term;
        Attaching { inner, term }
    }
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Attaching<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let value = HeaderValue::from(self.term.get());
        request.headers_mut().insert(TERM, value);
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TERM, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn a_term_is_written_in_one_way() {
        assert_eq!(term_of(&headers(&[])), Ok(None));
        assert_eq!(term_of(&headers(&["7"])), Ok(Term::new(7)));
        let most = Term::MAX.to_string();
        assert_eq!(term_of(&headers(&[&most])), Ok(Some(Term::MAX)));
        for value in [
            "",
            "0",
            "07",
            "+7",
            "-7",
            "7 ",
            "7,8",
            "9223372036854775808",
            "x",
        ] {
            assert!(term_of(&headers(&[value])).is_err(), "{value:?}");
        }
        assert!(term_of(&headers(&["7", "7"])).is_err());
    }
}
