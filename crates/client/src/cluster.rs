//! The servers themselves: how they are, who belongs, who leads, backups.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_api::v1::{self, cluster_client::ClusterClient};
use tenure_runtime::error::about;
use tenure_runtime::{clock, drive};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::channel::Channel;
use super::error::{carried, carrying, gone, of_changing, of_reading, sentence};
use super::leader_discovery::{Leader, LeaderDiscovery};
use super::{Client, Error};

/// The pause before another leader is looked for.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a server that leads may wait for a majority to confirm it before
/// it says how it stands.
const CONFIRM_WITHIN: Duration = Duration::from_secs(1);
/// Of so many round trips the quickest counts.
const TRIPS: u32 = 4;
/// Parts of a backup that are taken ahead of the reader.
const AHEAD: usize = 4;
/// The largest part of a backup.
const PART_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(super) type Call<T> =
    Pin<Box<dyn Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send>>;

/// One server as it sees itself, or why it cannot be asked.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Its number, if that is known.
    pub id: Option<u64>,
    /// Where it was asked; empty if nobody knows.
    pub address: String,
    /// What it says of itself, or why it says nothing.
    pub status: Result<v1::StatusResponse, String>,
}

/// A consistent copy of everything in a cluster, in parts.
#[derive(Debug)]
pub struct Backup {
    parts: mpsc::Receiver<Result<Bytes, Error>>,
    ended: bool,
}

impl Backup {
    /// The next part. `None` after the last: only then it is complete.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it broke off: begin again.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        if self.ended {
            return None;
        }
        match self.parts.recv().await {
            Some(Ok(part)) if part.is_empty() => {
                self.ended = true;
                None
            }
            Some(part) => Some(part),
            None => {
                self.ended = true;
                Some(Err(Error::Unavailable("the backup broke off".into())))
            }
        }
    }
}

impl Client {
    /// What each server says of itself: those that were named, and those that
    /// they know of, by number; those that cannot be reached as well. One that
    /// leads asks a majority first whether it still does, for a second at most
    /// (`confirmed`).
    pub async fn status(&self) -> Vec<ServerStatus> {
        let (leader_discovery, within) = (Arc::clone(&self.shared.leader_discovery), self.time());
        let asked =
            drive::background().spawn(async move { everybody(&leader_discovery, within).await });
        asked.await.unwrap_or_default()
    }

    /// How long a round trip to the cluster takes: what the quickest of a few
    /// questions took that the leader was asked, over a connection that was
    /// there. `None` if nobody leads in time.
    pub async fn round_trip(&self) -> Option<Duration> {
        let leader_discovery = Arc::clone(&self.shared.leader_discovery);
        let asking = async move {
            let leader = leader_discovery.leader(0).await.ok()?;
            let mut client = ClusterClient::new(leader_discovery.channel(&leader.address).ok()?);
            let mut quickest = None;
            for _ in 0..TRIPS {
                let asked = clock::boot();
                client.status(v1::StatusRequest::default()).await.ok()?;
                let took = clock::boot().since(asked);
                quickest = Some(quickest.map_or(took, |least: Duration| least.min(took)));
            }
            quickest
        };
        let asking = timeout(self.time(), asking);
        drive::background().spawn(asking).await.ok()?.ok()?
    }

    /// What the leader says of itself and of the others.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nobody leads in time.
    pub async fn leader_status(&self) -> Result<v1::StatusResponse, Error> {
        self.on_leader(of_reading, |mut client| {
            Box::pin(async move {
                let answer = client.status(v1::StatusRequest::default()).await?;
                // Everybody answers this; one that led a moment ago too.
                if answer.get_ref().role() == v1::Role::Leader {
                    Ok(answer)
                } else {
                    Err(carrying(&v1::Error {
                        cause: v1::Cause::NotLeader.into(),
                        ..v1::Error::default()
                    }))
                }
            })
        })
        .await
    }

