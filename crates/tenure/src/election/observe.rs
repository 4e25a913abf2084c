//! Seeing who leads, without standing.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::election::{
    Certainty, Command, Event, Expiry, Observation, Observer, Record, Sight,
};
use tenure_core::ids::{Key, Name};
use tenure_core::time::Drift;

use super::events::{Events, Fan};
use crate::clock;
use crate::drive::{self, Flow, Mailbox};
use crate::error::StoreError;
use crate::store::{Clock, Features, Store};

/// By what a grant in a store with these features is judged over, unless the
/// user wants something else.
pub fn natural_expiry(features: Features) -> Expiry {
    match features.clock {
        Clock::CannotStep => Expiry::SteadyClock,
        Clock::MayStep if features.judge_by_store_clock => Expiry::StoreClock,
        Clock::MayStep | Clock::None => Expiry::Silence,
    }
}

/// Follows an election; see [`watch`]. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watcher {
    events: Events,
    mailbox: Arc<Mailbox>,
}

/// Follows an election: who leads now, then every change (and with
/// `renewals` every renewal), with the estimated end of the grant and how
/// sure it is. Trouble with the store is reported and waited out.
pub fn watch(store: Arc<dyn Store>, election: Name, renewals: bool) -> Watcher {
    let fan = Fan::default();
    let (events, mailbox) = (fan.subscribe(), Arc::new(Mailbox::default()));
    let letters = Arc::clone(&mailbox);
    drive::background().spawn(async move {
        let expiry = natural_expiry(store.features());
        let observer = Observer::new(election, expiry, Drift::DEFAULT, renewals, clock::now());
        let keys = observer.keys().cloned().collect();
        drive::drive(observer, store, keys, letters, |event| {
            let ends = event == Event::Stopped;
            fan.send(&event);
            if ends { Flow::End } else { Flow::On }
        })
        .await;
    });
    Watcher { events, mailbox }
}

impl Watcher {
    /// The next event: [`Event::LeaderChanged`] first, as soon as the store
    /// has answered; then changes, renewals if asked for, and
    /// [`Event::Trouble`] and [`Event::Recovered`]. Cancelling this loses
    /// nothing.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.next().await
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.mailbox.command(Command::Stop);
    }
}

/// Who leads, by one read. Where the store's clock cannot say, one read
/// cannot prove that a grant is over: look at the certainty, or use
/// [`leader_confirmed`].
///
/// # Errors
/// If the store fails, or the register is not an election's.
pub async fn leader(
    store: &dyn Store,
    election: &Name,
    within: Duration,
) -> Result<(Observation, Option<Record>), StoreError> {
    let expiry = natural_expiry(store.features());
    let asked = clock::boot();
    let key = Key::of_election(election);
    let reading = store.read(&key, within).await?;
    if let Some(register) = &reading.register {
        Record::decode(&register.value)
            .map_err(|error| StoreError::broken(format!("election {election}: {error}")))?;
    }
    let config = super::Config {
        expiry,
        ..super::Config::new(election.clone(), election.clone())
    };
    let mut sight = Sight::new();
    sight.read(&config, clock::now(), asked, &reading);
    Ok((sight.observation(expiry), sight.record().cloned()))
}

/// Who leads, for certain: watches for up to one lease where one read is not
/// enough, until the leader has been seen to renew or its grant to be over.
///
/// # Errors
/// If the store fails in a way that only a person can mend.
pub async fn leader_confirmed(
    store: Arc<dyn Store>,
    election: &Name,
) -> Result<Observation, StoreError> {
    let mut watcher = watch(store, election.clone(), true);
    while let Some(event) = watcher.next().await {
        match event {
            Event::LeaderChanged(seen) | Event::LeaderRenewed(seen)
                if seen.certainty >= Certainty::Likely =>
            {
                return Ok(seen);
            }
            Event::Trouble { failure, .. } if failure.class == super::FailureClass::Broken => {
                return Err(StoreError::broken(failure.why));
            }
            _ => {}
        }
    }
    Err(StoreError::unavailable("the watch ended"))
}

/// All elections of a store with what one read says of each, sorted by name.
/// A register that is not readable is listed with the reason.
///
/// # Errors
/// If the store fails.
pub async fn list(
    store: &dyn Store,
    within: Duration,
) -> Result<Vec<(Name, Result<(Observation, Option<Record>), StoreError>)>, StoreError> {
    let mut names = Vec::new();
    let mut after: Option<Key> = None;
    loop {
        let page = store.list(Key::ELECTIONS, after.as_ref(), within).await?;
        names.extend(page.registers.iter().filter_map(|(key, _)| key.election()));
        after = page.more_after;
        if after.is_none() {
            break;
        }
    }
    let mut elections = Vec::with_capacity(names.len());
    for name in names {
        let seen = leader(store, &name, within).await;
        elections.push((name, seen));
    }
    Ok(elections)
}
