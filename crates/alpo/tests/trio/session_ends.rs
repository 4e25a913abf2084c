//! Many sessions that hold many registers end together: how much of that is
//! under way at once, who waits, and that nobody waits for ever.

use std::time::Duration;

use tenure_alpo::{
    Answer, ClientRequest, Command, Config, Limits, MAX_SESSION_ENDS, OpenSession, Operation,
    Outcome, OwnershipProof, Payload, Refusal,
};
use tenure_core::cas::{Bytes, Expect, Stamp, Write};
use tenure_core::ids::Key;

use super::servers::Servers;

/// Registers that a session holds here.
const HELD: u64 = 1_000;
/// So many ends of such sessions may be under way.
const FIT: usize = 4;
const BUSY: Answer = Answer::Refused(Refusal::Busy);
const CLOSED: Answer = Answer::Done(Outcome::Closed);
const TTL: Duration = Duration::from_secs(10);
const LONG: Duration = Duration::from_secs(3_600);

/// Three servers whose links take all that these tests append from the first moment.
/// Proposals that wait for their turn are tested elsewhere.
fn trio() -> Servers {
    let config = Config {
        append_bytes: 4 * 1024 * 1024,
        snapshot_threshold_bytes: 1024 * 1024 * 1024,
        ..Config::default()
    };
    let sort = (config, Limits::default());
    let mut servers = Servers::start(&[sort.clone(), sort.clone(), sort]);
    servers.elect(0);
    servers
}

/// Asks the leader, and gives the answers that came at once.
fn submit(servers: &mut Servers, request: ClientRequest) -> Vec<Answer> {
    let leader = servers.leader().expect("a leader");
    servers.answers.clear();
    servers.submit(leader, request);
    std::mem::take(&mut servers.answers)
}

fn open(servers: &mut Servers, ttl: Duration) -> u64 {
    let ttl = u64::try_from(ttl.as_nanos()).expect("a short time");
    match submit(servers, ClientRequest::Open(OpenSession::unowned(ttl)))[..] {
        [Answer::Done(Outcome::Opened(session))] => session,
        ref other => panic!("expected a session, found {other:?}"),
    }
}

fn command(session: u64, serial: u64, operation: Operation) -> ClientRequest {
    let command = Command {
        session,
        serial,
        outstanding: serial,
        operation,
    };
    ClientRequest::Command(command, OwnershipProof::NONE)
}

fn bind(session: u64, serial: u64) -> ClientRequest {
    bind_to(session, serial, b"free".as_slice().into())
}

/// The same with this value for the session's end.
fn bind_to(session: u64, serial: u64, last: Bytes) -> ClientRequest {
    let write = Write {
        key: Key::new(&format!("of {session}/{serial}")).expect("a good key"),
        expect: Expect::Absent,
        value: b"held".as_slice().into(),
        stamp: Stamp::Now,
    };
    command(session, serial, Operation::bind(write, last))
}

/// The end of a session that has bound `HELD` registers.
fn close(session: u64) -> ClientRequest {
    command(session, HELD + 1, Operation::Close)
}

/// Sessions that hold `HELD` registers each.
fn holders(servers: &mut Servers, count: usize, ttl: Duration) -> Vec<u64> {
    let sessions: Vec<_> = (0..count).map(|_| open(servers, ttl)).collect();
    for session in &sessions {
        for serial in 1..=HELD {
            let answers = submit(servers, bind(*session, serial));
            assert!(
                matches!(answers[..], [Answer::Done(Outcome::Swapped(_))]),
                "{answers:?}"
            );
        }
    }
    sessions
}

fn held(servers: &Servers, index: usize) -> usize {
    servers.nodes[index].state().bound_len()
}

/// How often registers were written by what this server applied at once,
/// where that was at all.
fn rounds(servers: &Servers, index: usize) -> Vec<u64> {
    let of_it = servers.writes.iter().filter(|(from, _)| *from == index);
    of_it
        .map(|(_, writes)| *writes)
        .filter(|it| *it > 0)
        .collect()
}

/// The sessions that the log ends since they have expired, in that order.
fn expired(servers: &Servers, index: usize) -> Vec<u64> {
    let entries = servers.nodes[index].log().iter();
    let ended = entries.filter_map(|entry| match entry.payload {
        Payload::Expire { session } => Some(session),
        _ => None,
    });
    ended.collect()
}

#[test]
fn closings_beyond_the_bound_are_refused_and_go_through_later() {
    let mut servers = trio();
    let sessions = holders(&mut servers, 2 * FIT, LONG);
    let small = open(&mut servers, LONG);
    servers.writes.clear();
    // Nothing commits as long as nobody hears the leader.
    servers.cut_off(Some(0));
    for session in &sessions[..FIT] {
        assert_eq!(submit(&mut servers, close(*session)), []);
    }
    for session in &sessions[FIT..] {
        assert_eq!(submit(&mut servers, close(*session)), [BUSY]);
        // Nor may an operator.
        let end = ClientRequest::End {
            session: *session,
            holder_is_gone: true,
        };
        assert_eq!(submit(&mut servers, end), [BUSY]);
    }
    // One that comes again waits for the entry that there is, and one that
    // holds nothing has room.
    assert_eq!(submit(&mut servers, close(sessions[0])), []);
    assert_eq!(
        submit(&mut servers, command(small, 1, Operation::Close)),
        []
    );
    servers.cut_off(None);
    servers.answers.clear();
    servers.pass(Duration::from_millis(200));
    assert_eq!(servers.answers, vec![CLOSED; FIT + 2]);
    assert_eq!(held(&servers, 0), FIT * HELD as usize);
    for session in &sessions[FIT..] {
        assert_eq!(submit(&mut servers, close(*session)), [CLOSED]);
    }
    servers.pass(Duration::from_millis(200));
    for index in 0..3 {
        assert_eq!(held(&servers, index), 0);
    }
    let rounds = rounds(&servers, 0);
    assert_eq!(rounds[0], FIT as u64 * HELD);
    assert!(rounds.iter().all(|writes| *writes <= MAX_SESSION_ENDS));
}

