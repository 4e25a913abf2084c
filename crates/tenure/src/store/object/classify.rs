//! What an error of an object store lets us conclude.
//!
//! The client of S3 and Azure tells statuses by the text of its errors alone, so that
//! is read. What cannot be told of a write is unknown.

use std::error::Error;
use std::fmt;

use object_store::Error as ClientError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::error::{StoreError, quoted};

/// What a call was to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Read,
    Write,
}

/// What stands before a status, in the client's errors. The URL before it has no
/// spaces.
const STATUS: &str = "status code: ";
/// Codes of the three providers for a bucket that is not there.
pub(super) const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
/// Codes for credentials that were good and will be replaced.
const EXPIRED: [&str; 2] = ["ExpiredToken", "TokenRefreshRequired"];

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let cause = |error: &&'a (dyn Error + 'static)| (*error).source();
    std::iter::successors(Some(error), cause)
}

/// An answer of the server that says no.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// The server's word for it, if it says one.
    pub(super) code: String,
    /// For people.
    pub(super) text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Refusal {}

impl Refusal {
    fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(said) = causes(error).find_map(|it| it.downcast_ref::<Self>()) {
            return Some(said.clone());
        }
        let texts = causes(error).map(ToString::to_string);
        let mut found = texts.filter_map(|text| {
            let (_, answer) = text.split_once(STATUS)?;
            let status = answer.get(..3)?.parse().ok()?;
            let element = |name: &str| {
                let (_, rest) = answer.split_once(&format!("<{name}>"))?;
                Some(rest.split_once("</")?.0.to_owned())
            };
            let code = element("Code").unwrap_or_default();
            let text = match element("Message") {
                Some(message) => format!("{status} {code}: {message}"),
                None => answer.to_owned(),
            };
            Some(Self { status, code, text })
        });
        found.next()
    }
}

