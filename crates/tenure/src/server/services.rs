//! What clients can call, as functions over the messages of the interface.
//!
//! gRPC (`grpc`) and HTTP (`http`) are two ways to reach the same functions.
//! Each wants to know who calls, and begins by asking whether that may be:
//! before it looks at the rest of the request, so that nobody learns from an
//! answer what they may not ask.

use std::time::Duration;

use tenure_core::alpo::{
    Ask, Change, ClusterId, Found, MAX_NUMBER, Node, Operation, Outcome, Part, Query, ServerId,
    StorageId,
};
use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tenure_core::time::{ClockId, StoreTime};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt as _;

use super::door::Door;
use super::following::CutOff;
use super::inbox::{Event, Told};
use super::tokens::{Caller, Need};
use super::translate::{self, compacted, done, error, found, invalid};
use super::view::{Applied, status};
use super::watchers::{After, News, NoWatch, Selector};
use crate::api::v1::{self, Cause};
use crate::clock;

type Answered<T> = Result<T, v1::Error>;
/// Messages to one reader, until the first error.
pub(super) type Stream<T> = mpsc::Receiver<Answered<T>>;

/// What a call without a swap would write.
const NOTHING: v1::Swap = v1::Swap {
    key: String::new(),
    expect: None,
    value: bytes::Bytes::new(),
    keep_stamp: false,
    at_end: None,
};
/// How many messages may wait for one reader of a stream.
pub(super) const QUEUE_MAX: usize = 16;
/// Entries of one call of Append, at most.
const APPEND_MAX: usize = 4_096;

impl Door {
    /// The cluster's clock, for times of the log.
    pub(super) fn clock(&self) -> StoreTime {
        let identity = self.shared.face().identity;
        StoreTime {
            clock: identity.map_or_else(ClockId::default, |it| super::data::clock(it.cluster)),
            nanos: 0,
        }
    }

    async fn query(&self, query: Query) -> Answered<Found> {
        found(self.ask(Ask::Read(query)).await, &self.shared)
    }

    /// Reads what this server has applied.
    async fn stale(&self, query: Query) -> Answered<(Found, Applied)> {
        let look = |node: &Node| {
            let state = node.state();
            (state.find(query, 0), Applied::of(node))
        };
        let (seen, applied) = self.look(look).await?;
        let told = Told {
            answer: tenure_core::alpo::Answer::Read(seen),
            at: None,
        };
        found(told, &self.shared).map(|found| (found, applied))
    }

    pub(super) async fn read(
        &self,
        caller: &Caller,
        request: v1::ReadRequest,
    ) -> Answered<v1::ReadResponse> {
        caller.may(Need::Read(&request.key))?;
        let query = translate::read(&request.key)?;
        if !request.stale {
            return self.query(query).await.map(translate::read_response);
        }
        let (found, applied) = self.stale(query).await?;
        Ok(v1::ReadResponse {
            applied: applied.id,
            age_millis: applied.age_millis(),
            ..translate::read_response(found)
        })
    }

    pub(super) async fn list(
        &self,
        caller: &Caller,
        request: v1::ListRequest,
    ) -> Answered<v1::ListResponse> {
        caller.may(Need::Read(&request.prefix))?;
        let query = translate::list(&request)?;
        let found = if request.stale {
            self.stale(query).await?.0
        } else {
            self.query(query).await?
        };
        Ok(translate::list_response(found))
    }

    pub(super) async fn read_log(
        &self,
        caller: &Caller,
        request: v1::ReadLogRequest,
    ) -> Answered<v1::ReadLogResponse> {
        caller.may(Need::ReadLog)?;
        let query = translate::read_log(&request);
        let found = if request.stale {
            self.stale(query).await?.0
        } else {
            self.query(query).await?
        };
        Ok(translate::log_response(found))
    }

    async fn run(
        &self,
        operation: Operation,
        numbered: Option<&v1::Numbered>,
    ) -> Answered<(Outcome, Option<u64>)> {
        let told = match numbered {
            Some(numbered) => self.ask(translate::numbered(numbered, operation)?).await,
            None => self.house.run(self, operation).await,
        };
        done(told, &self.shared)
    }