    /// Takes in server `id`, whose data directory is `storage` as it prints
    /// it. It follows and does not count until it is promoted. `peer_address`
    /// is where other servers reach it, empty if it says so itself.
    ///
    /// # Errors
    /// [`Error::Refused`] if that makes no sense, or comes while another
    /// change is under way; [`Error::Unknown`] if it may have happened: look
    /// at the members.
    pub async fn add_member(
        &self,
        id: u64,
        storage: &str,
        peer_address: &str,
    ) -> Result<(), Error> {
        let request = v1::AddMemberRequest {
            id,
            storage: storage.to_owned(),
            peer_address: peer_address.to_owned(),
        };
        self.on_leader(of_changing, move |mut client| {
            let request = request.clone();
            Box::pin(async move { client.add_member(request).await })
        })
        .await
        .map(|_| ())
    }

    /// Makes a learner that has caught up a voter.
    ///
    /// # Errors
    /// As [`add_member`](Self::add_member).
    pub async fn promote_member(&self, id: u64) -> Result<(), Error> {
        let storage = self.storage_of(id).await?;
        self.promote_disk(id, &storage).await
    }

    /// Lets member `id` count if its data directory is `storage`, and leaves
    /// another alone that has its number by then.
    ///
    /// # Errors
    /// As [`add_member`](Self::add_member).
    pub async fn promote_disk(&self, id: u64, storage: &str) -> Result<(), Error> {
        let storage = storage.to_owned();
        let request = v1::PromoteMemberRequest { id, storage };
        self.on_leader(of_changing, move |mut client| {
            let request = request.clone();
            Box::pin(async move { client.promote_member(request).await })
        })
        .await
        .map(|_| ())
    }

    /// Takes out the member that has this number now.
    ///
    /// # Errors
    /// As [`add_member`](Self::add_member).
    pub async fn remove_member(&self, id: u64) -> Result<(), Error> {
        let storage = self.storage_of(id).await?;
        self.remove_disk(id, &storage).await
    }

    /// Takes out member `id` if its data directory is `storage`, and leaves
    /// another alone that has its number by then: however late this is done,
    /// and however often.
    ///
    /// # Errors
    /// As [`add_member`](Self::add_member).
    pub async fn remove_disk(&self, id: u64, storage: &str) -> Result<(), Error> {
        let storage = storage.to_owned();
        let request = v1::RemoveMemberRequest { id, storage };
        self.on_leader(of_changing, move |mut client| {
            let request = request.clone();
            Box::pin(async move { client.remove_member(request).await })
        })
        .await
        .map(|_| ())
    }

    /// The disk of the member that has this number now. It goes with whatever
    /// is asked for about it, first and again: a packet that was under way for
    /// minutes is then not about the one that has the number when it arrives.
    async fn storage_of(&self, id: u64) -> Result<String, Error> {
        let leader = self.leader_status().await?;
        let member = leader.members.iter().find(|it| it.id == id);
        member.map(|it| it.storage.clone()).ok_or_else(|| {
            let known: Vec<_> = leader.members.iter().map(|it| it.id.to_string()).collect();
            Error::Refused {
                cause: v1::Cause::Members,
                message: format!(
                    "expected the number of a member ({}), found {id}",
                    known.join(", ")
                ),
            }
        })
    }

    /// Hands the leadership of the cluster to server `to`, or to the best of
    /// the others.
    ///
    /// # Errors
    /// [`Error::Refused`] if it was not taken over in time.
    pub async fn transfer(&self, to: Option<u64>) -> Result<(), Error> {
        self.on_leader(of_changing, move |mut client| {
            Box::pin(async move { client.transfer(v1::TransferRequest { to }).await })
        })
        .await
        .map(|_| ())
    }

