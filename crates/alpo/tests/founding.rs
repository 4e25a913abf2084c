//! Founding a cluster: who may vote at all.

use std::collections::{BTreeMap, BTreeSet};

use tenure_alpo::{
    Bootstrap, ClusterId, Hello, Identity, JoinError, MemberDisks, Membership, ServerId, StorageId,
    digest,
};
use tenure_core::rng::Rng;

fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn storage(number: u128) -> StorageId {
    StorageId::from_u128(number)
}

fn three(server: u64, disk: u128) -> Bootstrap {
    Bootstrap::new(id(server), storage(disk), (1..=3).map(id))
}

/// What a server of the cluster founded by these says of itself.
fn member(server: u64, disks: [u128; 3]) -> Hello {
    let known: MemberDisks = (1..=3).map(id).zip(disks.map(storage)).collect();
    Hello {
        server: id(server),
        storage: known[&id(server)],
        cluster: Some(digest(&known)),
        known,
        founders: BTreeSet::new(),
    }
}

/// Hears everybody but itself, and promises what is due.
fn round(founding: &mut Bootstrap, hellos: &[Hello]) -> Option<ClusterId> {
    let own = founding.hello().server;
    for hello in hellos.iter().filter(|it| it.server != own) {
        let mut bootstrapped = founding.heard(hello).expect("a peer");
        if let Some(table) = founding.due() {
            bootstrapped = founding.promise(table);
        }
        if let Some((identity, members)) = bootstrapped {
            assert_eq!(identity.server, own);
            assert!((1..=3).all(|peer| members.is_voter(id(peer))));
            return Some(identity.cluster);
        }
    }
    None
}

#[test]
fn all_blank_servers_found_the_same_cluster_whatever_the_order() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 1, 3]] {
        let servers = order.map(|n| three(n, u128::from(n) + 10));
        let hellos = servers.clone().map(|it| it.hello());
        // First each hears that all are blank; then that all have promised.
        let promised = servers.map(|mut founding| {
            assert_eq!(round(&mut founding, &hellos), None);
            founding
        });
        let hellos = promised.clone().map(|it| it.hello());
        let clusters = promised.map(|mut founding| round(&mut founding, &hellos));
        assert!(clusters.windows(2).all(|pair| pair[0] == pair[1]));
        assert_eq!(clusters[0], member(1, [11, 12, 13]).cluster);
        // One that was restarted in between goes on with its promise.
        let table = hellos[0].known.clone();
        let own = order[0];
        let again = three(own, u128::from(own) + 10).resumed(Some(table));
        assert_eq!(again.hello(), hellos[0]);
    }
}

#[test]
fn a_promise_is_kept_whoever_comes_later_with_the_same_number() {
    let mut founding = three(1, 11);
    assert_eq!(founding.heard(&three(2, 12).hello()), Ok(None));
    assert_eq!(founding.heard(&three(3, 13).hello()), Ok(None));
    let table = founding.due().expect("all are blank");
    assert_eq!(founding.promise(table), None);
    assert_eq!(founding.due(), None);
    let refused = founding.heard(&three(3, 99).hello()).expect_err("another");
    let text = refused.to_string();
    assert!(matches!(refused, JoinError::Promised { .. }), "{text}");
    // Nor does it join what others founded without it.
    let refused = founding.heard(&member(2, [11, 12, 99]));
    assert!(
        matches!(refused, Err(JoinError::Promised { .. })),
        "{refused:?}"
    );
}