    pub(super) async fn compare_and_swap(
        &self,
        caller: &Caller,
        request: v1::CompareAndSwapRequest,
    ) -> Answered<v1::CompareAndSwapResponse> {
        caller.may(Need::Swap(request.swap.as_ref().unwrap_or(&NOTHING)))?;
        let swap = request
            .swap
            .ok_or_else(|| invalid("expected a swap, found none"))?;
        if swap.at_end.is_some() && request.numbered.is_none() {
            // The session that serves those without one is nobody's.
            return Err(invalid("expected a session to bind to, found none"));
        }
        let operation = translate::swap(swap)?;
        let (outcome, at) = self.run(operation, request.numbered.as_ref()).await?;
        Ok(translate::swapped(&outcome, at, self.clock()))
    }

    pub(super) async fn delete(
        &self,
        caller: &Caller,
        request: v1::DeleteRequest,
    ) -> Answered<v1::DeleteResponse> {
        caller.may(Need::Delete(&request.key))?;
        let operation = translate::delete(&request.key, request.expect)?;
        let (outcome, _) = self.run(operation, request.numbered.as_ref()).await?;
        Ok(v1::DeleteResponse {
            deleted: outcome == Outcome::Deleted,
        })
    }

    pub(super) async fn append(
        &self,
        caller: &Caller,
        request: v1::AppendRequest,
    ) -> Answered<v1::AppendResponse> {
        caller.may(Need::Append)?;
        let count = request.entries.len();
        if count > APPEND_MAX || (count != 1 && request.numbered.is_some()) || count == 0 {
            return Err(invalid(format!(
                "expected 1 to {APPEND_MAX} entries, or one with a number, found {count}"
            )));
        }
        let operations = request.entries.iter().map(translate::append);
        let operations: Vec<Operation> = operations.collect::<Answered<_>>()?;
        let mut numbers = Vec::with_capacity(count);
        for operation in operations {
            match self.run(operation, request.numbered.as_ref()).await {
                Ok((Outcome::Appended(number), _)) => numbers.push(number),
                Ok(_) => {}
                Err(refused) if numbers.is_empty() => return Err(refused),
                // Not the cause: it would say that nothing was done.
                Err(refused) => {
                    let (done, why) = (numbers.len(), refused.message);
                    return Err(error(
                        Cause::Interrupted,
                        format!("{done} of {count} entries were appended, and then: {why}"),
                    ));
                }
            }
        }
        Ok(v1::AppendResponse { numbers })
    }

    pub(super) async fn open(
        &self,
        caller: &Caller,
        ttl_millis: u64,
    ) -> Answered<v1::OpenSessionResponse> {
        caller.may(Need::Session)?;
        let told = self.ask(translate::open(ttl_millis)?).await;
        match done(told, &self.shared)? {
            (Outcome::Opened(session), _) => Ok(v1::OpenSessionResponse { session }),
            (other, _) => Err(error(Cause::Unspecified, format!("found {other:?}"))),
        }
    }

    /// A command of a session that is about nothing but the session.
    pub(super) async fn session(
        &self,
        caller: &Caller,
        numbered: Option<v1::Numbered>,
        operation: Operation,
    ) -> Answered<()> {
        caller.may(Need::Session)?;
        let numbered = numbered.ok_or_else(|| invalid("expected a session, found none"))?;
        self.run(operation, Some(&numbered)).await.map(drop)
    }

    /// Begins to follow registers.
    pub(super) async fn watch(
        &self,
        caller: Caller,
        request: v1::WatchRequest,
    ) -> Answered<impl tokio_stream::Stream<Item = Answered<v1::WatchResponse>> + Send + use<>>
    {
        let what = request.key.as_ref().unwrap_or(&request.prefix).clone();
        caller.may(Need::Read(&what))?;
        let selector = match request.key {
            Some(key) => {
                let key = Key::new(&key).map_err(|why| invalid(format!("key: {why}")))?;
                Selector::Key(key)
            }
            None => Selector::Prefix(request.prefix),
        };
        let after = after(request.after_revision, request.after_id)?;
        // A blank server has no cluster, and can say nothing of places yet.
        self.look(|_| ()).await?;
        let cluster = self.shared.face().identity;
        let cluster = cluster.map_or_else(String::new, |it| it.cluster.to_string());
        let told_by = request.cluster;
        let foreign = !told_by.is_empty() && told_by != cluster;
        if after.is_none() {
            self.caught_up().await?;
        }
        let watchers = std::sync::Arc::clone(&self.watchers);
        let followed = self
            .look(move |node| watchers.follow(node, selector, after, foreign))
            .await?;
        let (changes, after) = followed.map_err(|why| no_watch(why, &cluster, &told_by))?;
        let (mut cluster, mut over) = (cluster, false);
        Ok(changes.map_while(move |told| {
            if over {
                return None;
            }
            let told = caller
                .may(Need::Read(&what))
                .and_then(|()| news(told, after, std::mem::take(&mut cluster)));
            over = told.is_err();
            Some(told)
        }))
    }

