//! What will happen in a world, and what a row of faults waits for.

use tenure_alpo::{Answer, ClientRequest, DecodedSnapshot, Hello, ServerId, Snapshot, StorageId};

use super::network::InFlightMessage;

/// What will happen.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Deliver(InFlightMessage),
    Wake {
        server: usize,
        epoch: u64,
    },
    Synced {
        server: usize,
        epoch: u64,
        upto: u64,
        fails: bool,
    },
    SnapshotEncoded {
        server: usize,
        epoch: u64,
        snapshot: Snapshot,
    },
    SnapshotDecoded {
        server: usize,
        epoch: u64,
        decoded: Box<DecodedSnapshot>,
    },
    Closed {
        server: usize,
        epoch: u64,
        peer: ServerId,
        storage: StorageId,
    },
    Restart {
        server: usize,
    },
    ClientRequest {
        server: usize,
        token: u64,
        request: ClientRequest,
    },
    Answered {
        token: u64,
        answer: Answer,
    },
    Client {
        client: usize,
    },
    Fault,
    Backup,
    Lost,
    Snipe {
        server: usize,
    },
    Betray {
        voter: usize,
        winner: usize,
    },
    Dethrone {
        server: usize,
    },
    Copied {
        server: usize,
    },
    PutBack {
        server: usize,
    },
    Cloned {
        server: usize,
    },
    /// The second of two processes with one disk tries to be let in.
    Knock,
    Readmit {
        server: usize,
    },
    Greet {
        server: usize,
        epoch: u64,
    },
    Hello {
        from: usize,
        to: usize,
        hello: Hello,
        is_request: bool,
    },
    Stumble {
        server: usize,
    },
    /// A server is started again under the settings of before, or of now.
    Turn {
        server: usize,
        old: bool,
    },
    /// What a server owed when this process of it was started is over.
    WaitedOut {
        server: usize,
        epoch: u64,
    },
    Mishap {
        server: usize,
    },
    /// The next of a row of faults.
    Plot(SequenceStep),
    /// A message that was held back comes.
    Release {
        number: u64,
    },
    Heal,
    /// A look at a network that is broken in part.
    PartitionCheck,
    /// Somebody must have been elected; how long it may need from here on
    /// until it is ready.
    Elected {
        catching_up: u64,
    },
    Calm,
    Flap {
        round: u64,
    },
    Quiet,
    /// What is committed now must be everywhere at the end.
    Settle,
    End,
}

/// What comes next in a row of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SequenceStep {
    /// The pair is alone.
    Part { leader: usize, orphan: usize },
    /// The leader is back with the rest.
    Return { leader: usize, orphan: usize },
    /// The server that leads by now hands over to the one before, or is cut
    /// off.
    Swap { leader: usize },
    /// The leader is cut off.
    Fork,
    /// The next one is too.
    CutOther { leader: usize },
    /// The leader's round has been heard.
    CutLate { leader: usize },
}

/// What is waited for: that another leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waiting {
    Orphans { leader: usize, orphan: usize },
    Fork { leader: usize },
}
