//! What an error of the server or of the connection lets us conclude.
//!
//! An answer that the server itself gave has no cause behind it; one that our
//! side made up because the connection failed has. That tells "the server
//! refused" from "it is not known".

use std::error::Error;

use tonic::{Code, ConnectError, Status};

use crate::error::{StoreError, quoted};

/// The causes behind an error, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let cause = |error: &&'a (dyn Error + 'static)| (*error).source();
    std::iter::successors(Some(error), cause)
}

/// An error with its causes, in one line.
pub(super) fn text(error: &(dyn Error + 'static)) -> String {
    let mut said = Vec::new();
    for cause in causes(error) {
        let line = cause.to_string();
        // Many libraries repeat their cause.
        if !said.iter().any(|earlier: &String| earlier.contains(&line)) {
            said.push(line);
        }
    }
    quoted(&said.join(": "))
}

/// What a status says, in one line.
fn status_text(server: &str, status: &Status) -> String {
    match status.source() {
        Some(cause) => format!("{server}: {}", text(cause)),
        None => {
            let said = quoted(status.message());
            format!("{server}: {said} ({})", status.code())
        }
    }
}

/// Whether our token is no longer good; the next connection gets another.
pub(super) fn token_expired(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || status.message().contains("invalid auth token")
        || status.message().contains("revision of auth store is old")
}

/// Whether another server may do better.
pub(super) fn is_suspect(status: &Status) -> bool {
    status.source().is_some()
        || token_expired(status)
        || matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Internal | Code::DeadlineExceeded
        )
}

/// What a person must see to, if that is what it is.
fn broken(status: &Status, text: &str) -> Option<StoreError> {
    if status.source().is_some() || token_expired(status) {
        return None;
    }
    let advice = match status.code() {
        Code::PermissionDenied => {
            "give the user a role that may read and write the prefix of the store's URL"
        }
        Code::InvalidArgument | Code::FailedPrecondition => {
            "check the user and password in the store's URL, and the server's limits"
        }
        Code::Unimplemented => "expected an etcd server of version 3.4 or later",
        _ => return None,
    };
    Some(StoreError::broken(format!("{text}; {advice}")))
}

/// An error in answer to a call that changes nothing.
pub(super) fn reading(server: &str, status: &Status) -> StoreError {
    let text = status_text(server, status);
    broken(status, &text).unwrap_or_else(|| StoreError::unavailable(text))
}

/// An error in answer to a write.
pub(super) fn writing(server: &str, status: &Status) -> StoreError {
    let text = status_text(server, status);
    if let Some(broken) = broken(status, &text) {
        return broken;
    }
    let never_sent = status
        .source()
        .is_some_and(|cause| causes(cause).any(<dyn Error>::is::<ConnectError>));
    // Of overload, a full disk and a stale token the server tells before it
    // proposes the write. Of "no leader" and its like it may tell after.
    let refused = status.source().is_none()
        && (token_expired(status)
            || status.code() == Code::ResourceExhausted
                && status.message().starts_with("etcdserver:"));
    if never_sent || refused {
        StoreError::unavailable(text)
    } else {
        StoreError::unknown(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::QUOTED_MAX;

    fn transport(cause: impl Error + Send + Sync + 'static) -> Status {
        Status::from_error(Box::new(cause))
    }

    #[test]
    fn a_server_that_says_much_is_quoted_by_its_beginning() {
        let status = Status::unavailable("ä".repeat(3_000_000));
        let told = reading("etcd", &status).to_string();
        assert!(
            told.contains(&("ä".repeat(QUOTED_MAX) + " …")),
            "{}",
            told.len()
        );
        assert!(told.chars().count() < QUOTED_MAX + 200, "{}", told.len());
    }

    #[test]
    fn a_write_is_unknown_unless_it_certainly_did_not_happen() {
        let unknown = [
            Status::unavailable("etcdserver: request timed out"),
            Status::unavailable("etcdserver: leader changed"),
            Status::unknown("the stream ended without a status"),
            Status::deadline_exceeded("context deadline exceeded"),
            // The connection's, not the server's.
            Status::resource_exhausted("h2 protocol error: enhance your calm"),
            transport(std::io::Error::other("reset")),
        ];
        for status in &unknown {
            let error = writing("etcd", status);
            assert!(matches!(error, StoreError::Unknown(_)), "{error:?}");
            assert!(matches!(
                reading("etcd", status),
                StoreError::Unavailable(_)
            ));
        }
        let not_done = [
            Status::resource_exhausted("etcdserver: too many requests"),
            Status::resource_exhausted("etcdserver: mvcc: database space exceeded"),
            Status::unauthenticated("etcdserver: invalid auth token"),
            transport(ConnectError(Box::new(std::io::Error::other("refused")))),
        ];
        for status in &not_done {
            let error = writing("etcd", status);
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
        for status in [
            Status::permission_denied("etcdserver: permission denied"),
            Status::invalid_argument("etcdserver: user name is empty"),
            Status::unimplemented("unknown service"),
        ] {
            assert!(matches!(writing("etcd", &status), StoreError::Broken(_)));
            assert!(matches!(reading("etcd", &status), StoreError::Broken(_)));
        }
    }
}
