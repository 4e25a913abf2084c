//! A member is a number and a disk: what one server makes of what others say
//! under a number that two disks have. Servers are told what to hear; the
//! schedules with whole clusters are scripts (`disk_…`).

use tenure_alpo::{
    Body, ClusterId, ClusterVersion, CompareChecksums, Config, Entry, Envelope, Fault, HardState,
    Identity, Input, Limits, Member, Membership, Node, Output, Payload, Position, Rank, Recovered,
    Reply, Request, ServerId, Snapshot, State, Status, StorageId, Vote, VotingStatus,
};
use tenure_core::Machine;
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now};

const NOW: Now = Now {
    boot: Instant::ZERO,
    wall: tenure_core::time::WallTime::from_millis(0),
};

fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn disk(number: u128) -> StorageId {
    StorageId::from_u128(number)
}

fn term(number: u64) -> Term {
    Term::new(number).expect("a small term")
}

/// Voters by number and disk.
fn members(of: &[(u64, u128)]) -> Membership {
    Membership::bootstrapped(
        of.iter()
            .map(|(number, storage)| (id(*number), disk(*storage))),
    )
}

/// Three servers, and the third with this disk as a learner.
fn with_learner(storage: u128) -> Membership {
    let learner = Member {
        voting_status: VotingStatus::Learner,
        storage: disk(storage),
    };
    let voters = members(&[(1, 11), (2, 12)]);
    voters.iter().chain([(id(3), learner)]).collect()
}

fn bootstrapped() -> Membership {
    members(&[(1, 11), (2, 12), (3, 13)])
}

/// Server 3 with this disk, of a cluster that speaks this version.
struct Server {
    node: Node,
    /// What it has on its disk by now.
    hard: HardState,
    snapshots: usize,
}

impl Server {
    fn start(storage: u128, version: ClusterVersion, hard: HardState) -> Self {
        let state = State::bootstrapped(Limits::default(), ClockId::default(), bootstrapped());
        let recovered = Recovered {
            hard,
            snapshot: Some(Snapshot {
                last: Position::ZERO,
                bytes: state.with_version(version).encode().into(),
            }),
            ..Recovered::default()
        };
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: id(3),
            storage: disk(storage),
        };
        let blank = State::new(Limits::default(), ClockId::default());
        let (config, rng) = (Config::default(), Rng::from_seed(1));
        let node = Node::start(config, identity, recovered, blank, rng, NOW.boot);
        Self {
            node: node.expect("a good snapshot"),
            hard,
            snapshots: 0,
        }
    }

    fn member() -> Self {
        Self::start(13, ClusterVersion::SECOND, HardState::default())
    }

    /// What it answers to this, said by a server with this disk in this term.
    fn told(&mut self, from: (u64, u128), in_term: u64, request: Request) -> Vec<Reply> {
        let envelope = Envelope {
            from: id(from.0),
            to: id(3),
            term: term(in_term),
            body: Body::Request { number: 1, request },
        };
        let storage = disk(from.1);
        self.node.handle(NOW, Input::Received { envelope, storage });
        let mut replies = Vec::new();
        while let Some(output) = self.node.poll() {
            match output {
                Output::Persist(batch) => {
                    self.hard = batch.hard.unwrap_or(self.hard);
                    self.snapshots += usize::from(batch.snapshot.is_some());
                    self.node.handle(NOW, Input::Persisted(batch.number));
                }
                Output::EncodeSnapshot(copy) => {
                    self.node.handle(NOW, Input::SnapshotEncoded(copy.encode()));
                }
                Output::DecodeSnapshot(received) => {
                    let decoded = Box::new(received.decode());
                    self.node.handle(NOW, Input::SnapshotDecoded(decoded));
                }
                Output::Send {
                    envelope:
                        Envelope {
                            body: Body::Reply { reply, .. },
                            ..
                        },
                    storage,
                } => {
                    assert_eq!(storage, Some(disk(from.1)), "for the disk that asked");
                    replies.push(reply);
                }
                _ => {}
            }
        }
        replies
    }

    fn append(&mut self, payloads: Vec<Payload>) -> Vec<Reply> {
        let last = self.node.log().last();
        let entries = (last.id + 1..).zip(payloads);
        let entries = entries.map(|(id, payload)| Entry {
            id,
            term: term(1),
            time: id,
            payload,
        });
        let request = Request::Append {
            prev: last,
            entries: entries.collect(),
            commit: 0,
            round: 1,
        };
        self.told((1, 11), 1, request)
    }

    fn heartbeat(&mut self, commit: u64) -> Vec<Reply> {
        let request = Request::Heartbeat {
            last: self.node.log().last(),
            commit,
            round: 2,
            time: 9,
            compare_checksums: CompareChecksums::default(),
        };
        self.told((1, 11), 1, request)
    }
}

