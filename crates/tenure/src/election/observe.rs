//! Seeing who leads, without standing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use tenure_core::cas::Reading;
use tenure_core::ids::{Key, Name};
use tenure_core::time::{Drift, Instant};
use tenure_election::{
    Certainty, Command, Config, Event, Expiry, LeaseJudge, Observation, Observer as Machine,
    ReadOutcome, Record,
};

use super::environment::{ElectionEnvironment, Mailbox};
use super::events::{EventBroadcaster, Events};
use crate::clock;
use crate::drive::{self, Flow};
use crate::error::StoreError;
use crate::store::{Clock, Features, Selector, Store, Version};

/// How long after a look that proved nothing to look again, where no watch
/// calls before.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// By what a grant in a store with these features is judged over, unless the
/// user wants something else.
pub fn natural_expiry(features: Features) -> Expiry {
    match features.clock {
        Clock::CannotStep => Expiry::SteadyClock,
        Clock::MayStep if features.judge_by_store_clock => Expiry::StoreClock,
        Clock::MayStep | Clock::None => Expiry::Silence,
    }
}

/// By what grants of a store are judged over, unless a candidate is told otherwise.
pub(super) fn expiry_of(store: &dyn Store) -> Expiry {
    let natural = natural_expiry(store.features());
    store.max_clock_skew().map_or(natural, Expiry::BoundedSkew)
}

/// Follows an election; see [`watch`]. Dropping it ends the watch.
#[derive(Debug)]
pub struct Observer {
    events: Events,
    mailbox: Arc<Mailbox>,
}

/// Follows an election: who leads now, then every change (and with
/// `renewals` every renewal), with the estimated end of the grant and how
/// sure it is. Trouble with the store is reported and waited out.
///
/// ```no_run
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::election::{Event, watch};
///
/// let store = tenure::open("sqlite:///var/lib/payroll.db").await?;
/// let mut seen = watch(store, tenure::Name::new("payroll")?, false);
/// while let Some(event) = seen.next().await {
///     if let Event::LeaderChanged(now) = event {
///         match now.leader {
///             Some(leader) => println!("{} leads in term {}", leader.name, leader.term),
///             None => println!("nobody leads"),
///         }
///     }
/// }
/// # Ok(()) }
/// ```
pub fn watch(store: Arc<dyn Store>, election: Name, renewals: bool) -> Observer {
    let fan = EventBroadcaster::new(Event::Stopped);
    let (events, mailbox) = (fan.subscribe(), Arc::new(Mailbox::default()));
    let for_driver = Arc::clone(&mailbox);
    drive::background().spawn(async move {
        let expiry = expiry_of(store.as_ref());
        let observer = Machine::new(election, expiry, Drift::DEFAULT, renewals, clock::now());
        let keys = observer.keys().cloned().collect();
        let environment = ElectionEnvironment::new(store, keys, for_driver, |event| {
            let ends = event == Event::Stopped;
            fan.send(&event);
            if ends { Flow::End } else { Flow::On }
        });
        drive::drive(observer, environment).await;
    });
    Observer { events, mailbox }
}

impl Observer {
    /// The next event: [`Event::LeaderChanged`] first, as soon as the store
    /// has answered; then changes, renewals if asked for, and
    /// [`Event::Trouble`] and [`Event::Recovered`]. If the store fails first,
    /// [`Event::Trouble`] comes before all. Cancelling this loses nothing.
    ///
    /// At most [`EVENTS_MAX`](super::EVENTS_MAX) events wait. An observer that is read
    /// too slowly loses the oldest, the first [`Event::LeaderChanged`] among them;
    /// [`missed`](Self::missed) counts them.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.next().await
    }

    /// How many events were dropped because they were read too slowly. Who leads is to
    /// be asked anew then ([`leader`]).
    pub fn missed(&self) -> u64 {
        self.events.missed()
    }
}

impl Stream for Observer {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        Pin::new(&mut self.events).poll_next(context)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.mailbox.command(Command::Stop);
    }
}

/// What one read says of an election: who leads, and the register behind it.
pub type Look = (Observation, Option<Record>);

/// Who leads, by one read. Where the store's clock cannot say, one read
/// cannot prove that a grant is over: look at the certainty, or use
/// [`leader_confirmed`].
///
/// # Errors
/// If the store fails, or the register is not an election's.
pub async fn leader(
    store: Arc<dyn Store>,
    election: &Name,
    within: Duration,
) -> Result<Look, StoreError> {
    let election = election.clone();
    on_background(async move { look(store.as_ref(), &election, within).await }).await
}

/// The same on the runtime of the caller. An answer that cannot be decoded is
/// asked for once more, because perhaps only the answer was damaged; the same
/// version undecodable twice is a damaged register.
pub(super) async fn look(
    store: &dyn Store,
    election: &Name,
    within: Duration,
) -> Result<Look, StoreError> {
    let looked = look_closely(store, election, within).await;
    looked.map(|(look, _)| look)
}

/// The same with the version of the register.
pub(super) async fn look_closely(
    store: &dyn Store,
    election: &Name,
    within: Duration,
) -> Result<(Look, Option<Version>), StoreError> {
    let key = Key::of_election(election);
    let read = async || {
        let asked = clock::boot();
        let reading = store.read(&key, within).await;
        reading.map(|reading| (asked, reading))
    };
    let (mut asked, mut reading) = read().await?;
    if decoded(election, &reading).is_err() {
        let before = version(&reading);
        (asked, reading) = read().await?;
        decoded(election, &reading).map_err(|damage| match version(&reading) {
            again if again == before => damage,
            _ => StoreError::unknown(format!("two answers were damaged, ask again: {damage}")),
        })?;
    }
    let look = judge(store, election, asked, &reading);
    Ok((look, version(&reading)))
}

