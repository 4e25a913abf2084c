//! Whether the servers of a URL are of one cluster.
//!
//! Servers of two clusters, or one that was emptied and begun anew by itself, are two
//! stores: candidates that use one each lead beside each other, in the same terms. So a
//! server is used only if more of the URL's servers are known to be of its cluster than
//! of others, which it is counted among itself. Each handshake asks the others anew.
//!
//! Servers with different cluster ids are of two clusters. Servers with equal ones may be
//! two clusters that were begun alike, or one and a member of it that was begun anew by
//! force (`--force-new-cluster`). So a handshake compares its server with the others by a
//! lease. What it finds is kept for each server as a group: servers of two groups are of
//! two clusters. It is found anew after a while, and whenever they were not one. Servers
//! that cannot be compared count as one cluster, unless they say that they are the same
//! member and one of them is away.
//!
//! A process does not hold on to the cluster that it saw first. Servers that were restored
//! from a snapshot elsewhere are another cluster to etcd, and candidates that run go on
//! with them. But of a server that does not answer the last is believed that it has said:
//! where the one before it is cut off from here, a server of another cluster behind it is
//! not taken for its successor. Nor is one that says it is the same member, if the two were
//! never compared.
//!
//! What remains: a process that has never reached more than one of the servers cannot
//! compare.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;

use super::wire::Ids;
use crate::error::StoreError;

/// How long what a comparison has found is believed, while ids stay equal. Handshakes are
/// frequent in an outage, and each comparison costs the cluster a write.
const COMPARED_FOR: Duration = Duration::from_secs(60);

/// The clusters of a URL's servers, as each has said it last.
#[derive(Debug)]
pub(super) struct Clusters {
    hosts: Vec<String>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    servers: BTreeMap<usize, Server>,
    /// How many groups were numbered.
    groups: u64,
}

/// What is known of a server.
#[derive(Clone, Copy, Debug)]
struct Server {
    ids: Ids,
    /// Whether this process has had a connection to it that it believed.
    is_used: bool,
    /// Those that were compared are of one cluster if they are of one group.
    group: Option<u64>,
    /// When it was compared with all others that answered.
    compared: Option<Instant>,
}

impl Server {
    fn says_it_is(&self, other: &Self) -> bool {
        self.ids == other.ids && self.ids.member != 0
    }
}

/// Why a server is not of the cluster of another one, though it says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unlike {
    Compared,
    Silent,
}

impl Known {
    fn new_group(&mut self) -> u64 {
        self.groups += 1;
        self.groups
    }

    fn unlike(&self, own: &Server, other: usize, answered: &BTreeSet<usize>) -> Option<Unlike> {
        let it = self.servers.get(&other)?;
        match (own.group, it.group) {
            (Some(one), Some(another)) => (one != another).then_some(Unlike::Compared),
            _ => {
                let is_silent = it.is_used && !answered.contains(&other);
                (is_silent && it.says_it_is(own)).then_some(Unlike::Silent)
            }
        }
    }
}