    /// Follows the plain log from `from` on; 0 for what is new.
    pub(super) async fn tail(
        &self,
        caller: Caller,
        from: u64,
    ) -> Answered<Stream<v1::ReadLogResponse>> {
        caller.may(Need::ReadLog)?;
        let mut progress = self.shared.progress.subscribe();
        let mut next = match from {
            0 => {
                self.caught_up().await?;
                self.look(|node| node.state().journal().next()).await?
            }
            from => from,
        };
        let door = self.clone();
        let (sender, messages) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(async move {
            loop {
                let query = Query::Journal {
                    from: next,
                    count: usize::MAX,
                };
                let read = match caller.may(Need::ReadLog) {
                    Ok(()) => door.stale_log(query).await,
                    Err(barred) => Err(barred),
                };
                let (count, failed) = match &read {
                    Ok(response) => (response.entries.len(), false),
                    Err(_) => (0, true),
                };
                next += count as u64;
                if failed || count > 0 {
                    let gone = sender.send(read).await.is_err();
                    if gone || failed {
                        return;
                    }
                } else {
                    tokio::select! {
                        changed = progress.changed() => if changed.is_err() { return },
                        () = sender.closed() => return,
                    }
                }
            }
        });
        Ok(messages)
    }

    async fn change(&self, change: Change, of: Option<StorageId>) -> Answered<v1::MembersResponse> {
        let told = self.ask(Ask::change(change, of)).await;
        done(told, &self.shared).map(|_| v1::MembersResponse {})
    }

    /// Whom a change is about: the member with the disk that was given, or
    /// with the one that the member has now. It may wait here until somebody
    /// leads, and the number may be given to another meanwhile.
    async fn whom(
        &self,
        id: u64,
        storage: &str,
    ) -> Result<(ServerId, Option<StorageId>), v1::Error> {
        let id = server(id)?;
        if !storage.is_empty() {
            return Ok((id, Some(disk(storage)?)));
        }
        let member = self.look(move |node| node.members().get(id)).await?;
        Ok((id, member.map(|it| it.storage)))
    }

    pub(super) async fn add_member(
        &self,
        caller: &Caller,
        request: v1::AddMemberRequest,
    ) -> Answered<v1::MembersResponse> {
        caller.may(Need::Admin)?;
        let storage = disk(&request.storage)?;
        let server = server(request.id)?;
        if !request.peer_address.is_empty() {
            self.shared.introduce(server, &request.peer_address);
        }
        self.change(Change::Admit { server, storage }, None).await
    }

    pub(super) async fn promote_member(
        &self,
        caller: &Caller,
        request: v1::PromoteMemberRequest,
    ) -> Answered<v1::MembersResponse> {
        caller.may(Need::Admin)?;
        let (server, of) = self.whom(request.id, &request.storage).await?;
        self.change(Change::Promote(server), of).await
    }

    pub(super) async fn remove_member(
        &self,
        caller: &Caller,
        request: v1::RemoveMemberRequest,
    ) -> Answered<v1::MembersResponse> {
        caller.may(Need::Admin)?;
        let (server, of) = self.whom(request.id, &request.storage).await?;
        self.change(Change::Remove(server), of).await
    }

