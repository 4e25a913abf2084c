//! What other servers say, once they have proven who they are.

use tenure_alpo::codec::{
    Reader, decode_entry, decode_envelope, decode_hard_state, encode_entry, encode_envelope,
    encode_hard_state,
};
use tenure_alpo::{
    ClusterId, Config, Entry, Identity, Input, Limits, Membership, Node, Output, Payload,
    Recovered, ServerId, Snapshot, State, StorageId,
};
use tenure_core::Machine as _;
use tenure_core::ids::Term;
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

/// No more are heard in one run.
const MESSAGES_MAX: usize = 32;
/// No more is done in one run: a machine that goes on for ever is found out.
const STEPS_MAX: usize = 100_000;

/// `bytes` as one message, entry and hard state; and as messages, each with
/// its length before it, which a server hears one after the other. An empty one
/// stands for time that passes.
pub(super) fn messages(bytes: &[u8]) {
    if let Ok(entry) = decode_entry(bytes) {
        let mut again = Vec::new();
        encode_entry(&mut again, &entry);
        assert_eq!(again, bytes, "an entry is written in one way");
    }
    if let Ok(hard) = decode_hard_state(bytes) {
        let mut again = Vec::new();
        encode_hard_state(&mut again, &hard);
        assert_eq!(again, bytes, "a hard state is written in one way");
    }
    let mut heard = Heard::new();
    heard.message(bytes);
    let mut heard = Heard::new();
    let mut reader = Reader::new(bytes);
    for _ in 0..MESSAGES_MAX {
        match reader.bytes() {
            Ok([]) => heard.wait(),
            Ok(message) => heard.message(message),
            Err(_) => return,
        }
    }
}

fn server(number: u64) -> ServerId {
    ServerId::new(number).expect("not zero")
}

fn disk(number: u64) -> StorageId {
    StorageId::from_u128(number.into())
}

/// A server that hears them, of a cluster of three.
struct Heard {
    node: Node,
    now: Now,
}

impl Heard {
    /// It has a snapshot up to entry 2 of term 3, and entry 3.
    fn new() -> Self {
        let now = Now {
            boot: Instant::ZERO,
            wall: WallTime::from_millis(0),
        };
        let term = |number| Term::new(number).expect("a term");
        let entry = |id, at| Entry {
            id,
            term: term(at),
            time: id * 10,
            payload: Payload::NoOp,
        };
        let members = Membership::bootstrapped((1..=3).map(|it| (server(it), disk(it))));
        let mut state = State::bootstrapped(Limits::default(), ClockId::default(), members);
        state.apply(&entry(1, 1));
        state.apply(&entry(2, 3));
        let recovered = Recovered {
            snapshot: Some(Snapshot {
                last: state.applied(),
                bytes: state.encode().into(),
            }),
            entries: vec![entry(3, 3)],
            ..Recovered::default()
        };
        let identity = Identity {
            cluster: ClusterId::from_u128(1),
            server: server(1),
            storage: disk(1),
        };
        let (config, rng) = (Config::default(), Rng::from_seed(1));
        let node = Node::start(config, identity, recovered, state, rng, now.boot);
        let node = node.expect("a good snapshot");
        Self { node, now }
    }

    /// As the server does it: nobody speaks for anybody else, and what is not
    /// heeded goes no further.
    fn message(&mut self, bytes: &[u8]) {
        let Ok(mut envelope) = decode_envelope(bytes) else {
            return;
        };
        let mut again = Vec::new();
        encode_envelope(&mut again, &envelope);
        assert_eq!(again, bytes, "a message is written in one way");
        let storage = disk(envelope.from.get());
        if envelope.from == server(1) || self.node.admit(&mut envelope, storage).is_err() {
            return;
        }
        let input = Input::Received { envelope, storage };
        self.node.handle(self.now, input);
        self.settle();
    }

    /// The time passes for which it waits.
    fn wait(&mut self) {
        if let Some(deadline) = self.node.deadline() {
            self.now.boot = deadline.max(self.now.boot);
            self.node.tick(self.now);
            self.settle();
        }
    }

    /// Whatever it asks for is done. (Its invariants are checked by each step
    /// itself.)
    fn settle(&mut self) {
        for _ in 0..STEPS_MAX {
            match self.node.poll() {
                None => return,
                Some(Output::Persist(batch)) => {
                    self.node.handle(self.now, Input::Persisted(batch.number));
                }
                Some(Output::EncodeSnapshot(copy)) => {
                    let encoded = Input::SnapshotEncoded(copy.encode());
                    self.node.handle(self.now, encoded);
                }
                Some(Output::DecodeSnapshot(received)) => {
                    let decoded = Box::new(received.decode());
                    self.node.handle(self.now, Input::SnapshotDecoded(decoded));
                }
                Some(Output::Send { envelope, .. }) => {
                    let mut bytes = Vec::new();
                    encode_envelope(&mut bytes, &envelope);
                    let again = decode_envelope(&bytes);
                    assert_eq!(again, Ok(envelope), "what is said can be read");
                }
                Some(_) => {}
            }
        }
        panic!("expected the machine to come to rest");
    }
}
