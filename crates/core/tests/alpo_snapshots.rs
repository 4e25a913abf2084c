//! When snapshots are taken, and what is kept behind them.

use tenure_core::Machine;
use tenure_core::alpo::{
    Ask, ClusterId, Command, Config, Event, Identity, Input, Limits, Membership, Node, Operation,
    Output, Position, Recovered, ServerId, Snapshot, State, StorageId,
};
use tenure_core::rng::Rng;
use tenure_core::time::{ClockId, Instant, Now, WallTime};

fn at(seconds: u64) -> Now {
    Now {
        boot: Instant::from_nanos(seconds * 1_000_000_000),
        wall: WallTime::default(),
    }
}

/// A server that is its whole cluster, and leads.
fn alone(config: Config) -> Node {
    let server = ServerId::new(1).expect("not zero");
    let storage = StorageId::from_u128(1);
    let members = Membership::founded([(server, storage)]);
    let blank = State::founded(Limits::default(), ClockId::default(), members);
    let recovered = Recovered {
        snapshot: Some(Snapshot {
            last: Position::ZERO,
            bytes: blank.encode().into(),
        }),
        ..Recovered::default()
    };
    let identity = Identity {
        cluster: ClusterId::from_u128(1),
        server,
        storage,
    };
    let rng = Rng::from_seed(1);
    let mut node =
        Node::start(config, identity, recovered, blank, rng, at(0).boot).expect("a good snapshot");
    node.tick(at(5));
    drain(&mut node);
    assert!(node.is_ready());
    node
}

/// Everything is written at once; gives the number of snapshots.
fn drain(node: &mut Node) -> usize {
    let mut snapshots = 0;
    while let Some(output) = node.poll() {
        match output {
            Output::Persist(batch) => {
                snapshots += usize::from(batch.snapshot.is_some());
                node.handle(at(5), Input::Persisted(batch.number));
            }
            Output::Event(Event::Compacted { .. }) | Output::Applied { .. } => {}
            _ => {}
        }
    }
    snapshots
}

fn command(bytes: usize) -> Ask {
    // Nobody's session: it is written and applied, and changes nothing.
    Ask::Command(Command {
        session: 99,
        serial: 1,
        outstanding: 1,
        operation: Operation::Append(vec![7; bytes].into()),
    })
}

#[test]
fn what_is_kept_behind_a_snapshot_makes_no_other_one_due() {
    let log_bytes = 10_000;
    let mut node = alone(Config {
        log_bytes,
        kept_entries: 1_000,
        ..Config::default()
    });
    let mut snapshots = 0;
    for token in 0..400 {
        let ask = command(1_000);
        node.handle(at(5), Input::Asked { token, ask });
        snapshots += drain(&mut node);
        let bytes = node.log().bytes();
        assert!(bytes < 2 * log_bytes, "{bytes} bytes of log in memory");
    }
    // 400 entries of a bit more than 1,000 bytes.
    assert!((35..=43).contains(&snapshots), "{snapshots} snapshots");
}

#[test]
fn a_long_tail_that_waits_makes_no_snapshot_due() {
    let mut node = alone(Config {
        log_bytes: 10_000,
        kept_entries: 0,
        ..Config::default()
    });
    // A hundred batches that the disk takes one by one.
    let mut batches = Vec::new();
    let mut snapshots = 0;
    for token in 0..100 {
        let ask = command(1_000);
        node.handle(at(5), Input::Asked { token, ask });
        while let Some(output) = node.poll() {
            if let Output::Persist(batch) = output {
                batches.push(batch.number);
            }
        }
    }
    for number in batches {
        node.handle(at(5), Input::Persisted(number));
        while let Some(output) = node.poll() {
            if let Output::Persist(batch) = output {
                snapshots += usize::from(batch.snapshot.is_some());
            }
        }
    }
    assert!((8..=11).contains(&snapshots), "{snapshots} snapshots");
}
