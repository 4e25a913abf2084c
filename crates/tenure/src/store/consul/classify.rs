//! What an error of Consul or of the connection lets us conclude.
//!
//! What is refused for its form or for want of a right was not carried out. A server
//! error (5xx) may come after a write was proposed, and so leaves it unknown; no
//! leader is such a one.

use reqwest::StatusCode;

use super::kv;
use crate::error::{StoreError, quoted};
use crate::store::causes::text;

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
    pub(super) fn lost(self, why: String) -> StoreError {
        match self {
            Self::Read => StoreError::unavailable(why),
            Self::Write => StoreError::unknown(why),
        }
    }
}

/// No answer came, or only a part of one.
pub(super) fn unanswered(call: Call, error: reqwest::Error) -> StoreError {
    // It has the whole URL in it.
    let error = error.without_url();
    let text = text(&error);
    if text.contains("certificate") {
        return StoreError::broken(format!(
            "{text}; expected a certificate of an authority that is named by ca= (or of the \
             system's), for the host of the store's URL"
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

/// The server has answered with this status, which is no success.
pub(super) fn refused(call: Call, status: StatusCode, body: &[u8]) -> StoreError {
    if status == StatusCode::CONFLICT && call == Call::Write {
        let answer = kv::parse(body).unwrap_or_default();
        return match kv::rolled_back(&answer) {
            Ok(()) => StoreError::Conflict,
            Err(why) if why.contains("ermission denied") || why.contains("ACL") => {
                StoreError::broken(denied(&quoted(&why)))
            }
            Err(why) => StoreError::unavailable(quoted(&why)),
        };
    }
    let said = String::from_utf8_lossy(body);
    let text = format!("{}: {}", status.as_u16(), quoted(said.trim()));
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => StoreError::broken(denied(&text)),
        StatusCode::PAYLOAD_TOO_LARGE => StoreError::broken(format!(
            "{text}; expected servers that take a value of 256 KiB in a transaction; raise \
             limits.txn_max_req_len and limits.kv_max_value_size in their configuration"
        )),
        // It was refused before anything was done.
        StatusCode::TOO_MANY_REQUESTS => StoreError::unavailable(text),
        status if status.is_server_error() => call.lost(text),
        _ => StoreError::broken(format!(
            "{text}; expected the HTTP interface of Consul; check the store's URL"
        )),
    }
}

fn denied(text: &str) -> String {
    format!(
        "{text}; give a token by token_file= or $CONSUL_HTTP_TOKEN that may write the keys of the \
         store (`key_prefix \"tenure/\" {{ policy = \"write\" }}`)"
    )
}

#[cfg(test)]
mod tests {
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
        let stale =
            r#"{"Errors":[{"OpIndex":0,"What":"failed to set key \"a\", index is stale"}]}"#;
        let denied = r#"{"Errors":[{"OpIndex":0,"What":"Permission denied"}]}"#;
        let other = r#"{"Errors":[{"OpIndex":0,"What":"something else"}]}"#;
        for (status, body, write, read) in [
            (409, stale, "conflict", "broken"),
            (409, denied, "broken", "broken"),
            (409, other, "unavailable", "broken"),
            (409, "", "unavailable", "broken"),
            (403, "Permission denied: token", "broken", "broken"),
            (413, "Request body too large", "broken", "broken"),
            (429, "rate limit exceeded", "unavailable", "unavailable"),
            (400, "Bad request", "broken", "broken"),
            (404, "page not found", "broken", "broken"),
            (500, "No cluster leader", "unknown", "unavailable"),
            (
                500,
                "leadership lost while committing log",
                "unknown",
                "unavailable",
            ),
            (503, "", "unknown", "unavailable"),
        ] {
            let status = StatusCode::from_u16(status).expect("a status");
            let error = refused(Call::Write, status, body.as_bytes());
            assert_eq!(class(&error), write, "{status} {body}: {error}");
            let error = refused(Call::Read, status, body.as_bytes());
            assert_eq!(class(&error), read, "{status} {body}: {error}");
        }
    }
}
