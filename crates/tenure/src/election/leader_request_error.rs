//! Why a leader could not be asked to go.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::ids::{LeaderId, Name};

use crate::error::StoreError;

/// How many of those who stand are named.
const LISTED_MAX: usize = 16;

/// Why a leader could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaderRequestError {
    /// Nobody leads.
    #[error("expected a leader to ask, found the election vacant")]
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
        "the leader was asked but still led after {waited:?}; it will go at its \
         next renewal, or its lease runs out if it is dead"
    )]
    Unheard {
        /// How long it was given.
        waited: Duration,
    },
    /// The register was renewed before each write of the request arrived.
    #[error(
        "expected to write the request between two renewals, found the register renewed before \
         each of {tries} writes arrived, for {waited}; nothing was asked: a round trip to the store \
         takes {trip}, and the leader renews every {interval}: ask from nearer to the store, or, \
         if a round trip is the shorter of the two, again with a longer --timeout"
    )]
    Outrun {
        /// How many writes.
        tries: u32,
        /// What a round trip to the store took.
        trip: String,
        /// How often the leader renews.
        interval: String,
        /// For how long it was tried.
        waited: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn listed(names: &BTreeSet<Name>) -> String {
    let names: Vec<&str> = names.iter().map(Name::as_str).take(LISTED_MAX).collect();
    names.join(", ")
}
