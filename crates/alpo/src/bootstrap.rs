//! Bootstrap: which servers begin a cluster, and so may vote at all; and the
//! join errors of all others.
//!
//! Votes and acknowledged entries are promises, and they are kept on disks. A
//! server whose disk was wiped has broken its promises without knowing it: it
//! would vote a second time, and help to elect a leader that lacks what it
//! once acknowledged. By its number and its flags it looks like the server it
//! was; only its [`StorageId`], drawn when the data directory was made, gives
//! it away. So a *blank* server, with no cluster on its disk, says nothing in
//! any election until one of these is true:
//!
//! * **every** server of its `--peers` has answered that it is blank too, was
//!   given the same `--peers`, and has *promised* to found a cluster with the
//!   same storages. Then no server has promised anything else yet, and they
//!   found a cluster: the table of numbers and storages, whose digest is the
//!   cluster's id, goes to disk before the first vote;
//! * a server has founded already, with this very storage in its table: this
//!   server was asked, answered that it was blank, and has given no vote
//!   since, because it could not. Its storage was drawn at random, so a server
//!   that names it means it, one of `--peers` or not;
//! * a leader has admitted it (see [`membership`](super::Membership)).
//!
//! If anybody knows its number under another storage it founds nothing, waits,
//! and says how to mend that. Why not found with a *majority* of blank answers?
//! Because the minority may be what is left of a cluster. And why the same
//! peers? Three servers that were told of one other each, in a ring, would
//! found three clusters of two, and none of these could ever elect anybody.
//!
//! Why promise first? If a number is used twice, by mistake or behind an
//! address that leads to one server and then to another, server 1 may have met
//! one server 3 and server 2 the other. Founding at once, 1 and the one 3 would
//! be a majority of one cluster, 2 and the other 3 one of another.
//!
//! A blank storage promises itself to one table in its life, durably, and says
//! which in its greeting ([`Hello::known`]); a table is founded only if all
//! that are in it have promised themselves to it. So two tables that are
//! founded share no storage.
//!
//! A promise that cannot be kept, because one of those in the table is gone for
//! good, ends with the data directory, which holds nothing else yet. (Releases
//! before did not promise. One of these may found without it; servers of this
//! release then join it.)
//!
//! Left out: wiping *all* disks of a cluster and starting anew looks like a
//! new cluster, and is one.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::fmt;

use tenure_core::bug::Plant;

use super::bug::Bug;
use super::durable::Identity;
use super::ids::{ClusterId, ServerId, StorageId};
use super::membership::Membership;

/// The servers of a cluster and their data directories.
pub type MemberDisks = BTreeMap<ServerId, StorageId>;

/// What a server says of itself when it meets another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its number.
    pub server: ServerId,
    /// Its data directory.
    pub storage: StorageId,
    /// Its cluster; `None` if it is blank.
    pub cluster: Option<ClusterId>,
    /// The members it knows, with their storages; if it is blank, with whom
    /// it has promised to found a cluster, or nobody yet.
    pub known: MemberDisks,
    /// With whom it would found a cluster, itself among them; empty if it is
    /// part of one.
    pub founders: BTreeSet<ServerId>,
}