    pub(super) async fn transfer(
        &self,
        caller: &Caller,
        to: Option<u64>,
    ) -> Answered<v1::TransferResponse> {
        caller.may(Need::Admin)?;
        let to = to.map(server).transpose()?;
        if let Some(to) = to {
            let seen = self.look(move |node| {
                let (leads, members) = (node.is_ready(), node.members());
                let voters: Vec<String> = members.voters().map(|it| it.get().to_string()).collect();
                let fits = !leads || members.is_voter(to);
                (leads && to == node.id(), fits, voters.join(", "))
            });
            match seen.await? {
                // What is asked for is so.
                (true, ..) => return Ok(v1::TransferResponse {}),
                (_, true, _) => {}
                (_, false, voters) => {
                    return Err(error(
                        Cause::Members,
                        format!(
                            "expected a member that counts ({voters}), found server {}",
                            to.get()
                        ),
                    ));
                }
            }
        }
        let told = self.ask(Ask::Transfer(to)).await;
        done(told, &self.shared).map(|_| v1::TransferResponse {})
    }

    /// This server, as it sees itself.
    pub(super) async fn status(
        &self,
        caller: &Caller,
        request: v1::StatusRequest,
    ) -> Answered<v1::StatusResponse> {
        caller.may(Need::Token)?;
        let confirmed = self.confirm(request.confirm_millis).await;
        let status = self.own_status().await;
        // One that found out meanwhile that it leads no more has said so.
        let confirmed = confirmed.filter(|_| status.role() == v1::Role::Leader);
        Ok(v1::StatusResponse {
            confirmed,
            // How far others have gone without it, it cannot tell.
            lag: status.lag.filter(|_| confirmed != Some(false)),
            ..status
        })
    }

    /// What it counts, as text.
    pub(super) async fn metrics(&self, caller: &Caller) -> Answered<v1::MetricsResponse> {
        caller.may(Need::Token)?;
        let text = self.shared.metrics.text(&self.own_status().await);
        Ok(v1::MetricsResponse { text })
    }

    /// Takes a snapshot here and now, and waits until it is on the disk.
    pub(super) async fn snapshot(&self, caller: &Caller) -> Answered<v1::SnapshotResponse> {
        caller.may(Need::Admin)?;
        // As long as the server is blank there is nothing to take one of.
        self.look(|_| ()).await?;
        let (teller, told) = oneshot::channel();
        self.inbox.put(Event::Snapshot(teller));
        let upto = told.await;
        let upto = upto.map_err(|_| error(Cause::NotReady, "this server stops"))?;
        Ok(v1::SnapshotResponse { upto })
    }

    async fn own_status(&self) -> v1::StatusResponse {
        let standing = self.shared.standing.borrow().clone();
        let blank = v1::StatusResponse {
            role: v1::Role::Blank.into(),
            ..v1::StatusResponse::default()
        };
        let seen = self.look(status).await.unwrap_or(blank);
        let face = self.shared.face();
        let member = |(id, member): (ServerId, tenure_core::alpo::Member)| {
            let contact = face.book.get(id).cloned().unwrap_or_default();
            v1::Member {
                id: id.get(),
                voter: member.part == Part::Voter,
                storage: member.storage.to_string(),
                peer_address: contact.peer,
                client_address: contact.client,
                connected: face.connected.contains_key(&id),
            }
        };
        let uptime = clock::boot().since(self.started).as_millis();
        let cluster = face.identity.map(|it| it.cluster.to_string());
        v1::StatusResponse {
            id: face.hello.server.get(),
            ready: standing.ready,
            removed: standing.removed,
            cluster: cluster.unwrap_or_default(),
            storage: face.hello.storage.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            members: face.members.iter().map(member).collect(),
            uptime_millis: u64::try_from(uptime).unwrap_or(u64::MAX),
            waiting: standing.waiting,
            ..seen
        }
    }
}

/// After what a watch is to begin.
fn after(revision: Option<u64>, id: Option<u64>) -> Answered<Option<After>> {
    match (revision, id) {
        (Some(_), Some(_)) => Err(invalid("expected after_revision or after_id, found both")),
        (Some(revision), None) => Ok(Some(After::Revision(revision))),
        (None, Some(id)) => Ok(Some(After::Id(id))),
        (None, None) => Ok(None),
    }
}