    /// Has a server take a snapshot of its state now, and waits until that is
    /// on its disk. Gives the last entry that its newest snapshot covers.
    /// `address` is that of a server, as [`status`](Self::status) tells it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it does not answer in time (it may take one
    /// all the same); [`Error::Refused`] if this client may not.
    pub async fn snapshot(&self, address: &str) -> Result<u64, Error> {
        let (leader_discovery, within) = (Arc::clone(&self.shared.leader_discovery), self.time());
        let address: Arc<str> = address.into();
        let work = async move {
            let channel = leader_discovery
                .channel(&address)
                .map_err(Error::Unavailable)?;
            let mut client = ClusterClient::new(channel);
            let called = timeout(within, client.snapshot(v1::SnapshotRequest {})).await;
            match called {
                Ok(Ok(answer)) => Ok(answer.into_inner().upto),
                Ok(Err(status)) => Err(of_reading(&status)),
                Err(_) => Err(Error::Unavailable(format!(
                    "no answer within {}",
                    about(within)
                ))),
            }
        };
        let done = drive::background().spawn(work).await;
        done.unwrap_or_else(|_| Err(gone()))
    }

    /// A consistent copy of everything, from the leader.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nobody leads in time.
    pub async fn backup(&self) -> Result<Backup, Error> {
        let mut stream = self
            .on_leader(of_reading, |client| {
                let mut client = client.max_decoding_message_size(PART_BYTES_MAX);
                Box::pin(async move { client.backup(v1::BackupRequest {}).await })
            })
            .await?;
        let (parts, receiver) = mpsc::channel(AHEAD);
        drive::background().spawn(async move {
            loop {
                let part = match stream.message().await {
                    Ok(Some(v1::BackupResponse { part })) if part.is_empty() => continue,
                    Ok(Some(v1::BackupResponse { part })) => Ok(part),
                    // An empty part stands for the end.
                    Ok(None) => Ok(Bytes::new()),
                    Err(status) => Err(of_reading(&status)),
                };
                let over = part.as_ref().map_or(true, Bytes::is_empty);
                if parts.send(part).await.is_err() || over {
                    return;
                }
            }
        });
        Ok(Backup {
            parts: receiver,
            ended: false,
        })
    }

    /// Calls the leader, and another server if it leads no more.
    async fn on_leader<T: Send + 'static>(
        &self,
        meaning: fn(&tonic::Status) -> Error,
        call: impl Fn(ClusterClient<Channel>) -> Call<T> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let call = move |channel| call(ClusterClient::new(channel));
        self.to_leader(meaning, call).await
    }

    /// The same by whatever service.
    pub(super) async fn to_leader<T: Send + 'static>(
        &self,
        meaning: fn(&tonic::Status) -> Error,
        call: impl Fn(Channel) -> Call<T> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let (leader_discovery, within) = (Arc::clone(&self.shared.leader_discovery), self.time());
        let work = async move {
            let mut progress = Progress::default();
            let called = on_leader(&leader_discovery, &mut progress, meaning, call);
            match timeout(within, called).await {
                Ok(answer) => answer,
                Err(_) if progress.sent => Err(meaning(&tonic::Status::deadline_exceeded(
                    "no answer in time",
                ))),
                Err(_) => Err(progress
                    .busy
                    .unwrap_or_else(|| Error::Unavailable(leader_discovery.trouble()))),
            }
        };
        drive::background()
            .spawn(work)
            .await
            .unwrap_or_else(|_| Err(gone()))
    }
}

/// What has become of a call to the leader.
#[derive(Default)]
struct Progress {
    /// It is under way: it may be carried out.
    sent: bool,
    /// The leader has no room for it.
    busy: Option<Error>,
}