/// Why a server does not go on, or does not talk to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinError {
    /// Somebody with a number that is not among the peers.
    NotAPeer {
        /// The number.
        server: ServerId,
    },
    /// A blank peer would found a cluster with others than this one would.
    OtherPeers {
        /// The peer.
        server: ServerId,
        /// This server's peers.
        ours: BTreeSet<ServerId>,
        /// Its peers.
        theirs: BTreeSet<ServerId>,
    },
    /// Somebody else has this server's number.
    SameNumber {
        /// The number.
        server: ServerId,
    },
    /// A member knows this server's number under another data directory.
    Replaced {
        /// This server.
        server: ServerId,
        /// What it is known by.
        known: StorageId,
        /// What it has.
        found: StorageId,
    },
    /// A peer has another data directory than the one with which this server
    /// has promised to found a cluster.
    Promised {
        /// The peer.
        server: ServerId,
        /// The directory that was promised.
        promised: StorageId,
        /// The one that it has.
        found: StorageId,
    },
    /// The peers have a cluster, and this server is not in it.
    NotAMember {
        /// This server.
        server: ServerId,
        /// What it has.
        found: StorageId,
    },
    /// The other belongs to another cluster.
    OtherCluster {
        /// Which server.
        server: ServerId,
        /// This server's cluster.
        ours: ClusterId,
        /// Its cluster.
        theirs: ClusterId,
    },
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPeer { server } => write!(
                f,
                "expected one of --peers, found server {}: add it to --peers here, or \
                 correct --peers there",
                server.get()
            ),
            Self::OtherPeers {
                server,
                ours,
                theirs,
            } => write!(
                f,
                "expected server {} to have the same --peers as this server ({}), found {}: \
                 nothing is founded before all servers of a new cluster are started with the same",
                server.get(),
                names(ours),
                names(theirs),
            ),
            Self::SameNumber { server } => write!(
                f,
                "another server that runs has number {id} too, with a data directory of its own: \
                 give one of them another --id, or stop the one that was replaced",
                id = server.get()
            ),
            Self::Replaced {
                server,
                known,
                found,
            } => write!(
                f,
                "expected the data directory {known} for server {id}, found {found}. If `tenure \
                 status` shows another server {id} that runs, give this one a --id of its own. \
                 Otherwise its disk was wiped or replaced (or it was added with a wrong \
                 --storage), and a server without its promises must not vote; to take it in anew \
                 leave it running and run `tenure member remove {id}`, `tenure member add {id} \
                 --storage {found}` and, so that it counts, `tenure member promote {id}`",
                id = server.get()
            ),
            Self::Promised {
                server,
                promised,
                found,
            } => f.write_str(&broken_promise(*server, *promised, *found)),
            Self::NotAMember { server, found } => write!(
                f,
                "the peers have a cluster and server {id} is not in it; to take it in run \
                 `tenure member add {id} --storage {found}` and, so that it counts, \
                 `tenure member promote {id}`",
                id = server.get()
            ),
            Self::OtherCluster {
                server,
                ours,
                theirs,
            } => write!(
                f,
                "expected a server of cluster {ours}, found server {} of cluster {theirs}: is one \
                 of them started with the other's --peers or --data? To have one of them leave \
                 its cluster, and forget all that it has of it, start it with an empty --data",
                server.get()
            ),
        }
    }
}

/// What to do about a promise that cannot be kept.
fn broken_promise(server: ServerId, promised: StorageId, found: StorageId) -> String {
    format!(
        "expected the data directory {promised} for server {id}, with which this server has \
         agreed to found a cluster, found {found}. If two servers have number {id}, stop one of \
         them. If that directory is gone, start all other servers of this new cluster: they may \
         have founded it before, and then they take these in. Only if all of them run and no \
         --data has a file that ends in .wal, stop them all, empty each --data, and start them \
         again",
        id = server.get()
    )
}

/// Servers as a list for people.
fn names(servers: &BTreeSet<ServerId>) -> String {
    let names: Vec<_> = servers.iter().map(|id| id.get().to_string()).collect();
    match &names[..] {
        [one] => format!("server {one}"),
        _ => format!("servers {}", names.join(", ")),
    }
}

impl core::error::Error for JoinError {}

/// A blank server that looks for its peers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bootstrap {
    server: ServerId,
    storage: StorageId,
    /// Every peer, itself among them, and the storage it is blank with.
    blank: BTreeMap<ServerId, Option<StorageId>>,
    /// With whom this server will found a cluster, and with no others.
    promised: Option<MemberDisks>,
    /// What others that are blank have promised.
    others: BTreeMap<ServerId, MemberDisks>,
    planted: Plant<Bug>,
}

impl Bootstrap {
    /// Server `server` with a new data directory, and the numbers of all that
    /// shall found the cluster. Its own is added if it is not among them.
    pub fn new(
        server: ServerId,
        storage: StorageId,
        peers: impl IntoIterator<Item = ServerId>,
    ) -> Self {
        let mut blank: BTreeMap<_, _> = peers.into_iter().map(|peer| (peer, None)).collect();
        blank.insert(server, Some(storage));
        Self {
            server,
            storage,
            blank,
            promised: None,
            others: BTreeMap::new(),
            planted: Plant::NONE,
        }
    }

