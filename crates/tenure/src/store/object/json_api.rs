//! The three calls of Google Cloud Storage that registers need, of its JSON API.
//!
//! `object_store` writes by the XML API there, whose conditions no server of one's own
//! heeds, so nothing could be tried. Its connections and its tokens are used here, and
//! its retries are not: each request is sent once.
//!
//! An object's tag is its *generation*, a number that is never given twice. A write
//! names the generation that it replaces (`ifGenerationMatch`), 0 for none. What is
//! written says that no cache may keep it: of a bucket that everybody may read, Google
//! gives out copies for an hour otherwise.

use std::fmt;
use std::future::poll_fn;

use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use object_store::client::{HttpClient, HttpRequestBody, HttpResponse, HttpResponseBody};
use object_store::gcp::GcpCredentialProvider;
use object_store::path::Path;
use object_store::{Error as ClientError, ObjectMeta, PutPayload, Result};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::bucket::{Bucket, Condition, Got, Listed};
use super::classify::{NO_BUCKET, Refusal};
use crate::store::BoxFuture;

/// How many objects a page of a listing has: as many as Google gives.
const PAGE: usize = 1_000;
/// The largest page, in bytes.
const PAGE_BYTES_MAX: usize = 16 * 1_024 * 1_024;
/// The largest answer to a write, or refusal, that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1_024;
/// Reasons by which Google says 403 of who asks too often.
const TOO_OFTEN: [&str; 3] = [
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "quotaExceeded",
];

/// The client of one bucket.
pub(super) struct JsonApi {
    http: HttpClient,
    /// Without a slash at its end.
    endpoint: String,
    /// As it stands in a URL.
    bucket: String,
    /// What signs requests; `None` if nothing does.
    credentials: Option<GcpCredentialProvider>,
    /// Where credentials are found, for people.
    advice: &'static str,
    /// Set once it is known that there is such a bucket.
    bucket_is_there: OnceCell<()>,
}

/// Without the credentials.
impl fmt::Debug for JsonApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.endpoint, self.bucket)
    }
}

impl JsonApi {
    pub(super) fn new(
        http: HttpClient,
        endpoint: &str,
        bucket: &str,
        credentials: Option<GcpCredentialProvider>,
        advice: &'static str,
    ) -> Self {
        Self {
            http,
            endpoint: endpoint.to_owned(),
            bucket: encoded(bucket),
            credentials,
            advice,
            bucket_is_there: OnceCell::new(),
        }
    }

