//! Writing a request into the register of a leader that renews meanwhile
//! (§4.7.4).
//!
//! The write compares versions, so it must arrive before the next renewal
//! replaces the version that it names. From near by it always does. From afar
//! most of an interval passes on the way: a register that was read is a round
//! trip older when the write arrives, and a caller that tries again at once
//! may meet the renewals in the same phase each time. Two things prevent that:
//!
//! * A renewal that the watch reports is answered at once, by a write that
//!   names its version. That write arrives one round trip after the renewal,
//!   so it is in time wherever a round trip is shorter than the interval.
//! * A store whose watch is slow or down is read again after a pause of a
//!   random length, so that the attempts do not keep in step with the renewals.
//!
//! No attempt begins after `within`, or after [`TRIPS_MAX`] round trips if these
//! take longer: the watch needs some of them before it reports anything.

use std::time::Duration;

use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::ids::{Key, Name, Version};
use tenure_core::rng::Rng;
use tenure_core::time::Instant;
use tenure_election::{Leader, Observation, Occupancy, Record, Request};

use super::builder::entropy;
use super::leader_request_error::LeaderRequestError;
use super::observe::look_closely;
use crate::clock;
use crate::error::{StoreError, about};
use crate::store::{Selector, Sighting, Store, Watch};

/// For how many round trips attempts are made where `within` is shorter.
const TRIPS_MAX: u32 = 16;

/// How many round trips a pause lasts at most, beyond one.
const PAUSE_TRIPS: u32 = 4;

/// The shortest pause.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// How many sightings are passed over that came while a call was under way: at
/// most one of the register and one of the line wait in a watch.
const STALE_MAX: usize = 4;

/// A request for the leader of one election, and what its attempts have shown.
pub(super) struct RequestWriter<'a> {
    store: &'a dyn Store,
    election: &'a Name,
    key: Key,
    request: &'a Request,
    within: Duration,
    began: Instant,
    watch: Watch,
    rng: Rng,
    /// What the quickest call took.
    trip: Option<Duration>,
    /// The first record that was seen of this leader, and the last one.
    first: Option<Record>,
    last: Option<Record>,
    tries: u32,
    /// What the last write expected, if it met a conflict.
    compared: Option<Version>,
}

impl<'a> RequestWriter<'a> {
    pub(super) fn new(
        store: &'a dyn Store,
        election: &'a Name,
        request: &'a Request,
        within: Duration,
    ) -> Self {
        let key = Key::of_election(election);
        // Without randomness of the system the time makes the difference.
        let rng = entropy().unwrap_or_else(|_| Rng::from_seed(clock::boot().as_nanos()));
        Self {
            watch: store.watch(Selector::Key(key.clone())),
            began: clock::boot(),
            store,
            election,
            key,
            request,
            within,
            rng,
            trip: None,
            first: None,
            last: None,
            tries: 0,
            compared: None,
        }
    }

