//! Kinds of entries that come with the next release: nobody writes them
//! before all understand them, and nobody goes back.

use std::time::Duration;

use tenure_alpo::{ClusterVersion, Config, Entry, Fault, Limits, Payload};

use super::servers::Servers;

fn of(version: ClusterVersion) -> Config {
    Config {
        version,
        ..Config::default()
    }
}

fn notes(servers: &Servers, index: usize) -> usize {
    let is_note = |entry: &&Entry| matches!(entry.payload, Payload::Note(_));
    servers.nodes[index].log().iter().filter(is_note).count()
}

#[test]
fn the_version_rises_with_the_last_server_and_never_falls() {
    let (old, new) = (ClusterVersion::FIRST, ClusterVersion::NEWEST);
    assert!(new > old);
    let mut servers = Servers::start(&vec![(of(old), Limits::default()); 3]);
    servers.elect(0);
    let version = |servers: &Servers, index: usize| servers.nodes[index].state().version();

    // A rolling upgrade, the leader last.
    for index in [1, 2] {
        servers.restart(index, of(new));
        servers.pass(Duration::from_secs(3));
        assert_eq!(servers.leader(), Some(0));
        assert_eq!((version(&servers, 0), notes(&servers, 0)), (old, 0));
    }
    servers.restart(0, of(new));
    servers.pass(Duration::from_secs(6));
    let leader = servers.leader().expect("somebody leads");
    for index in 0..3 {
        assert_eq!(version(&servers, index), new, "of {index}");
        assert_eq!(notes(&servers, index), 1, "of {index}");
        assert_eq!(servers.fault(index), None);
    }

    // One goes back: it stops, and the others go on.
    let back = (leader + 1) % 3;
    servers.restart(back, of(old));
    let too_old = Fault::Version {
        cluster: new,
        mine: old,
    };
    assert_eq!(servers.fault(back), Some(&too_old));
    servers.pass(Duration::from_secs(3));
    assert_eq!(servers.leader(), Some(leader));
}

#[test]
fn one_that_is_down_holds_the_version_back() {
    let (old, new) = (ClusterVersion::FIRST, ClusterVersion::NEWEST);
    let limits = Limits::default();
    let mut servers = Servers::start(&[(of(new), limits), (of(new), limits), (of(old), limits)]);
    servers.cut_off(Some(2));
    servers.elect(0);
    servers.pass(Duration::from_secs(3));
    assert_eq!(servers.nodes[0].state().version(), old);
    // It comes back as what it was, and later as the new release.
    servers.cut_off(None);
    servers.pass(Duration::from_secs(3));
    assert_eq!(servers.nodes[0].state().version(), old);
    servers.restart(2, of(new));
    servers.pass(Duration::from_secs(3));
    assert_eq!(servers.nodes[2].state().version(), new);
}
