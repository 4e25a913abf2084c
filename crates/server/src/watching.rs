//! Watches of registers, as clients see them.
//!
//! Any server tells what it has applied: first a page at a time what the
//! watch begins with (`watch_start`), then each change (`watchers`).

use std::sync::Arc;

use tenure_alpo::Node;
use tenure_api::v1::{self, Cause};
use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tenure_runtime::error::cut;
use tokio_stream::StreamExt as _;

use super::account::{CallerAccount, Reserved};
use super::authorization::{Authorized, watched};
use super::errors::{compacted, error, invalid, restored};
use super::handle::ServerHandle;
use super::services::ApiResult;
use super::steps::{Next, Step, Steps};
use super::translate;
use super::watch_queue::WatchMessage;
use super::watch_queue::{CutOff, WatchReceiver};
use super::watch_start::{InitialPage, PageRead, StartAfter, WatchError, WatchStart};
use super::watchers::{Selector, WatcherGuard};

/// What a register counts for until it is told: its value is shared with the
/// state.
const REGISTER_BYTES: usize = 128;

/// A watch, from where it has come on.
pub(super) struct Watch {
    handle: ServerHandle,
    /// What was asked for.
    asked: Arc<Authorized<v1::WatchRequest>>,
    names: ClusterIds,
    /// What has been seen and not told, and what that counts for.
    pages: Vec<InitialPage>,
    reserved: Option<Reserved>,
    state: State,
}

/// Of which clusters a watch is.
struct ClusterIds {
    /// This server's; empty when it has been told.
    cluster: String,
    own: String,
    /// The one that the place is of, as the client says.
    told_by: String,
}

enum State {
    Begins(WatchStart),
    Follows {
        news: WatchReceiver,
        _seat: WatcherGuard,
    },
}

impl ServerHandle {
    /// Begins to follow registers.
    pub(super) async fn watch(
        &self,
        asked: Authorized<v1::WatchRequest>,
    ) -> ApiResult<Steps<Watch>> {
        let request = asked.request();
        let Some(what) = watched(request) else {
            let both = "expected `prefix` or `key`, found both; leave one of them out";
            return Err(invalid(both));
        };
        let selector = match request.key {
            Some(_) => {
                let key = Key::new(what).map_err(|why| invalid(format!("key: {why}")))?;
                Selector::Key(key)
            }
            None => Selector::Prefix(what.to_owned()),
        };
        let after = after(request.after_revision, request.after_id)?;
        // A blank server has no cluster, and can say nothing of places yet.
        self.inspect(|_| ()).await?;
        let cluster = self.cluster();
        let names = ClusterIds {
            own: cluster.clone(),
            cluster,
            told_by: request.cluster.clone(),
        };
        let foreign = !names.told_by.is_empty() && names.told_by != names.own;
        if after.is_none() {
            self.caught_up().await?;
        }
        let begins = move |node: &Node| WatchStart::new(node, selector, after, foreign);
        let begins = self.inspect(begins).await?;
        let begins = begins.map_err(|why| watch_error(why, &names))?;
        let watch = Watch {
            handle: self.clone(),
            asked: Arc::new(asked),
            names,
            pages: Vec::new(),
            reserved: None,
            state: State::Begins(begins),
        };
        // What refuses it is to be the answer to the call.
        Ok(Steps::from(watch.looked().await?))
    }
}

impl Watch {
    /// Takes the next look before it follows.
    async fn looked(mut self) -> ApiResult<Self> {
        let State::Begins(mut begins) = self.state else {
            return Ok(self);
        };
        let place: Arc<CallerAccount> = Arc::clone(ServerHandle::place(self.asked.caller())?);
        place.may_reserve()?;
        let (watchers, counted) = (Arc::clone(&self.handle.watchers), Arc::clone(&place));
        let inspect = move |node: &Node| {
            let registers = node.state().registers();
            let seen = begins.inspect(registers, (&watchers, counted));
            seen.map(|seen| (begins, seen))
        };
        let seen = self.handle.inspect_in_turn(inspect).await?;
        let (begins, seen) = seen.map_err(|why| watch_error(why, &self.names))?;
        let PageRead {
            page,
            then,
            watch_queue,
        } = seen;
        self.reserved = Some(place.reserve(page.registers.len() * REGISTER_BYTES));
        self.state = match watch_queue {
            Some((news, _seat)) => State::Follows { news, _seat },
            None => State::Begins(begins),
        };
        self.pages = then.into_iter().chain([page]).collect();
        Ok(self)
    }

