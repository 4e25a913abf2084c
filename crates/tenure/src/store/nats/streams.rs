//! Whether the servers of a URL have one bucket.
//!
//! Each server of a cluster answers for the one stream that the bucket is. A server that
//! is alone, a leaf node and a domain have streams of their own, and candidates that use
//! either lead beside each other. So where a URL names several servers, each handshake with
//! one asks the others at the same time when their stream was made. JetStream says it to
//! the nanosecond, and in a cluster all servers say the same. Two moments are two streams.
//!
//! A copy of a server's directory has a stream that was made at the same moment. So a
//! question that is put to one server has its answer sent to a connection with the other.
//! It comes only if the two are of one cluster, or joined as leaf nodes. Then each names
//! itself as the leader of its stream, and both may answer one question, while in a cluster
//! one server answers and all name the same leader.
//!
//! A server that does not answer in time, or has no stream, is passed over.
//!
//! What remains: a server is compared with those alone that answer when it is connected to.
//! Of two that are joined as leaf nodes one may be a copy of the other, with its name
//! (`server_name`).

use serde_json::Value;

use crate::error::{StoreError, quoted};

/// The stream of another server.
#[derive(Debug)]
pub(super) struct FoundStream<C> {
    pub(super) host: String,
    /// When it was made.
    pub(super) made: String,
    /// The server that leads it.
    pub(super) leader: Option<String>,
    /// A connection with the server.
    pub(super) connection: C,
}

/// When a stream was made, from the answer to `STREAM.INFO`; `None` if there is none.
pub(super) fn made(answer: &Value) -> Option<&str> {
    answer.get("created")?.as_str()
}

/// The server that leads a stream, from the answer to `STREAM.INFO`.
pub(super) fn leader(answer: &Value) -> Option<&str> {
    let leader = answer.get("cluster")?.get("leader")?.as_str();
    leader.filter(|leader| !leader.is_empty())
}

/// Fails if one of the others has another stream than `host`, whose own was made `own`.
pub(super) fn compare<C>(
    host: &str,
    own: Option<&str>,
    others: &[FoundStream<C>],
) -> Result<(), StoreError> {
    match others.iter().find(|it| own != Some(&it.made)) {
        None => Ok(()),
        Some(other) => {
            let own = own.map_or_else(
                || "has none".to_owned(),
                |it| format!("has one of {}", quoted(it)),
            );
            Err(StoreError::broken(format!(
                "expected servers of one cluster, found two buckets: {host} {own}, and {} has one \
                 of {}; name servers of one cluster in the store's URL",
                other.host,
                quoted(&other.made)
            )))
        }
    }
}

/// The error of two servers whose streams were made at the same moment, while neither sends
/// answers to clients of the other.
pub(super) fn copied(host: &str, other: &str) -> String {
    format!(
        "expected servers of one cluster, found two of none with the same bucket: {host} and \
         {other}; one is a copy of the other, or cut off from it: stop one"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_moments_are_two_streams() {
        let found = |host: &str, made: &str| FoundStream {
            host: host.into(),
            made: made.into(),
            leader: None,
            connection: (),
        };
        let (early, late) = ("2026-11-29T10:00:00.1Z", "2026-11-29T10:00:00.2Z");
        let same = [found("b", early), found("c", early)];
        assert!(compare("a", Some(early), &same).is_ok());
        assert!(compare::<()>("a", None, &[]).is_ok());
        let refused = |own, others: &[FoundStream<()>]| {
            let refused = compare("a", own, others).expect_err("two");
            assert!(matches!(refused, StoreError::Broken(_)), "{refused:?}");
            refused.to_string()
        };
        let why = refused(Some(early), &[found("b", early), found("c", late)]);
        assert!(
            why.contains("a has one of") && why.contains("c has one of"),
            "{why}"
        );
        assert!(refused(None, &same).contains("a has none, and b has one"));
    }
}
