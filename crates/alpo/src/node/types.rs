//! What the environment tells a node and what a node asks of it.

use core::fmt;

use tenure_core::cas::{Bytes, Register};
use tenure_core::ids::{Key, Term};
use tenure_core::time::StoreTime;

use super::super::durable::{Batch, Snapshot};
use super::super::entry::{ClusterVersion, Command, Outcome, Serial, SessionId};
use super::super::ids::{LogId, Position, ServerId, StorageId};
use super::super::log::{Forgotten, Log};
use super::super::membership::{Change, ChangeError};
use super::super::message::Envelope;
use super::super::session_owner::{Fingerprint, OpenSession, OwnershipProof, SessionOpener};
use super::super::state::{Bound, DecodedSnapshot, ReceivedSnapshot, State, StateCopy};

use alloc::boxed::Box;
use alloc::vec::Vec;

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// A message arrived.
    Received {
        /// What was said.
        envelope: Envelope,
        /// The disk that its sender has: what it said of itself when it
        /// opened the connection on which this came, and never what anybody's
        /// log says of its number.
        storage: StorageId,
    },
    /// Batches up to this number are durable.
    Persisted(u64),
    /// A request of a client or an operator; its answer carries the same token.
    ClientRequest {
        /// The driver's name for it, unique in the life of the node.
        token: u64,
        /// What is wanted.
        request: ClientRequest,
    },
    /// The connection of a server that greeted with this disk broke: its
    /// kernel says the process is gone. Not one that this side closed.
    Closed(ServerId, StorageId),
    /// Take a snapshot of what is applied, also if none is due.
    Compact,
    /// What [`Output::EncodeSnapshot`] asked for. It is in the next batch that
    /// goes to the disk.
    SnapshotEncoded(Snapshot),
    /// What [`Output::DecodeSnapshot`] asked for. If it is still of use it
    /// takes the place of the state, and is in the next batch that goes to the
    /// disk.
    SnapshotDecoded(Box<DecodedSnapshot>),
}

/// What clients and operators want.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientRequest {
    /// Open a session.
    Open(OpenSession),
    /// Do this, once, for who proves this.
    Command(Command, OwnershipProof),
    /// The same if it was asked before, and is in the log or done; refuse it
    /// with this if it is new. So a command that there is no room for is not
    /// refused as one that was not done, while an earlier sending is.
    RefuseIfNew(Box<(Command, OwnershipProof, Refusal)>),
    /// End this session, no matter who owns it: for operators.
    End {
        /// Which.
        session: SessionId,
        /// Whether who holds registers by it has gone. If not, a session that
        /// holds any is not ended.
        holder_is_gone: bool,
    },
    /// Read what is true at some moment between asking and answering.
    Read(Query),
    /// Change the members.
    Change(Change),
    /// Promote or take out a member, if it is the one with this disk.
    ChangeOf {
        /// What to change.
        change: Change,
        /// The data directory that the member was admitted with.
        storage: StorageId,
    },
    /// Hand the leadership over, to the best of the others if `None`.
    Transfer(Option<ServerId>),
}

impl ClientRequest {
    /// A change of members, of the one with this disk if one is said.
    pub const fn change(change: Change, of: Option<StorageId>) -> Self {
        match of {
            Some(storage) => Self::ChangeOf { change, storage },
            None => Self::Change(change),
        }
    }

    /// Whether it would put an entry into the log.
    pub(super) const fn proposes(&self) -> bool {
        match self {
            Self::Open(_)
            | Self::Command(..)
            | Self::RefuseIfNew(..)
            | Self::End { .. }
            | Self::Change(_)
            | Self::ChangeOf { .. } => true,
            Self::Read(_) | Self::Transfer(_) => false,
        }
    }

    /// About how many bytes it takes beside what any takes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Command(command, _) => command.operation.weight(),
            Self::RefuseIfNew(it) => it.0.operation.weight(),
            Self::Open(_)
            | Self::End { .. }
            | Self::Read(_)
            | Self::Change(_)
            | Self::ChangeOf { .. }
            | Self::Transfer(_) => 0,
        }
    }
}