    /// What is to be told next, if it has come.
    fn page(&mut self) -> Option<v1::WatchResponse> {
        let page = self.pages.pop()?;
        let cluster = std::mem::take(&mut self.names.cluster);
        // The first says of which cluster it is, and the last that it is.
        let told = !page.registers.is_empty() || page.began || !cluster.is_empty();
        told.then(|| v1::WatchResponse {
            changes: changes(page.registers.iter().map(|(key, it)| (key, it.as_ref()))),
            revision: page.revision,
            initial: page.initial,
            began: page.began,
            cluster,
        })
    }

    async fn next(mut self) -> (Option<Self>, Option<ApiResult<v1::WatchResponse>>) {
        loop {
            while !self.pages.is_empty() {
                let page = self.page();
                // From here on it counts as an answer that streams have made.
                if self.pages.is_empty() {
                    self.reserved = None;
                }
                if let Some(response) = page {
                    return (Some(self), Some(Ok(response)));
                }
            }
            let watch_queue = match &mut self.state {
                State::Follows { news, .. } => news,
                State::Begins(_) => match self.looked().await {
                    Ok(watch) => {
                        self = watch;
                        continue;
                    }
                    Err(refused) => return (None, Some(Err(refused))),
                },
            };
            let news = watch_queue.next().await.map(news);
            let goes_on = matches!(news, Some(Ok(_)));
            return (goes_on.then_some(self), news);
        }
    }
}

impl Step for Watch {
    type Message = v1::WatchResponse;

    async fn step(self) -> Next<Self> {
        let asked = Arc::clone(&self.asked);
        let (goes_on, told) = self.next().await;
        let told = told?;
        Some(match asked.still() {
            Ok(()) => (goes_on, told),
            Err(barred) => (None, Err(barred)),
        })
    }
}

/// After what a watch is to begin.
fn after(revision: Option<u64>, id: Option<u64>) -> ApiResult<Option<StartAfter>> {
    match (revision, id) {
        (Some(_), Some(_)) => Err(invalid("expected after_revision or after_id, found both")),
        (Some(revision), None) => Ok(Some(StartAfter::Revision(revision))),
        (None, Some(id)) => Ok(Some(StartAfter::Id(id))),
        (None, None) => Ok(None),
    }
}

/// Why a watch cannot start from there, as the interface says it.
fn watch_error(why: WatchError, names: &ClusterIds) -> v1::Error {
    let (own, told_by) = (&names.own, cut(&names.told_by));
    match why {
        WatchError::Full => error(Cause::Busy, "there are as many watches as there may be"),
        WatchError::TooOld(revision) => compacted(revision),
        WatchError::Behind(applied) => error(
            Cause::NotReady,
            format!("this server has only come to entry {applied}; ask another"),
        ),
        WatchError::Restored(revision) if told_by.is_empty() => restored(revision),
        WatchError::Restored(revision) => {
            let text = format!(
                "expected a watch of cluster {own}, which was restored from a backup, found one \
                 of {told_by}: what it was told since the backup is gone; begin again"
            );
            v1::Error {
                expected: revision,
                ..error(Cause::Restored, text)
            }
        }
        WatchError::Foreign => error(
            Cause::Compacted,
            format!("expected a watch of cluster {own}, found one of {told_by}: begin again"),
        ),
    }
}

fn changes<'a>(changes: impl Iterator<Item = (&'a Key, Option<&'a Register>)>) -> Vec<v1::Changed> {
    let changed = |(key, held): (&Key, Option<&Register>)| v1::Changed {
        key: key.as_str().to_owned(),
        register: held.map(translate::register),
    };
    changes.map(changed).collect()
}

/// News as the interface tells them.
fn news(news: Result<WatchMessage, CutOff>) -> ApiResult<v1::WatchResponse> {
    match news {
        Ok(WatchMessage::Changes(batch)) => {
            let all = batch.changes.iter();
            Ok(v1::WatchResponse {
                changes: changes(all.map(|it| (&it.key, it.register.as_ref()))),
                revision: batch.revision,
                ..v1::WatchResponse::default()
            })
        }
        Ok(WatchMessage::Gap(revision)) => Err(compacted(revision)),
        Err(CutOff) => Err(error(
            Cause::TooSlow,
            "this watch was not read and has been cut off; begin again from the last revision \
             that was seen",
        )),
    }
}