async fn on_leader<T>(
    leader_discovery: &LeaderDiscovery,
    progress: &mut Progress,
    meaning: fn(&tonic::Status) -> Error,
    call: impl Fn(Channel) -> Call<T>,
) -> Result<T, Error> {
    let mut past = 0;
    loop {
        let Leader { address, search } = leader_discovery.leader(past).await?;
        past = search;
        let channel = leader_discovery
            .channel(&address)
            .map_err(Error::Unavailable)?;
        progress.sent = true;
        let status = match call(channel).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => status,
        };
        let certainly_not = carried(&status).filter(|error| {
            matches!(
                error.cause(),
                v1::Cause::NotLeader | v1::Cause::NotReady | v1::Cause::Busy
            )
        });
        let Some(error) = certainly_not else {
            return Err(meaning(&status));
        };
        progress.sent = false;
        let is_busy = error.cause() == v1::Cause::Busy;
        progress.busy = is_busy.then(|| Error::from_wire(&error));
        leader_discovery.learn(&error.leader_address);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Asks everybody, and then those that they know of.
async fn everybody(leader_discovery: &LeaderDiscovery, within: Duration) -> Vec<ServerStatus> {
    let mut by_address: BTreeMap<Arc<str>, Result<v1::StatusResponse, String>> = BTreeMap::new();
    loop {
        let mut asking = JoinSet::new();
        for address in leader_discovery.addresses() {
            if by_address.contains_key(&address) {
                continue;
            }
            // As far away as the caller has time for.
            let channel = leader_discovery.dialer().lazy_within(&address, within);
            asking.spawn(async move {
                let answer = async {
                    let mut client = ClusterClient::new(channel?);
                    let confirm = CONFIRM_WITHIN.min(within / 2).as_millis();
                    let asked = client.status(v1::StatusRequest {
                        confirm_millis: u32::try_from(confirm).unwrap_or(u32::MAX),
                    });
                    let answer = timeout(within, asked).await;
                    let answer =
                        answer.map_err(|_| format!("no answer within {}", about(within)))?;
                    answer
                        .map(tonic::Response::into_inner)
                        .map_err(|status| sentence(&status))
                };
                let answer = answer.await;
                (address, answer)
            });
        }
        if asking.is_empty() {
            return by_number(by_address);
        }
        while let Some(asked) = asking.join_next().await {
            let Ok((address, answer)) = asked else {
                continue;
            };
            if let Ok(status) = &answer {
                for member in &status.members {
                    if !by_address
                        .values()
                        .flatten()
                        .any(|known| known.id == member.id)
                    {
                        leader_discovery.learn(&member.client_address);
                    }
                }
            }
            by_address.insert(address, answer);
        }
    }
}

/// One of each server, by number; first those that answered.
fn by_number(
    by_address: BTreeMap<Arc<str>, Result<v1::StatusResponse, String>>,
) -> Vec<ServerStatus> {
    let mut found: BTreeMap<u64, ServerStatus> = BTreeMap::new();
    let mut members: BTreeMap<u64, v1::Member> = BTreeMap::new();
    let mut silent = BTreeMap::new();
    for (address, answer) in by_address {
        match answer {
            Ok(status) => {
                for member in &status.members {
                    let known = members.entry(member.id).or_insert_with(|| member.clone());
                    if known.client_address.is_empty() {
                        known.client_address.clone_from(&member.client_address);
                    }
                }
                found.entry(status.id).or_insert_with(|| ServerStatus {
                    id: Some(status.id),
                    address: address.to_string(),
                    status: Ok(status),
                });
            }
            Err(why) => {
                silent.insert(address.to_string(), why);
            }
        }
    }
    for (id, member) in members {
        found.entry(id).or_insert_with(|| {
            let address = member.client_address;
            let why = silent.remove(&address);
            ServerStatus {
                id: Some(id),
                status: Err(why.unwrap_or_else(|| "its address is not known".into())),
                address,
            }
        });
    }
    // An address of a server that answered elsewhere is no server more.
    let unknown = silent.into_iter().map(|(address, why)| ServerStatus {
        id: None,
        address,
        status: Err(why),
    });
    found.into_values().chain(unknown).collect()
}