    /// The answer to a request, or how the server refused it.
    async fn ask(&self, request: http::request::Builder, body: Vec<u8>) -> Result<HttpResponse> {
        let mut request = request
            .body(HttpRequestBody::from(body))
            .map_err(|error| other(error.into()))?;
        if let Some(provider) = &self.credentials {
            let bearer = provider.get_credential().await?.bearer.clone();
            let bearer = HeaderValue::from_str(&format!("Bearer {bearer}"));
            let mut bearer = bearer.map_err(|error| other(error.into()))?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        let answer = self.http.execute(request).await;
        let answer = answer.map_err(|error| other(error.into()))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = read(answer.into_body(), ANSWER_BYTES_MAX).await?;
        Err(other(refusal(status, &body.unwrap_or_default()).into()))
    }

    fn get(&self, path: &str) -> http::request::Builder {
        let url = format!("{}/storage/v1/b/{}/o{path}", self.endpoint, self.bucket);
        http::Request::builder().method(Method::GET).uri(url)
    }

    /// Fails if the server says that there is no such bucket. Not every server says of
    /// which of the two it is that there is none.
    async fn find_bucket(&self) -> Result<()> {
        let found = self.bucket_is_there.get_or_try_init(|| async {
            let asked = self.get("?maxResults=1&fields=nextPageToken");
            let found = self.ask(asked, Vec::new()).await;
            found.map(drop).map_err(bucket_is_missing)
        });
        found.await.map(drop)
    }

    async fn read_object(&self, object: &Path, bytes_max: usize) -> Result<Got> {
        let name = encoded(object.as_ref());
        let asked = self.get(&format!("/{name}?alt=media"));
        let got = match self.ask(asked, Vec::new()).await {
            Err(error) => {
                return Err(match refused(&error) {
                    Some(refusal) if is_object_missing(refusal) => {
                        if !refusal.text.contains("No such object") {
                            self.find_bucket().await?;
                        }
                        ClientError::NotFound {
                            path: object.to_string(),
                            source: error.into(),
                        }
                    }
                    _ => error,
                });
            }
            Ok(got) => got,
        };
        let (head, body) = got.into_parts();
        let tag = header(&head.headers, "x-goog-generation").and_then(generation);
        let length = header(&head.headers, CONTENT_LENGTH.as_str());
        let length = length.and_then(|it| it.parse().ok());
        let bytes = match length {
            Some(length) if length > bytes_max as u64 => None,
            _ => read(body, bytes_max).await?,
        };
        let read = bytes.as_ref().map(|it| it.len() as u64);
        let size = read.or(length).unwrap_or(bytes_max as u64 + 1);
        Ok(Got { size, tag, bytes })
    }

    async fn write_object(
        &self,
        object: &Path,
        payload: &PutPayload,
        condition: Condition<'_>,
    ) -> Result<Option<String>> {
        let expected = match condition {
            Condition::Absent => Some("0".to_owned()),
            // What was never given out holds for no object.
            Condition::Tag(tag) => generation(tag),
        };
        let Some(expected) = expected else {
            return Err(other(refusal(412, b"no generation").into()));
        };
        let url = format!(
            "{}/upload/storage/v1/b/{}/o?uploadType=multipart&fields=generation\
             &ifGenerationMatch={expected}",
            self.endpoint, self.bucket
        );
        let (boundary, body) = form(object, payload)?;
        let asked = http::Request::builder()
            .method(Method::POST)
            .uri(url)
            .header(
                CONTENT_TYPE,
                format!("multipart/related; boundary={boundary}"),
            );
        let written = self.ask(asked, body).await.map_err(bucket_is_missing)?;
        // It is written, whatever can be read of the answer.
        let answer = read(written.into_body(), ANSWER_BYTES_MAX).await?;
        let answer: Option<Value> = serde_json::from_slice(&answer.unwrap_or_default()).ok();
        let said = answer
            .as_ref()
            .and_then(|it| it.get("generation")?.as_str());
        Ok(said.and_then(generation))
    }

    async fn list_objects(&self, beginning: &str, token: Option<&str>) -> Result<Listed> {
        let mut query = format!(
            "?maxResults={PAGE}&fields={}&prefix={}",
            encoded("items(name,generation),nextPageToken"),
            encoded(beginning)
        );
        if let Some(token) = token {
            query.push_str("&pageToken=");
            query.push_str(&encoded(token));
        }
        let found = self.ask(self.get(&query), Vec::new()).await;
        let found = found.map_err(bucket_is_missing)?;
        let answer = read(found.into_body(), PAGE_BYTES_MAX).await?;
        listed(&answer.unwrap_or_default())
            .ok_or_else(|| other("expected a listing of objects (JSON), found none".into()))
    }
}

impl Bucket for JsonApi {
    fn credentials(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            match &self.credentials {
                Some(provider) => provider.get_credential().await.map(drop),
                None => Ok(()),
            }
        })
    }

    fn read<'a>(&'a self, object: &'a Path, bytes_max: usize) -> BoxFuture<'a, Result<Got>> {
        Box::pin(self.read_object(object, bytes_max))
    }

    fn write<'a>(
        &'a self,
        object: &'a Path,
        payload: PutPayload,
        condition: Condition<'a>,
    ) -> BoxFuture<'a, Result<Option<String>>> {
        Box::pin(async move { self.write_object(object, &payload, condition).await })
    }

    fn page<'a>(
        &'a self,
        beginning: &'a str,
        token: Option<String>,
    ) -> BoxFuture<'a, Result<Listed>> {
        Box::pin(async move { self.list_objects(beginning, token.as_deref()).await })
    }

    /// Generations are times in microseconds.
    fn stranger(&self) -> &'static str {
        "1"
    }

    fn advice(&self) -> &'static str {
        self.advice
    }

    fn tag_name(&self) -> &'static str {
        "a generation"
    }

    fn condition_name(&self) -> &'static str {
        "ifGenerationMatch"
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn other(source: Box<dyn std::error::Error + Send + Sync>) -> ClientError {
    ClientError::Generic {
        store: "GCS",
        source,
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A generation as it is written in a request: a positive number, in digits.
fn generation(text: &str) -> Option<String> {
    let number: u64 = text.parse().ok()?;
    (number > 0).then(|| number.to_string())
}

/// What is in a body; `None` if it is more than that.
async fn read(body: HttpResponseBody, bytes_max: usize) -> Result<Option<Vec<u8>>> {
    let (mut stream, mut found) = (body.bytes_stream(), Vec::new());
    while let Some(part) = poll_fn(|context| stream.as_mut().poll_next(context)).await {
        let part = part.map_err(|error| other(error.into()))?;
        if found.len() + part.len() > bytes_max {
            return Ok(None);
        }
        found.extend_from_slice(&part);
    }
    Ok(Some(found))
}

/// A body of two parts: what is said of the object, and what is in it. The line
/// between them is drawn by lot, so that nothing in the object looks like it.
fn form(object: &Path, payload: &PutPayload) -> Result<(String, Vec<u8>)> {
    let mut lot = [0; 16];
    getrandom::fill(&mut lot).map_err(|error| other(error.to_string().into()))?;
    let boundary: String = lot.iter().map(|byte| format!("{byte:02x}")).collect();
    let about = json!({
        "name": object.as_ref(),
        "contentType": "application/octet-stream",
        "cacheControl": "no-store",
    });
    let mut body = format!(
        "--{boundary}\r\nContent-Type: application/json\r\n\r\n{about}\r\n\
         --{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    .into_bytes();
    for part in payload {
        body.extend_from_slice(part);
    }
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    Ok((boundary, body))
}

/// What a listing shows. Objects whose names are no paths are none of ours.
fn listed(answer: &[u8]) -> Option<Listed> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let answer = answer.as_object()?;
    let items = match answer.get("items") {
        Some(items) => items.as_array()?.as_slice(),
        None => &[],
    };
    let mut objects = Vec::with_capacity(items.len());
    for item in items {
        let text = |name: &str| item.get(name)?.as_str();
        let (name, tag) = (text("name")?, text("generation")?);
        if let Ok(location) = Path::parse(name)
            && location.as_ref() == name
        {
            objects.push(ObjectMeta {
                location,
                last_modified: Default::default(),
                size: 0,
                e_tag: Some(tag.to_owned()),
                version: None,
            });
        }
    }
    let token = answer.get("nextPageToken").and_then(Value::as_str);
    Some((objects, token.map(str::to_owned)))
}

/// What the server says of a request that it refused.
fn refusal(status: u16, body: &[u8]) -> Refusal {
    let said: Option<Value> = serde_json::from_slice(body).ok();
    let error = said.as_ref().and_then(|it| it.get("error"));
    let text = |value: Option<&Value>| Some(value?.as_str()?.to_owned());
    let reason = error.and_then(|it| it.get("errors")?.get(0)?.get("reason"));
    let mut code = text(reason).unwrap_or_default();
    let message = text(error.and_then(|it| it.get("message")))
        .unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    if status == 404 && message.contains("bucket does not exist") {
        NO_BUCKET[0].clone_into(&mut code);
    }
    Refusal {
        status: match status {
            403 if TOO_OFTEN.contains(&code.as_str()) => 429,
            status => status,
        },
        text: format!("{status} {code}: {message}"),
        code,
    }
}

fn refused(error: &ClientError) -> Option<&Refusal> {
    let ClientError::Generic { source, .. } = error else {
        return None;
    };
    source.downcast_ref()
}

/// Whether it says that there is no object; or perhaps no bucket.
fn is_object_missing(refusal: &Refusal) -> bool {
    refusal.status == 404 && !NO_BUCKET.contains(&refusal.code.as_str())
}

/// Of a call that needs no object, what is missing is the bucket.
fn bucket_is_missing(error: ClientError) -> ClientError {
    match refused(&error) {
        Some(refusal) if refusal.status == 404 => {
            let mut refusal = refusal.clone();
            NO_BUCKET[0].clone_into(&mut refusal.code);
            other(refusal.into())
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_says_is_understood() {
        let body = br#"{"error": {"code": 412, "message": "At least one did not hold.",
                        "errors": [{"reason": "conditionNotMet"}]}}"#;
        let found = refusal(412, body);
        assert_eq!(
            (found.status, found.code.as_str()),
            (412, "conditionNotMet")
        );
        assert_eq!(
            found.text,
            "412 conditionNotMet: At least one did not hold."
        );
        let body = br#"{"error": {"message": "m", "errors": [{"reason": "rateLimitExceeded"}]}}"#;
        assert_eq!(refusal(403, body).status, 429);
        assert_eq!(refusal(403, b"{}").status, 403);
        let missing = refusal(404, b"The specified bucket does not exist.");
        assert!(!is_object_missing(&missing), "{missing}");
        assert!(is_object_missing(&refusal(404, b"No such object: b/o")));
        let missing = bucket_is_missing(other(refusal(404, b"Not Found").into()));
        assert_eq!(refused(&missing).expect("a refusal").code, "NoSuchBucket");
        for odd in [&b"\xff"[..], b"[]", b"{\"error\": 1}", b""] {
            assert_eq!(refusal(500, odd).status, 500);
        }
    }

    #[test]
    fn a_listing_shows_what_may_be_ours() {
        let page = br#"{"items": [{"name": "p/a=2Fb", "generation": "7"},
                        {"name": "p//odd", "generation": "8"},
                        {"name": "p/folder/", "generation": "9"}], "nextPageToken": "t"}"#;
        let (objects, token) = listed(page).expect("a page");
        assert_eq!(token.as_deref(), Some("t"));
        let [object] = objects.as_slice() else {
            panic!("{objects:?}");
        };
        assert_eq!(object.location.as_ref(), "p/a=2Fb");
        assert_eq!(object.e_tag.as_deref(), Some("7"));
        assert_eq!(listed(b"{}"), Some((Vec::new(), None)));
        for odd in [&b""[..], b"[]", b"{\"items\": 1}", b"{\"items\": [{}]}"] {
            assert_eq!(listed(odd), None);
        }
    }

    #[test]
    fn generations_are_numbers_and_not_zero() {
        assert_eq!(
            generation("1795810457762206").as_deref(),
            Some("1795810457762206")
        );
        for odd in ["", "0", "-1", "1&x=y", "\"abc\"", "99999999999999999999"] {
            assert_eq!(generation(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_form_has_what_is_said_of_an_object_and_what_is_in_it() {
        let object = Path::from("a b/c");
        let (boundary, body) = form(&object, &PutPayload::from_static(b"--\r\n")).expect("a form");
        let text = String::from_utf8(body).expect("text");
        let parts: Vec<_> = text.split(&format!("--{boundary}")).collect();
        assert_eq!(parts.len(), 4);
        assert!(parts[1].contains(r#""name":"a b/c""#), "{text}");
        assert!(parts[2].ends_with("\r\n\r\n--\r\n\r\n"), "{text}");
        assert_eq!(parts[3], "--\r\n");
    }
}