#[test]
fn what_is_bound_and_not_applied_yet_counts_as_well() {
    let mut servers = trio();
    let sessions: Vec<_> = (0..=FIT).map(|_| open(&mut servers, LONG)).collect();
    servers.cut_off(Some(0));
    for session in &sessions {
        for serial in 1..=HELD {
            assert_eq!(submit(&mut servers, bind(*session, serial)), []);
        }
    }
    for session in &sessions[..FIT] {
        assert_eq!(submit(&mut servers, close(*session)), []);
    }
    assert_eq!(submit(&mut servers, close(sessions[FIT])), [BUSY]);
    // What comes behind a session's end finds nothing to write.
    let again = command(sessions[0], HELD + 2, Operation::Close);
    assert_eq!(submit(&mut servers, again), []);
}

/// Values are looked at when a session ends, so they count as well: two ends of 60 MiB
/// are not under way at once, and one alone may be of any size.
#[test]
fn ends_with_large_values_go_one_after_the_other() {
    const LARGE: u64 = 300;
    let mut servers = trio();
    let sessions = [(); 2].map(|()| open(&mut servers, LONG));
    let last = Bytes::from(vec![7; 240 * 1024]);
    for session in sessions {
        for serial in 1..=LARGE {
            submit(&mut servers, bind_to(session, serial, last.clone()));
        }
    }
    let end = |session| command(session, LARGE + 1, Operation::Close);
    servers.cut_off(Some(0));
    assert_eq!(submit(&mut servers, end(sessions[0])), []);
    assert_eq!(submit(&mut servers, end(sessions[1])), [BUSY]);
    servers.cut_off(None);
    servers.pass(Duration::from_secs(1));
    assert_eq!(submit(&mut servers, end(sessions[1])), [CLOSED]);
}

#[test]
fn sessions_that_expire_together_end_in_rounds() {
    let mut servers = trio();
    let sessions = holders(&mut servers, 10, TTL);
    servers.pass(Duration::from_secs(5));
    // The first one is heard of once more, and so is over last.
    let alive = command(sessions[0], HELD + 1, Operation::KeepAlive);
    assert_eq!(submit(&mut servers, alive), [Answer::Done(Outcome::Alive)]);
    servers.writes.clear();
    servers.pass(Duration::from_millis(4_900));
    assert_eq!(held(&servers, 0), 10 * HELD as usize);
    // The rest do not wait for the heartbeats after this one.
    servers.pass(Duration::from_millis(100));
    assert_eq!(expired(&servers, 0), sessions[1..]);
    assert_eq!(held(&servers, 0), HELD as usize);
    assert_eq!(rounds(&servers, 0), [4 * HELD, 4 * HELD, HELD]);
    servers.pass(Duration::from_secs(6));
    for index in 0..3 {
        assert_eq!(held(&servers, index), 0);
        assert!(servers.nodes[index].state().sessions().is_empty());
    }
}

#[test]
fn a_session_that_has_expired_ends_before_one_that_is_closed() {
    let mut servers = trio();
    let small = open(&mut servers, LONG);
    let sessions = holders(&mut servers, FIT + 1, TTL);
    servers.pass(Duration::from_millis(9_900));
    servers.cut_off(Some(0));
    servers.pass(Duration::from_millis(100));
    assert_eq!(expired(&servers, 0), sessions[..FIT]);
    // There would be room for this one.
    let close = command(small, 1, Operation::Close);
    assert_eq!(submit(&mut servers, close.clone()), [BUSY]);
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    assert_eq!(expired(&servers, 0), sessions);
    assert_eq!(submit(&mut servers, close), [CLOSED]);
}

#[test]
fn a_new_leader_goes_on_with_them() {
    let mut servers = trio();
    let sessions = holders(&mut servers, 10, TTL);
    servers.pass(Duration::from_millis(9_900));
    // What the leader proposes now is lost.
    servers.cut_off(Some(0));
    servers.pass(Duration::from_millis(100));
    assert_eq!(expired(&servers, 0), sessions[..FIT]);
    servers.pass(Duration::from_secs(8));
    assert!(!servers.nodes[0].is_ready());
    let leader = servers.leader().expect("another leads");
    assert_eq!(held(&servers, leader), 10 * HELD as usize);
    servers.cut_off(None);
    servers.writes.clear();
    servers.pass(TTL);
    for index in 0..3 {
        assert_eq!(held(&servers, index), 0);
        assert_eq!(expired(&servers, index), sessions);
    }
    let leader = servers.leader().expect("a leader");
    assert_eq!(rounds(&servers, leader), [4 * HELD, 4 * HELD, 2 * HELD]);
}