/// Why nobody can follow from there, as the interface says it.
fn no_watch(why: NoWatch, own: &str, told_by: &str) -> v1::Error {
    match why {
        NoWatch::Full => error(Cause::Busy, "there are as many watches as there may be"),
        NoWatch::TooOld(revision) => compacted(revision),
        NoWatch::Behind(applied) => error(
            Cause::NotReady,
            format!("this server has only come to entry {applied}; ask another"),
        ),
        NoWatch::Restored(revision) if told_by.is_empty() => translate::restored(revision),
        NoWatch::Restored(revision) => {
            let text = format!(
                "expected a watch of cluster {own}, which was restored from a backup, found one \
                 of {told_by}: what it was told since the backup is gone; begin again"
            );
            v1::Error {
                expected: revision,
                ..error(Cause::Restored, text)
            }
        }
        NoWatch::Foreign => error(
            Cause::Compacted,
            format!("expected a watch of cluster {own}, found one of {told_by}: begin again"),
        ),
    }
}

fn disk(storage: &str) -> Result<StorageId, v1::Error> {
    StorageId::parse(storage).ok_or_else(|| {
        invalid(format!(
            "expected a storage of 32 hexadecimal digits, as the server prints it, found \
             {storage:?}"
        ))
    })
}

fn server(id: u64) -> Answered<ServerId> {
    let server = ServerId::new(id).filter(|_| id <= MAX_NUMBER);
    server.ok_or_else(|| {
        invalid(format!(
            "expected the number of a server, from 1 to 2^62, found {id}"
        ))
    })
}

/// News as the interface tells them, leaving out what is not after `after`;
/// `None` if the follower has to begin again.
fn news(news: Result<News, CutOff>, after: u64, cluster: String) -> Answered<v1::WatchResponse> {
    let changed = |key: &Key, held: Option<&Register>| v1::Changed {
        key: key.as_str().to_owned(),
        register: held.map(translate::register),
    };
    let Ok(news) = news else {
        return Err(error(
            Cause::TooSlow,
            "this watch was not read and has been cut off; begin again from the last revision \
             that was seen",
        ));
    };
    match news {
        News::Initial(registers, revision, began) => Ok(v1::WatchResponse {
            changes: registers
                .iter()
                .map(|(key, it)| changed(key, Some(it)))
                .collect(),
            revision,
            initial: true,
            began,
            cluster,
        }),
        News::Changes(changes, revision) => {
            let new = changes.iter().filter(|change| change.revision > after);
            Ok(v1::WatchResponse {
                changes: new
                    .map(|it| changed(&it.key, it.register.as_ref()))
                    .collect(),
                // A server that lags behind the one that told the place has
                // nothing to add to it yet.
                revision: revision.max(after),
                cluster,
                ..v1::WatchResponse::default()
            })
        }
        News::Gap(revision) => Err(compacted(revision)),
    }
}

/// How long a watch or a tail without a place waits for a server that has
/// just started.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(3);

/// How much of a backup goes into one message.
const PART_BYTES: usize = 1024 * 1024;

impl Door {
    /// Waits until the state has all that it had before the process started.
    /// What is told to somebody who comes without a place must not be older
    /// than what this very server has told before.
    async fn caught_up(&self) -> Answered<()> {
        let mut caught_up = self.shared.caught_up.subscribe();
        let wait = caught_up.wait_for(|caught_up| *caught_up);
        match tokio::time::timeout(CATCH_UP_WITHIN, wait).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(error(
                Cause::NotReady,
                "this server has started and has not yet heard from a leader how far the log is \
                 committed; ask another",
            )),
        }
    }

    /// Entries of the plain log that this server has applied.
    async fn stale_log(&self, query: Query) -> Answered<v1::ReadLogResponse> {
        self.stale(query)
            .await
            .map(|(found, _)| translate::log_response(found))
    }

    /// A consistent copy of everything, as of a moment after the call.
    pub(super) async fn backup(&self, caller: &Caller) -> Answered<Vec<bytes::Bytes>> {
        caller.may(Need::Admin)?;
        // The leader's state after a confirmed round holds everything that
        // was acknowledged before the call.
        self.query(Query::Barrier).await?;
        let (image, last) = self
            .look(|node| (node.state().encode(), node.state().applied()))
            .await?;
        let image = bytes::Bytes::from(image);
        let identity = self.shared.face().identity;
        let cluster = identity.map_or(ClusterId::from_u128(0), |it| it.cluster);
        let header = super::backup::header(cluster, last, &image);
        let parts = (0..image.len()).step_by(PART_BYTES);
        let parts = parts.map(|from| image.slice(from..image.len().min(from + PART_BYTES)));
        Ok(std::iter::once(header).chain(parts).collect())
    }
}
