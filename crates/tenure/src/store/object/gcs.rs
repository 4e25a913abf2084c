//! `gs://`: Google Cloud Storage, and servers that speak the JSON form of its protocol.
//!
//! A token serves anyone who has it, for an hour. So it is sent by TLS,
//! or within this machine; without TLS nothing is signed, which is what emulators want.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::HttpConnector as _;
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ClientOptions, Result};
use reqwest::Url;

use super::credentials::Kept;
use super::http::Connector;
use super::json_api::JsonApi;
use super::objects::Objects;
use super::race_entries::{FORMAT, RaceEntries};
use super::send_once;
use super::settings::{Form, Settings, duration};
use crate::error::StoreError;
use crate::small;
use crate::store::{Polled, Store};

/// Of the same stores: Google's own spelling, and one that other tools have.
pub(in crate::store) const SCHEMES: [&str; 2] = ["gs", "gcs"];
/// Where Google's own servers are.
const GOOGLE: &str = "https://storage.googleapis.com";
/// By how much clocks may differ, if a URL of a shared format does not say it.
const SKEW: Duration = Duration::from_secs(1);
/// The longest file of credentials that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1_024;

const FORM: Form = Form {
    scheme: "gs",
    bucket: "bucket",
    options: &["format", "max_clock_skew"],
    credentials: "name a file of a service account or of application default credentials by \
                  GOOGLE_APPLICATION_CREDENTIALS or credentials_file=, or run where the machine \
                  has a service account",
    files: &[
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
    ],
    token_file: None,
    // A key in GOOGLE_SERVICE_ACCOUNT_KEY has several lines.
    variables: &[],
};

/// The store of such a URL. Nothing is sent before the first call.
pub(in crate::store) fn open(url: &str) -> Result<Arc<dyn Store>, StoreError> {
    let settings = match url.strip_prefix("gcs:") {
        Some(rest) => Settings::parse(&format!("{}:{rest}", FORM.scheme), &FORM)?,
        None => Settings::parse(url, &FORM)?,
    };
    let (client, times) = (Arc::new(client(&settings)?), settings.times);
    Ok(match shared(&settings)? {
        None => Arc::new(Polled::new(Objects::new(client, &settings), times)),
        Some(skew) => Arc::new(Polled::new(
            RaceEntries::new(client, &settings, skew),
            times,
        )),
    })
}

/// Whether elections are shared with candidates of vimeo's library, and then by how
/// much clocks may differ.
fn shared(settings: &Settings) -> Result<Option<Duration>, StoreError> {
    let skew = settings.option("max_clock_skew");
    match settings.option("format") {
        None if skew.is_some() => Err(StoreError::broken(format!(
            "max_clock_skew=: expected it beside format={FORMAT}, found it alone; a candidate is \
             told of it by --max-clock-skew"
        ))),
        None => Ok(None),
        Some(FORMAT) => skew
            .map_or(Ok(SKEW), |skew| duration("max_clock_skew", skew))
            .map(Some),
        Some(other) => Err(StoreError::broken(format!(
            "format=: expected {FORMAT}, found {other:?}"
        ))),
    }
}

fn client(settings: &Settings) -> Result<JsonApi, StoreError> {
    let endpoint = settings.endpoint.as_deref().unwrap_or(GOOGLE);
    let is_plain = endpoint.starts_with("http://");
    let parsed = Url::parse(endpoint).map_err(|error| {
        StoreError::broken(format!(
            "endpoint=: expected http://host:port or https://host:port, found {endpoint:?}: {error}"
        ))
    })?;
    if let Some(path) = &settings.credentials_file {
        let read = small::read_secret(path, FILE_BYTES_MAX);
        read.map_err(|why| StoreError::broken(format!("credentials_file=: {why}")))?;
        if is_plain && !is_here(&parsed) {
            return Err(StoreError::broken(format!(
                "{settings}: expected an endpoint=https://… beside credentials_file=, found one \
                 without TLS on another machine; tokens are not sent to it"
            )));
        }
    }
    settings.client(is_plain, FORM.credentials, |options, connector| {
        let http = connector.connect(&options)?;
        let credentials = credentials(settings, is_plain, options, connector)?;
        Ok(JsonApi::new(
            http,
            endpoint,
            &settings.bucket,
            credentials,
            FORM.credentials,
        ))
    })
}

