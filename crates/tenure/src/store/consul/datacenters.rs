//! Whether the hosts of a URL are of one datacenter.
//!
//! Each datacenter of Consul has keys of its own, and candidates that use two lead beside
//! each other. So where a URL names several hosts, each handshake with one asks the others
//! at the same time which server leads (`/v1/status/leader`, for which no right is needed).
//! A host is asked that after a consistent read, which a leader and its majority have to
//! answer. Two leaders with a majority each are two datacenters, and no host is used.
//!
//! The leadership may change between two answers, which looks the same. It passes: hosts
//! are tried again.
//!
//! A host that does not answer in time, or has no leader, is passed over.
//!
//! What remains: a host is compared with those alone that answer when it is connected to,
//! and two leaders may have one address (`127.0.0.1` of agents that are for trying Consul,
//! or a copy of a datacenter in a network of its own).

use crate::error::{StoreError, quoted};

/// Fails if a host follows another leader than `host`, which follows `own`. Both hosts
/// have a leader with a majority. `others` are hosts and their leaders.
pub(super) fn compare(
    host: &str,
    own: &str,
    others: &[(String, String)],
) -> Result<(), StoreError> {
    match others.iter().find(|(_, leader)| leader != own) {
        None => Ok(()),
        Some((other, leader)) => Err(StoreError::unavailable(format!(
            "expected hosts of one datacenter, found two leaders: {host} follows {}, and {other} \
             follows {}; name hosts of one datacenter in the store's URL, or that datacenter (dc=)",
            quoted(own),
            quoted(leader)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leaders_are_two_datacenters() {
        let follows = |host: &str, leader: &str| (host.to_owned(), leader.to_owned());
        let (one, two) = ("10.0.0.1:8300", "10.0.1.1:8300");
        assert!(compare("a", one, &[]).is_ok());
        assert!(compare("a", one, &[follows("b", one), follows("c", one)]).is_ok());
        let refused = compare("a", one, &[follows("b", one), follows("c", two)]);
        let Err(StoreError::Unavailable(why)) = refused else {
            panic!("{refused:?}");
        };
        let why = why.to_string();
        assert!(why.contains(one) && why.contains("c follows"), "{why}");
    }
}
