//! Founding a cluster: who may vote at all.

use std::collections::BTreeSet;

use tenure_core::alpo::{
    Founding, Hello, Identity, Membership, ServerId, StorageId, Stranger, Table, digest,
};

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

#[test]
fn members_meet_members_of_their_own_cluster() {
    let (ours, members) = three(3, 13)
        .heard(&member(1, [11, 12, 13]))
        .expect("a founder")
        .expect("founded");
    assert_eq!(ours.meets(&member(2, [11, 12, 13]), &members), Ok(()));
    assert!(matches!(
        ours.meets(&member(2, [11, 92, 13]), &members),
        Err(Stranger::OtherCluster { .. })
    ));
    let mut replaced = member(2, [11, 12, 13]);
    replaced.storage = storage(92);
    assert!(matches!(
        ours.meets(&replaced, &members),
        Err(Stranger::Replaced { .. })
    ));
    // A blank one may be waiting to be admitted.
    let blank = Founding::new(id(4), storage(14), [id(4)]).hello();
    assert_eq!(ours.meets(&blank, &members), Ok(()));
}

/// Its log may begin before the others' disks were replaced, and if it did not
/// talk to them it could never read on.
#[test]
fn who_reads_of_a_time_before_it_was_admitted_refuses_nobody_that_was_replaced_since() {
    let now: Membership = Membership::founded([
        (id(1), storage(91)),
        (id(2), storage(92)),
        (id(3), storage(93)),
    ]);
    let third = Identity {
        cluster: member(1, [11, 12, 13]).cluster.expect("founded"),
        server: id(3),
        storage: storage(93),
    };
    let mut second = member(2, [11, 12, 13]);
    second.storage = storage(92);
    // Before it was admitted, its number was another's or nobody's.
    let with_old = [
        (id(1), storage(11)),
        (id(2), storage(12)),
        (id(3), storage(13)),
    ];
    let without = [(id(1), storage(11)), (id(2), storage(12))];
    for old in [&with_old[..], &without[..]] {
        let old = Membership::founded(old.iter().copied());
        assert_eq!(third.meets(&second, &old), Ok(()));
    }
    assert_eq!(third.meets(&second, &now), Ok(()));
    // Now it knows better than one whose old disk turns up again.
    second.storage = storage(12);
    assert!(matches!(
        third.meets(&second, &now),
        Err(Stranger::Replaced { .. })
    ));
}
