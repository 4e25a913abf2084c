//! Registers on a web server that keeps documents and honours `If-Match`.
//!
//! `GET`, `PUT` and `DELETE` of `/KEY` work on one document. A `PUT` has
//! `If-None-Match: *` or `If-Match: "tag"`, and is refused with 412 if the document
//! is not as expected. `GET /?prefix=P&after=K` gives the names of documents, sorted,
//! one on a line. Names are percent-encoded.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ETAG, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tenure::StoreError;
use tenure::store::envelope::{self, Sealed};
use tenure::store::{
    Backend, Expect, Key, Opened, PAGE_MAX, Page, PollTimes, Polled, Reading, Register, Registry,
    Version, Write, Written,
};

/// The largest answer: a page of names, or a value.
const ANSWER_MAX: usize = 2 * PAGE_MAX * Key::MAX_BYTES;

/// The stores of this build, and `etags://host:port`.
#[must_use]
pub fn registry() -> Registry {
    Registry::new().with("etags", "etags://host:port", |url, _| {
        let opened = open(url);
        Box::pin(std::future::ready(opened))
    })
}

fn open(url: &str) -> Opened {
    let host = url.strip_prefix("etags://").unwrap_or_default();
    if host.is_empty() || host.contains(['/', '?', '@']) {
        let wrong = format!("expected etags://host:port, found {url}");
        return Err(StoreError::broken(wrong));
    }
    let backend = HttpRegisters {
        client: Client::builder(TokioExecutor::new()).build_http(),
        host: host.to_owned(),
    };
    let times = PollTimes {
        floor: Duration::from_millis(100),
        ..PollTimes::default()
    };
    Ok(Arc::new(Polled::new(backend, times)))
}

/// The calls of such a server.
#[derive(Debug)]
struct HttpRegisters {
    client: Client<HttpConnector, Full<Bytes>>,
    host: String,
}

impl fmt::Display for HttpRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etags://{}", self.host)
    }
}

/// What the server says.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    /// The tag of the document, without which nothing can be expected of it.
    fn tag(&self) -> Result<&[u8], StoreError> {
        let tag = self.headers.get(ETAG).map(HeaderValue::as_bytes);
        // A weak one says that the documents mean the same, and no more.
        tag.filter(|tag| tag.starts_with(b"\"")).ok_or_else(|| {
            StoreError::broken("expected a strong ETag with the document, found none")
        })
    }

    fn unexpected(&self) -> String {
        format!("expected another status, found {}", self.status)
    }
}

impl HttpRegisters {
    fn at(&self, key: &Key) -> String {
        let name = utf8_percent_encode(key.as_str(), NON_ALPHANUMERIC);
        format!("http://{}/{name}", self.host)
    }

    /// Asks, and has the whole answer. `lost` makes the error of a request of which
    /// it is not known what became.
    async fn ask(
        &self,
        request: hyper::http::request::Builder,
        body: Vec<u8>,
        lost: fn(String) -> StoreError,
    ) -> Result<Answer, StoreError> {
        let request = request.body(Full::from(body)).map_err(StoreError::broken)?;
        let asked = self.client.request(request).await.map_err(|error| {
            // Without a connection nothing was sent.
            let lost = if error.is_connect() {
                StoreError::unavailable
            } else {
                lost
            };
            lost(format!("{self}: {error}"))
        })?;
        let (head, body) = asked.into_parts();
        let body = Limited::new(body, ANSWER_MAX).collect().await;
        let body = body.map_err(|error| lost(format!("{self}: {error}")))?;
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.to_bytes(),
        })
    }

    /// Does a conditional write; `None` as the tag that is expected is *absent*.
    async fn change(
        &self,
        method: Method,
        key: &Key,
        tag: Option<&[u8]>,
        body: Vec<u8>,
    ) -> Result<Answer, StoreError> {
        let request = Request::builder().method(method).uri(self.at(key));
        let request = match tag {
            Some(tag) => request.header(IF_MATCH, tag),
            None => request.header(IF_NONE_MATCH, "*"),
        };
        let answer = self.ask(request, body, StoreError::unknown).await?;
        match answer.status {
            status if status.is_success() => Ok(answer),
            StatusCode::PRECONDITION_FAILED | StatusCode::NOT_FOUND => Err(StoreError::Conflict),
            status if status.is_client_error() => Err(StoreError::broken(answer.unexpected())),
            _ => Err(StoreError::unknown(answer.unexpected())),
        }
    }

    async fn get(&self, uri: String) -> Result<Answer, StoreError> {
        let request = Request::get(uri);
        let answer = self
            .ask(request, Vec::new(), StoreError::unavailable)
            .await?;
        match answer.status {
            StatusCode::OK | StatusCode::NOT_FOUND => Ok(answer),
            status if status.is_client_error() => Err(StoreError::broken(answer.unexpected())),
            _ => Err(StoreError::unavailable(answer.unexpected())),
        }
    }
}

impl Backend for HttpRegisters {
    async fn read(&self, key: &Key) -> Result<Reading, StoreError> {
        let answer = self.get(self.at(key)).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(Reading::default());
        }
        let (value, version) = envelope::unseal(&answer.body, answer.tag()?);
        let register = Register {
            value: value.into(),
            version,
            stamp: None,
        };
        Ok(Reading {
            register: Some(register),
            ..Reading::default()
        })
    }

    async fn compare_and_swap(&self, write: &Write) -> Result<Written, StoreError> {
        let sealed = Sealed::new(&write.expect, &write.value)?;
        let tag = match &write.expect {
            Expect::Absent => None,
            Expect::Version(version) => Some(envelope::tag(version).ok_or(StoreError::Conflict)?),
        };
        let stored = self.change(Method::PUT, &write.key, tag, sealed.bytes.clone());
        let version = sealed.version(stored.await?.tag()?);
        Ok(Written { version, now: None })
    }

    async fn delete(&self, key: &Key, expected: &Version) -> Result<(), StoreError> {
        let tag = envelope::tag(expected).ok_or(StoreError::Conflict)?;
        let deleted = self.change(Method::DELETE, key, Some(tag), Vec::new());
        deleted.await.map(drop)
    }

    async fn list(&self, prefix: &str, after: Option<&Key>) -> Result<Page, StoreError> {
        let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
        let (prefix, after) = (encode(prefix), encode(after.map_or("", Key::as_str)));
        let uri = format!("http://{}/?prefix={prefix}&after={after}", self.host);
        let answer = self.get(uri).await?;
        let names = std::str::from_utf8(&answer.body).map_err(StoreError::unavailable)?;
        let mut page = Page::default();
        for name in names.lines() {
            let name = percent_decode_str(name).decode_utf8_lossy();
            // What is no key of ours is nobody's.
            let Ok(key) = Key::new(&name) else { continue };
            if page.registers.len() == PAGE_MAX {
                page.more_after = page.registers.last().map(|(key, _)| key.clone());
                break;
            }
            // One that was deleted meanwhile is none.
            if let Some(register) = self.read(&key).await?.register {
                page.registers.push((key, register));
            }
        }
        Ok(page)
    }
}
