//! Whose a session is, and what a serial stands for, where it is hardest to
//! tell: in what is not committed yet, and while members speak version 1.

use std::time::Duration;

use tenure_alpo::{
    Answer, ClientRequest, ClusterVersion, Command, Config, Limits, OpenSession, Operation,
    Outcome, OwnershipProof, QuotaExceeded, Refusal, SessionOpener, SessionOwner, State,
};
use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::Key;

use super::servers::Servers;

const MINE: OwnershipProof = OwnershipProof::of_secret([1; 16]);
const OTHERS: OwnershipProof = OwnershipProof::of_secret([2; 16]);

fn trio(version: ClusterVersion) -> Servers {
    let config = Config {
        version,
        ..Config::default()
    };
    let newer = (Config::default(), Limits::default());
    let mut servers = Servers::start(&[newer.clone(), newer, (config, Limits::default())]);
    servers.elect(0);
    servers.pass(Duration::from_secs(1));
    assert_eq!(servers.nodes[0].state().version(), version);
    servers
}

fn opening(most: u64) -> ClientRequest {
    ClientRequest::Open(OpenSession {
        ttl: u64::MAX / 2,
        owner: SessionOwner {
            secret: MINE.secret,
            opener: SessionOpener::Token([9; 16]),
        },
        most,
    })
}

fn append(session: u64, serial: u64, text: &str, claim: OwnershipProof) -> ClientRequest {
    let command = Command {
        session,
        serial,
        outstanding: 1,
        operation: Operation::Append(text.as_bytes().into()),
    };
    ClientRequest::Command(command, claim)
}

const fn end(session: u64) -> ClientRequest {
    ClientRequest::End {
        session,
        holder_is_gone: false,
    }
}

/// Asks, and gives the answers that came at once.
fn submit(servers: &mut Servers, request: ClientRequest) -> Vec<Answer> {
    servers.answers.clear();
    servers.submit(0, request);
    std::mem::take(&mut servers.answers)
}

fn open(servers: &mut Servers) -> u64 {
    match submit(servers, opening(u64::MAX))[..] {
        [Answer::Done(Outcome::Opened(session))] => session,
        ref other => panic!("expected a session, found {other:?}"),
    }
}

const fn refused(refusal: Refusal) -> Answer {
    Answer::Refused(refusal)
}

#[test]
fn an_opening_that_is_not_committed_yet_names_its_owner_already() {
    let mut servers = trio(ClusterVersion::SECOND);
    servers.cut_off(Some(0));
    assert_eq!(submit(&mut servers, opening(u64::MAX)), []);
    let session = servers.nodes[0].log().last().id;
    // Not that it is another's: this leader may have been deposed, and the
    // session be the one of the client that asks.
    let elsewhere = || [refused(Refusal::NotLeader { leader: None })];
    let stranger = append(session, 1, "stranger", OwnershipProof::NONE);
    assert_eq!(submit(&mut servers, stranger), elsewhere());
    let other = append(session, 1, "other", OTHERS);
    assert_eq!(submit(&mut servers, other), elsewhere());
    assert_eq!(submit(&mut servers, append(session, 1, "mine", MINE)), []);
    servers.answers.clear();
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    let done = [Outcome::Opened(session), Outcome::Appended(1)].map(Answer::Done);
    assert_eq!(servers.answers, done);
    // And so it is when it is applied.
    let stranger = append(session, 2, "stranger", OwnershipProof::NONE);
    assert_eq!(submit(&mut servers, stranger), [refused(Refusal::NotOwner)]);
    // Not even what was answered before is told.
    let stranger = append(session, 1, "mine", OwnershipProof::NONE);
    assert_eq!(submit(&mut servers, stranger), [refused(Refusal::NotOwner)]);
}