/// Servers 1 and 2 and two of number 3, of which each greeting reaches the one
/// or the other. Any of them may be restarted, or wiped. `patient` is the rule;
/// otherwise they found as soon as all are known to be blank. The number of
/// clusters of which a majority takes part.
fn clusters(seed: u64, patient: bool) -> usize {
    let mut rng = Rng::from_seed(seed);
    let mut disks = [11, 12, 13, 14];
    let number = |at: usize| [1, 2, 3, 3][at];
    let mut founding: Vec<_> = (0..4).map(|at| three(number(at), disks[at])).collect();
    let mut bootstrapped: [Option<(ClusterId, MemberDisks)>; 4] = [const { None }; 4];
    let mut on_their_way: Vec<(usize, Hello)> = Vec::new();
    for step in 0..400 {
        let hello = |at: usize| match &bootstrapped[at] {
            None => founding[at].hello(),
            Some((cluster, known)) => Hello {
                cluster: Some(*cluster),
                known: known.clone(),
                ..founding[at].hello()
            },
        };
        let at = rng.below(4) as usize;
        on_their_way.push((rng.below(4) as usize, hello(at)));
        if rng.below(60) == 0 && bootstrapped[at].is_none() {
            let promised = founding[at].hello().known;
            let promised = (!promised.is_empty()).then_some(promised);
            founding[at] = three(number(at), disks[at]).resumed(promised);
        }
        if rng.below(200) == 0 && bootstrapped[at].is_none() {
            disks[at] = 100 + step;
            founding[at] = three(number(at), disks[at]);
        }
        let next = rng.below(on_their_way.len() as u64) as usize;
        let (to, hello) = on_their_way.swap_remove(next);
        if bootstrapped[to].is_some() {
            continue;
        }
        let mut done = founding[to].heard(&hello).unwrap_or(None);
        if let Some(table) = founding[to].due() {
            done = founding[to].promise(table.clone()).or_else(|| {
                let identity = Identity {
                    cluster: digest(&table),
                    server: id(number(to)),
                    storage: storage(disks[to]),
                };
                (!patient).then(|| (identity, Membership::bootstrapped(table)))
            });
        }
        bootstrapped[to] = done.map(|(identity, members)| {
            let known = members.iter().map(|(id, member)| (id, member.storage));
            (identity.cluster, known.collect())
        });
    }
    let mut parts: BTreeMap<ClusterId, BTreeSet<u64>> = BTreeMap::new();
    for (at, (cluster, _)) in bootstrapped
        .iter()
        .enumerate()
        .filter_map(|(at, it)| Some((at, it.as_ref()?)))
    {
        parts.entry(*cluster).or_default().insert(number(at));
    }
    parts.values().filter(|numbers| numbers.len() >= 2).count()
}

#[test]
fn a_number_that_is_used_twice_founds_no_second_cluster() {
    let count = |patient| (0..3_000).map(move |seed| clusters(seed, patient));
    assert_eq!(count(true).max(), Some(1), "two clusters, or none at all");
    assert_eq!(
        count(false).max(),
        Some(2),
        "this test sees no second cluster"
    );
}

#[test]
fn whoever_is_alone_waits_for_nobody() {
    let (identity, members) = Bootstrap::new(id(7), storage(17), [id(7)])
        .complete()
        .expect("nobody else to be heard");
    assert_eq!((identity.server, identity.storage), (id(7), storage(17)));
    assert!(members.is_voter(id(7)) && members.len() == 1);
    assert_eq!(three(1, 11).complete(), None);
}

#[test]
fn a_majority_of_blank_servers_founds_nothing() {
    let mut founding = three(1, 11);
    assert_eq!(founding.heard(&three(2, 12).hello()), Ok(None));
    assert_eq!(founding.missing(), [id(3)]);
    // The same one again is no third one.
    assert_eq!(founding.heard(&three(2, 12).hello()), Ok(None));
}

/// What the test above says, and the one of a wiped disk, is noticed if it is
/// not so.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_mistakes_in_founding_are_noticed() {
    use tenure_alpo::Bug;
    let mut hasty = three(1, 11).with_bug(Some(Bug::FoundByMajority));
    assert!(matches!(hasty.heard(&three(2, 12).hello()), Ok(Some(_))));
    let mut hasty = three(1, 11).with_bug(Some(Bug::FoundUnpromised));
    assert_eq!(hasty.heard(&three(2, 12).hello()), Ok(None));
    assert!(matches!(hasty.heard(&three(3, 13).hello()), Ok(Some(_))));
    let mut wiped = three(3, 99).with_bug(Some(Bug::WipedVotes));
    assert!(wiped.heard(&member(1, [11, 12, 13])).is_ok());
}

#[test]
fn a_founder_that_missed_the_founding_joins_it() {
    let mut founding = three(3, 13);
    let (identity, members) = founding
        .heard(&member(1, [11, 12, 13]))
        .expect("known by this storage")
        .expect("founded");
    let cluster = member(1, [11, 12, 13]).cluster;
    assert_eq!(Some(identity.cluster), cluster);
    assert_eq!(members.len(), 3);
}

#[test]
fn after_a_change_of_members_a_late_founder_waits_for_the_log() {
    let mut hello = member(1, [11, 12, 13]);
    hello.known.remove(&id(2));
    let (identity, members) = three(3, 13)
        .heard(&hello)
        .expect("known by this storage")
        .expect("its cluster is known");
    assert_eq!(Some(identity.cluster), hello.cluster);
    assert!(members.is_empty());
}

#[test]
fn a_wiped_disk_is_known_for_what_it_is() {
    // Server 3 comes back with a new data directory and the same flags.
    let mut wiped = three(3, 99);
    let refused = wiped
        .heard(&member(1, [11, 12, 13]))
        .expect_err("a stranger");
    let text = refused.to_string();
    assert!(matches!(refused, JoinError::Replaced { .. }), "{text}");
    assert!(text.contains("tenure member remove 3"), "{text}");
    assert!(text.contains(&storage(99).to_string()), "{text}");
    // A blank peer that it meets first does not make it any better.
    let mut wiped = three(3, 99);
    assert_eq!(wiped.heard(&three(2, 12).hello()), Ok(None));
    assert!(wiped.heard(&member(1, [11, 12, 13])).is_err());
}

