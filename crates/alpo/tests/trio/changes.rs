//! Changes of members that are judged by what is true now: who answers a
//! round that began after the change was asked for, which disk the member has
//! that is meant, and how long ago that was appended which a learner lacks.

use std::time::Duration;

use tenure_alpo::{
    Answer, Change, ChangeError, ClientRequest, Config, Limits, OpenSession, Refusal, ServerId,
    StorageId,
};

use super::servers::{Servers, storage, unheard};

fn server(number: u64) -> ServerId {
    ServerId::new(number).expect("a number")
}

fn remove(number: u64) -> ClientRequest {
    ClientRequest::Change(Change::Remove(server(number)))
}

/// Takes the server out, if it has the disk of server `disk` of the beginning.
fn remove_disk(number: u64, disk: u128) -> ClientRequest {
    ClientRequest::ChangeOf {
        change: Change::Remove(server(number)),
        storage: StorageId::from_u128(disk),
    }
}

fn admit(number: u64, disk: u128) -> ClientRequest {
    ClientRequest::Change(Change::AddLearner {
        server: server(number),
        storage: StorageId::from_u128(disk),
    })
}

fn promote(number: u64) -> ClientRequest {
    ClientRequest::Change(Change::Promote(server(number)))
}

/// Three servers, of which the first leads.
fn trio() -> Servers {
    let sort = (Config::default(), Limits::default());
    let mut servers = Servers::start(&[sort.clone(), sort.clone(), sort]);
    servers.elect(0);
    servers.pass(Duration::from_secs(1));
    servers
}

fn voters(servers: &Servers) -> usize {
    servers.nodes[0].members().voters().count()
}

fn is_done(servers: &Servers) -> bool {
    matches!(servers.answers.last(), Some(Answer::Done(_)))
}

fn refused(servers: &Servers) -> Option<Refusal> {
    match servers.answers.last() {
        Some(Answer::Refused(refusal)) => Some(*refusal),
        _ => None,
    }
}

/// It heard everybody a moment ago, and what it appends would count at once.
#[test]
fn a_leader_that_has_just_been_cut_off_changes_nobody() {
    for wanted in [remove(2), remove(3), remove_disk(3, 3)] {
        let mut servers = trio();
        servers.cut_off(Some(0));
        servers.submit(0, wanted);
        servers.pass(Duration::from_secs(3));
        assert_eq!(voters(&servers), 3, "nothing was appended");
        assert!(refused(&servers).is_some(), "{:?}", servers.answers);
    }
}

/// Both were heard a moment ago, and one of them has just gone: without the
/// other there would be no majority.
#[test]
fn nobody_is_taken_out_who_is_needed_since_another_has_just_gone() {
    let mut servers = trio();
    servers.cut_off(Some(1));
    servers.submit(0, remove(3));
    servers.pass(Duration::from_secs(3));
    assert_eq!(refused(&servers), Some(unheard(&[2])));
    assert_eq!(voters(&servers), 3);
    // The one that has gone can go.
    servers.submit(0, remove(2));
    servers.pass(Duration::from_secs(1));
    assert!(is_done(&servers), "{:?}", servers.answers);
}

/// What it heard is old, since nobody ran; that says nothing about the others.
#[test]
fn a_leader_that_has_slept_asks_before_it_judges() {
    let mut servers = trio();
    servers.sleep(Duration::from_secs(60));
    servers.submit(0, remove(3));
    servers.pass(Duration::from_secs(1));
    assert!(is_done(&servers), "{:?}", servers.answers);
    assert_eq!(voters(&servers), 2);

    let mut servers = trio();
    servers.sleep(Duration::from_secs(60));
    servers.cut_off(Some(1));
    servers.submit(0, remove(3));
    servers.pass(Duration::from_secs(3));
    assert_eq!(refused(&servers), Some(unheard(&[2])));
}

#[test]
fn a_second_change_is_refused_while_the_first_waits_to_be_judged() {
    let mut servers = trio();
    servers.cut_off(Some(1));
    servers.submit(0, remove(3));
    servers.submit(0, remove(2));
    assert_eq!(refused(&servers), Some(Refusal::ChangeUnderWay));
}

/// A request to take out a server that has lost its disk comes again, when the
/// number was given to another.
#[test]
fn a_removal_that_is_repeated_spares_the_replacement() {
    let mut servers = trio();
    let once = remove_disk(3, 3);
    servers.submit(0, once.clone());
    servers.pass(Duration::from_secs(1));
    assert!(is_done(&servers), "{:?}", servers.answers);
    servers.submit(0, once.clone());
    let gone = Refusal::Change(ChangeError::NotAMember);
    assert_eq!(refused(&servers), Some(gone));

    servers.submit(0, admit(3, 33));
    servers.pass(Duration::from_secs(1));
    servers.submit(0, once);
    let found = StorageId::from_u128(33);
    assert_eq!(refused(&servers), Some(Refusal::OtherDisk { found }));
    let member = servers.nodes[0].members().get(server(3));
    assert_eq!(member.map(|it| it.storage), Some(found));
    // The one that is meant can be taken out, and a request that names no disk
    // gets the one that is there.
    servers.submit(0, remove_disk(3, 33));
    servers.pass(Duration::from_secs(1));
    assert!(is_done(&servers), "{:?}", servers.answers);
}

/// Server 3 is a learner that has everything.
fn with_a_learner() -> Servers {
    let mut servers = trio();
    for wanted in [remove(3), admit(3, 3)] {
        servers.submit(0, wanted);
        servers.pass(Duration::from_secs(1));
        assert!(is_done(&servers), "{:?}", servers.answers);
    }
    assert_eq!(voters(&servers), 2);
    let at_hand = servers.nodes[0].members().get(server(3));
    assert_eq!(at_hand.map(|it| it.storage), Some(storage(server(3))));
    servers
}

fn append(servers: &mut Servers, entries: usize) {
    for _ in 0..entries {
        // An entry of any kind.
        servers.submit(0, ClientRequest::Open(OpenSession::unowned(u64::MAX / 2)));
    }
}

#[test]
fn a_learner_that_lacks_little_is_not_promoted_if_it_lacks_it_for_long() {
    let mut servers = with_a_learner();
    servers.starve(Some(2));
    append(&mut servers, 1);
    servers.pass(Duration::from_secs(5));
    servers.submit(0, promote(3));
    servers.pass(Duration::from_secs(2));
    assert_eq!(refused(&servers), Some(Refusal::LearnerBehind));
    servers.starve(None);
    servers.pass(Duration::from_secs(1));
    servers.submit(0, promote(3));
    servers.pass(Duration::from_secs(1));
    assert!(is_done(&servers), "{:?}", servers.answers);
    assert_eq!(voters(&servers), 3);
}

#[test]
fn a_learner_that_lacks_much_is_promoted_if_it_is_all_of_this_moment() {
    let mut servers = with_a_learner();
    servers.starve(Some(2));
    append(&mut servers, 3_000);
    servers.submit(0, promote(3));
    servers.pass(Duration::from_millis(100));
    assert!(is_done(&servers), "{:?}", servers.answers.last());
    servers.starve(None);
    servers.pass(Duration::from_secs(1));
    assert_eq!(voters(&servers), 3);
}

#[test]
fn a_learner_that_does_not_answer_is_not_promoted() {
    let mut servers = with_a_learner();
    servers.cut_off(Some(2));
    servers.submit(0, promote(3));
    servers.pass(Duration::from_secs(3));
    assert_eq!(refused(&servers), Some(Refusal::LearnerBehind));
    assert_eq!(voters(&servers), 2);
}