/// A leader that was deposed and does not know it has given the number of a
/// session, uncommitted, to somebody else than the leader after it.
#[test]
fn the_owner_of_a_session_is_not_refused_it_by_a_leader_of_before() {
    let mut servers = trio(ClusterVersion::SECOND);
    servers.cut_off(Some(0));
    // The leader after it begins with an entry of its own.
    for _ in 0..2 {
        assert_eq!(submit(&mut servers, opening(u64::MAX)), []);
    }
    let session = servers.nodes[0].log().last().id;
    servers.elect(1);
    let mut theirs = opening(u64::MAX);
    if let ClientRequest::Open(opening) = &mut theirs {
        opening.owner.secret = OTHERS.secret;
    }
    servers.answers.clear();
    servers.submit(1, theirs);
    let opened = [Answer::Done(Outcome::Opened(session))];
    assert_eq!(std::mem::take(&mut servers.answers), opened);
    let rightful = append(session, 1, "rightful", OTHERS);
    let elsewhere = [refused(Refusal::NotLeader { leader: None })];
    assert_eq!(submit(&mut servers, rightful.clone()), elsewhere);
    servers.submit(1, rightful);
    let done = [Answer::Done(Outcome::Appended(1))];
    assert_eq!(std::mem::take(&mut servers.answers), done);
}

#[test]
fn a_serial_stands_for_one_command_before_and_after_its_commit() {
    let mut servers = trio(ClusterVersion::SECOND);
    let session = open(&mut servers);
    servers.cut_off(Some(0));
    assert_eq!(submit(&mut servers, append(session, 1, "a", MINE)), []);
    let other = append(session, 1, "b", MINE);
    assert_eq!(
        submit(&mut servers, other.clone()),
        [refused(Refusal::OtherContent)]
    );
    // The rightful one, again: it waits for the same entry.
    assert_eq!(submit(&mut servers, append(session, 1, "a", MINE)), []);
    servers.answers.clear();
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    let done = || Answer::Done(Outcome::Appended(1));
    assert_eq!(servers.answers, [done(), done()]);
    assert_eq!(
        submit(&mut servers, other),
        [refused(Refusal::OtherContent)]
    );
    assert_eq!(
        submit(&mut servers, append(session, 1, "a", MINE)),
        [done()]
    );
}

#[test]
fn what_comes_behind_an_operators_end_finds_no_session() {
    let mut servers = trio(ClusterVersion::SECOND);
    let session = open(&mut servers);
    servers.cut_off(Some(0));
    assert_eq!(submit(&mut servers, append(session, 1, "a", MINE)), []);
    assert_eq!(submit(&mut servers, end(session)), []);
    // Its client does not know: the serial of the end, the next, an old one.
    for (serial, text) in [(2, "b"), (3, "c"), (1, "a")] {
        assert_eq!(
            submit(&mut servers, append(session, serial, text, MINE)),
            []
        );
    }
    servers.answers.clear();
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    let done = [
        Outcome::Appended(1),
        Outcome::Appended(1),
        Outcome::Closed,
        Outcome::SessionExpired,
        Outcome::SessionExpired,
    ];
    assert_eq!(servers.answers, done.map(Answer::Done));
    let gone = [Answer::Done(Outcome::SessionExpired)];
    assert_eq!(submit(&mut servers, end(session)), gone);
}

#[test]
fn a_session_that_is_about_to_hold_a_register_is_not_ended() {
    let mut servers = trio(ClusterVersion::SECOND);
    let session = open(&mut servers);
    servers.cut_off(Some(0));
    let command = Command {
        session,
        serial: 1,
        outstanding: 1,
        operation: Operation::bind(
            Write {
                key: Key::new("elections/a").expect("a key"),
                value: b"held"[..].into(),
                expect: Expect::Absent,
                stamp: Stamp::Now,
            },
            b"over"[..].into(),
        ),
    };
    assert_eq!(
        submit(&mut servers, ClientRequest::Command(command, MINE)),
        []
    );
    let held = [refused(Refusal::Held {
        session,
        bound: 1,
        ttl: u64::MAX / 2,
    })];
    assert_eq!(submit(&mut servers, end(session)), held);
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    assert_eq!(submit(&mut servers, end(session)), held);
    let gone = ClientRequest::End {
        session,
        holder_is_gone: true,
    };
    let ended = [Answer::Done(Outcome::Closed)];
    assert_eq!(submit(&mut servers, gone), ended);
}