    /// The same server as it goes on with what its disk has kept. If there is
    /// a promise, it says who the founders are, whatever flags say by now.
    #[must_use]
    pub fn resumed(self, promised: Option<MemberDisks>) -> Self {
        let Some(table) = promised else {
            return self;
        };
        let own = |server| (server == self.server).then_some(self.storage);
        let blank = table.keys().map(|server| (*server, own(*server)));
        Self {
            blank: blank.collect(),
            promised: Some(table),
            ..self
        }
    }

    /// The same, with a mistake that is to be made.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with_bug(self, planted: Option<Bug>) -> Self {
        Self {
            planted: Plant::of(planted),
            ..self
        }
    }

    /// What it says of itself.
    pub fn hello(&self) -> Hello {
        Hello {
            server: self.server,
            storage: self.storage,
            cluster: None,
            known: self.promised.clone().unwrap_or_default(),
            founders: self.blank.keys().copied().collect(),
        }
    }

    /// Who has not been heard yet.
    pub fn missing(&self) -> Vec<ServerId> {
        let unheard = self.blank.iter().filter(|(_, storage)| storage.is_none());
        unheard.map(|(server, _)| *server).collect()
    }

    /// A peer said this. When it is the last one that was waited for, or has
    /// founded already, gives who this server is and who belongs to its
    /// cluster: both go to disk before it says another word. No members means
    /// that it votes when the log has told it who they are.
    ///
    /// # Errors
    /// If this server must not run, or the other is none of its peers.
    pub fn heard(&mut self, hello: &Hello) -> Result<Option<(Identity, Membership)>, JoinError> {
        if hello.server == self.server && hello.storage != self.storage {
            let server = self.server;
            return Err(JoinError::SameNumber { server });
        }
        let knows_this = hello.known.get(&self.server) == Some(&self.storage);
        if !self.blank.contains_key(&hello.server) && !knows_this {
            let server = hello.server;
            return Err(JoinError::NotAPeer { server });
        }
        if let Some(cluster) = hello.cluster {
            let joined = self.join(cluster, &hello.known);
            if joined.is_err() && self.blank.contains_key(&hello.server) {
                // There is a cluster, and this server founds no other one
                // with what this peer said when it was blank.
                self.blank.insert(hello.server, None);
            }
            return joined.map(Some);
        }
        if !self.blank.keys().eq(&hello.founders) {
            // What it said with other peers no longer counts.
            self.blank.insert(hello.server, None);
            return Err(JoinError::OtherPeers {
                server: hello.server,
                ours: self.blank.keys().copied().collect(),
                theirs: hello.founders.clone(),
            });
        }
        let promised = self.promised.as_ref();
        if let Some(promised) = promised.and_then(|table| table.get(&hello.server))
            && *promised != hello.storage
        {
            let (server, promised, found) = (hello.server, *promised, hello.storage);
            return Err(JoinError::Promised {
                server,
                promised,
                found,
            });
        }
        // One that was wiped while this one waited says it is blank again,
        // with another storage: the later word is the true one.
        self.blank.insert(hello.server, Some(hello.storage));
        self.others.insert(hello.server, hello.known.clone());
        Ok(self.complete())
    }

    /// Everybody, if all others are known to be blank.
    fn everybody(&self) -> Option<MemberDisks> {
        let heard = |(server, storage): (&ServerId, &Option<StorageId>)| {
            storage.map(|storage| (*server, storage))
        };
        let many = self.blank.len() - self.missing().len() > self.blank.len() / 2;
        if self.planted.is(Bug::FoundByMajority) && many {
            return Some(self.blank.iter().filter_map(heard).collect());
        }
        self.blank.iter().map(heard).collect()
    }

    /// With whom this server could found a cluster, if it has promised itself
    /// to none. The caller makes that durable, says [`promise`](Self::promise),
    /// and greets all others again.
    pub fn due(&self) -> Option<MemberDisks> {
        match self.promised {
            Some(_) => None,
            None => self.everybody(),
        }
    }

    /// The promise is durable. The same as [`heard`](Self::heard), should all
    /// others have made it before.
    pub fn promise(&mut self, table: MemberDisks) -> Option<(Identity, Membership)> {
        self.promised = Some(table);
        self.complete()
    }

    /// Who this server is and who belongs to its cluster, if all others have
    /// promised the same. To be asked once before any server is heard: one that
    /// bootstraps a cluster alone waits for no other.
    pub fn complete(&self) -> Option<(Identity, Membership)> {
        let hasty = self.planted.is(Bug::FoundByMajority) || self.planted.is(Bug::FoundUnpromised);
        if hasty || self.blank.len() == 1 {
            return self.everybody().map(|table| self.bootstrapped(&table));
        }
        let table = self.promised.as_ref()?;
        let mut others = table.keys().filter(|server| **server != self.server);
        let agreed = others.all(|server| self.others.get(server) == Some(table));
        agreed.then(|| self.bootstrapped(table))
    }

    fn bootstrapped(&self, table: &MemberDisks) -> (Identity, Membership) {
        self.found(digest(table), table)
    }

    /// A peer has a cluster already.
    fn join(
        &self,
        cluster: ClusterId,
        known: &MemberDisks,
    ) -> Result<(Identity, Membership), JoinError> {
        let (server, found) = (self.server, self.storage);
        match known.get(&server) {
            // As if it were the one that they know.
            Some(_) if self.planted.is(Bug::WipedVotes) => {
                let mut table = known.clone();
                table.insert(server, found);
                Ok(self.found(cluster, &table))
            }
            Some(storage) if *storage == found && digest(known) == cluster => {
                self.check_promise(known)?;
                Ok(self.found(cluster, known))
            }
            // It belongs to them, but the members have changed since the
            // bootstrap: it learns of that, and that it may vote, by the log.
            Some(storage) if *storage == found => Ok(self.found(cluster, &MemberDisks::new())),
            Some(storage) => Err(JoinError::Replaced {
                server,
                known: *storage,
                found,
            }),
            None => Err(JoinError::NotAMember { server, found }),
        }
    }

    /// Whether a cluster that these have founded is the one that was promised,
    /// if any was.
    fn check_promise(&self, table: &MemberDisks) -> Result<(), JoinError> {
        let promised = self.promised.as_ref().filter(|promised| *promised != table);
        let mut differs = promised.into_iter().flatten();
        let differs = differs.find(|(server, storage)| table.get(server) != Some(storage));
        match differs {
            None => Ok(()),
            Some((server, promised)) => Err(JoinError::Promised {
                server: *server,
                promised: *promised,
                found: table.get(server).copied().unwrap_or(*promised),
            }),
        }
    }

    fn found(&self, cluster: ClusterId, table: &MemberDisks) -> (Identity, Membership) {
        let identity = Identity {
            cluster,
            server: self.server,
            storage: self.storage,
        };
        let members = table.iter().map(|(server, storage)| (*server, *storage));
        (identity, Membership::bootstrapped(members))
    }
}

