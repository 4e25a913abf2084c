//! What clients can call, as functions over the messages of the interface.
//!
//! gRPC (`grpc`) and HTTP (`http`) are two ways to reach the same functions.
//! Each takes a request whose caller has the right to it (`authorization`).

use tenure_alpo::{
    Change, ClientRequest, ClusterId, MAX_NUMBER, Node, Outcome, Query, QueryResult, ServerId,
    StorageId, VotingStatus,
};
use tenure_api::v1::{self, Cause};
use tenure_core::time::{ClockId, StoreTime};
use tenure_runtime::clock;
use tenure_runtime::error::cut;
use tokio::sync::{SemaphorePermit, oneshot};

use super::audit;
use super::authorization::Authorized;
use super::backup_places::GivenUp;
use super::config::check_address;
use super::errors::{error, invalid};
use super::handle::ServerHandle;
use super::inbox::{Event, TimedAnswer};
use super::status_response::{Applied, status};
use super::tokens::Caller;
use super::translate::{self, done, found};

pub(super) type ApiResult<T> = Result<T, v1::Error>;

/// Entries of one call of Append, at most.
const APPEND_MAX: usize = 4_096;

impl ServerHandle {
    /// The cluster's clock, for times of the log.
    pub(super) fn clock(&self) -> StoreTime {
        let identity = self.shared.local_server().identity;
        StoreTime {
            clock: identity.map_or_else(ClockId::default, |it| super::data::clock(it.cluster)),
            nanos: 0,
        }
    }

    /// Of which cluster this server is; empty while it is blank.
    pub(super) fn cluster(&self) -> String {
        let identity = self.shared.local_server().identity;
        identity.map_or_else(String::new, |it| it.cluster.to_string())
    }

    pub(super) async fn query(&self, query: Query) -> ApiResult<QueryResult> {
        found(self.submit(ClientRequest::Read(query)).await, &self.shared)
    }

    /// Reads what this server has applied.
    pub(super) async fn stale(&self, query: Query) -> ApiResult<(QueryResult, Applied)> {
        let inspect = |node: &Node| {
            let state = node.state();
            (state.find(query, 0), Applied::of(node))
        };
        let (seen, applied) = self.inspect(inspect).await?;
        let told = TimedAnswer::from(tenure_alpo::Answer::Read(seen));
        found(told, &self.shared).map(|found| (found, applied))
    }

    pub(super) async fn read(
        &self,
        asked: Authorized<v1::ReadRequest>,
    ) -> ApiResult<v1::ReadResponse> {
        let (caller, request, _) = asked.into_parts();
        let query = translate::read(&request.key)?;
        if !request.stale {
            let found = self.query(query).await?;
            Self::room_for(&caller, &found)?;
            return Ok(translate::read_response(found));
        }
        let (found, applied) = self.stale(query).await?;
        Self::room_for(&caller, &found)?;
        Ok(v1::ReadResponse {
            applied: applied.id,
            age_millis: applied.age_millis(),
            ..translate::read_response(found)
        })
    }

    pub(super) async fn list(
        &self,
        asked: Authorized<v1::ListRequest>,
    ) -> ApiResult<v1::ListResponse> {
        let (caller, request, _) = asked.into_parts();
        let query = translate::list(&request)?;
        let page = self.page(&caller, query, request.stale).await?;
        Ok(page.told(translate::list_response))
    }

    pub(super) async fn read_log(
        &self,
        asked: Authorized<v1::ReadLogRequest>,
    ) -> ApiResult<v1::ReadLogResponse> {
        let (caller, request, _) = asked.into_parts();
        let query = translate::read_log(&request);
        let page = self.page(&caller, query, request.stale).await?;
        Ok(page.told(translate::log_response))
    }

