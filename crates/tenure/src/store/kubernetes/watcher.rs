//! Noticing what other processes write: by watches of the API server.
//!
//! What is watched here is listed, and then watched at the server from the version of
//! the list on, so that nothing falls in between. A watch that the server ends in
//! order goes on from the last version that it told of, by an event or by a bookmark.
//! After any other end, and where the server has forgotten that version (410), all is
//! listed again; so what a restored backup took back is noticed.
//!
//! There is a watch for each watched key that no prefix covers, and for each watched
//! prefix one for each kind of object that it may select. Above [`WATCHES_MAX`] they
//! share those of what their names have in common.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::classify::Status;
use super::client::{Events, KubernetesClient, Refused, Selected};
use super::names::{self, Kind};
use super::{object, registers};
use crate::error::{StoreError, quoted};
use crate::store::hub::Hub;
use crate::store::watcher::{StoreSignals, Watcher};
use crate::store::{Key, Selector};
use crate::{clock, drive};

/// How many watches a process has at the server: each is a connection.
const WATCHES_MAX: usize = 32;
/// How long a listing may take.
const LIST_WITHIN: Duration = Duration::from_secs(20);
/// How often to look whether watches were dropped.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A watch that ends sooner than this has failed, also where it ends in order: a server,
/// or a proxy before it, that ends each at once is asked less and less often.
const SHORT: Duration = Duration::from_millis(500);
/// The pauses between attempts after a failure. They begin anew behind a watch that has
/// lasted.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The longest pause that a server may ask for.
const ASKED_MAX: Duration = Duration::from_secs(10);
/// The code of an event that says that a version is forgotten.
const GONE: u64 = 410;

/// Starts the task.
pub(super) fn start(client: Arc<KubernetesClient>, hub: Arc<Hub>) -> Watcher {
    Watcher::start(|store| {
        // More wait until these have been taken.
        let (reports, heard) = mpsc::channel(WATCHES_MAX);
        let task = KubernetesWatchTask {
            client,
            hub,
            store,
            reports,
            followed: BTreeMap::new(),
            last: 0,
        };
        task.serve(heard)
    })
}

struct KubernetesWatchTask {
    client: Arc<KubernetesClient>,
    hub: Arc<Hub>,
    store: StoreSignals,
    reports: mpsc::Sender<Report>,
    followed: BTreeMap<(Selector, Kind), Followed>,
    /// The number of the last task.
    last: u64,
}

/// What is watched, by a task of its own.
struct Followed {
    number: u64,
    task: AbortHandle,
    is_up: bool,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a task tells of itself.
struct Report {
    number: u64,
    is_up: Result<(), String>,
}

impl KubernetesWatchTask {
    async fn serve(mut self, mut heard: mpsc::Receiver<Report>) {
        loop {
            tokio::select! {
                Some(report) = heard.recv() => self.take(report),
                () = self.store.woken() => self.refresh(),
                () = sleep(LOOK_EVERY) => self.refresh(),
            }
            if self.store.is_closed() {
                return;
            }
        }
    }

    /// The interest may have changed: begins and ends watches.
    fn refresh(&mut self) {
        let wanted = self.hub.selectors(WATCHES_MAX);
        self.followed
            .retain(|(selector, _), _| wanted.contains(selector));
        let interest = self.hub.interest();
        let unreported = interest.keys.iter().filter(|key| !key.reported);
        let unreported: Vec<_> = unreported.map(|watched| &watched.key).collect();
        for selector in wanted {
            // A new watch of it knows nothing yet, and there may be no event for long.
            let is_news = unreported.iter().any(|key| selector.selects(key));
            for kind in kinds(&selector) {
                let of = (selector.clone(), kind);
                let is_up = self.followed.get(&of).map(|followed| followed.is_up);
                if is_up.is_none() || is_up == Some(true) && is_news {
                    self.follow(of, is_up.unwrap_or(false));
                }
            }
        }
        self.tell(None);
    }

    /// Begins a watch, in place of the one of before.
    fn follow(&mut self, of: (Selector, Kind), is_up: bool) {
        self.last += 1;
        let (selector, kind) = of.clone();
        let selected = match &selector {
            Selector::Key(key) => Selected::Name(names::name(key)),
            Selector::Prefix(prefix) => Selected::Labels(names::selector(kind, prefix)),
        };
        let watch = OneWatch {
            client: Arc::clone(&self.client),
            hub: Arc::clone(&self.hub),
            reports: self.reports.clone(),
            number: self.last,
            selector,
            kind,
            selected,
        };
        let task = drive::background().spawn(watch.serve()).abort_handle();
        let number = self.last;
        let followed = Followed {
            number,
            task,
            is_up,
        };
        self.followed.insert(of, followed);
    }

    fn take(&mut self, report: Report) {
        let mut all = self.followed.values_mut();
        let Some(followed) = all.find(|followed| followed.number == report.number) else {
            return;
        };
        followed.is_up = report.is_up.is_ok();
        self.tell(report.is_up.err().as_deref());
    }