#[test]
fn a_quota_counts_what_is_not_committed_yet() {
    let mut servers = trio(ClusterVersion::SECOND);
    let first = open(&mut servers);
    servers.cut_off(Some(0));
    assert_eq!(submit(&mut servers, opening(2)), []);
    let full = Refusal::Quota {
        opener: SessionOpener::Token([9; 16]),
        held: 2,
        most: 2,
    };
    assert_eq!(submit(&mut servers, opening(2)), [refused(full)]);
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    assert_eq!(submit(&mut servers, opening(2)), [refused(full)]);
    let ended = [Answer::Done(Outcome::Closed)];
    assert_eq!(submit(&mut servers, end(first)), ended);
    let opened = submit(&mut servers, opening(2));
    assert!(matches!(opened[..], [Answer::Done(Outcome::Opened(_))]));
}

/// Asks for sessions of this opener until one is refused: how many it got.
fn fill(servers: &mut Servers, opener: u8) -> (u64, Refusal) {
    for opened in 0.. {
        let opening = OpenSession {
            ttl: u64::MAX / 2,
            owner: SessionOwner {
                secret: None,
                opener: SessionOpener::Token([opener; 16]),
            },
            most: 4_000,
        };
        match submit(servers, ClientRequest::Open(opening))[..] {
            [Answer::Done(Outcome::Opened(_))] => {}
            [Answer::Refused(refusal)] => return (opened, refusal),
            ref other => panic!("expected a session or a refusal, found {other:?}"),
        }
    }
    unreachable!("there is a bound")
}

#[test]
fn whoever_has_fewer_sessions_than_are_left_gets_one_and_operators_have_places_kept() {
    let limits = Limits {
        sessions: 4_096,
        ..Limits::default()
    };
    let server = (Config::default(), limits);
    let mut servers = Servers::start(&[server.clone(), server.clone(), server]);
    servers.elect(0);
    servers.pass(Duration::from_secs(1));
    // Half of them, and then half of what is left, without four.
    let mut left = 4_092;
    for opener in 1..=11 {
        let (opened, refusal) = fill(&mut servers, opener);
        assert_eq!(opened, left / 2 + left % 2);
        left -= opened;
        let (opener, held) = (SessionOpener::Token([opener; 16]), opened);
        assert_eq!(refusal, Refusal::FewSessionsLeft { opener, held, left });
    }
    // One place, for somebody who has none; the first get none of those that
    // others leave.
    assert_eq!(left, 1);
    assert_eq!(fill(&mut servers, 1).0, 0);
    assert_eq!(fill(&mut servers, 12).0, 1);
    assert_eq!(fill(&mut servers, 13).0, 0);
    for _ in 0..4 {
        open(&mut servers);
    }
    let full = [Answer::Done(Outcome::TooManySessions)];
    assert_eq!(submit(&mut servers, opening(u64::MAX)), full);
}

/// A command that there is no room for is refused if it is new, and told what
/// became of it if it is not.
#[test]
fn what_is_in_the_log_already_is_not_refused_for_want_of_room() {
    let mut servers = trio(ClusterVersion::SECOND);
    let session = open(&mut servers);
    let no_room = Refusal::QuotaExceeded(QuotaExceeded {
        token: None,
        shared: false,
        number: false,
        held: 10,
        asked: 1,
        most: 10,
    });
    let repeat = |serial, text| match append(session, serial, text, MINE) {
        ClientRequest::Command(command, claim) => {
            ClientRequest::RefuseIfNew(Box::new((command, claim, no_room)))
        }
        other => other,
    };
    assert_eq!(submit(&mut servers, repeat(1, "a")), [refused(no_room)]);
    // It was not done, and its serial is not used.
    let done = |number| [Answer::Done(Outcome::Appended(number))];
    assert_eq!(submit(&mut servers, append(session, 1, "b", MINE)), done(1));
    assert_eq!(submit(&mut servers, repeat(1, "b")), done(1));
    let other = [refused(Refusal::OtherContent)];
    assert_eq!(submit(&mut servers, repeat(1, "c")), other);
    // What is under way is waited for.
    servers.cut_off(Some(0));
    assert_eq!(submit(&mut servers, append(session, 2, "d", MINE)), []);
    assert_eq!(submit(&mut servers, repeat(2, "d")), []);
    servers.answers.clear();
    servers.cut_off(None);
    servers.pass(Duration::from_millis(200));
    assert_eq!(servers.answers, [done(2), done(2)].concat());
}