#[test]
fn strangers_are_told_apart() {
    let mut founding = three(1, 11);
    let seven = Bootstrap::new(id(7), storage(17), [id(7)]).hello();
    assert_eq!(
        founding.heard(&seven),
        Err(JoinError::NotAPeer { server: id(7) })
    );
    assert_eq!(
        founding.heard(&three(1, 55).hello()),
        Err(JoinError::SameNumber { server: id(1) })
    );
    let mut outsider = Bootstrap::new(id(4), storage(14), (1..=4).map(id));
    assert!(matches!(
        outsider.heard(&member(1, [11, 12, 13])),
        Err(JoinError::NotAMember { .. })
    ));
}

#[test]
fn servers_that_were_told_of_different_peers_found_nothing() {
    // In a ring: each has heard all of its own, and they are blank.
    let ring = [(1, [1, 2]), (2, [2, 3]), (3, [3, 1])]
        .map(|(own, peers)| Bootstrap::new(id(own), storage(own.into()), peers.map(id)));
    for (at, mut founding) in ring.clone().into_iter().enumerate() {
        let refused = founding.heard(&ring[(at + 1) % 3].hello());
        let refused = refused.expect_err("other peers");
        assert!(matches!(refused, JoinError::OtherPeers { .. }), "{refused}");
        assert!(refused.to_string().contains("the same --peers"));
        assert_eq!(founding.complete(), None);
    }
    // One that comes back with other peers no longer counts as heard.
    let mut founding = three(1, 11);
    assert_eq!(founding.heard(&three(2, 12).hello()), Ok(None));
    let changed = Bootstrap::new(id(2), storage(12), [2, 3].map(id)).hello();
    assert!(founding.heard(&changed).is_err());
    assert_eq!(founding.missing(), [2, 3].map(id));
}

#[test]
fn whoever_names_this_very_storage_may_tell_its_cluster() {
    // Server 4 was told of server 1 alone, and is admitted by server 2.
    let mut newcomer = Bootstrap::new(id(4), storage(14), [1, 4].map(id));
    let mut hello = member(2, [11, 12, 13]);
    let stranger = JoinError::NotAPeer { server: id(2) };
    assert_eq!(newcomer.heard(&hello), Err(stranger));
    hello.known.insert(id(4), storage(14));
    let (identity, members) = newcomer
        .heard(&hello)
        .expect("known by this storage")
        .expect("its cluster is known");
    assert_eq!(Some(identity.cluster), hello.cluster);
    assert!(members.is_empty());
}

/// It waits for somebody to mend that, and meanwhile founds nothing with what
/// it has heard before.
#[test]
fn who_is_told_of_another_disk_under_its_number_founds_nothing() {
    let mut wiped = three(3, 99);
    assert_eq!(wiped.heard(&three(1, 11).hello()), Ok(None));
    assert!(wiped.heard(&member(1, [11, 12, 13])).is_err());
    assert_eq!(wiped.heard(&three(2, 12).hello()), Ok(None));
    assert_eq!(wiped.complete(), None);
    // Removed, and added with the disk that it has.
    let mut mended = member(1, [11, 12, 13]);
    mended.known.insert(id(3), storage(99));
    let (_, members) = wiped
        .heard(&mended)
        .expect("known by this storage")
        .expect("its cluster is known");
    assert!(members.is_empty());
}

/// No server can know whether its own members are out of date: every server of
/// the cluster is heard, and counted where something is counted.
#[test]
fn servers_meet_everybody_of_their_own_cluster() {
    let (ours, _) = three(3, 13)
        .heard(&member(1, [11, 12, 13]))
        .expect("a founder")
        .expect("founded");
    assert_eq!(ours.meets(&member(2, [11, 12, 13])), Ok(()));
    assert!(matches!(
        ours.meets(&member(2, [11, 92, 13])),
        Err(JoinError::OtherCluster { .. })
    ));
    // With another disk than the founders know.
    let mut replaced = member(2, [11, 12, 13]);
    replaced.storage = storage(92);
    assert_eq!(ours.meets(&replaced), Ok(()));
    // But not two under one number.
    let mut twin = member(3, [11, 12, 13]);
    twin.storage = storage(93);
    assert_eq!(
        ours.meets(&twin),
        Err(JoinError::SameNumber { server: id(3) })
    );
    // A blank one may be waiting to be admitted.
    let blank = Bootstrap::new(id(4), storage(14), [id(4)]).hello();
    assert_eq!(ours.meets(&blank), Ok(()));
}