    /// Says whether all watches are well.
    fn tell(&self, error: Option<&str>) {
        let mut all = self.followed.values();
        if let Some(error) = error {
            self.hub.mark_down(error);
        } else if all.len() > 0 && all.all(|followed| followed.is_up) {
            self.hub.mark_up();
        }
    }
}

/// Waits, for as long as a server has asked at least; the next time for longer.
async fn rest(pause: &mut Duration, asked: Duration) {
    sleep(asked.max(*pause)).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

/// Of which kinds what is selected may be.
fn kinds(selector: &Selector) -> Vec<Kind> {
    match selector {
        Selector::Key(key) => vec![Kind::of(key)],
        Selector::Prefix(prefix) => {
            let mut kinds = Kind::ALL.to_vec();
            kinds.retain(|kind| kind.may_begin(prefix));
            kinds
        }
    }
}

/// A watch at the server.
struct OneWatch {
    client: Arc<KubernetesClient>,
    hub: Arc<Hub>,
    reports: mpsc::Sender<Report>,
    number: u64,
    selector: Selector,
    kind: Kind,
    selected: Selected,
}

impl OneWatch {
    async fn serve(self) {
        let mut pause = PAUSE_MIN;
        loop {
            let Err(refused) = self.list_and_watch(&mut pause).await;
            let asked = refused.retry_after.unwrap_or_default().min(ASKED_MAX);
            // That a version is forgotten once is no trouble. But a server may forget
            // quicker than it lists.
            if !refused.is_forgotten || pause > PAUSE_MIN {
                self.report(Err(refused.error.to_string())).await;
            }
            rest(&mut pause, asked).await;
        }
    }

    async fn report(&self, is_up: Result<(), String>) {
        let number = self.number;
        // Nobody hears it when the store is gone, and then this ends, too.
        let _ = self.reports.send(Report { number, is_up }).await;
    }

    /// Lists, and watches from there, until all is to be listed again; why.
    async fn list_and_watch(&self, pause: &mut Duration) -> Result<Infallible, Refused> {
        let mut at = self.list().await?;
        loop {
            self.report(Ok(())).await;
            let mut events = self.client.watch(self.kind, &self.selected, at).await?;
            let began = clock::boot();
            let ended = self.publish_all(&mut events, &mut at).await;
            let is_short = clock::boot().since(began) < SHORT;
            if !is_short {
                *pause = PAUSE_MIN;
            }
            ended?;
            if is_short {
                if *pause > PAUSE_MIN {
                    let why = "the server ends each watch at once";
                    self.report(Err(why.to_owned())).await;
                }
                rest(pause, Duration::ZERO).await;
            }
        }
    }

    /// Publishes what a watch tells, until it ends in order; the version to go on from.
    async fn publish_all(&self, events: &mut Events, at: &mut u64) -> Result<(), Refused> {
        while let Some(event) = events.next().await? {
            *at = self.publish(&event)?;
        }
        Ok(())
    }

    /// Publishes all that is selected; the version at which it was so.
    async fn list(&self) -> Result<u64, Refused> {
        let interest = self.hub.interest();
        let keep = |item: &Value| registers::keep(self.kind, item, |key| self.is_meant(key));
        let listing = self.client.list(self.kind, &self.selected, keep);
        let listing = timeout(LIST_WITHIN, listing);
        let late = |_| {
            let settings = self.client.settings();
            StoreError::unavailable(format!("{settings}: no listing in time"))
        };
        let (found, number) = listing.await.map_err(late)??;
        // A watch that began meanwhile is told of what is not there, too.
        let known = self.hub.interest();
        let mut gone: Vec<_> = known.keys.iter().map(|watched| &watched.key).collect();
        gone.retain(|key| self.is_meant(key));
        for (key, register) in found {
            gone.retain(|other| **other != key);
            // What is refused is older than what was published meanwhile: the watch,
            // which begins here, brings the rest.
            let _ = self.hub.fetched(&interest, &key, Some(register));
        }
        let at = object::version_at(number);
        for key in gone {
            self.hub.fetched_gone(&interest, key, &at);
        }
        Ok(number)
    }

    fn is_meant(&self, key: &Key) -> bool {
        Kind::of(key) == self.kind && self.selector.selects(key)
    }

    /// Hands a change on; the version to go on from.
    fn publish(&self, event: &Value) -> Result<u64, Refused> {
        let Some(item) = event.get("object") else {
            return Err(StoreError::unavailable("expected an event with an object").into());
        };
        let kind = event.get("type").and_then(Value::as_str);
        let kind = kind.unwrap_or_default();
        if kind == "ERROR" {
            let token = &self.client.settings().token;
            let said = token.hidden(item.to_string().as_bytes());
            let said = quoted(&String::from_utf8_lossy(&said));
            return Err(Refused {
                error: StoreError::unavailable(format!("the server ended a watch: {said}")),
                retry_after: Status::of(item).retry_after,
                is_forgotten: item.get("code").and_then(Value::as_u64) == Some(GONE),
            });
        }
        let number = object::number(item)?;
        if let Some(key) = object::key(self.kind, item).filter(|key| self.is_meant(key)) {
            // Late news of what this process wrote itself is passed over.
            let _ = match kind {
                "ADDED" | "MODIFIED" => self.hub.publish(&key, registers::decode(&key, item)?),
                "DELETED" => self.hub.publish_gone(&key, object::version_at(number)),
                // A bookmark has a version and nothing else.
                _ => true,
            };
        }
        Ok(number)
    }
}
