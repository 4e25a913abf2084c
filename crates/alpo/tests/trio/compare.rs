//! Servers that come to another state than the majority stop.
//!
//! What makes them is a server with other limits than the rest: it refuses
//! the second session, so that its state is another from there on.

use std::time::Duration;

use tenure_alpo::{ClientRequest, Config, Event, Fault, Limits, OpenSession};

use super::servers::Servers;

const MARK_EVERY: u64 = 8;

fn start(sessions: &[u64]) -> Servers {
    let each = |sessions: &u64| {
        let limits = Limits {
            sessions: *sessions,
            checksum_every: MARK_EVERY,
            ..Limits::default()
        };
        (Config::default(), limits)
    };
    Servers::start(&sessions.iter().map(each).collect::<Vec<_>>())
}

fn open(servers: &mut Servers, leader: usize, count: u64) {
    for _ in 0..count {
        servers.submit(leader, ClientRequest::Open(OpenSession::unowned(u64::MAX)));
    }
    servers.pass(Duration::from_millis(300));
}

#[test]
fn equal_states_are_compared_and_nobody_stops() {
    let mut servers = start(&[9, 9, 9]);
    servers.elect(0);
    open(&mut servers, 0, 40);
    assert!((0..3).all(|index| servers.fault(index).is_none()));
    let state_checksums: Vec<_> = (0..3)
        .map(|index| servers.nodes[index].state().newest_state_checksum())
        .collect();
    assert_eq!(
        state_checksums[0].map(|state_checksum| state_checksum.id),
        Some(40)
    );
    assert!(
        state_checksums
            .iter()
            .all(|state_checksum| *state_checksum == state_checksums[0]),
        "{state_checksums:?}"
    );
}

#[test]
fn the_odd_one_stops_and_the_others_go_on() {
    let mut servers = start(&[9, 9, 1]);
    servers.elect(0);
    open(&mut servers, 0, 1);
    assert_eq!(servers.fault(2), None, "no difference yet");
    open(&mut servers, 0, MARK_EVERY);
    assert_eq!(servers.fault(2), Some(&Fault::Diverged { id: MARK_EVERY }));
    open(&mut servers, 0, 3);
    servers.pass(Duration::from_secs(3));
    assert_eq!(servers.leader(), Some(0));

    // Started again, it comes to the same state from the same log.
    servers.restart(2, Config::default());
    servers.pass(Duration::from_secs(1));
    let diverged = servers.fault(2);
    assert!(
        matches!(diverged, Some(Fault::Diverged { .. })),
        "{diverged:?}"
    );
    assert_eq!(servers.leader(), Some(0));
}

#[test]
fn a_leader_that_is_the_odd_one_stops_too() {
    let mut servers = start(&[1, 9, 9]);
    servers.elect(0);
    open(&mut servers, 0, MARK_EVERY);
    assert_eq!(servers.fault(0), Some(&Fault::Diverged { id: MARK_EVERY }));
    servers.pass(Duration::from_secs(5));
    assert!(matches!(servers.leader(), Some(1 | 2)));
}

#[test]
fn one_that_is_behind_is_compared_when_it_has_caught_up() {
    let mut servers = start(&[9, 9, 1]);
    servers.elect(0);
    servers.cut_off(Some(2));
    open(&mut servers, 0, 4 * MARK_EVERY);
    servers.cut_off(None);
    servers.pass(Duration::from_secs(1));
    let diverged = servers.fault(2);
    assert!(
        matches!(diverged, Some(Fault::Diverged { .. })),
        "{diverged:?}"
    );
}

#[test]
fn where_no_majority_agrees_nobody_stops_and_people_are_told() {
    let mut servers = start(&[1, 9]);
    servers.elect(0);
    open(&mut servers, 0, 3 * MARK_EVERY);
    assert!((0..2).all(|index| servers.fault(index).is_none()));
    let told = servers
        .events
        .iter()
        .filter(|(_, event)| matches!(event, Event::StatesDisagree { .. }))
        .count();
    assert!(told >= 1);
}