/// A quota of registers that a write would go beyond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaExceeded {
    /// Whose quota it is: that of the token of this hash; `None` if that of
    /// all clients together.
    pub token: Option<Fingerprint>,
    /// Whether that token has no quota of its own, and may take no more than
    /// it leaves for all: `most` is what would be left.
    pub shared: bool,
    /// Whether it is about the number of registers, and not about their bytes.
    pub number: bool,
    /// How much of it is taken, what is under way included.
    pub held: u64,
    /// How much more the write would take.
    pub asked: u64,
    /// How much it is.
    pub most: u64,
}

/// What to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// One register.
    Register(Key),
    /// A page of the registers whose key begins with `prefix`.
    List {
        /// How the keys begin.
        prefix: alloc::string::String,
        /// Only keys after this one.
        after: Option<Key>,
        /// At most so many; fewer if they are large.
        count: usize,
    },
    /// The user log.
    UserLog {
        /// From this number on.
        from: u64,
        /// At most so many entries; fewer if they are large.
        count: usize,
    },
    /// Nothing: an answer says that this server led, and its receiver may look
    /// at its state.
    Barrier,
}

/// What a query found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueryResult {
    /// The register, if there is one, the log's time when it was read, and
    /// to what it is bound.
    Register(Option<Register>, StoreTime, Option<Bound>),
    /// A page of registers in the order of their keys.
    List {
        /// The page.
        registers: Vec<(Key, Register)>,
        /// Whether there are more after the last of them.
        more: bool,
        /// The log's time when it was read.
        now: StoreTime,
    },
    /// Entries with their numbers; or the oldest number that is still kept.
    UserLog(Result<Vec<(u64, Bytes)>, u64>),
    /// Entries from a number on that may have been given to an entry of a
    /// cluster that is lost; here the user log goes on at this one.
    Restored(u64),
    /// The entry up to which everything had been applied.
    Barrier(LogId),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is committed and applied.
    Done(Outcome),
    /// It was read.
    Read(QueryResult),
    /// This server told the transferee to stand, and leads no more, because it
    /// has seen a higher term. Who leads in that term is not known here: the
    /// transferee may have lost the election to a third server.
    HandedOver,
    /// It was not done, and never will be by this asking.
    Refused(Refusal),
    /// It may or may not happen: this server leads no more. Ask again,
    /// unchanged.
    Interrupted,
}

/// Why something was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// This server does not lead, or is about to lead no more. `leader` is the best hint.
    NotLeader {
        /// Who, if that is known.
        leader: Option<ServerId>,
    },
    /// Too much is under way; try again soon.
    Busy,
    /// The cluster's version may be about to rise, and a session that is opened
    /// before would have no owner for its whole life; try again soon.
    UpgradeUnderWay,
    /// It is larger than one entry may be.
    TooLarge,
    /// A request before it is missing.
    OutOfOrder {
        /// The serial that comes next.
        expected: Serial,
    },
    /// The session is another's.
    NotOwner,
    /// The session holds registers, and their holder may live.
    Held {
        /// Which.
        session: SessionId,
        /// How many it holds, or will hold by what is uncommitted.
        bound: u64,
        /// The session's time to live, in nanoseconds.
        ttl: u64,
    },
    /// The serial was used for another command.
    OtherContent,
    /// Its opener has as many sessions as it may.
    Quota {
        /// Who.
        opener: SessionOpener,
        /// How many it has.
        held: u64,
        /// How many it may have.
        most: u64,
    },
    /// Its opener has as many sessions as there are places left for sessions.
    FewSessionsLeft {
        /// Who.
        opener: SessionOpener,
        /// How many it has.
        held: u64,
        /// How many places are left, without those that are kept.
        left: u64,
    },
    /// Registers would take more room than they may.
    QuotaExceeded(QuotaExceeded),
    /// The client has too many requests under way.
    SessionWindowFull,
    /// The change of members makes no sense.
    Change(ChangeError),
    /// A change of members is under way.
    ChangeUnderWay,
    /// The member has another disk than the one that was meant.
    OtherDisk {
        /// Which.
        found: StorageId,
    },
    /// The learner is too far behind to be promoted, or does not answer.
    LearnerBehind,
    /// Of the voters there would be, no majority has answered since, within a
    /// timeout.
    TooFewHeard {
        /// Those of them that have not, if any is known.
        servers: ServerList,
    },
    /// Of the voters there would be, no majority has synced its disk since,
    /// within a timeout.
    Unsynced {
        /// Those of them that have not.
        servers: ServerList,
    },
    /// The leadership could not be handed over in time.
    NotHandedOver,
    /// It takes a kind of entry that not all members understand yet.
    Version {
        /// The version that has it.
        needed: ClusterVersion,
        /// The cluster's.
        cluster: ClusterVersion,
    },
}