impl Identity {
    /// Whether this server may talk to the one that says `hello`.
    ///
    /// What the other says is judged by its cluster, its term and its log, and
    /// never by whether this server's own members have it, with that disk or at
    /// all: those members may be out of date. If one that lags refused the
    /// only server that has everything, a majority could be up and yet never
    /// elect a leader. To let it talk is safe.
    ///
    /// A vote does not elect a server that was removed. Such a server counts
    /// the votes of *its* members. A majority of these shares a disk with each
    /// majority of later members, and that disk's log is better, so it refuses.
    /// Pre-vote keeps the removed server from disturbing those that hear a
    /// leader. What *adds* to a majority is counted by number and disk, where it
    /// is counted (`node/candidate.rs`, `node/leader.rs`).
    ///
    /// # Errors
    /// If it is a stranger: of another cluster, or under this server's own
    /// number. A blank server is none: it may be one that waits to be
    /// admitted.
    pub fn meets(&self, hello: &Hello) -> Result<(), JoinError> {
        let server = hello.server;
        if let Some(theirs) = hello.cluster.filter(|theirs| *theirs != self.cluster) {
            let ours = self.cluster;
            return Err(JoinError::OtherCluster {
                server,
                ours,
                theirs,
            });
        }
        if server == self.server {
            return Err(JoinError::SameNumber { server });
        }
        Ok(())
    }
}

/// The id of the cluster that is founded by these (FNV-1a, 128 bits). The
/// storages are random, so no two clusters have the same by chance.
pub fn digest(table: &MemberDisks) -> ClusterId {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    let bytes = table.iter().flat_map(|(server, storage)| {
        let server = server.get().to_le_bytes().into_iter();
        server.chain(storage.to_u128().to_le_bytes())
    });
    let mix = |hash: u128, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    ClusterId::from_u128(bytes.fold(BASIS, mix))
}
