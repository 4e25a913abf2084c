//! Founding a cluster: who may vote at all.

use std::collections::BTreeSet;

use tenure_core::alpo::{Founding, Hello, ServerId, StorageId, Stranger, Table, digest};

fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn storage(number: u128) -> StorageId {
    StorageId::from_u128(number)
}

fn three(server: u64, disk: u128) -> Founding {
    Founding::new(id(server), storage(disk), (1..=3).map(id))
}

/// What a server of the cluster founded by these says of itself.
fn member(server: u64, disks: [u128; 3]) -> Hello {
    let known: Table = (1..=3).map(id).zip(disks.map(storage)).collect();
    Hello {
        server: id(server),
        storage: known[&id(server)],
        cluster: Some(digest(&known)),
        known,
        founders: BTreeSet::new(),
    }
}

#[test]
fn all_blank_servers_found_the_same_cluster_whatever_the_order() {
    let hellos = [1, 2, 3].map(|n| three(n, u128::from(n) + 10).hello());
    let mut clusters = Vec::new();
    for own in 1..=3 {
        for order in [[1, 2, 3], [3, 2, 1], [2, 1, 3]] {
            let mut founding = three(own, u128::from(own) + 10);
            let mut founded = None;
            for from in order.into_iter().filter(|from| *from != own) {
                assert!(founded.is_none(), "founded before everybody was heard");
                founded = founding.heard(&hellos[from as usize - 1]).expect("a peer");
            }
            let (identity, members) = founded.expect("everybody was heard");
            assert_eq!(identity.server, id(own));
            assert!((1..=3).all(|peer| members.is_voter(id(peer))));
            clusters.push(identity.cluster);
        }
    }
    assert!(clusters.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn whoever_is_alone_waits_for_nobody() {
    let (identity, members) = Founding::new(id(7), storage(17), [id(7)])
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
    use tenure_core::alpo::Bug;
    let mut hasty = three(1, 11).with_bug(Some(Bug::FoundByMajority));
    assert!(matches!(hasty.heard(&three(2, 12).hello()), Ok(Some(_))));
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
    assert!(matches!(refused, Stranger::Replaced { .. }), "{text}");
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
    let seven = Founding::new(id(7), storage(17), [id(7)]).hello();
    assert_eq!(
        founding.heard(&seven),
        Err(Stranger::NotAPeer { server: id(7) })
    );
    assert_eq!(
        founding.heard(&three(1, 55).hello()),
        Err(Stranger::SameNumber { server: id(1) })
    );
    let mut outsider = Founding::new(id(4), storage(14), (1..=4).map(id));
    assert!(matches!(
        outsider.heard(&member(1, [11, 12, 13])),
        Err(Stranger::NotAMember { .. })
    ));
}

#[test]
fn servers_that_were_told_of_different_peers_found_nothing() {
    // In a ring: each has heard all of its own, and they are blank.
    let ring = [(1, [1, 2]), (2, [2, 3]), (3, [3, 1])]
        .map(|(own, peers)| Founding::new(id(own), storage(own.into()), peers.map(id)));
    for (at, mut founding) in ring.clone().into_iter().enumerate() {
        let refused = founding.heard(&ring[(at + 1) % 3].hello());
        let refused = refused.expect_err("other peers");
        assert!(matches!(refused, Stranger::OtherPeers { .. }), "{refused}");
        assert!(refused.to_string().contains("the same --peers"));
        assert_eq!(founding.complete(), None);
    }
    // One that comes back with other peers no longer counts as heard.
    let mut founding = three(1, 11);
    assert_eq!(founding.heard(&three(2, 12).hello()), Ok(None));
    let changed = Founding::new(id(2), storage(12), [2, 3].map(id)).hello();
    assert!(founding.heard(&changed).is_err());
    assert_eq!(founding.missing(), [2, 3].map(id));
}

#[test]
fn whoever_names_this_very_storage_may_tell_its_cluster() {
    // Server 4 was told of server 1 alone, and is admitted by server 2.
    let mut newcomer = Founding::new(id(4), storage(14), [1, 4].map(id));
    let mut hello = member(2, [11, 12, 13]);
    let stranger = Stranger::NotAPeer { server: id(2) };
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

/// Whether its own members are out of date nobody can know of itself: whoever
/// is of the cluster is heard, and counted where something is counted.
#[test]
fn servers_meet_everybody_of_their_own_cluster() {
    let (ours, _) = three(3, 13)
        .heard(&member(1, [11, 12, 13]))
        .expect("a founder")
        .expect("founded");
    assert_eq!(ours.meets(&member(2, [11, 12, 13])), Ok(()));
    assert!(matches!(
        ours.meets(&member(2, [11, 92, 13])),
        Err(Stranger::OtherCluster { .. })
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
        Err(Stranger::SameNumber { server: id(3) })
    );
    // A blank one may be waiting to be admitted.
    let blank = Founding::new(id(4), storage(14), [id(4)]).hello();
    assert_eq!(ours.meets(&blank), Ok(()));
}