    /// Reads a page, in its turn. It is as large as a thousand other answers,
    /// and a thousand of them may be asked for at once: so there is room for
    /// each when its turn comes, and when it is there, or it is refused.
    async fn page(&self, caller: &Caller, query: Query, stale: bool) -> ApiResult<Page<'_>> {
        // Those that a majority has to confirm may wait for long.
        let [confirmed, at_once] = &*self.reads;
        let turn = if stale { at_once } else { confirmed }.acquire().await;
        let turn = turn.map_err(|_| error(Cause::NotReady, "this server stops"))?;
        Self::room(caller)?;
        let found = if stale {
            self.stale(query).await?.0
        } else {
            self.query(query).await?
        };
        Self::room_for(caller, &found)?;
        Ok(Page { found, turn })
    }

    pub(super) async fn compare_and_swap(
        &self,
        asked: Authorized<v1::CompareAndSwapRequest>,
    ) -> ApiResult<v1::CompareAndSwapResponse> {
        let (caller, request, entry) = asked.into_parts();
        let done = self.do_compare_and_swap(&caller, request).await;
        audit::end(entry, &done, |it| it.swapped);
        done
    }

    async fn do_compare_and_swap(
        &self,
        caller: &Caller,
        request: v1::CompareAndSwapRequest,
    ) -> ApiResult<v1::CompareAndSwapResponse> {
        let swap = request
            .swap
            .ok_or_else(|| invalid("expected a swap, found none"))?;
        if swap.at_end.is_some() && request.numbered.is_none() {
            // The session that serves those without one has no owner.
            return Err(invalid("expected a session to bind to, found none"));
        }
        let operation = translate::swap(swap)?;
        let (outcome, at) = self
            .run(caller, operation, request.numbered.as_ref())
            .await?;
        Ok(translate::swapped(&outcome, at, self.clock()))
    }

    pub(super) async fn delete(
        &self,
        asked: Authorized<v1::DeleteRequest>,
    ) -> ApiResult<v1::DeleteResponse> {
        let (caller, request, entry) = asked.into_parts();
        let done = async {
            let operation = translate::delete(&request.key, request.expect)?;
            self.run(&caller, operation, request.numbered.as_ref())
                .await
        };
        let done = done.await.map(|(outcome, _)| v1::DeleteResponse {
            deleted: outcome == Outcome::Deleted,
        });
        audit::end(entry, &done, |it| it.deleted);
        done
    }

    pub(super) async fn append(
        &self,
        asked: Authorized<v1::AppendRequest>,
    ) -> ApiResult<v1::AppendResponse> {
        let (caller, request, _) = asked.into_parts();
        let count = request.entries.len();
        if count > APPEND_MAX || (count != 1 && request.numbered.is_some()) || count == 0 {
            return Err(invalid(format!(
                "expected 1 to {APPEND_MAX} entries, or one with a number, found {count}"
            )));
        }
        // All or none begin; and then one at a time is copied.
        request.entries.iter().try_for_each(translate::fits)?;
        let mut numbers = Vec::with_capacity(count);
        for entry in &request.entries {
            let operation = translate::append(entry)?;
            match self
                .run(&caller, operation, request.numbered.as_ref())
                .await
            {
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

    async fn change(
        &self,
        change: Change,
        of: Option<StorageId>,
    ) -> ApiResult<v1::MembersResponse> {
        let told = self.submit(ClientRequest::change(change, of)).await;
        done(told, &self.shared).map(|_| v1::MembersResponse {})
    }

    /// Changes the member with the disk that was given, or with the one that
    /// the member has now. The change may wait for a leader, and the
    /// number may go to another disk meanwhile.
    async fn change_member(
        &self,
        (id, storage): (u64, &str),
        change: fn(ServerId) -> Change,
    ) -> ApiResult<v1::MembersResponse> {
        let id = server(id)?;
        let of = if storage.is_empty() {
            let member = self.inspect(move |node| node.members().get(id)).await?;
            member.map(|it| it.storage)
        } else {
            Some(disk(storage)?)
        };
        self.change(change(id), of).await
    }

    pub(super) async fn add_member(
        &self,
        asked: Authorized<v1::AddMemberRequest>,
    ) -> ApiResult<v1::MembersResponse> {
        let (_, request, entry) = asked.into_parts();
        let done = async {
            let storage = disk(&request.storage)?;
            let server = server(request.id)?;
            if !request.peer_address.is_empty() {
                // Every greeting carries it from now on.
                check_address("the peer address", &request.peer_address).map_err(invalid)?;
                self.shared.introduce(server, &request.peer_address);
            }
            self.change(Change::AddLearner { server, storage }, None)
                .await
        };
        let done = done.await;
        audit::end(entry, &done, |_| true);
        done
    }

    pub(super) async fn promote_member(
        &self,
        asked: Authorized<v1::PromoteMemberRequest>,
    ) -> ApiResult<v1::MembersResponse> {
        let (_, request, entry) = asked.into_parts();
        let member = (request.id, &*request.storage);
        let done = self.change_member(member, Change::Promote).await;
        audit::end(entry, &done, |_| true);
        done
    }

    pub(super) async fn remove_member(
        &self,
        asked: Authorized<v1::RemoveMemberRequest>,
    ) -> ApiResult<v1::MembersResponse> {
        let (_, request, entry) = asked.into_parts();
        let member = (request.id, &*request.storage);
        let done = self.change_member(member, Change::Remove).await;
        audit::end(entry, &done, |_| true);
        done
    }

    pub(super) async fn transfer(
        &self,
        asked: Authorized<v1::TransferRequest>,
    ) -> ApiResult<v1::TransferResponse> {
        let (_, request, entry) = asked.into_parts();
        let done = self.do_transfer(request.to).await;
        audit::end(entry, &done, |_| true);
        done
    }

    async fn do_transfer(&self, to: Option<u64>) -> ApiResult<v1::TransferResponse> {
        let to = to.map(server).transpose()?;
        if let Some(to) = to {
            let seen = self.inspect(move |node| {
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
        let told = self.submit(ClientRequest::Transfer(to)).await;
        done(told, &self.shared).map(|_| v1::TransferResponse {})
    }

    /// This server, as it sees itself.
    pub(super) async fn status(
        &self,
        asked: Authorized<v1::StatusRequest>,
    ) -> ApiResult<v1::StatusResponse> {
        let (_, request, _) = asked.into_parts();
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
    pub(super) async fn metrics(
        &self,
        _: Authorized<v1::MetricsRequest>,
    ) -> ApiResult<v1::MetricsResponse> {
        let (status, held) = (self.own_status().await, self.account.held());
        let text = self.shared.metrics.text(&status, held);
        Ok(v1::MetricsResponse { text })
    }

    /// Takes a snapshot here and now, and waits until it is on the disk.
    pub(super) async fn snapshot(
        &self,
        _: Authorized<v1::SnapshotRequest>,
    ) -> ApiResult<v1::SnapshotResponse> {
        // As long as the server is blank there is nothing to take one of.
        self.inspect(|_| ()).await?;
        let (teller, told) = oneshot::channel();
        self.inbox.put(Event::Snapshot(teller));
        let upto = told.await;
        let upto = upto.map_err(|_| error(Cause::NotReady, "this server stops"))?;
        Ok(v1::SnapshotResponse { upto })
    }

    async fn own_status(&self) -> v1::StatusResponse {
        let health_status = self.shared.health_status.borrow().clone();
        let blank = v1::StatusResponse {
            role: v1::Role::Blank.into(),
            ..v1::StatusResponse::default()
        };
        let seen = self.inspect(status).await.unwrap_or(blank);
        let local_server = self.shared.local_server();
        let member = |(id, member): (ServerId, tenure_alpo::Member)| {
            let contact = local_server
                .address_book
                .get(id)
                .cloned()
                .unwrap_or_default();
            v1::Member {
                id: id.get(),
                voter: member.voting_status == VotingStatus::Voter,
                storage: member.storage.to_string(),
                peer_address: contact.peer,
                client_address: contact.client,
                connected: local_server.connected.contains_key(&id),
            }
        };
        let uptime = clock::boot().since(self.started).as_millis();
        let cluster = local_server.identity.map(|it| it.cluster.to_string());
        v1::StatusResponse {
            id: local_server.hello.server.get(),
            ready: health_status.ready,
            removed: health_status.removed,
            excluded: health_status.excluded,
            cluster: cluster.unwrap_or_default(),
            storage: local_server.hello.storage.to_string(),
            version: env!("CARGO_PKG_VERSION").into(),
            members: local_server.members.iter().map(member).collect(),
            uptime_millis: u64::try_from(uptime).unwrap_or(u64::MAX),
            waiting: health_status.waiting,
            full: health_status.full,
            quota_bytes: self.quota.bytes,
            quota_registers: self.quota.registers,
            protection: Some(self.protection),
            ..seen
        }
    }
}

fn disk(storage: &str) -> Result<StorageId, v1::Error> {
    StorageId::parse(storage).ok_or_else(|| {
        invalid(format!(
            "expected a storage of 32 hexadecimal digits, as the server prints it, found {:?}",
            cut(storage)
        ))
    })
}

fn server(id: u64) -> ApiResult<ServerId> {
    let server = ServerId::new(id).filter(|_| id <= MAX_NUMBER);
    server.ok_or_else(|| {
        invalid(format!(
            "expected the number of a server, from 1 to 2^62, found {id}"
        ))
    })
}

/// A page that was read, before it is copied.
struct Page<'a> {
    found: QueryResult,
    turn: SemaphorePermit<'a>,
}

impl Page<'_> {
    fn told<T>(self, response: impl FnOnce(QueryResult) -> T) -> T {
        let told = response(self.found);
        // The next is asked for, and the answer to this one counted, before
        // anything else runs here.
        drop(self.turn);
        told
    }
}

impl ServerHandle {
    /// A consistent copy of everything, as of a moment after the call.
    pub(super) async fn backup(
        &self,
        _: Authorized<v1::BackupRequest>,
    ) -> ApiResult<impl Iterator<Item = ApiResult<bytes::Bytes>> + Send + use<>> {
        let place = self.backups.take(clock::boot()).ok_or_else(|| {
            let text = "as many backups are made as this server makes at a time; try again when \
                        one of them is done";
            error(Cause::Busy, text)
        })?;
        // The leader's state after a confirmed round holds everything that
        // was acknowledged before the call.
        self.query(Query::Barrier).await?;
        // Registers are not copied there, and nothing is encoded: the thread
        // that is asked keeps a leadership alive.
        let state = self.inspect(|node| node.state().clone()).await?;
        let last = state.applied();
        let encoded = tokio::task::spawn_blocking(move || state.encode()).await;
        let image = bytes::Bytes::from(encoded.map_err(|_| {
            let text = "expected the copy to be written, found that the server ends";
            error(Cause::NotReady, text)
        })?);
        let identity = self.shared.local_server().identity;
        let cluster = identity.map_or(ClusterId::from_u128(0), |it| it.cluster);
        let header = super::backup::header(cluster, last, &image);
        place.made(image, clock::boot());
        // As long as there is more to come, the place is taken.
        let parts = std::iter::from_fn(move || place.next_part());
        let parts = parts.map(|part| {
            part.map_err(|GivenUp| {
                let text = "another backup took the place of this one, which was read at less \
                            than 1 MiB a second; try again, with a faster disk or network";
                error(Cause::Busy, text)
            })
        });
        Ok(std::iter::once(Ok(header)).chain(parts))
    }
}
