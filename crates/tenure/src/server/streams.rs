//! Followers: watches of registers, and tails of the plain log.
//!
//! Any server tells them what it has applied (`watchers`). A follower that
//! comes without a place is told nothing before a server that has just started
//! has caught up: it must not be older than what this very server told before.

use std::time::Duration;

use tenure_core::alpo::Query;
use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;

use super::door::Door;
use super::following::CutOff;
use super::services::{Answered, QUEUE_MAX, Stream};
use super::tokens::{Caller, Need};
use super::translate::{self, compacted, error, invalid};
use super::watchers::{After, News, NoWatch, Selector};
use crate::api::v1::{self, Cause};
use crate::error::cut;

/// How long a watch or a tail without a place waits for a server that has
/// just started.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(3);

impl Door {
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
    let told_by = cut(told_by);
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
