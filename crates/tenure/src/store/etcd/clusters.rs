//! Whether the servers of a URL are of one cluster.
//!
//! Servers of two clusters, or one that was emptied and begun anew by itself, are two
//! stores: candidates that use one each lead beside each other, in the same terms. So a
//! server is used only if more of the URL's servers are known to be of its cluster than
//! of others, which it is counted among itself. Each handshake asks the others anew.
//!
//! A process does not hold on to the cluster that it saw first. Servers that were restored
//! from a snapshot elsewhere are another cluster to etcd, and candidates that run go on
//! with them. But of a server that does not answer the last is believed that it has said:
//! where the one before it is cut off from here, a server of another cluster behind it is
//! not taken for its successor.
//!
//! What remains: a process that has never reached more than one of the servers cannot
//! compare.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::StoreError;

/// The clusters of a URL's servers, as each has said it last.
#[derive(Debug)]
pub(super) struct Clusters {
    hosts: Vec<String>,
    known: Mutex<BTreeMap<usize, u64>>,
}

impl Clusters {
    pub(super) fn new(hosts: Vec<String>) -> Self {
        Self {
            hosts,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<usize, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes down what a server has said; what speaks etcd's protocol in front of another
    /// store may say nothing (0).
    pub(super) fn record(&self, host: usize, cluster: u64) {
        if cluster == 0 {
            self.known().remove(&host);
        } else {
            self.known().insert(host, cluster);
        }
    }

    /// Fails unless a server is of the cluster of most.
    pub(super) fn judge(&self, host: usize) -> Result<(), StoreError> {
        let known = self.known();
        let Some(own) = known.get(&host) else {
            return Ok(());
        };
        let same = known.values().filter(|it| *it == own).count();
        if same > known.len() - same {
            return Ok(());
        }
        let mut found = String::new();
        for (host, cluster) in known.iter() {
            let comma = if found.is_empty() { "" } else { ", " };
            let name = self.hosts.get(*host).map_or("", String::as_str);
            // Writing to a string cannot fail.
            let _ = write!(found, "{comma}{name} in cluster {cluster:x}");
        }
        Err(StoreError::broken(format!(
            "expected servers of one cluster, found {found}; name servers of one cluster in the \
             store's URL, and add a server that was emptied as a new member (if the cluster was \
             restored and some of its servers are away, start this process again)"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_used_if_most_are_of_its_cluster() {
        let judged = |said: &[(usize, u64)], host| {
            let clusters = Clusters::new(vec!["a".into(), "b".into(), "c".into()]);
            for (host, cluster) in said {
                clusters.record(*host, *cluster);
            }
            clusters.judge(host)
        };
        for (said, used, refused) in [
            (&[(0, 7)][..], &[0][..], &[][..]),
            (&[(0, 7), (1, 7)], &[0, 1], &[]),
            (&[(0, 7), (1, 8)], &[], &[0, 1]),
            (&[(0, 7), (1, 8), (2, 7)], &[0, 2], &[1]),
            (&[(0, 7), (1, 8), (2, 9)], &[], &[0, 1, 2]),
            // All were restored, the last of them is still away.
            (&[(0, 7), (1, 7), (2, 7), (0, 8), (1, 8)], &[0, 1], &[2]),
            // One that says nothing of clusters.
            (&[(0, 0), (1, 7)], &[0, 1], &[]),
        ] {
            for host in used {
                assert!(judged(said, *host).is_ok(), "{said:?} {host}");
            }
            for host in refused {
                let Err(StoreError::Broken(why)) = judged(said, *host) else {
                    panic!("{said:?} {host}");
                };
                let why = why.to_string();
                assert!(
                    why.starts_with("expected servers of one cluster, found a in cluster "),
                    "{why}"
                );
            }
        }
    }
}
