//! How HTTP is spoken with object stores, and with those who give credentials for them:
//! no redirect is followed, each request is sent once, and an answer has a limit.
//!
//! *Redirects.* A write that is answered by a redirect was not carried out. A client
//! that follows the redirect may send a read in its place (303), and would take the
//! success of that read for the success of the write. It would also show another server
//! what authenticates the first one. So a redirect is an answer like any other here: one
//! that says that something is wrong.

use std::fmt;

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Error as ClientError, Result};
use reqwest::Certificate;
use reqwest::redirect::Policy;

use super::settings::{ANSWER_WITHIN, CONNECT_WITHIN, KEPT_IDLE};
use crate::store::BoxFuture;

/// How long a connection to a machine's own server of credentials may take. There is
/// none on most machines.
const METADATA_WITHIN: std::time::Duration = std::time::Duration::from_secs(1);
/// The longest answer, in bytes: a page of a listing, which has 5,000 names at most, is
/// the longest that a sound server sends.
pub(super) const ANSWER_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// Makes the clients of a store.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// Besides those of the system.
    pub(super) authorities: Vec<Certificate>,
}

impl HttpConnector for Connector {
    /// `options` are [ours](super::settings::Settings::client), or what is made of them
    /// for servers of credentials.
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let asks = |key| {
            options
                .get_config_value(&key)
                .is_some_and(|it| it == "true")
        };
        let key = ClientConfigKey::ConnectTimeout;
        let ours = ClientOptions::new().with_connect_timeout(CONNECT_WITHIN);
        let is_ours = ours.get_config_value(&key) == options.get_config_value(&key);
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
        Ok(HttpClient::new(BoundedClient(client)))
    }
}

/// A client that reads no answer beyond [`ANSWER_BYTES_MAX`].
#[derive(Debug)]
struct BoundedClient(reqwest::Client);

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
            let (head, body) = self.0.call(request).await?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).map_err(error_of_body);
            Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
        })
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
