//! Changes of members that would leave nobody who can lead.
//!
//! The schedule is one of the simulator's (seed 6433): a founder is late, the
//! leader takes the only other voter out, and the founder that comes now knows
//! no members and cannot vote before it has that change, which nobody leads to
//! send. The server that stays waits for ever for its vote, and the one that
//! was taken out has the worse log.

use std::time::Duration;

use tenure_alpo::{Answer, Change, ClientRequest, Config, Limits, ServerId};

use super::servers::{Servers, storage, unheard};

fn remove(server: u64) -> ClientRequest {
    let server = ServerId::new(server).expect("a number");
    ClientRequest::Change(Change::Remove(server))
}

#[test]
fn nobody_is_taken_out_who_is_needed_while_another_is_silent() {
    let sort = (Config::default(), Limits::default());
    let mut servers = Servers::start(&[sort.clone(), sort.clone(), sort]);
    servers.elect(0);
    servers.pass(Duration::from_secs(1));
    let voters = |servers: &Servers| servers.nodes[0].members().voters().count();
    // Server 2 is silent: without server 3 there is no majority.
    servers.cut_off(Some(1));
    servers.pass(Duration::from_secs(2));
    servers.submit(0, remove(3));
    let refused = Answer::Refused(unheard(&[2]));
    assert_eq!(servers.answers.last(), Some(&refused));
    assert_eq!(voters(&servers), 3, "nothing was appended");
    // When it is back, either can go.
    servers.cut_off(None);
    servers.pass(Duration::from_secs(1));
    servers.submit(0, remove(3));
    servers.pass(Duration::from_secs(1));
    assert_eq!(voters(&servers), 2);
    assert!(servers.nodes[0].is_ready());
}

/// That it answers is not enough: whether it may vote, and with whom, it
/// learns from the log.
#[test]
fn nobody_is_taken_out_who_is_needed_while_another_lacks_the_last_change() {
    let sort = (Config::default(), Limits::default());
    let mut servers = Servers::start(&[sort.clone(), sort.clone(), sort]);
    servers.elect(0);
    servers.pass(Duration::from_secs(1));
    servers.starve(Some(2));
    let server = ServerId::new(4).expect("a number");
    let storage = storage(server);
    servers.submit(
        0,
        ClientRequest::Change(Change::AddLearner { server, storage }),
    );
    servers.pass(Duration::from_secs(2));
    let done = matches!(servers.answers.last(), Some(Answer::Done(_)));
    assert!(done, "{:?}", servers.answers);
    servers.submit(0, remove(2));
    let refused = Answer::Refused(unheard(&[3]));
    assert_eq!(servers.answers.last(), Some(&refused));
    // With the change on its disk it is one to count on.
    servers.starve(None);
    servers.pass(Duration::from_secs(1));
    servers.submit(0, remove(2));
    servers.pass(Duration::from_secs(1));
    let voters: Vec<_> = servers.nodes[0].members().voters().collect();
    assert_eq!(
        voters,
        [1, 3].map(|id| ServerId::new(id).expect("a number"))
    );
    assert!(servers.nodes[0].is_ready());
}

#[test]
fn the_one_that_is_silent_can_be_taken_out() {
    let sort = (Config::default(), Limits::default());
    let mut servers = Servers::start(&[sort.clone(), sort.clone(), sort]);
    servers.elect(0);
    servers.cut_off(Some(1));
    servers.pass(Duration::from_secs(2));
    servers.submit(0, remove(2));
    servers.pass(Duration::from_secs(1));
    assert_eq!(servers.nodes[0].members().voters().count(), 2);
    assert!(servers.nodes[0].is_ready());
}
