//! What an answer of the API server, or none, lets us conclude.
//!
//! A refusal is a `Status` with a reason. What was refused for its form, for want of a
//! right, or because the server has too much to do (429) was not carried out. A server
//! error (5xx) may come after a write was handed to etcd, and leaves it unknown.
//!
//! 404 has three meanings: a write of an object that is not there, a namespace that is
//! not there, and an address that is no API of Kubernetes. The details of the status
//! tell them apart.

use std::fmt;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;

use super::names::Kind;
use crate::error::{StoreError, quoted};
use crate::store::bounded_json;
use crate::store::causes::text;

/// The most that a `Status` costs to decode: each wrong field has a cause of its own.
const STATUS_COST: usize = 4_096;

/// What a call was to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// It changes nothing.
    Read,
    /// It may change something.
    Write,
}

impl Call {
    /// The error of a call whose outcome cannot be known.
    pub(super) fn lost(self, why: impl fmt::Display) -> StoreError {
        match self {
            Self::Read => StoreError::unavailable(why),
            Self::Write => StoreError::unknown(why),
        }
    }
}

/// A refusal, as the server says it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Status {
    reason: String,
    message: String,
    /// Of what kind of object it speaks, in the plural.
    kind: String,
    /// When to try again.
    pub(super) retry_after: Option<Duration>,
}

impl Status {
    /// What a body says, or an event of a watch; nothing if it is no `Status`.
    pub(super) fn of(status: &Value) -> Self {
        let text = |at: Option<&Value>| at.and_then(Value::as_str).unwrap_or_default().to_owned();
        let details = status.get("details");
        let seconds = details.and_then(|it| it.get("retryAfterSeconds")?.as_u64());
        Self {
            reason: text(status.get("reason")),
            message: text(status.get("message")),
            kind: text(details.and_then(|it| it.get("kind"))),
            retry_after: seconds.filter(|it| *it > 0).map(Duration::from_secs),
        }
    }

    /// What a body says that may be anything.
    pub(super) fn parse(body: &[u8]) -> Self {
        let status = bounded_json::parse(body, STATUS_COST).map(|status| Self::of(&status));
        let mut status = status.unwrap_or_default();
        if status.message.is_empty() {
            let said = String::from_utf8_lossy(body);
            status.message = quoted(said.trim());
        }
        status
    }

    /// Whether this is said of an object of this kind that is not there.
    pub(super) fn is_absent(&self, kind: Kind) -> bool {
        self.reason == "NotFound" && self.kind == kind.plural()
    }

    fn is_namespace(&self) -> bool {
        self.reason == "NotFound" && self.kind == "namespaces"
    }
}

/// No answer came, or only a part of one.
pub(super) fn unanswered(call: Call, error: reqwest::Error) -> StoreError {
    // It has the whole URL in it.
    let error = error.without_url();
    let text = text(&error);
    if text.contains("certificate") {
        return StoreError::broken(format!(
            "{text}; expected a certificate of an authority that the cluster's kubeconfig, service \
             account or ca_file= names (or of the system's), for the host of the store's URL"
        ));
    }
    if error.is_connect() {
        return StoreError::unavailable(text);
    }
    if error.is_builder() {
        return StoreError::broken(text);
    }
    call.lost(text)
}

/// The server has answered a call for an object of this kind with this status, which
/// is no success.
pub(super) fn refused(call: Call, kind: Kind, status: StatusCode, said: &Status) -> StoreError {
    let message = quoted(&said.message);
    let text = format!("{} {}: {message}", status.as_u16(), quoted(&said.reason));
    match status {
        // Another version, an object that is there already, or none any more.
        StatusCode::CONFLICT if call == Call::Write => StoreError::Conflict,
        StatusCode::NOT_FOUND if call == Call::Write && said.is_absent(kind) => {
            StoreError::Conflict
        }
        StatusCode::NOT_FOUND if said.is_namespace() => StoreError::broken(format!(
            "{text}; expected the namespace of the store; make it (`kubectl create namespace …`), \
             or name another by namespace="
        )),
        StatusCode::UNAUTHORIZED => StoreError::broken(format!(
            "{text}; expected a token, or a certificate, that the cluster knows; look at \
             token_file=, at the kubeconfig, or at the pod's service account"
        )),
        StatusCode::FORBIDDEN => StoreError::broken(format!(
            "{text}; expected a Role that allows get, list, watch, create, update and delete of \
             leases (coordination.k8s.io) and configmaps in the namespace; bind one to this user"
        )),
        StatusCode::UNPROCESSABLE_ENTITY => StoreError::broken(format!(
            "{text}; expected a cluster that takes Leases and ConfigMaps as tenure writes them"
        )),
        StatusCode::PAYLOAD_TOO_LARGE => StoreError::broken(format!(
            "{text}; expected servers that take an object of 512 KiB"
        )),
        // It was refused before anything was done.
        StatusCode::TOO_MANY_REQUESTS | StatusCode::GONE => StoreError::unavailable(text),
        status if status.is_server_error() => call.lost(text),
        _ => StoreError::broken(format!(
            "{text}; expected the API of Kubernetes; check the store's URL"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let status = |reason: &str, kind: &str| {
            let details = json!({"kind": kind, "name": "x"});
            json!({"kind": "Status", "reason": reason, "message": "m", "details": details})
        };
        for (code, said, write, read) in [
            (409, status("Conflict", "leases"), "conflict", "broken"),
            (409, status("AlreadyExists", "leases"), "conflict", "broken"),
            (404, status("NotFound", "leases"), "conflict", "broken"),
            (404, status("NotFound", "namespaces"), "broken", "broken"),
            (404, json!("404 page not found"), "broken", "broken"),
            (401, status("Unauthorized", ""), "broken", "broken"),
            (403, status("Forbidden", "leases"), "broken", "broken"),
            (422, status("Invalid", "leases"), "broken", "broken"),
            (413, json!(""), "broken", "broken"),
            (400, status("BadRequest", ""), "broken", "broken"),
            (302, json!(""), "broken", "broken"),
            (
                429,
                status("TooManyRequests", ""),
                "unavailable",
                "unavailable",
            ),
            (410, status("Expired", ""), "unavailable", "unavailable"),
            (500, status("InternalError", ""), "unknown", "unavailable"),
            (
                503,
                status("ServiceUnavailable", ""),
                "unknown",
                "unavailable",
            ),
            (504, status("Timeout", ""), "unknown", "unavailable"),
        ] {
            let parsed = Status::parse(said.to_string().as_bytes());
            let code = StatusCode::from_u16(code).expect("a status");
            let error = refused(Call::Write, Kind::Lease, code, &parsed);
            assert_eq!(class(&error), write, "{code} {said}: {error}");
            let error = refused(Call::Read, Kind::Lease, code, &parsed);
            assert_eq!(class(&error), read, "{code} {said}: {error}");
        }
    }

    #[test]
    fn a_status_says_when_to_try_again() {
        let said = json!({"reason": "TooManyRequests", "details": {"retryAfterSeconds": 3}});
        assert_eq!(Status::of(&said).retry_after, Some(Duration::from_secs(3)));
        assert_eq!(Status::parse(b"busy").retry_after, None);
        assert_eq!(Status::parse(b"busy\n").message, "busy");
    }
}
