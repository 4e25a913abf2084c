//! What an error of a server, of JetStream or of the connection lets us conclude.
//!
//! JetStream answers a message that it does not take with a number that says why; of
//! those that are listed here it has stored nothing. Where the subject of a message
//! has no listener the server says so, and the message went nowhere. Everything else
//! tells nothing of a write.

use std::error::Error;

use async_nats::{ConnectError, ConnectErrorKind, RequestError, RequestErrorKind};
use serde_json::Value;

use super::bucket::Bucket;
use crate::error::{StoreError, quoted};
use crate::store::REPAIR;
use crate::store::causes::{causes, text};

/// The last message of the subject is another; the second is a cluster's word for
/// it, and the third says that one is on its way.
const WRONG_LAST: [u64; 3] = [10_071, 10_164, 10_163];
/// There is no message of this subject.
const NO_MESSAGE: u64 = 10_037;
/// There is no such stream.
const NO_STREAM: u64 = 10_059;
/// A stream of this name is there already, and is set up in another way.
const STREAM_EXISTS: u64 = 10_058;
/// More than one replica takes a cluster.
const NO_CLUSTER: u64 = 10_074;
/// Too few servers are there for so many replicas.
const NO_PEERS: u64 = 10_005;
/// The stream could not take the message.
const NOT_STORED: u64 = 10_077;
/// JetStream is off: for the account, or altogether.
const OFF: [u64; 2] = [10_039, 10_076];

/// What is said of a server without JetStream.
pub(super) const TURN_ON: &str = "expected a server with JetStream, found one without; turn it on \
                                  (`jetstream { sync_interval: always }` in its configuration)";

/// An answer of JetStream that says no.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    status: u64,
    code: u64,
    text: String,
}

impl Refusal {
    pub(super) fn find(answer: &Value) -> Option<Self> {
        let error = answer.get("error")?;
        let number = |name: &str| error.get(name).and_then(Value::as_u64).unwrap_or(0);
        let text = error.get("description").and_then(Value::as_str);
        Some(Self {
            status: number("code"),
            code: number("err_code"),
            text: quoted(text.unwrap_or("an error without a description")),
        })
    }

    /// Whether a subject has no message.
    pub(super) fn is_no_message(&self) -> bool {
        self.code == NO_MESSAGE
    }

    /// Whether there is no such stream.
    pub(super) fn is_no_stream(&self) -> bool {
        self.code == NO_STREAM
    }

    /// Whether another process has made the stream meanwhile.
    pub(super) fn is_made_already(&self) -> bool {
        self.code == STREAM_EXISTS
    }

    /// Whether several replicas were asked for where there is no cluster.
    pub(super) fn is_no_cluster(&self) -> bool {
        self.code == NO_CLUSTER
    }

    /// What it means for a call that changes nothing.
    pub(super) fn reading(&self, bucket: Bucket<'_>) -> StoreError {
        if self.is_no_stream() {
            return missing(bucket);
        }
        if OFF.contains(&self.code) {
            return StoreError::broken(format!("{}; {TURN_ON}", self.text));
        }
        StoreError::unavailable(&self.text)
    }

    /// What it means for a bucket that was to be made.
    pub(super) fn making(&self, bucket: Bucket<'_>) -> StoreError {
        if self.status != 400 || self.code == NO_PEERS {
            return self.reading(bucket);
        }
        StoreError::broken(format!(
            "the stream {} cannot be made: {}; make it yourself (`nats kv add {}`)",
            bucket.stream(),
            self.text,
            bucket.0
        ))
    }

    /// What it means for a message that was to be stored.
    pub(super) fn writing(&self, bucket: Bucket<'_>) -> StoreError {
        if WRONG_LAST.contains(&self.code) {
            return StoreError::Conflict;
        }
        // A limit of the stream is looked at before the message is proposed.
        if self.code == NOT_STORED && self.text.contains("maximum") {
            return StoreError::unavailable(format!(
                "{}; raise the limits of the stream {}",
                self.text,
                bucket.stream()
            ));
        }
        if self.is_no_stream() || OFF.contains(&self.code) {
            return self.reading(bucket);
        }
        // It does not take such a message at all.
        if self.status == 400 {
            return StoreError::broken(format!(
                "{}; look at the stream {}",
                self.text,
                bucket.stream()
            ));
        }
        StoreError::unknown(&self.text)
    }
}

/// The bucket was there, and is not any more. It is not made again by a process that
/// has used it: that would begin below terms that were used.
pub(super) fn missing(bucket: Bucket<'_>) -> StoreError {
    let stream = bucket.stream();
    StoreError::unavailable(format!(
        "the stream {stream} is not there any more; restore it, or make another: {REPAIR}"
    ))
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// It has certainly had no effect.
    NotDone(StoreError),
    /// It may have been carried out.
    Lost(String),
    /// It may have been carried out, and no answer is ever heard: the server does not
    /// let us subscribe to answers.
    Unheard,
}

/// What the server says then, without the name of each inbox, which is random.
const UNHEARD: &str = "Permissions Violation for Subscription to \"_INBOX.>\"";