/// A new cluster is at version 1 for a moment, though all of its members speak
/// more, and clients that have waited for it open their sessions then.
#[test]
fn a_session_that_is_to_have_an_owner_waits_for_the_version_that_notes_it() {
    let newest = (Config::default(), Limits::default());
    let mut servers = Servers::start(&vec![newest; 3]);
    servers.elect(0);
    assert_eq!(servers.nodes[0].state().version(), ClusterVersion::FIRST);
    let mut told = submit(&mut servers, opening(u64::MAX));
    assert_eq!(told, [refused(Refusal::UpgradeUnderWay)]);
    // What has no owner needs no version.
    let nobodys = ClientRequest::Open(OpenSession::unowned(u64::MAX / 2));
    let opened = submit(&mut servers, nobodys);
    let has_opened = |told: &[Answer]| matches!(told, [Answer::Done(Outcome::Opened(_))]);
    assert!(has_opened(&opened), "{opened:?}");
    for _ in 0..5 {
        if told != [refused(Refusal::UpgradeUnderWay)] {
            break;
        }
        servers.pass(Duration::from_millis(100));
        told = submit(&mut servers, opening(u64::MAX));
    }
    let [Answer::Done(Outcome::Opened(session))] = told[..] else {
        panic!("expected a session, found {told:?}");
    };
    let opened = servers.nodes[0].state().sessions().get(session);
    let owner = *opened.expect("it is open").owner();
    assert_eq!(owner.secret, MINE.secret);
}

/// A member that says nothing may be down for days.
#[test]
fn a_member_that_is_down_holds_sessions_up_for_seconds() {
    let newest = (Config::default(), Limits::default());
    let mut servers = Servers::start(&vec![newest; 3]);
    servers.cut_off(Some(2));
    servers.elect(0);
    for _ in 0..29 {
        let told = submit(&mut servers, opening(u64::MAX));
        assert_eq!(told, [refused(Refusal::UpgradeUnderWay)]);
        servers.pass(Duration::from_millis(100));
    }
    servers.pass(Duration::from_millis(200));
    let session = open(&mut servers);
    let is_anybodys = |servers: &Servers, session| {
        let opened = servers.nodes[0].state().sessions().get(session);
        opened.expect("it is open").owner().is_unowned()
    };
    assert!(is_anybodys(&servers, session));
    servers.cut_off(None);
    servers.pass(Duration::from_secs(1));
    let session = open(&mut servers);
    assert!(!is_anybodys(&servers, session));
}

#[test]
fn a_member_of_version_1_holds_owners_and_digests_back_and_nobody_stops() {
    let mut servers = trio(ClusterVersion::FIRST);
    let session = open(&mut servers);
    let done = Answer::Done(Outcome::Appended(1));
    let anybody = append(session, 1, "a", OwnershipProof::NONE);
    assert_eq!(submit(&mut servers, anybody), std::slice::from_ref(&done));
    // As it was: the serial alone decides.
    let other = append(session, 1, "b", OwnershipProof::NONE);
    assert_eq!(
        submit(&mut servers, other.clone()),
        std::slice::from_ref(&done)
    );
    assert_eq!(servers.nodes[0].state().encode()[0], 3);
    servers.restart(2, Config::default());
    servers.pass(Duration::from_secs(3));
    for node in &servers.nodes {
        assert_eq!(node.state().version(), ClusterVersion::NEWEST);
    }
    let bytes = servers.nodes[0].state().encode();
    assert_eq!(bytes[0], 4);
    assert!(State::decode(&bytes).is_ok());
    // What is from before has neither; what comes has both.
    assert_eq!(submit(&mut servers, other), [done]);
    let next = append(session, 2, "c", OwnershipProof::NONE);
    assert_eq!(
        submit(&mut servers, next),
        [Answer::Done(Outcome::Appended(2))]
    );
    let other = append(session, 2, "d", OwnershipProof::NONE);
    assert_eq!(
        submit(&mut servers, other),
        [refused(Refusal::OtherContent)]
    );
    let newer = open(&mut servers);
    let stranger = append(newer, 1, "e", OwnershipProof::NONE);
    assert_eq!(submit(&mut servers, stranger), [refused(Refusal::NotOwner)]);
    servers.pass(Duration::from_millis(200));
    for index in 0..3 {
        assert_eq!(servers.fault(index), None);
        let state = servers.nodes[index].state();
        assert_eq!(state.encode(), servers.nodes[0].state().encode());
    }
}
