//! A member lacks what it has acknowledged to the leader of this term.

use std::time::Duration;

use tenure_alpo::{ClientRequest, Config, Event, Limits, OpenSession, StepDownReason};

use super::servers::Servers;

fn three() -> Servers {
    let sort = (Config::default(), Limits::default());
    Servers::start(&[sort.clone(), sort.clone(), sort])
}

fn write(servers: &mut Servers, entries: u64) {
    for _ in 0..entries {
        servers.submit(
            0,
            ClientRequest::Open(OpenSession::unowned(3_600_000_000_000)),
        );
    }
    servers.pass(Duration::from_secs(1));
}

fn found(servers: &Servers) -> Vec<Event> {
    let events = servers.events.iter();
    let found = events.filter(|(_, event)| matches!(event, Event::SetBack { .. }));
    found.map(|(_, event)| event.clone()).collect()
}

#[test]
fn a_leader_finds_it_and_counts_it_no_more() {
    let mut servers = three();
    servers.elect(0);
    write(&mut servers, 2);
    let copied = servers.disk(1);
    write(&mut servers, 3);
    let acknowledged = servers.nodes[1].log().last().id;
    servers.set_back(1, copied, Config::default());
    let left = servers.nodes[1].log().last().id;
    assert!(left < acknowledged);
    servers.pass(Duration::from_secs(2));
    assert_eq!(
        found(&servers),
        [Event::SetBack {
            server: servers.nodes[1].id(),
            acknowledged,
            found: left,
        }]
    );
    // It is given nothing, and the others go on.
    write(&mut servers, 1);
    assert_eq!(servers.nodes[1].log().last().id, left);
    assert_eq!(servers.nodes[2].log().last(), servers.nodes[0].log().last());
    // Without the third there is no majority in this term, though it answers.
    // (That it does not vote either is for who greets it.)
    servers.cut_off(Some(2));
    servers.pass(Duration::from_secs(3));
    let stepped_down = (
        servers.nodes[0].id(),
        Event::SteppedDown(StepDownReason::NoMajority),
    );
    assert!(servers.events.contains(&stepped_down));
}

#[test]
fn a_member_that_was_restarted_or_away_has_lost_nothing() {
    let mut servers = three();
    servers.elect(0);
    for _ in 0..3 {
        write(&mut servers, 2);
        servers.restart(1, Config::default());
        servers.cut_off(Some(1));
        write(&mut servers, 2);
        servers.cut_off(None);
        write(&mut servers, 2);
    }
    assert_eq!(found(&servers), []);
    assert_eq!(servers.nodes[1].log().last(), servers.nodes[0].log().last());
}