impl Unanswered {
    pub(super) fn new(error: &RequestError) -> Self {
        let text = text(error);
        match error.kind() {
            RequestErrorKind::NoResponders => Self::NotDone(StoreError::unavailable(
                "no server listens: the stream has no leader at the moment, or is not there",
            )),
            RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                Self::NotDone(StoreError::broken(text))
            }
            RequestErrorKind::TimedOut | RequestErrorKind::Other => Self::Lost(text),
        }
    }

    /// What it means for a call that changes nothing.
    pub(super) fn reading(self) -> StoreError {
        match self {
            Self::NotDone(error) => error,
            Self::Lost(why) => StoreError::unavailable(why),
            Self::Unheard => forbidden(UNHEARD),
        }
    }

    /// What it means for a message that was to be stored.
    pub(super) fn writing(self) -> StoreError {
        match self {
            Self::NotDone(error) => error,
            Self::Lost(why) => StoreError::unknown(why),
            Self::Unheard => StoreError::unknown(UNHEARD),
        }
    }
}

/// The server does not let us send or hear something.
pub(super) fn forbidden(words: &str) -> StoreError {
    let words = quoted(words);
    StoreError::broken(format!(
        "{words}; give the user the rights that docs/reference/stores.md names (NATS)"
    ))
}

/// What TLS has refused, behind an error of the connection.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    causes(error).find_map(|cause| {
        // An error of input and output hides what it holds from `source`.
        let held = cause.downcast_ref::<std::io::Error>();
        let held = held.and_then(|error| error.get_ref());
        let held = held.and_then(|held| held.downcast_ref::<rustls::Error>());
        held.or_else(|| cause.downcast_ref())
    })
}

/// Why a server cannot be connected to.
pub(super) fn connecting(error: &ConnectError) -> StoreError {
    let text = text(error);
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            StoreError::broken(format!(
                "{text}; check the user and password, or the file of token_file= or creds=, in \
                 the store's URL"
            ))
        }
        ConnectErrorKind::Tls | ConnectErrorKind::ServerParse => StoreError::broken(format!(
            "{text}; expected a host, and certificates and a key in PEM behind ca=, cert= and key="
        )),
        _ => match tls_error(error) {
            Some(refused @ rustls::Error::InvalidCertificate(_)) => StoreError::broken(format!(
                "{}; expected a certificate of an authority that is named by ca= (or of the \
                 system's), for the host of the store's URL",
                quoted(&refused.to_string())
            )),
            Some(refused @ rustls::Error::AlertReceived(_)) => StoreError::broken(format!(
                "{}; does the server want a certificate of ours (cert=, key=)?",
                quoted(&refused.to_string())
            )),
            _ => StoreError::unavailable(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BUCKET: Bucket<'_> = Bucket("b");

    fn refusal(status: u64, code: u64, text: &str) -> Refusal {
        let error = json!({"code": status, "err_code": code, "description": text});
        Refusal::find(&json!({ "error": error })).expect("a refusal")
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
        for (status, code, text, expected) in [
            (400, 10_071, "wrong last sequence: 7", "conflict"),
            (400, 10_164, "wrong last sequence", "conflict"),
            (503, 10_077, "maximum bytes exceeded", "unavailable"),
            (503, 10_077, "no space left on device", "unknown"),
            (404, 10_059, "stream not found", "unavailable"),
            (
                503,
                10_008,
                "JetStream system temporarily unavailable",
                "unknown",
            ),
            (503, 10_076, "JetStream not enabled", "broken"),
            (
                400,
                10_054,
                "message size exceeds maximum allowed",
                "broken",
            ),
            (500, 0, "", "unknown"),
        ] {
            let error = refusal(status, code, text).writing(BUCKET);
            assert_eq!(class(&error), expected, "{code} {text}: {error}");
            let read = refusal(status, code, text).reading(BUCKET);
            assert!(["unavailable", "broken"].contains(&class(&read)), "{read}");
        }
        let overlap = refusal(400, 10_065, "subjects overlap with an existing stream");
        assert_eq!(class(&overlap.making(BUCKET)), "broken");
        let alone = refusal(400, NO_PEERS, "no suitable peers for placement");
        assert_eq!(class(&alone.making(BUCKET)), "unavailable");
        assert_eq!(Refusal::find(&json!({"seq": 7})), None);
    }

    #[test]
    fn no_answer_leaves_a_write_unknown_unless_nobody_listened() {
        let failed = |kind| Unanswered::new(&RequestError::new(kind)).writing();
        for (kind, expected) in [
            (RequestErrorKind::NoResponders, "unavailable"),
            (RequestErrorKind::MaxPayloadExceeded, "broken"),
            (RequestErrorKind::TimedOut, "unknown"),
            (RequestErrorKind::Other, "unknown"),
        ] {
            assert_eq!(class(&failed(kind)), expected);
        }
        let read = Unanswered::new(&RequestError::new(RequestErrorKind::Other)).reading();
        assert_eq!(class(&read), "unavailable");
    }

    #[test]
    fn what_a_person_must_see_to_is_told_from_a_server_that_is_away() {
        let refused = connecting(&ConnectError::new(ConnectErrorKind::AuthorizationViolation));
        assert_eq!(class(&refused), "broken");
        let certificate =
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = std::io::Error::other(certificate);
        let stranger = connecting(&ConnectError::with_source(ConnectErrorKind::Io, wrapped));
        assert_eq!(class(&stranger), "broken");
        let away = connecting(&ConnectError::new(ConnectErrorKind::TimedOut));
        assert_eq!(class(&away), "unavailable");
    }
}
