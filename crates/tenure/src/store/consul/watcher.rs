//! Noticing what other processes write: by queries that wait at the server.
//!
//! What is watched is asked for at once, and then again and again, each time until
//! something has changed after the index of the last answer: one query for each watched
//! prefix, and one for each watched key that no prefix covers. Above [`QUERIES_MAX`]
//! they share one of what their names have in common. An answer is a whole state, so
//! nothing that happens between two queries is missed for good.
//!
//! An index that went back, or is none, is not gone on from: the next query asks at
//! once, as Consul's documentation demands. So does one after an answer that was
//! overtaken by what this process wrote, or that did not come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use super::client::{Answer, ConsulClient, Query};
use crate::error::StoreError;
use crate::store::hub::{Hub, Interest};
use crate::store::watcher::{StoreSignals, Watcher};
use crate::store::{Selector, Version};

/// How many queries wait at the server.
const QUERIES_MAX: usize = 64;
/// How often to look whether watches were dropped.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How soon to ask again after an answer, however often something changes.
const GAP: Duration = Duration::from_millis(10);
/// The pauses between attempts after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Starts the task.
pub(super) fn start(client: Arc<ConsulClient>, hub: Arc<Hub>) -> Watcher {
    Watcher::start(|store| {
        let task = ConsulWatchTask {
            client,
            hub,
            store,
            followed: BTreeMap::new(),
            queries: JoinSet::new(),
            last: 0,
        };
        task.serve()
    })
}

struct ConsulWatchTask {
    client: Arc<ConsulClient>,
    hub: Arc<Hub>,
    store: StoreSignals,
    followed: BTreeMap<Selector, Followed>,
    queries: JoinSet<Answered>,
    /// The number of the last query.
    last: u64,
}

/// What is asked for.
struct Followed {
    /// The number of its query.
    number: u64,
    query: AbortHandle,
    /// After which index the query waits for a change; 0 if it does not wait.
    index: u64,
    is_up: bool,
    /// How long to wait after the next failure.
    pause: Duration,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.query.abort();
    }
}

/// What came of a query.
struct Answered {
    number: u64,
    selector: Selector,
    /// What was known before it was asked.
    interest: Interest,
    answer: Result<Answer, StoreError>,
}

impl ConsulWatchTask {
    async fn serve(mut self) {
        loop {
            tokio::select! {
                Some(done) = self.queries.join_next() => {
                    // One that was given up says nothing.
                    if let Ok(answered) = done {
                        self.take(answered);
                    }
                }
                () = self.store.woken() => self.refresh(),
                () = sleep(LOOK_EVERY) => self.refresh(),
            }
            if self.store.is_closed() {
                return;
            }
        }
    }

    /// The interest may have changed: begins and ends queries.
    fn refresh(&mut self) {
        let wanted = self.hub.selectors(QUERIES_MAX);
        self.followed
            .retain(|selector, _| wanted.contains(selector));
        let interest = self.hub.interest();
        let unreported = interest.keys.iter().filter(|key| !key.reported);
        let unreported: Vec<_> = unreported.map(|watched| &watched.key).collect();
        for selector in wanted {
            let Some(followed) = self.followed.get(&selector) else {
                self.ask(selector, 0, Duration::ZERO, false);
                continue;
            };
            // A new watch of it knows nothing yet, and the query may wait for long.
            let is_news = unreported.iter().any(|key| selector.selects(key));
            if is_news && followed.index > 0 {
                let is_up = followed.is_up;
                self.ask(selector, 0, Duration::ZERO, is_up);
            }
        }
        self.tell(None);
    }

    /// Asks once, after a pause and once something has changed after this index.
    fn ask(&mut self, selector: Selector, index: u64, after: Duration, is_up: bool) {
        let keyspace = self.client.settings().keyspace();
        let query = match &selector {
            Selector::Key(key) => Query::key(&keyspace.name(key)),
            Selector::Prefix(prefix) => Query::below(&keyspace.beginning(prefix)),
        };
        self.last += 1;
        let (number, of) = (self.last, selector.clone());
        let (client, hub) = (Arc::clone(&self.client), Arc::clone(&self.hub));
        let query = self.queries.spawn(async move {
            sleep(after).await;
            let interest = hub.interest();
            let answer = client.wait(&query.after(index)).await;
            Answered {
                number,
                selector: of,
                interest,
                answer,
            }
        });
        let pause = self
            .followed
            .get(&selector)
            .map_or(PAUSE_MIN, |it| it.pause);
        let followed = Followed {
            number,
            query,
            index,
            is_up,
            pause,
        };
        self.followed.insert(selector, followed);
    }

    /// Hands an answer on, and asks again.
    fn take(&mut self, answered: Answered) {
        let Answered {
            number,
            selector,
            interest,
            answer,
        } = answered;
        let Some(followed) = self.followed.get_mut(&selector) else {
            return;
        };
        if followed.number != number {
            return;
        }
        match answer {
            Ok(answer) => {
                let before = followed.index;
                followed.pause = PAUSE_MIN;
                let next = next_index(before, answer.index);
                let is_settled = self.publish(&selector, &interest, answer);
                let next = if is_settled { next } else { 0 };
                self.ask(selector, next, GAP, true);
                self.tell(None);
            }
            Err(error) => {
                let pause = followed.pause;
                followed.pause = (pause * 2).min(PAUSE_MAX);
                self.ask(selector, 0, pause, false);
                self.tell(Some(&error));
            }
        }
    }

    /// Says whether all queries are well.
    fn tell(&self, error: Option<&StoreError>) {
        let mut all = self.followed.values();
        if let Some(error) = error {
            self.hub.mark_down(&error.to_string());
        } else if all.len() > 0 && all.all(|followed| followed.is_up) {
            self.hub.mark_up();
        }
    }

    /// Publishes what was read. If this is false something was written here meanwhile,
    /// and only another read can say which of them counts.
    fn publish(&self, selector: &Selector, interest: &Interest, answer: Answer) -> bool {
        let keyspace = self.client.settings().keyspace();
        let registers = keyspace.registers(answer.entries);
        if let (Selector::Key(key), None) = (selector, registers.first()) {
            let at = Version::from_u64(answer.index);
            self.hub.fetched_gone(interest, key, &at);
            return true;
        }
        let mut is_settled = true;
        // A watch that began meanwhile is told of what is not there, too.
        let known = self.hub.interest();
        let mut gone: Vec<_> = known.keys.iter().map(|watched| &watched.key).collect();
        gone.retain(|key| selector.selects(key));
        for (key, register) in registers {
            gone.retain(|other| **other != key);
            is_settled &= self.hub.fetched(interest, &key, Some(register));
        }
        for key in gone {
            is_settled &= self.hub.fetched(interest, key, None);
        }
        is_settled
    }
}

/// From which index to go on after an answer: none if it has gone back.
fn next_index(before: u64, now: u64) -> u64 {
    if now < before { 0 } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_goes_back_is_not_gone_on_from() {
        assert_eq!(next_index(0, 7), 7);
        assert_eq!(next_index(7, 7), 7);
        assert_eq!(next_index(7, 9), 9);
        assert_eq!(next_index(7, 6), 0);
        assert_eq!(next_index(7, 0), 0);
    }
}