/// A few servers by name; of more than that, only how many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerList {
    named: [Option<ServerId>; Self::NAMED],
    /// How many there are beside those with a name.
    pub more: usize,
}

impl ServerList {
    /// So many have a name at most.
    pub const NAMED: usize = 4;

    /// Those with a name.
    pub fn named(&self) -> impl Iterator<Item = ServerId> {
        self.named.into_iter().flatten()
    }
}

impl FromIterator<ServerId> for ServerList {
    fn from_iter<T: IntoIterator<Item = ServerId>>(servers: T) -> Self {
        let mut servers = servers.into_iter();
        Self {
            named: core::array::from_fn(|_| servers.next()),
            more: servers.count(),
        }
    }
}

impl fmt::Display for ServerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, server) in self.named().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", server.get())?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Make this durable, then say so.
    Persist(Batch),
    /// Encode this, on a thread that nothing waits for, then give the
    /// snapshot. One at a time; if the process ends before, it is not missed.
    EncodeSnapshot(Box<StateCopy>),
    /// Decode this, on a thread that nothing waits for, then give the result.
    /// One at a time; if the process ends before, it is not missed.
    DecodeSnapshot(ReceivedSnapshot),
    /// Drop this, on a thread that nothing waits for: to give the memory of a
    /// million registers back takes longer than an election timeout may be.
    Discard(Discarded),
    /// Send this.
    Send {
        /// What is said.
        envelope: Envelope,
        /// The disk it is for. It is lost if another one is reached under
        /// that number: an answer to one process must not be taken by another
        /// for the answer to a question of its own. `None`: any will do.
        storage: Option<StorageId>,
    },
    /// Answer this.
    Answer {
        /// Which question.
        token: u64,
        /// With what.
        answer: Answer,
    },
    /// These entries were applied. They are in the log until the next input.
    Applied {
        /// The first.
        from: LogId,
        /// The last.
        to: LogId,
    },
    /// For people, metrics and tests.
    Event(Event),
    /// A rule is broken: stop the process. The node does nothing any more.
    Halt(Fault),
}

/// What a server does not need any more.
#[derive(Clone, Debug)]
pub enum Discarded {
    /// A state, and the log that goes with it.
    State(Box<(State, Log)>),
    /// A snapshot.
    Snapshot(Snapshot),
    /// Entries that the log needs no more.
    Entries(Forgotten),
}

/// Nothing depends on what is in it.
impl PartialEq for Discarded {
    fn eq(&self, other: &Self) -> bool {
        core::mem::discriminant(self) == core::mem::discriminant(other)
    }
}

impl Eq for Discarded {}

/// What people want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody leads (perhaps this server).
    LeaderKnown {
        /// Who.
        leader: ServerId,
        /// In which term.
        term: Term,
    },
    /// This server asks whether it would be elected.
    PreVoting,
    /// This server stands for election.
    Standing {
        /// In this term.
        term: Term,
    },
    /// This server stepped back for a candidate of higher rank.
    Deferred {
        /// For whom.
        to: ServerId,
    },
    /// Others stepped back and hold votes enough: a new cycle begins at once.
    EarlyCycle,
    /// A single better log made this server drop out.
    Vetoed,
    /// This server leads no more (or no longer stands).
    SteppedDown(StepDownReason),
    /// Entries from this one on, which were never committed, were removed.
    Truncated {
        /// The first of them.
        from: LogId,
    },
    /// A snapshot was taken.
    Compacted {
        /// Its last entry.
        upto: Position,
    },
    /// This leader's disk lags too far behind, and it hands over.
    DiskStalls {
        /// To this server, whose disk has kept up.
        transferee: ServerId,
    },
    /// A snapshot was taken over from the leader.
    Installed {
        /// Its last entry.
        upto: Position,
    },
    /// A member lacks entries that it has acknowledged to this leader: its
    /// disk was set back, and it is not counted any more.
    SetBack {
        /// Which.
        server: ServerId,
        /// Up to where it had acknowledged this term's log.
        acknowledged: LogId,
        /// Where its log ends now.
        found: LogId,
    },
    /// A majority has the same state.
    StatesAgree {
        /// After this entry.
        at: LogId,
    },
    /// The servers have different states, and no majority agrees on one: the
    /// leader cannot tell which of them has gone wrong.
    StatesDisagree {
        /// After this entry.
        at: LogId,
    },
}