fn version(reading: &Reading) -> Option<Version> {
    let register = reading.register.as_ref();
    register.map(|register| register.version.clone())
}

/// Whether a reading shows the record of this election, or none.
pub(super) fn decoded(election: &Name, reading: &Reading) -> Result<(), StoreError> {
    let Some(register) = &reading.register else {
        return Ok(());
    };
    let record = Record::decode(&register.value)
        .map_err(|error| StoreError::broken(format!("election {election}: {error}")))?;
    if record.election == *election {
        return Ok(());
    }
    // Sight would ignore it, and a vacancy that it is not would be told.
    Err(StoreError::broken(format!(
        "expected the record of {election}, found that of {}; it was copied or restored to the \
         wrong key: delete it, or put it back where it belongs",
        record.election
    )))
}

/// What a reading that can be decoded amounts to.
fn judge(store: &dyn Store, election: &Name, asked: Instant, reading: &Reading) -> Look {
    let (mut judge, config) = (LeaseJudge::new(), judging(store, election));
    judge.read(&config, clock::now(), asked, reading);
    (judge.observation(config.expiry), judge.record().cloned())
}

/// What an onlooker judges by.
fn judging(store: &dyn Store, election: &Name) -> Config {
    Config {
        expiry: expiry_of(store),
        ..Config::new(election.clone(), election.clone())
    }
}

/// The callers' executor may be any; stores need ours.
pub(super) async fn on_background<T: Send + 'static, E: From<StoreError> + Send + 'static>(
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E> {
    let ended = drive::background().spawn(work).await;
    ended.unwrap_or_else(|error| Err(StoreError::unknown(error).into()))
}

/// Who leads, for certain: looks again for up to one lease where one read is
/// not enough, until the leader has been seen to renew or its grant to be
/// over. `within` is the patience with each read; a store that fails is asked
/// again for as long beyond the end of the grant, and then given up.
///
/// # Errors
/// If the store fails in a way that only a person can mend, or for too long.
pub async fn leader_confirmed(
    store: Arc<dyn Store>,
    election: &Name,
    within: Duration,
) -> Result<Look, StoreError> {
    let election = election.clone();
    on_background(async move { confirm(store.as_ref(), &election, within).await }).await
}

/// The same on the runtime of the caller.
pub(super) async fn confirm(
    store: &dyn Store,
    election: &Name,
    within: Duration,
) -> Result<Look, StoreError> {
    let key = Key::of_election(election);
    let mut watch = store.watch(Selector::Key(key.clone()));
    let (mut judge, config) = (LeaseJudge::new(), judging(store, election));
    let mut until = clock::boot().after(within);
    loop {
        let asked = clock::boot();
        let failed = match store.read(&key, within).await {
            Ok(reading) => {
                let news = judge.read(&config, clock::now(), asked, &reading);
                if matches!(news, ReadOutcome::Corrupt(_)) {
                    decoded(election, &reading)?;
                }
                None
            }
            Err(broken @ StoreError::Broken(_)) => return Err(broken),
            Err(passing) => Some(passing),
        };
        let seen = judge.observation(config.expiry);
        if seen.certainty >= Certainty::Likely {
            return Ok((seen, judge.record().cloned()));
        }
        let now = clock::boot();
        let mut again = now.after(LOOK_AGAIN);
        if let Some(expires_at) = seen.expires_at {
            until = expires_at.after(within);
            // Past its end only a read that fails brings us here.
            again = if now < expires_at {
                again.min(expires_at)
            } else {
                again
            };
        }
        if now >= until {
            return Err(failed.unwrap_or_else(|| {
                StoreError::unavailable(format!(
                    "expected {election} to be renewed or judged over by now, and saw neither; \
                     look again"
                ))
            }));
        }
        // The news of the watch is only a reason to look.
        let _ = tokio::time::timeout(again.since(now), watch.next()).await;
    }
}

/// All elections of a store with what one look says of each, sorted by name.
/// A register that is not readable is listed with the reason.
///
/// # Errors
/// If the store fails.
pub async fn list(
    store: Arc<dyn Store>,
    within: Duration,
) -> Result<Vec<(Name, Result<Look, StoreError>)>, StoreError> {
    on_background(async move {
        let mut elections = Vec::new();
        let mut after: Option<Key> = None;
        loop {
            let asked = clock::boot();
            let page = store.list(Key::ELECTIONS, after.as_ref(), within).await?;
            for (key, register) in page.registers {
                let Some(name) = key.election() else { continue };
                let reading = Reading {
                    register: Some(register),
                    now: page.now,
                    bound: None,
                };
                // What cannot be decoded is not read again: there may be thousands of them.
                let seen = decoded(&name, &reading);
                let seen = seen.map(|()| judge(store.as_ref(), &name, asked, &reading));
                elections.push((name, seen));
            }
            after = page.more_after;
            if after.is_none() {
                return Ok(elections);
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::super::events::EVENTS_MAX;
    use super::*;

    #[tokio::test]
    async fn an_observer_that_is_read_too_slowly_counts_what_it_lost() {
        let fan = EventBroadcaster::new(Event::Stopped);
        let (events, mailbox) = (fan.subscribe(), Arc::new(Mailbox::default()));
        let mut observer = Observer { events, mailbox };
        let vacant = Event::LeaderChanged(LeaseJudge::new().observation(Expiry::Silence));
        fan.send(&vacant);
        assert_eq!(observer.missed(), 0);
        for _ in 0..EVENTS_MAX {
            fan.send(&Event::Recovered);
        }
        assert_eq!(observer.missed(), 1);
        assert_eq!(observer.next().await, Some(Event::Recovered));
    }
}
