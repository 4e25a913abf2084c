//! How many reads may wait for a round of a majority.

use std::time::Duration;

use tenure_alpo::{Answer, ClientRequest, Config, Limits, Query, Refusal};
use tenure_core::ids::Key;

use super::servers::Servers;

#[test]
fn reads_wait_for_a_majority_up_to_a_bound_and_the_others_are_refused_at_once() {
    let config = Config {
        max_pending_reads: 3,
        // That of requests for a leader which is not ready is another.
        backlog_requests: 1,
        ..Config::default()
    };
    let mut servers = Servers::start(&[(); 3].map(|()| (config.clone(), Limits::default())));
    servers.elect(0);
    servers.cut_off(Some(0));
    servers.answers.clear();
    let key = Key::new("read").expect("a good key");
    for _ in 0..5 {
        servers.submit(0, ClientRequest::Read(Query::Register(key.clone())));
    }
    let busy = Answer::Refused(Refusal::Busy);
    assert_eq!(servers.answers, [busy.clone(), busy]);
    servers.answers.clear();
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    let read = |it: &Answer| matches!(it, Answer::Read(_));
    assert_eq!(servers.answers.len(), 3);
    assert!(servers.answers.iter().all(read), "{:?}", servers.answers);
}
