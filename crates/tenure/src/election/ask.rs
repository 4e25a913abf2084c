//! Asking the leader to go, through the register (§4.7).
//!
//! The request is written by compare-and-swap beside what the leader wrote,
//! without touching leader, term or renewal: only the holder empties the
//! office, after its work has ended. Then we wait to see it happen.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::cas::{Expect, Stamp, Write};
use tenure_core::election::{Event, Leader, Observation, Office, Record, Request};
use tenure_core::ids::{Key, LeaderId, Name};

use super::observe::{Watcher, look, on_background, watch};
use crate::error::StoreError;
use crate::store::Store;

/// How often a request is tried when somebody else writes at the same time.
/// A leader writes once an interval, so more than a few means a broken store.
const TRIES_MAX: u32 = 16;

/// How many of those who stand are named.
const LISTED_MAX: usize = 16;

/// Why a leader could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody leads.
    #[error("expected a leader to ask, found the office vacant")]
    Vacant,
    /// Somebody else leads than was meant.
    #[error(
        "expected leader {expected}, found {found} in term {term}; look again with \
         `tenure leader` before you depose the wrong one"
    )]
    AnotherLeader {
        /// Who was meant.
        expected: LeaderId,
        /// Who leads.
        found: LeaderId,
        /// In which term.
        term: u64,
    },
    /// The store knows who stands, and nobody of this name does.
    #[error(
        "expected the name of a candidate that stands, found {to}, which does not; {} \
         stand: start a candidate of that name first, or name one of these",
        listed(standing)
    )]
    NotStanding {
        /// Who was to lead.
        to: Name,
        /// Who stands.
        standing: BTreeSet<Name>,
    },
    /// The leader has been asked, but has not gone in time.
    #[error(
        "the leader was asked but still held the office after {waited:?}; it will go at its \
         next renewal, or its lease runs out if it is dead"
    )]
    Unheard {
        /// How long it was given.
        waited: Duration,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn listed(names: &BTreeSet<Name>) -> String {
    let names: Vec<&str> = names.iter().map(Name::as_str).take(LISTED_MAX).collect();
    names.join(", ")
}

/// Asks the leader of `election` to resign, and waits up to `patience` until
/// it has; each call of the store may take `within`. With `only` it is asked
/// only if it is that very incarnation. Returns who went.
///
/// # Errors
/// See [`AskError`].
pub async fn ask_to_resign(
    store: Arc<dyn Store>,
    election: &Name,
    only: Option<LeaderId>,
    within: Duration,
    patience: Duration,
) -> Result<Leader, AskError> {
    let election = election.clone();
    on_background(async move {
        let mut watcher = watch(Arc::clone(&store), election.clone(), false);
        let store = store.as_ref();
        let (asked, _) = write_request(store, &election, only, &Request::Resign, within).await?;
        let gone = until(&mut watcher, patience, |seen| {
            let leader = seen.leader.as_ref();
            seen.term >= asked.term && leader.is_none_or(|leader| leader.id != asked.id)
        });
        gone.await.map(|_| asked)
    })
    .await
}

/// Asks the leader of `election` to hand over to the candidate named `to`,
/// and waits up to `patience` until somebody else leads; each call of the
/// store may take `within`. Returns who was asked, and who leads then. If the
/// leader has that name already, nothing is written and it is what is returned:
/// it would resign, and since it is also the one that all others hold back for,
/// take the office again. If the one named does not come within one and a half
/// intervals, anybody may lead, and mostly the leader that was asked leads
/// again, in a new term. Where the store knows who stands
/// ([`Store::candidates`]) nobody is asked for the sake of one who does not.
///
/// # Errors
/// See [`AskError`].
pub async fn ask_to_transfer(
    store: Arc<dyn Store>,
    election: &Name,
    to: Name,
    within: Duration,
    patience: Duration,
) -> Result<(Leader, Observation), AskError> {
    let election = election.clone();
    on_background(async move {
        let mut watcher = watch(Arc::clone(&store), election.clone(), false);
        let request = Request::Transfer(to.clone());
        let store = store.as_ref();
        if let Some(standing) = store.candidates(&election)
            && !standing.contains(&to)
        {
            return Err(AskError::NotStanding { to, standing });
        }
        let (asked, seen) = write_request(store, &election, None, &request, within).await?;
        if asked.name == to {
            return Ok((asked, seen));
        }
        let taken = |seen: &Observation| seen.leader.is_some() && seen.term > asked.term;
        let seen = until(&mut watcher, patience, taken).await?;
        Ok((asked, seen))
    })
    .await
}

/// The first observation that fits.
async fn until(
    watcher: &mut Watcher,
    patience: Duration,
    fits: impl Fn(&Observation) -> bool,
) -> Result<Observation, AskError> {
    let found = async {
        while let Some(event) = watcher.next().await {
            if let Event::LeaderChanged(seen) = event
                && fits(&seen)
            {
                return Some(seen);
            }
        }
        None
    };
    let found = tokio::time::timeout(patience, found).await;
    let unheard = AskError::Unheard { waited: patience };
    found.ok().flatten().ok_or(unheard)
}

/// Leaves the request unless it is there already, or has nothing to change.
/// Returns whom it concerns, and what was seen of them.
async fn write_request(
    store: &dyn Store,
    election: &Name,
    only: Option<LeaderId>,
    request: &Request,
    within: Duration,
) -> Result<(Leader, Observation), AskError> {
    let key = Key::of_election(election);
    let mut last = StoreError::Conflict;
    for _ in 0..TRIES_MAX {
        let (seen, record) = look(store, election, within).await?;
        let (Some(leader), Some(record)) = (seen.leader.clone(), record) else {
            return Err(AskError::Vacant);
        };
        if let Some(expected) = only.filter(|only| *only != leader.id) {
            let (found, term) = (leader.id, leader.term.get());
            return Err(AskError::AnotherLeader {
                expected,
                found,
                term,
            });
        }
        if matches!(request, Request::Transfer(to) if *to == leader.name) {
            return Ok((leader, seen));
        }
        let reading = store.read(&key, within).await?;
        let Some(register) = reading.register else {
            return Err(AskError::Vacant);
        };
        // What is written must be what was just looked at.
        if Record::decode(&register.value).as_ref() != Ok(&record) {
            continue;
        }
        let Some(value) = with_request(record, request) else {
            return Ok((leader, seen));
        };
        let expect = Expect::Version(register.version);
        let write = Write {
            key: key.clone(),
            expect,
            value: value.encode(),
            stamp: Stamp::Keep,
        };
        match store.compare_and_swap(write, within).await {
            Ok(_) => return Ok((leader, seen)),
            // Unknown: the next look shows whether it is there.
            Err(error @ (StoreError::Conflict | StoreError::Unknown(_))) => last = error,
            Err(error) => return Err(error.into()),
        }
    }
    Err(last.into())
}

/// The record with the request; `None` if it is there already.
fn with_request(mut record: Record, request: &Request) -> Option<Record> {
    if let Office::Held(holder) = &mut record.office {
        if holder.request.as_ref() == Some(request) {
            return None;
        }
        holder.request = Some(request.clone());
        record.sequence = record.sequence.saturating_add(1);
    }
    Some(record)
}
