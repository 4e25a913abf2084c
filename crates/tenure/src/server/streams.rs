//! Followers: watches of registers, and tails of the plain log.
//!
//! Any server tells them what it has applied (`watchers`). A follower that
//! comes without a place is told nothing before a server that has just started
//! has caught up: it must not be older than what this very server told before.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tenure_core::alpo::{Answer, Found, Node};
use tenure_core::cas::Register;
use tenure_core::ids::Key;
use tokio::sync::watch;
use tokio_stream::StreamExt as _;

use super::door::Door;
use super::following::CutOff;
use super::inbox::Told;
use super::services::Answered;
use super::shared::Progress;
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
        let place = Self::place(&caller)?.clone();
        let followed = self
            .look(move |node| watchers.follow(node, selector, after, foreign, place))
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
    pub(super) async fn tail(&self, caller: Caller, from: u64) -> Answered<Tail> {
        caller.may(Need::ReadLog)?;
        let progress = self.shared.progress.subscribe();
        let next = match from {
            0 => {
                self.caught_up().await?;
                self.look(|node| node.state().journal().next()).await?
            }
            from => from,
        };
        let door = self.clone();
        Ok(Tail {
            cursor: Some(Cursor {
                door,
                caller,
                progress,
                next,
            }),
            reading: None,
        })
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

    /// Some entries of the plain log that this server has applied.
    async fn some_of_log(&self, from: u64) -> Answered<v1::ReadLogResponse> {
        let look = move |node: &Node| {
            let journal = node.state().journal();
            if let Some(gap) = journal.gap(from) {
                return Found::Restored(gap.to);
            }
            let entries = journal.read(from).map_err(|old| old.first);
            Found::Journal(entries.map(|entries| {
                let mut left = TAIL_BYTES;
                let fits = |(_, data): &(u64, &tenure_core::cas::Bytes)| {
                    let fits = left > 0;
                    left = left.saturating_sub(data.len() + 64);
                    fits
                };
                let entries = entries.take_while(fits);
                entries.map(|(number, it)| (number, it.clone())).collect()
            }))
        };
        let answer = Answer::Read(self.look(look).await?);
        let told = Told { answer, at: None };
        translate::found(told, &self.shared).map(translate::log_response)
    }
}

/// After how many bytes a message of a tail takes nothing more; the first
/// entry always fits.
const TAIL_BYTES: usize = 64 * 1024;

/// The plain log from a place on. Nothing of it is read before the next
/// message is asked for, so one that is not read holds nothing but its place.
pub(super) struct Tail {
    cursor: Option<Cursor>,
    reading: Option<Reading>,
}

/// What is read next, and from where it goes on then; `None` at the end.
type Read = Option<(Option<Cursor>, Answered<v1::ReadLogResponse>)>;
type Reading = Pin<Box<dyn Future<Output = Read> + Send>>;

struct Cursor {
    door: Door,
    caller: Caller,
    progress: watch::Receiver<Progress>,
    next: u64,
}

impl Cursor {
    async fn read(mut self) -> Read {
        loop {
            let read = match self.caller.may(Need::ReadLog) {
                Ok(()) => self.door.some_of_log(self.next).await,
                Err(barred) => Err(barred),
            };
            let Ok(response) = &read else {
                return Some((None, read));
            };
            let count = response.entries.len() as u64;
            if count > 0 {
                self.next += count;
                return Some((Some(self), read));
            }
            self.progress.changed().await.ok()?;
        }
    }
}

impl tokio_stream::Stream for Tail {
    type Item = Answered<v1::ReadLogResponse>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(cursor) = self.cursor.take() {
            self.reading = Some(Box::pin(cursor.read()));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let read = ready!(reading.as_mut().poll(context));
        self.reading = None;
        Poll::Ready(read.map(|(cursor, read)| {
            self.cursor = cursor;
            read
        }))
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
