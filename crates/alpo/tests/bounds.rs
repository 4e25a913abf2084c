//! No number of another server is taken that is above the bound.

use tenure_alpo::codec::{DecodeError, decode_envelope, encode_envelope};
use tenure_alpo::{
    Body, CompareChecksums, Entry, Envelope, MAX_NUMBER, Payload, Position, Reply, Request,
    ServerId, StateChecksum,
};
use tenure_core::ids::Term;

/// One more than what is taken from others.
const BEYOND: u64 = MAX_NUMBER + 1;

fn in_term_1(id: u64) -> Position {
    Position::new(Term::new(1).expect("a term"), id)
}

/// What becomes of a message that another server has sent.
fn received(body: Body) -> Result<(), DecodeError> {
    let envelope = Envelope {
        from: ServerId::new(1).expect("a server"),
        to: ServerId::new(2).expect("a server"),
        term: Term::new(1).expect("a term"),
        body,
    };
    let mut bytes = Vec::new();
    encode_envelope(&mut bytes, &envelope);
    decode_envelope(&bytes).map(drop)
}

#[test]
fn no_number_of_a_request_is_above_the_bound() {
    let heartbeat = |last, commit, round, time, state_checksum: (u64, u64)| Request::Heartbeat {
        last: in_term_1(last),
        commit,
        round,
        time,
        compare_checksums: CompareChecksums {
            at: state_checksum.0,
            agreed: Some(StateChecksum {
                id: state_checksum.1,
                hash: u64::MAX,
            }),
        },
    };
    let append = |prev, commit, entry: (u64, u64)| Request::Append {
        prev: in_term_1(prev),
        entries: vec![Entry {
            id: entry.0,
            term: Term::new(1).expect("a term"),
            time: entry.1,
            payload: Payload::NoOp,
        }],
        commit,
        round: 1,
    };
    let request = |number, request| received(Body::Request { number, request });
    let most = MAX_NUMBER;
    let whole = heartbeat(most, most, most, most, (most, most));
    assert_eq!(request(most, whole), Ok(()));
    assert_eq!(request(most, append(most, most, (most, most))), Ok(()));
    for bad in [
        heartbeat(BEYOND, 1, 1, 1, (1, 1)),
        heartbeat(1, BEYOND, 1, 1, (1, 1)),
        heartbeat(1, 1, BEYOND, 1, (1, 1)),
        heartbeat(1, 1, 1, BEYOND, (1, 1)),
        heartbeat(1, 1, 1, 1, (BEYOND, 1)),
        heartbeat(1, 1, 1, 1, (1, BEYOND)),
        append(BEYOND, 1, (1, 1)),
        append(1, BEYOND, (1, 1)),
        append(1, 1, (BEYOND, 1)),
        append(1, 1, (1, BEYOND)),
        append(1, 1, (u64::MAX, 1)),
    ] {
        assert_eq!(request(1, bad.clone()), Err(DecodeError::Number), "{bad:?}");
    }
    let unnumbered = request(BEYOND, Request::TimeoutNow);
    assert_eq!(unnumbered, Err(DecodeError::Number));
}

#[test]
fn no_number_of_a_reply_is_above_the_bound() {
    let reply = |number, asked_in, reply| {
        let asked_in = Term::new(asked_in).expect("a term");
        received(Body::Reply {
            number,
            asked_in,
            reply,
        })
    };
    assert_eq!(reply(1, BEYOND, Reply::Granted), Err(DecodeError::Number));
    assert_eq!(reply(BEYOND, 1, Reply::Granted), Err(DecodeError::Number));
    for (matched, round) in [(BEYOND, 1), (1, BEYOND)] {
        let bad = Reply::Appended { matched, round };
        assert_eq!(reply(1, 1, bad), Err(DecodeError::Number));
    }
}
