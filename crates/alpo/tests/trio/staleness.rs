//! What a server knows of how far it is behind, and since when it is.

use std::time::Duration;

use tenure_alpo::{ClientRequest, Config, Limits, OpenSession, Status};

use super::servers::Servers;

fn trio() -> Servers {
    Servers::start(&[(); 3].map(|()| (Config::default(), Limits::default())))
}

fn open(servers: &mut Servers) {
    servers.submit(0, ClientRequest::Open(OpenSession::unowned(u64::MAX)));
}

/// A beat, so that everybody has heard of what is committed.
const BEAT: Duration = Duration::from_millis(100);

#[test]
fn a_server_knows_its_rank_and_how_far_it_is_behind() {
    let mut servers = trio();
    assert_eq!(servers.nodes[1].lag(), None, "nobody leads");
    servers.elect(0);
    servers.pass(BEAT);
    let lags = |servers: &Servers| [0, 1, 2].map(|index| servers.nodes[index].lag());
    assert_eq!(lags(&servers), [Some(0); 3]);

    // It hears how far the others are, and gets nothing of it.
    servers.starve(Some(2));
    (0..5).for_each(|_| open(&mut servers));
    servers.pass(BEAT);
    assert_eq!(lags(&servers), [Some(0), Some(0), Some(5)]);
    let ranks = [0, 1, 2].map(|index| servers.nodes[index].rank());
    assert!(ranks[2] < ranks[0] && ranks[0] < ranks[1], "{ranks:?}");
    for (node, rank) in servers.nodes.iter().zip(ranks) {
        assert_eq!((rank.last, rank.server), (node.log().last(), node.id()));
    }

    // Who has given up its leader cannot know.
    servers.cut_off(Some(2));
    servers.pass(Duration::from_secs(3));
    assert_eq!(servers.nodes[2].lag(), None);
}

#[test]
fn who_lacks_what_its_leader_tells_of_does_not_grow_younger() {
    let mut servers = trio();
    let fresh = |servers: &Servers, index: usize| servers.nodes[index].fresh_at();
    assert_eq!(fresh(&servers, 2), None, "it has known nothing yet");
    servers.elect(0);
    servers.pass(BEAT);
    let before = fresh(&servers, 2);
    assert!(before.is_some());
    servers.starve(Some(2));
    open(&mut servers);
    servers.pass(5 * BEAT);
    let [led, follows] = [0, 1].map(|index| fresh(&servers, index));
    assert!(led > before && follows > before, "{led:?}, {follows:?}");
    assert_eq!(fresh(&servers, 2), before);
    servers.starve(None);
    servers.pass(5 * BEAT);
    assert!(fresh(&servers, 2) > follows);

    // A leader that nobody answers any more is as old as the last round that
    // was answered, while it leads and afterwards.
    let last = fresh(&servers, 0);
    servers.cut_off(Some(0));
    servers.pass(BEAT);
    assert!(servers.nodes[0].is_ready());
    assert_eq!(fresh(&servers, 0), last);
    servers.pass(Duration::from_secs(3));
    assert!(!servers.nodes[0].is_ready());
    assert_eq!(fresh(&servers, 0), last);
}

#[test]
fn a_new_leader_does_not_speak_for_what_was_committed_before_it() {
    let mut servers = trio();
    let fresh = |servers: &Servers, index: usize| servers.nodes[index].fresh_at();
    servers.elect(0);
    servers.pass(BEAT);
    // The first two have it, and only the first knows that it is committed.
    servers.starve(Some(2));
    open(&mut servers);
    let [committed, known] = [0, 1].map(|index| servers.nodes[index].commit());
    assert_eq!((committed, known), (2, 1));

    // The second leads, and cannot find out: the third gets no entries. Both
    // have applied all that the second says to be committed, and lack what
    // was acknowledged.
    let before = fresh(&servers, 2);
    servers.cut_off(Some(0));
    servers.pass(Duration::from_secs(5));
    assert_eq!(servers.nodes[1].status(), Status::Leader);
    assert_eq!(
        (servers.nodes[1].commit(), servers.nodes[2].commit()),
        (1, 1)
    );
    assert_eq!(fresh(&servers, 2), before);
    servers.starve(None);
    servers.pass(5 * BEAT);
    assert!(servers.nodes[1].is_ready() && fresh(&servers, 2) > before);
}