impl Clusters {
    pub(super) fn new(hosts: Vec<String>) -> Self {
        Self {
            hosts,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self, host: usize) -> &str {
        self.hosts.get(host).map_or("", String::as_str)
    }

    /// Takes down what a server has said; what speaks etcd's protocol in front of another
    /// store may say nothing (0).
    pub(super) fn record(&self, host: usize, ids: Ids) {
        let servers = &mut self.known().servers;
        if ids.cluster == 0 {
            servers.remove(&host);
            return;
        }
        match servers.get_mut(&host) {
            // Behind a load balancer it may be another member each time.
            Some(server) if server.ids.cluster == ids.cluster => server.ids = ids,
            _ => {
                let server = Server {
                    ids,
                    is_used: false,
                    group: None,
                    compared: None,
                };
                servers.insert(host, server);
            }
        }
    }

    /// The others with which a server has to be compared, of those that have answered.
    pub(super) fn in_doubt(
        &self,
        host: usize,
        answered: &BTreeSet<usize>,
        now: Instant,
    ) -> Vec<usize> {
        let servers = &self.known().servers;
        let Some(own) = servers.get(&host) else {
            return Vec::new();
        };
        let others = servers
            .iter()
            .filter(|(at, it)| answered.contains(at) && it.ids.cluster == own.ids.cluster);
        // Those that were not one may be by now, behind a load balancer as another member.
        let is_fresh = own.compared.is_some_and(|it| now.since(it) < COMPARED_FOR);
        let is_known = |it: &Server| is_fresh && own.group.is_some() && it.group == own.group;
        let others = others.filter(|(at, it)| **at != host && !is_known(it));
        others.map(|(at, _)| *at).collect()
    }

    /// Takes down with which others a server was compared, and whether they are one cluster.
    pub(super) fn compared(&self, host: usize, found: &[(usize, bool)], now: Instant) {
        let mut known = self.known();
        let Some(own) = known.servers.get(&host).filter(|_| !found.is_empty()) else {
            return;
        };
        let group = own.group.unwrap_or_else(|| known.new_group());
        if let Some(own) = known.servers.get_mut(&host) {
            (own.group, own.compared) = (Some(group), Some(now));
        }
        for (other, is_one) in found {
            let another = known.new_group();
            let Some(it) = known.servers.get_mut(other) else {
                continue;
            };
            if *is_one {
                it.group = Some(group);
            } else if it.group.is_none_or(|its| its == group) {
                it.group = Some(another);
            }
        }
    }

    /// Fails unless a server is of the cluster of most.
    pub(super) fn judge(&self, host: usize, answered: &BTreeSet<usize>) -> Result<(), StoreError> {
        let mut known = self.known();
        let Some(own) = known.servers.get(&host).copied() else {
            return Ok(());
        };
        let is_of_it = |other: usize, it: &Server| {
            let is_alike = other == host || known.unlike(&own, other, answered).is_none();
            it.ids.cluster == own.ids.cluster && is_alike
        };
        let same = known.servers.iter().filter(|(at, it)| is_of_it(**at, it));
        let same = same.count();
        if same > known.servers.len() - same {
            if let Some(own) = known.servers.get_mut(&host) {
                own.is_used = true;
            }
            return Ok(());
        }
        let found = self.found(&known, host, answered);
        Err(StoreError::broken(format!(
            "expected servers of one cluster, found {found}; name servers of one cluster in the \
             store's URL, add a server that was emptied as a new member, and begin another \
             cluster with an --initial-cluster-token of its own (if the cluster was restored and \
             some of its servers are away, start this process again)"
        )))
    }

    /// What the servers have said, and why this one is not believed.
    fn found(&self, known: &Known, host: usize, answered: &BTreeSet<usize>) -> String {
        let mut found = String::new();
        for (at, it) in &known.servers {
            let comma = if found.is_empty() { "" } else { ", " };
            // Writing to a string cannot fail.
            let _ = write!(
                found,
                "{comma}{} in cluster {:x}",
                self.name(*at),
                it.ids.cluster
            );
        }
        let Some(own) = known.servers.get(&host) else {
            return found;
        };
        let mut others = known
            .servers
            .iter()
            .filter(|(at, it)| **at != host && it.ids.cluster == own.ids.cluster);
        let unlike = others.find_map(|(at, it)| Some((*at, it, known.unlike(own, *at, answered)?)));
        if let Some((other, it, unlike)) = unlike {
            let (one, other) = (self.name(host), self.name(other));
            let say = if it.says_it_is(own) {
                format!("both say that they are member {:x}", own.ids.member)
            } else {
                "say that they are of one cluster".to_owned()
            };
            let but = match unlike {
                Unlike::Compared => "a lease that one has granted is unknown to the other".into(),
                Unlike::Silent => format!("{other}, which was used before, does not answer"),
            };
            let _ = write!(found, ": {one} and {other} {say}, and {but}");
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clusters() -> Clusters {
        Clusters::new(vec!["a".into(), "b".into(), "c".into()])
    }

    fn ids(cluster: u64, member: u64) -> Ids {
        Ids { cluster, member }
    }

    fn after(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn refused(clusters: &Clusters, host: usize, answered: &[usize]) -> String {
        let answered = answered.iter().copied().collect();
        let Err(StoreError::Broken(why)) = clusters.judge(host, &answered) else {
            panic!("{clusters:?} {host}");
        };
        why.to_string()
    }

    #[test]
    fn a_server_is_used_if_most_are_of_its_cluster() {
        let of = |said: &[(usize, u64)]| {
            let clusters = clusters();
            for (host, cluster) in said {
                clusters.record(*host, ids(*cluster, 100 + *host as u64));
            }
            clusters
        };
        for (said, used, unused) in [
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
                let judged = of(said).judge(*host, &BTreeSet::new());
                assert!(judged.is_ok(), "{said:?} {host}");
            }
            for host in unused {
                let why = refused(&of(said), *host, &[]);
                assert!(
                    why.starts_with("expected servers of one cluster, found a in cluster "),
                    "{why}"
                );
            }
        }
    }

    #[test]
    fn servers_with_equal_ids_are_compared_now_and_then() {
        let clusters = clusters();
        let in_doubt = |host, answered: &[usize], seconds| {
            let answered = answered.iter().copied().collect();
            clusters.in_doubt(host, &answered, after(seconds))
        };
        for (host, member) in [(0, 1), (1, 2), (2, 3)] {
            clusters.record(host, ids(7, member));
        }
        assert_eq!(in_doubt(0, &[1, 2], 0), [1, 2], "three members");
        clusters.record(2, ids(7, 2));
        assert_eq!(in_doubt(0, &[1, 2], 0), [1, 2]);
        assert_eq!(in_doubt(0, &[1], 0), [1], "one is away");
        clusters.compared(0, &[(1, true), (2, true)], after(0));
        assert!(in_doubt(0, &[1, 2], 59).is_empty(), "they are one");
        assert_eq!(in_doubt(0, &[1, 2], 60), [1, 2]);
        clusters.compared(0, &[(1, true), (2, false)], after(60));
        // It may have been mended.
        assert_eq!(in_doubt(0, &[1, 2], 61), [2]);
        assert!(clusters.judge(0, &BTreeSet::from([1, 2])).is_ok());
        assert!(clusters.judge(1, &BTreeSet::from([0, 2])).is_ok());
        let why = refused(&clusters, 2, &[0, 1]);
        let said = "say that they are of one cluster, and a lease that one has granted is \
                    unknown to the other; name";
        assert!(why.contains(said), "{why}");
        clusters.record(2, ids(7, 3));
        assert_eq!(in_doubt(0, &[1, 2], 61), [2], "another member, and not one");
        // Another cluster by its id is not in doubt, and what was found of it is past.
        clusters.record(2, ids(8, 2));
        assert_eq!(in_doubt(0, &[1, 2], 200), [1], "one has gone");
        clusters.record(2, ids(7, 3));
        assert!(clusters.judge(2, &BTreeSet::from([0, 1])).is_ok());
    }

    #[test]
    fn of_two_that_are_not_one_none_is_used() {
        let clusters = clusters();
        clusters.record(0, ids(7, 1));
        clusters.record(1, ids(7, 1));
        clusters.compared(0, &[(1, false)], after(0));
        // The last is believed of one that is away, too.
        for (host, answered) in [(0, &[1][..]), (1, &[0]), (0, &[]), (1, &[])] {
            let why = refused(&clusters, host, answered);
            assert!(
                why.contains(" both say that they are member 1, and a lease"),
                "{why}"
            );
        }
        clusters.compared(1, &[(0, true)], after(1));
        assert!(clusters.judge(1, &BTreeSet::new()).is_ok(), "it was mended");
    }

    #[test]
    fn a_server_does_not_succeed_the_same_member_with_which_it_was_never_compared() {
        let clusters = clusters();
        clusters.record(0, ids(7, 1));
        assert!(clusters.judge(0, &BTreeSet::new()).is_ok());
        clusters.record(1, ids(7, 1));
        let why = refused(&clusters, 1, &[]);
        let said = "b and a both say that they are member 1, and a, which was used before, does";
        assert!(why.contains(said), "{why}");
        // One that answers, but cannot be compared, counts as before.
        assert!(clusters.judge(1, &BTreeSet::from([0])).is_ok());
        // Nor is another member of the cluster in doubt.
        clusters.record(1, ids(7, 2));
        assert!(clusters.judge(1, &BTreeSet::new()).is_ok());
        // They were one when they were compared.
        clusters.record(1, ids(7, 1));
        clusters.compared(0, &[(1, true)], after(0));
        assert!(clusters.judge(1, &BTreeSet::new()).is_ok());
    }
}