/// What an error says, in a line, without how long it took: the same trouble is to
/// be told in the same words.
fn text(error: &(dyn Error + 'static), refusal: Option<&Refusal>) -> String {
    let http = causes(error).find(|it| it.is::<HttpError>());
    let said = match (refusal, http) {
        (Some(refusal), _) => refusal.text.clone(),
        (None, Some(http)) => causes(http).last().unwrap_or(http).to_string(),
        (None, None) => {
            let (said, cause) = (error.to_string(), causes(error).last());
            let cause = cause.map(ToString::to_string).unwrap_or_default();
            // Most repeat their cause.
            match said.contains(&cause) {
                true => said,
                false => format!("{said}: {cause}"),
            }
        }
    };
    quoted(&said)
}

/// What an error says, where it is not of a call.
pub(super) fn words(error: &ClientError) -> String {
    text(error, Refusal::find(error).as_ref())
}

/// Whether there was no connection, so that nothing was sent.
fn is_unsent(error: &(dyn Error + 'static)) -> bool {
    let mut http = causes(error).filter_map(|it| it.downcast_ref::<HttpError>());
    http.any(|error| error.kind() == HttpErrorKind::Connect)
}

/// What a person must see to, if that is what it is.
fn advice(refusal: &Refusal) -> Option<&'static str> {
    let Refusal { status, code, .. } = refusal;
    if NO_BUCKET.contains(&code.as_str()) {
        return Some("expected that the bucket is there; make it, or correct the store's URL");
    }
    match status {
        _ if code == "RequestTimeTooSkewed" => {
            Some("expected that this machine's clock is right; set it")
        }
        401 | 403 => Some(
            "expected credentials that may read, write and list the bucket; check them, and the \
             rights (S3: s3:GetObject, s3:PutObject, s3:ListBucket; Azure: Storage Blob Data \
             Contributor; Google: Storage Object User)",
        ),
        501 => Some("expected a server that knows conditional writes (If-Match)"),
        408 | 429 => None,
        300..=499 => Some("check the store's URL: bucket, prefix, endpoint and region"),
        _ => None,
    }
}

/// The class of an error of a call to `store`.
pub(super) fn classify(store: &str, error: &ClientError, call: Call) -> StoreError {
    let refusal = Refusal::find(error);
    let text = format!("{store}: {}", text(error, refusal.as_ref()));
    let lost: fn(String) -> StoreError = match call {
        Call::Read => StoreError::unavailable,
        Call::Write => StoreError::unknown,
    };
    let Some(refusal) = refusal else {
        return match error {
            _ if is_unsent(error) => StoreError::unavailable(text),
            ClientError::InvalidPath { .. } => {
                StoreError::broken(format!("{text}; delete that object, or use another prefix"))
            }
            ClientError::NotImplemented { .. }
            | ClientError::NotSupported { .. }
            | ClientError::UnknownConfigurationKey { .. } => StoreError::broken(text),
            _ if text.contains("redirect without LOCATION") => {
                StoreError::broken(format!("{text}; check region= in the store's URL"))
            }
            _ => lost(text),
        };
    };
    let bucket_is_missing = NO_BUCKET.contains(&refusal.code.as_str());
    match refusal.status {
        // Nothing is done of a request that is refused.
        _ if EXPIRED.contains(&refusal.code.as_str()) => StoreError::unavailable(text),
        429 => StoreError::unavailable(text),
        // Of a body that came slowly S3 says 400.
        _ if refusal.code == "RequestTimeout" => lost(text),
        304 | 404 | 409 | 412 if call == Call::Write && !bucket_is_missing => StoreError::Conflict,
        _ => match advice(&refusal) {
            Some(advice) => StoreError::broken(format!("{text}; {advice}")),
            None => lost(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(source: impl Into<Box<dyn Error + Send + Sync>>) -> ClientError {
        ClientError::Generic {
            store: "S3",
            source: source.into(),
        }
    }

    fn refused(status: &str, code: &str) -> ClientError {
        generic(format!(
            "Error performing PUT http://h/b/k in 1ms - Server returned non-2xx status code: \
             {status}: <Error><Code>{code}</Code><Message>No.</Message></Error>"
        ))
    }

    fn class(error: &StoreError) -> &'static str {
        match error {
            StoreError::Conflict => "conflict",
            StoreError::Unavailable(_) => "unavailable",
            StoreError::Unknown(_) => "unknown",
            StoreError::Broken(_) => "broken",
        }
    }

    #[test]
    fn an_answer_says_what_became_of_a_write() {
        for (status, code, write, read) in [
            (
                "412 Precondition Failed",
                "PreconditionFailed",
                "conflict",
                "broken",
            ),
            (
                "409 Conflict",
                "ConditionalRequestConflict",
                "conflict",
                "broken",
            ),
            ("404 Not Found", "NoSuchKey", "conflict", "broken"),
            ("404 Not Found", "NoSuchBucket", "broken", "broken"),
            ("403 Forbidden", "SignatureDoesNotMatch", "broken", "broken"),
            ("403 Forbidden", "RequestTimeTooSkewed", "broken", "broken"),
            (
                "400 Bad Request",
                "ExpiredToken",
                "unavailable",
                "unavailable",
            ),
            (
                "400 Bad Request",
                "RequestTimeout",
                "unknown",
                "unavailable",
            ),
            ("400 Bad Request", "InvalidArgument", "broken", "broken"),
            ("408 Request Timeout", "", "unknown", "unavailable"),
            (
                "429 Too Many Requests",
                "SlowDown",
                "unavailable",
                "unavailable",
            ),
            (
                "500 Internal Server Error",
                "InternalError",
                "unknown",
                "unavailable",
            ),
            ("501 Not Implemented", "NotImplemented", "broken", "broken"),
            (
                "503 Service Unavailable",
                "SlowDown",
                "unknown",
                "unavailable",
            ),
            ("307 Temporary Redirect", "", "broken", "broken"),
        ] {
            let error = refused(status, code);
            for (call, expected) in [(Call::Write, write), (Call::Read, read)] {
                let found = classify("s3://b", &error, call);
                assert_eq!(
                    class(&found),
                    expected,
                    "{status} {code}, {call:?}: {found}"
                );
                let text = found.to_string();
                assert!(
                    class(&found) == "conflict" || text.contains("No."),
                    "{text}"
                );
                assert!(!text.contains("1ms"), "{text}");
            }
        }
    }

    #[test]
    fn without_an_answer_a_write_is_unknown_unless_there_was_no_connection() {
        let failed = |kind| {
            let cause = std::io::Error::other("the reason");
            generic(HttpError::new(kind, cause))
        };
        for (kind, write) in [
            (HttpErrorKind::Connect, "unavailable"),
            (HttpErrorKind::Request, "unknown"),
            (HttpErrorKind::Timeout, "unknown"),
            (HttpErrorKind::Interrupted, "unknown"),
            (HttpErrorKind::Decode, "unknown"),
            (HttpErrorKind::Unknown, "unknown"),
        ] {
            let found = classify("s3://b", &failed(kind), Call::Write);
            assert_eq!(class(&found), write, "{kind:?}");
            assert!(found.to_string().ends_with("s3://b: the reason"), "{found}");
            let found = classify("s3://b", &failed(kind), Call::Read);
            assert_eq!(class(&found), "unavailable", "{kind:?}");
        }
        let odd = classify("s3://b", &generic("something else"), Call::Write);
        assert_eq!(class(&odd), "unknown");
    }
}