/// Why a leader stepped down or a candidate gave up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepDownReason {
    /// A higher term was seen.
    HigherTerm,
    /// Another leads in this term.
    LeaderKnown,
    /// No majority was heard for a timeout (H5).
    NoMajority,
    /// A candidate gave its vote of this term to another.
    VoteGiven,
    /// A server with a better log refused its vote, for the first time since
    /// this server knew a leader (H7). No leader need be known.
    BetterLog,
    /// This server was restarted, and an earlier leader may still read by a
    /// lease that counts on this server giving no votes.
    NoVoteAfterRestart,
}

impl fmt::Display for StepDownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HigherTerm => "HigherTerm",
            Self::LeaderKnown => "Led",
            Self::NoMajority => "NoMajority",
            Self::VoteGiven => "VoteGiven",
            Self::BetterLog => "BetterLog",
            Self::NoVoteAfterRestart => "OwesSilence",
        })
    }
}

/// A broken rule of the protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Two servers lead in one term.
    TwoLeaders {
        /// The term.
        term: Term,
        /// One of them; perhaps this server.
        one: ServerId,
        /// The other, which was heard later.
        other: ServerId,
    },
    /// A leader wants an entry removed that was committed.
    CommittedConflict {
        /// Which entry.
        id: LogId,
        /// The leader.
        leader: ServerId,
    },
    /// A committed entry is not in the log.
    MissingEntry {
        /// Which entry.
        id: LogId,
    },
    /// A majority has another state than this server.
    Diverged {
        /// The last entry it was compared at.
        id: LogId,
    },
    /// The log has given this server's number to another disk.
    Replaced {
        /// Its number.
        server: ServerId,
        /// The disk that is the member.
        known: StorageId,
        /// Its own.
        found: StorageId,
    },
    /// The cluster's log has kinds of entries that this server, as old as it
    /// is, does not understand.
    Version {
        /// The log's version.
        cluster: ClusterVersion,
        /// The newest that this server speaks.
        mine: ClusterVersion,
    },
    /// The term or the log has come to a number above which there is none
    /// (`MAX_NUMBER`).
    Exhausted {
        /// The term.
        term: Term,
        /// The last entry of the log.
        last: LogId,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoLeaders { term, one, other } => write!(
                f,
                "servers {} and {} both lead in term {term}: a server forgot its vote \
                 (was a disk wiped or restored from a backup?)",
                one.get(),
                other.get()
            ),
            Self::CommittedConflict { id, leader } => write!(
                f,
                "the leader, server {}, has another entry {id} than the one committed here \
                 (was a disk wiped or restored from a backup?)",
                leader.get()
            ),
            Self::MissingEntry { id } => write!(f, "committed entry {id} is not in the log"),
            Self::Diverged { id } => write!(
                f,
                "after entry {id} this server's state is another than that of the majority: \
                 a bug, or memory or a disk that rots; start it again, and if it stops again, \
                 remove the member and add it anew with an empty directory"
            ),
            Self::Replaced {
                server,
                known,
                found,
            } => write!(
                f,
                "expected the data directory {found} to be that of server {id}, found that the \
                 cluster's log has given the number to {known}: this one counts for nothing any \
                 more. Leave it stopped; to use this machine again, start it with an empty --data \
                 and a --id that is free, and run the `tenure member add` that it prints. If it \
                 is {known} that should go, run `tenure member remove {id}` first",
                id = server.get()
            ),
            Self::Version { cluster, mine } => write!(
                f,
                "expected a log of version {mine} at most, found one of version {cluster}: \
                 this release is too old for the cluster; start the one that ran here before \
                 (if that is this one, the entry was forged: find out by whom)"
            ),
            Self::Exhausted { term, last } => write!(
                f,
                "expected a term and a last entry below 2^62, found term {term} and entry {last}, \
                 where no cluster comes by itself (was a disk or a message forged?): no server can \
                 be elected any more; restore a backup as a new cluster"
            ),
        }
    }
}
