//! How HTTP is spoken with object stores, and with those who give credentials for them:
//! no redirect is followed, each request is sent once, and an answer has a limit.
//!
//! *Redirects.* A write that is answered by a redirect was not carried out. A client
//! that follows the redirect may send a read in its place (303), and would take the
//! success of that read for the success of the write. It would also show another server
//! what authenticates the first one. So a redirect is an answer like any other here: one
//! that says that something is wrong.
//!
//! *Calls that are given up.* A connection on which an answer is under way can be used
//! again only when all of that has come. A call that takes longer than its caller waits
//! would take its connection along, and the next one would have to make a new one, which
//! takes longer still: where the server is far away none would ever be answered. So such
//! a call goes on without its caller, for at most [`ANSWER_WITHIN`].

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Error as ClientError, Result};
use reqwest::Certificate;
use reqwest::redirect::Policy;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::store::BoxFuture;
use crate::store::resolver::Resolver;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long any request may take; callers wait for less.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How long a connection is kept that nothing uses. Some servers close them after
/// 5 s, and a write that meets this is of unknown outcome.
const KEPT_IDLE: Duration = Duration::from_secs(4);
/// How long a connection to a machine's own server of credentials may take. There is
/// none on most machines.
const METADATA_WITHIN: Duration = Duration::from_secs(1);
/// The longest answer, in bytes: a page of a listing, which has 5,000 names at most, is
/// the longest that a sound server sends.
pub(super) const ANSWER_BYTES_MAX: usize = 16 * 1_024 * 1_024;
/// How many calls of a store go on after they were given up. More are ended at once.
const GIVEN_UP_MAX: usize = 64;

/// Makes the clients of a store.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// Besides those of the system.
    pub(super) authorities: Vec<Certificate>,
}

impl Connector {
    /// What a store's own clients are made of.
    pub(super) fn options(allow_http: bool) -> ClientOptions {
        ClientOptions::new()
            .with_connect_timeout(CONNECT_WITHIN)
            .with_allow_http(allow_http)
    }
}

impl HttpConnector for Connector {
    /// `options` are [ours](Self::options), or what is made of them for servers of
    /// credentials.
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let asks = |key| {
            options
                .get_config_value(&key)
                .is_some_and(|it| it == "true")
        };
        let key = ClientConfigKey::ConnectTimeout;
        let is_ours = Self::options(false).get_config_value(&key) == options.get_config_value(&key);
        let builder = reqwest::Client::builder()
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .http1_only()
            .no_gzip()
            .no_brotli()
            .no_zstd()
            .no_deflate()
            .connect_timeout(if is_ours {
                CONNECT_WITHIN
            } else {
                METADATA_WITHIN
            })
            .dns_resolver(Arc::new(Resolver))
            .timeout(ANSWER_WITHIN)
            .pool_idle_timeout(KEPT_IDLE)
            .https_only(!asks(ClientConfigKey::AllowHttp));
        let authorities = self.authorities.clone();
        let builder = if asks(ClientConfigKey::NoSystemCertificates) {
            builder.tls_certs_only(authorities)
        } else {
            builder.tls_certs_merge(authorities)
        };
        let client = builder.build().map_err(|error| ClientError::Generic {
            store: "HTTP",
            source: Box::new(error),
        })?;
        Ok(HttpClient::new(BoundedClient {
            client,
            given_up: Arc::new(Semaphore::new(GIVEN_UP_MAX)),
        }))
    }
}

/// A client that reads no answer beyond [`ANSWER_BYTES_MAX`], and whose calls go on when
/// they are given up.
#[derive(Debug)]
struct BoundedClient {
    client: reqwest::Client,
    given_up: Arc<Semaphore>,
}

impl HttpService for BoundedClient {
    fn call<'s, 'f>(
        &'s self,
        request: HttpRequest,
    ) -> BoxFuture<'f, std::result::Result<HttpResponse, HttpError>>
    where
        's: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            let (client, place) = (self.client.clone(), Arc::<Place>::default());
            let held = Arc::clone(&place);
            let answer = tokio::spawn(async move { whole_answer(&client, request, &held).await });
            let _caller = Caller {
                call: answer.abort_handle(),
                place,
                given_up: Arc::clone(&self.given_up),
            };
            let lost = |error| HttpError::new(HttpErrorKind::Unknown, error);
            answer.await.map_err(lost)?
        })
    }
}

/// The answer with all of its body. Of a call that was given up the body is read to its
/// end and not kept.
async fn whole_answer(
    client: &reqwest::Client,
    request: HttpRequest,
    place: &Place,
) -> std::result::Result<HttpResponse, HttpError> {
    let of_listing = of_listing(&request);
    let (head, body) = client.call(request).await?.into_parts();
    let (mut body, mut found) = (Limited::new(body, ANSWER_BYTES_MAX), Vec::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(error_of_body)?.into_data() else {
            continue;
        };
        if lock(place).is_some() {
            found = Vec::new();
        } else {
            found.extend_from_slice(&data);
        }
    }
    let is_given_up = lock(place).is_some();
    if let Some(element) = of_listing
        && head.status.is_success()
        && !is_given_up
        && !found.windows(element.len()).any(|it| it == element)
    {
        return Err(HttpError::new(HttpErrorKind::Decode, NoListing));
    }
    Ok(HttpResponse::from_parts(
        head,
        HttpResponseBody::from(found),
    ))
}

/// The element in which S3 answers this request with a listing, if it asks for one. The
/// library takes any other one for a listing of nothing.
fn of_listing(request: &HttpRequest) -> Option<&'static [u8]> {
    let asks = |it: &str| it.split('&').any(|pair| pair == "list-type=2");
    let is_asked = request.uri().query().is_some_and(asks);
    is_asked.then_some(b"<ListBucketResult")
}

/// Where a call has its permit to go on, until it ends.
type Place = Mutex<Option<OwnedSemaphorePermit>>;

fn lock(place: &Place) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Dropped when the caller has the answer, or waits for it no longer.
struct Caller {
    call: AbortHandle,
    place: Arc<Place>,
    given_up: Arc<Semaphore>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if self.call.is_finished() {
            return;
        }
        match Arc::clone(&self.given_up).try_acquire_owned() {
            Ok(permit) => *lock(&self.place) = Some(permit),
            Err(_) => self.call.abort(),
        }
    }
}

fn error_of_body(error: Box<dyn std::error::Error + Send + Sync>) -> HttpError {
    if error.is::<LengthLimitError>() {
        return HttpError::new(HttpErrorKind::Decode, TooLong);
    }
    match error.downcast::<HttpError>() {
        Ok(error) => *error,
        Err(error) => HttpError::new_boxed(HttpErrorKind::Unknown, error),
    }
}

/// What was answered as a listing is none.
#[derive(Debug)]
struct NoListing;

impl fmt::Display for NoListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected a listing of S3 (ListBucketResult), found something else; check endpoint= \
             in the store's URL, and what stands between",
        )
    }
}

impl std::error::Error for NoListing {}

/// The answer is longer than any that a sound server sends.
#[derive(Debug)]
struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = ANSWER_BYTES_MAX / 1_024 / 1_024;
        write!(
            f,
            "expected an answer of at most {max} MiB, found a longer one"
        )
    }
}

impl std::error::Error for TooLong {}