/// What signs requests; `None` if nothing does.
fn credentials(
    settings: &Settings,
    is_plain: bool,
    options: ClientOptions,
    connector: Connector,
) -> Result<Option<GcpCredentialProvider>> {
    let builder = match settings.credentials_file.as_deref() {
        Some(path) => GoogleCloudStorageBuilder::new()
            .with_application_credentials(path.display().to_string()),
        None if is_plain => return Ok(None),
        None => GoogleCloudStorageBuilder::from_env(),
    };
    let skips = builder.get_config_value(&GoogleConfigKey::SkipSignature);
    if skips.is_some_and(|it| it == "true") {
        return Ok(None);
    }
    let client = builder
        .with_bucket_name(&settings.bucket)
        .with_client_options(options)
        .with_http_connector(connector)
        .with_retry(send_once())
        .build()
        .map_err(without_values)?;
    Ok(Some(Arc::new(Kept::new(Arc::clone(client.credentials())))))
}

/// An error about a file of credentials shows nothing that is in it: it may be another
/// secret.
fn without_values(error: object_store::Error) -> object_store::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(it) = cause {
        if let Some(found) = it.downcast_ref::<serde_json::Error>() {
            return object_store::Error::Generic {
                store: "credentials",
                source: format!(
                    "expected a file of a service account or of application default credentials \
                     (credentials_file=, GOOGLE_APPLICATION_CREDENTIALS), found another at line \
                     {}, column {}",
                    found.line(),
                    found.column()
                )
                .into(),
            };
        }
        cause = it.source();
    }
    error
}

/// Whether a server is on this machine.
fn is_here(server: &Url) -> bool {
    let host = server.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_opened_without_a_word_to_the_server() {
        for url in [
            "gs://bucket/a/b?endpoint=http://127.0.0.1:1&poll=1s",
            "gs://bucket?endpoint=http://emulator:4443",
        ] {
            let store = open(url).expect("a store").to_string();
            assert!(url.starts_with(&store), "{store} of {url}");
        }
        let alias = open("gcs://bucket/p?endpoint=http://h:1").expect("a store");
        assert_eq!(alias.to_string(), "gs://bucket/p?endpoint=http://h:1");
    }

    #[test]
    fn the_format_of_others_is_asked_for_with_a_bound_on_clocks() {
        let url = "gs://bucket/p?endpoint=http://h:1";
        let skew = |more: &str| Some(open(&format!("{url}{more}")).ok()?.max_clock_skew());
        assert_eq!(skew(""), Some(None));
        assert_eq!(skew("&format=leaderelection-go"), Some(Some(SKEW)));
        let stated = "&format=leaderelection-go&max_clock_skew=250ms";
        assert_eq!(skew(stated), Some(Some(Duration::from_millis(250))));
        for wrong in [
            "&format=go",
            "&max_clock_skew=1s",
            "&format=leaderelection-go&max_clock_skew=soon",
        ] {
            let refused = open(&format!("{url}{wrong}")).expect_err("a wrong URL");
            assert!(refused.to_string().contains("expected"), "{refused}");
        }
    }

    #[test]
    fn a_token_is_not_sent_to_another_machine_without_tls() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("account.json");
        let text = r#"{"type": "authorized_user", "client_id": "i", "client_secret": "hunter2",
                       "refresh_token": "hunter2"}"#;
        std::fs::write(&file, text).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("a mode");
        let url = |endpoint: &str| {
            let file = file.display();
            format!("gs://bucket/p?credentials_file={file}&endpoint={endpoint}")
        };
        for endpoint in ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"] {
            open(&url(endpoint)).expect("a store");
        }
        let refused = open(&url("http://10.0.0.1:1")).expect_err("no TLS");
        assert!(
            refused.to_string().contains("tokens are not sent"),
            "{refused}"
        );
        std::fs::write(&file, "{\"type\": \"hunter2\"}").expect("written");
        let refused = open(&url("http://127.0.0.1:1")).expect_err("no credentials");
        assert!(refused.to_string().contains("credentials"), "{refused}");
        let refused = open("gs://bucket?endpoint=http://h:99999").expect_err("no port");
        assert!(refused.to_string().contains("expected"), "{refused}");
    }
}