fn vote() -> Request {
    Request::Vote {
        last: Position::ZERO,
        transfer: false,
    }
}

fn given(storage: Option<StorageId>) -> HardState {
    HardState {
        term: term(1),
        last_reign: Term::ZERO,
        vote: Some(Vote {
            rank: Rank {
                last: Position::ZERO,
                server: id(2),
            },
            storage,
        }),
    }
}

/// Its number goes to disk 93.
fn replaced() -> Vec<Payload> {
    vec![
        Payload::Members(members(&[(1, 11), (2, 12)])),
        Payload::Members(with_learner(93)),
    ]
}

#[test]
fn whose_number_went_to_another_disk_acknowledges_nothing_and_stops_when_that_is_committed() {
    let mut server = Server::member();
    let appended = |replies: &[Reply]| matches!(replies, [Reply::Appended { .. }]);
    assert!(appended(&server.append(vec![Payload::NoOp])));
    assert_eq!(server.append(replaced()), []);
    assert_eq!(server.heartbeat(1), []);
    assert_eq!(server.node.fault(), None, "it may still be taken back");
    assert_eq!(server.node.commit(), 1);
    assert_eq!(
        server.told((2, 12), 2, vote()),
        [Reply::LeaderKnown {
            leader: Some(id(1))
        }]
    );
    assert_eq!(server.heartbeat(3), []);
    let fault = server.node.fault().expect("a fault");
    let wanted = Fault::Replaced {
        server: id(3),
        known: disk(93),
        found: disk(13),
    };
    assert_eq!(*fault, wanted);
    let text = fault.to_string();
    for part in [
        "tenure member add",
        "tenure member remove 3",
        "empty --data",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(server.node.status(), Status::Halted);
}

#[test]
fn a_change_that_is_taken_back_makes_it_the_member_that_it_was() {
    let mut server = Server::member();
    server.append(vec![Payload::NoOp]);
    assert_eq!(server.append(replaced()), []);
    let request = Request::Append {
        prev: Position::new(term(1), 1),
        entries: vec![Entry {
            id: 2,
            term: term(2),
            time: 9,
            payload: Payload::NoOp,
        }],
        commit: 2,
        round: 1,
    };
    let replies = server.told((2, 12), 2, request);
    assert!(
        matches!(replies[..], [Reply::Appended { matched: 2, .. }]),
        "{replies:?}"
    );
    assert_eq!(*server.node.members(), bootstrapped());
    assert_eq!(server.node.fault(), None);
}

/// It reads of a time in which its number was another's, and must be let do
/// that, or it never learns that it was admitted.
#[test]
fn a_new_disk_reads_on_through_the_time_of_the_old_one() {
    let mut server = Server::start(93, ClusterVersion::SECOND, HardState::default());
    assert_eq!(server.node.members().storage(id(3)), Some(disk(13)));
    let replies = server.append(vec![Payload::NoOp]);
    assert!(
        matches!(replies[..], [Reply::Appended { .. }]),
        "{replies:?}"
    );
    assert_eq!(
        server.told((2, 12), 1, vote()),
        [Reply::LeaderKnown {
            leader: Some(id(1))
        }]
    );
    let replies = server.append(replaced());
    assert!(
        matches!(replies[..], [Reply::Appended { .. }]),
        "{replies:?}"
    );
    let replies = server.heartbeat(3);
    assert!(matches!(replies[..], [Reply::Heard { .. }]), "{replies:?}");
    assert_eq!((server.node.fault(), server.node.commit()), (None, 3));
}

#[test]
fn a_snapshot_that_gives_its_number_away_is_not_taken_over() {
    let mut state = State::bootstrapped(Limits::default(), ClockId::default(), bootstrapped());
    for (id, payload) in (1..).zip(replaced()) {
        state.apply(&Entry {
            id,
            term: term(1),
            time: id,
            payload,
        });
    }
    let bytes = state.encode();
    let install = Request::Install {
        last: state.applied(),
        offset: 0,
        total: bytes.len() as u64,
        bytes: bytes.into(),
        round: 1,
    };
    let mut old = Server::member();
    assert_eq!(old.told((1, 11), 1, install.clone()), []);
    assert!(matches!(old.node.fault(), Some(Fault::Replaced { .. })));
    assert_eq!(old.snapshots, 0, "its disk still says whose the number was");
    let mut new = Server::start(93, ClusterVersion::SECOND, HardState::default());
    let replies = new.told((1, 11), 1, install);
    assert!(
        matches!(replies[..], [.., Reply::Installed { done: true, .. }]),
        "{replies:?}"
    );
    assert_eq!(new.node.fault(), None);
}
/// Neither in a pre-vote nor in an election: a wiped disk has forgotten what it
/// voted, and one that was not admitted yet has never had a vote.
#[test]
fn a_disk_that_its_own_log_does_not_name_has_no_vote() {
    for (storage, wanted) in [
        (13, [Reply::PreVoteGranted, Reply::Granted]),
        (99, [Reply::NotAMember, Reply::NotAMember]),
    ] {
        let mut server = Server::start(storage, ClusterVersion::SECOND, HardState::default());
        let poll = Request::PreVote {
            last: Position::ZERO,
        };
        let asked = [poll, vote()];
        let told = asked.map(|request| server.told((2, 12), 5, request));
        assert_eq!(told.concat(), wanted, "disk {storage}");
        assert_eq!(server.hard.vote.is_some(), storage == 13);
    }
}

#[test]
fn a_vote_is_given_again_only_to_the_disk_that_has_it() {
    let again = |storage, from| {
        let mut server = Server::start(13, ClusterVersion::SECOND, given(storage));
        server.told(from, 1, vote())
    };
    let taken = [Reply::AlreadyVoted {
        voted_for: Rank {
            last: Position::ZERO,
            server: id(2),
        },
    }];
    assert_eq!(again(Some(disk(12)), (2, 12)), [Reply::Granted]);
    assert_eq!(again(Some(disk(12)), (2, 92)), taken);
    // A record of an earlier release: which of them has it nobody knows.
    assert_eq!(again(None, (2, 12)), taken);
    assert_eq!(again(None, (2, 92)), taken);
}

#[test]
fn the_vote_on_disk_names_a_disk_from_the_second_version_on() {
    for (version, storage) in [
        (ClusterVersion::FIRST, None),
        (ClusterVersion::SECOND, Some(disk(12))),
    ] {
        let mut server = Server::start(13, version, HardState::default());
        assert_eq!(server.told((2, 12), 1, vote()), [Reply::Granted]);
        assert_eq!(server.hard, given(storage), "{version}");
        // As long as it runs it knows, whatever its disk can say.
        assert_eq!(server.told((2, 12), 1, vote()), [Reply::Granted]);
        assert_ne!(server.told((2, 92), 1, vote()), [Reply::Granted]);
    }
}

#[test]
fn two_disks_of_one_number_that_lead_in_one_term_stop_whoever_hears_both() {
    let mut server = Server::member();
    server.append(vec![Payload::NoOp]);
    let request = Request::Heartbeat {
        last: Position::ZERO,
        commit: 0,
        round: 1,
        time: 9,
        compare_checksums: CompareChecksums::default(),
    };
    assert_eq!(server.told((1, 91), 1, request), []);
    assert!(matches!(
        server.node.fault(),
        Some(Fault::TwoLeaders { .. })
    ));
}

#[test]
fn only_the_closed_connection_of_the_disk_that_leads_is_a_sign_of_its_crash() {
    let mut server = Server::member();
    server.append(vec![Payload::NoOp]);
    let waits = server.node.deadline();
    server.node.handle(NOW, Input::Closed(id(1), disk(91)));
    assert_eq!(server.node.deadline(), waits);
    let led = [Reply::LeaderKnown {
        leader: Some(id(1)),
    }];
    assert_eq!(server.told((2, 12), 2, vote()), led);
    server.node.handle(NOW, Input::Closed(id(1), disk(11)));
    assert!(server.node.deadline() < waits);
    assert_ne!(server.told((2, 12), 2, vote()), led);
}

/// They ask for ever, since nobody tells them that they were removed.
#[test]
fn three_removed_disks_that_keep_asking_disturb_no_server_that_hears_a_leader() {
    let mut server = Server::member();
    server.append(vec![Payload::NoOp]);
    let before = server.node.hard_state();
    let led = [Reply::LeaderKnown {
        leader: Some(id(1)),
    }];
    for in_term in 1..50 {
        for removed in [(2, 92), (4, 94), (5, 95)] {
            let last = Position::new(term(in_term), 1_000);
            assert_eq!(
                server.told(removed, in_term, Request::PreVote { last }),
                led
            );
            let transfer = false;
            let request = Request::Vote { last, transfer };
            assert_eq!(server.told(removed, in_term, request), led);
        }
    }
    assert_eq!(server.node.hard_state(), before);
    assert_eq!(server.node.leader(), Some(id(1)));
}
