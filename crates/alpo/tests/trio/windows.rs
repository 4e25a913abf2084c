//! How far a session may go ahead of what it still waits for.

use tenure_alpo::{
    Answer, ClientRequest, Command, Config, Limits, MAX_WINDOW, OpenSession, Operation, Outcome,
    OwnershipProof, Refusal,
};

use super::servers::Servers;

fn submit(servers: &mut Servers, request: ClientRequest) -> Answer {
    servers.answers.clear();
    servers.submit(0, request);
    servers.answers.pop().expect("an answer")
}

fn open(servers: &mut Servers) -> u64 {
    match submit(servers, ClientRequest::Open(OpenSession::unowned(u64::MAX))) {
        Answer::Done(Outcome::Opened(session)) => session,
        other => panic!("expected a session, found {other:?}"),
    }
}

/// Up to which serial a session gets that never says that it has an answer.
fn window(servers: &mut Servers, session: u64) -> u64 {
    let keep_alive = |serial, outstanding| {
        let command = Command {
            session,
            serial,
            outstanding,
            operation: Operation::KeepAlive,
        };
        ClientRequest::Command(command, OwnershipProof::NONE)
    };
    for serial in 1.. {
        let answer = submit(servers, keep_alive(serial, 1));
        if answer == Answer::Refused(Refusal::SessionWindowFull) {
            // It goes on when it says that it has one.
            let answer = submit(servers, keep_alive(serial, 2));
            assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
            return serial - 1;
        }
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    }
    unreachable!("it is refused before")
}

#[test]
fn the_more_sessions_a_caller_has_the_fewer_answers_each_of_them_keeps() {
    let sort = (Config::default(), Limits::default());
    let mut servers = Servers::start(&[sort.clone(), sort.clone(), sort]);
    servers.elect(0);
    let sessions: Vec<_> = (0..256).map(|_| open(&mut servers)).collect();
    assert_eq!(window(&mut servers, sessions[0]), MAX_WINDOW);
    for _ in 256..512 {
        open(&mut servers);
    }
    assert_eq!(window(&mut servers, sessions[1]), MAX_WINDOW / 2);
    for _ in 512..6_000 {
        open(&mut servers);
    }
    assert_eq!(window(&mut servers, sessions[2]), 64);
}