    /// Leaves the request unless it is there already, or has nothing to change;
    /// `is_meant` refuses a leader that is not to be asked. Returns whom it
    /// concerns, and what was seen of them.
    pub(super) async fn write(
        mut self,
        is_meant: impl Fn(&Leader) -> Result<(), LeaderRequestError>,
    ) -> Result<(Leader, Observation), LeaderRequestError> {
        let mut failed = StoreError::Conflict;
        loop {
            let asked = clock::boot();
            let ((seen, record), version) =
                look_closely(self.store, self.election, self.within).await?;
            self.took(asked);
            let (Some(leader), Some(record), Some(version)) =
                (seen.leader.clone(), record, version)
            else {
                return Err(LeaderRequestError::Vacant);
            };
            is_meant(&leader)?;
            self.saw(&record);
            if self.compared.take().as_ref() == Some(&version) {
                return Err(self.refused().await);
            }
            if record.next_sequence().is_none() {
                return Err(no_room(&record));
            }
            if matches!(self.request, Request::Transfer(to) if *to == leader.name) {
                return Ok((leader, seen));
            }
            let mut found = Some((record, version));
            while let Some((record, version)) = found.take() {
                let Some(record) = with_request(record, self.request) else {
                    return Ok((leader, seen));
                };
                // After the look, so that it has settled what became of the
                // write before, and before the write.
                if self.tries > 0 && clock::boot() >= self.until() {
                    return Err(self.given_up(failed));
                }
                match self.swap(record, version.clone()).await {
                    Ok(()) => return Ok((leader, seen)),
                    Err(error @ StoreError::Conflict) => {
                        failed = error;
                        self.compared = Some(version);
                        found = self.renewed(&leader).await;
                    }
                    // The next look shows whether it is there.
                    Err(error @ StoreError::Unknown(_)) => failed = error,
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    /// Nobody has written since the register was compared, and still the write
    /// met a conflict: to try again would be to be refused again.
    async fn refused(&self) -> LeaderRequestError {
        match self.store.read(&self.key, self.within).await {
            Ok(reading) => StoreError::broken(reading.refusal(&self.key)).into(),
            Err(error) => error.into(),
        }
    }

    async fn swap(&mut self, record: Record, version: Version) -> Result<(), StoreError> {
        let write = Write {
            key: self.key.clone(),
            expect: Expect::Version(version),
            value: record.encode(),
            stamp: Stamp::Keep,
        };
        self.tries += 1;
        let asked = clock::boot();
        let swapped = self.store.compare_and_swap(write, self.within).await;
        if matches!(swapped, Ok(_) | Err(StoreError::Conflict)) {
            self.took(asked);
        }
        swapped.map(|_| ())
    }

    /// The renewal of this leader that the watch reports first from now on.
    /// `None` after a pause without one, or if it reports anything else: then a
    /// read decides.
    async fn renewed(&mut self, leader: &Leader) -> Option<(Record, Version)> {
        // What came during the call is up to a round trip old already.
        for _ in 0..STALE_MAX {
            let waiting = tokio::time::timeout(Duration::ZERO, self.watch.next());
            if waiting.await.is_err() {
                break;
            }
        }
        let trip = self.trip.unwrap_or_default();
        let pause = trip + self.rng.span(trip.saturating_mul(PAUSE_TRIPS));
        let reported = async {
            loop {
                if let Sighting::State(_, register) = self.watch.next().await {
                    return register;
                }
            }
        };
        let reported = tokio::time::timeout(pause.max(PAUSE_MIN), reported).await;
        let register = reported.ok().flatten()?;
        let record = Record::decode(&register.value).ok()?;
        let is_same = record.election == *self.election && record.leader().as_ref() == Some(leader);
        if !is_same {
            return None;
        }
        self.saw(&record);
        Some((record, register.version))
    }

    fn took(&mut self, since: Instant) {
        let took = clock::boot().since(since);
        self.trip = Some(self.trip.map_or(took, |trip| trip.min(took)));
    }

    fn saw(&mut self, record: &Record) {
        let first = self.first.take();
        let first = first.filter(|first| first.term == record.term);
        self.first = Some(first.unwrap_or_else(|| record.clone()));
        self.last = Some(record.clone());
    }

    /// When the last attempt may begin.
    fn until(&self) -> Instant {
        let trips = self.trip.unwrap_or_default().saturating_mul(TRIPS_MAX);
        self.began.after(self.within.max(trips))
    }

    /// How often the leader renews, by its own calendar; a fifth of its lease
    /// where that says nothing.
    fn interval(&self) -> Duration {
        let (Some(first), Some(last)) = (&self.first, &self.last) else {
            return Duration::ZERO;
        };
        let renewals = last.renewal.saturating_sub(first.renewal);
        let took = last.renewed_at.since(first.renewed_at);
        let each = u32::try_from(renewals)
            .ok()
            .and_then(|renewals| took.checked_div(renewals));
        each.filter(|each| !each.is_zero())
            .unwrap_or(last.lease / 5)
    }

    fn given_up(&self, failed: StoreError) -> LeaderRequestError {
        match failed {
            StoreError::Conflict => LeaderRequestError::Outrun {
                tries: self.tries,
                trip: about(self.trip.unwrap_or_default()),
                interval: about(self.interval()),
                waited: about(clock::boot().since(self.began)),
            },
            error => error.into(),
        }
    }
}

/// A request that nobody could read would hold the election for ever.
fn no_room(record: &Record) -> LeaderRequestError {
    let error = StoreError::broken(format!(
        "expected a sequence below 2^62 in the record of {}, found {}: it was written by hand; \
         stop the leader, and delete the record (`tenure forget {}`)",
        record.election, record.sequence, record.election
    ));
    error.into()
}

/// The record with the request; `None` if it is there already.
fn with_request(mut record: Record, request: &Request) -> Option<Record> {
    if let Occupancy::Held(holder) = &mut record.occupancy {
        if holder.request.as_ref() == Some(request) {
            return None;
        }
        holder.request = Some(request.clone());
        record.sequence = record.sequence.saturating_add(1);
    }
    Some(record)
}
