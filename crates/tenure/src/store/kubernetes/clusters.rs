//! Whether the servers of a URL are of one cluster.
//!
//! Each cluster has objects of its own, and candidates that use two lead beside each other.
//! So where a URL names several servers, each handshake with one asks the others at the same
//! time for the `uid` of the ConfigMap `kube-root-ca.crt`, which clusters publish in each
//! namespace (since Kubernetes 1.20). All servers of a cluster say the same, and no two
//! clusters do, but a copy and its original.
//!
//! A server that does not answer in time, does not let us read ConfigMaps, or has no such
//! one, is passed over.
//!
//! What remains: a server is compared with those alone that answer when it is connected to.

use crate::error::{StoreError, quoted};

/// The ConfigMap that clusters publish in each namespace.
pub(super) const PUBLISHED: &str = "kube-root-ca.crt";

/// Fails if a server has another [`PUBLISHED`] than `server`, whose own has the uid `own`.
/// `others` are servers and uids.
pub(super) fn compare(
    server: &str,
    own: &str,
    others: &[(String, String)],
) -> Result<(), StoreError> {
    match others.iter().find(|(_, uid)| uid != own) {
        None => Ok(()),
        Some((other, uid)) => Err(StoreError::broken(format!(
            "expected servers of one cluster, found two: the uid of the ConfigMap {PUBLISHED} is \
             {} on {server}, and {} on {other}; name servers of one cluster in the store's URL",
            quoted(own),
            quoted(uid)
        ))),
    }
}
