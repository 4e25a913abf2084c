//! What a person does about a register whose store was lost or restored
//! (§4.14): raise its term, or delete it.
//!
//! *Raising* is done by standing: a candidate with a floor asks a leader below
//! it to hand over, is elected above it, and leaves at once. So it keeps every
//! rule that a candidate keeps, and there is no second way to write a term.
//! *Deleting* is a comparison with the version of an election that is vacant,
//! or whose grant was seen to be over: no candidate can hold it any more.
//!
//! A register that was written by hand, or whose holder took a lease of days
//! and died, is judged over only when that lease has passed. A person who knows
//! that no process holds the election may have it deleted before
//! ([`forget_abandoned`]). That is the one place where a person's word stands
//! for the lease.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::cas::Expect;
use tenure_core::ids::{Key, LeaderId, Name, Term};
use tenure_election::{Certainty, Event, Failure, FailureClass, Record, Request, TermRegression};

use super::leader_request_error::LeaderRequestError;
use super::observe::{confirm, decoded, look, on_background};
use super::request_writer::RequestWriter;
use super::{Election, StartError};
use crate::clock;
use crate::error::StoreError;
use crate::store::Store;

/// The name by which the candidate stands that raises a term.
const NAME: &str = "tenure-repair";

/// How long a repair waits before it says what for.
const NOTICE_AFTER: Duration = Duration::from_secs(2);

/// Why an election could not be repaired or forgotten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// A term that nobody is asked to go for.
    #[error(
        "expected a term of at most {max}, 2^62, found {found}: half of all terms are left above \
         it",
        max = TermRegression::ASKED_MAX
    )]
    TooHigh {
        /// The term.
        found: u64,
    },
    /// No leader will ever follow what the register holds.
    #[error(
        "expected a record above which a candidate stands, found term {term} and sequence \
         {sequence}: it was written by hand. Stop every candidate, delete it (`tenure forget \
         {election} --holder-is-gone`), and run this again"
    )]
    Last {
        /// Of which election.
        election: Name,
        /// The record's term.
        term: u64,
        /// Its sequence.
        sequence: u64,
    },
    /// Somebody leads below the term still.
    #[error(
        "expected a leader above term {above} within {waited:?}, found none: the candidate that leads \
         below it was asked to hand over, and does so when its work has ended; run this again"
    )]
    Unheard {
        /// The term.
        above: u64,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Somebody leads below the term, and could not even be asked to go.
    #[error(transparent)]
    Unasked(LeaderRequestError),
    /// The election is held.
    #[error(
        "expected an election without a leader, found {leader} in term {term}: have it resign, and \
         stop every candidate, before the election is forgotten"
    )]
    Held {
        /// By whom.
        leader: LeaderId,
        /// In which term.
        term: u64,
    },
    /// The election is held by a process that lives.
    #[error(
        "expected an election whose leader is gone, found that {leader} in term {term} {sign}: it \
         lives; have it resign, and stop every candidate, before the election is forgotten"
    )]
    Lives {
        /// By whom.
        leader: LeaderId,
        /// In which term.
        term: u64,
        /// What shows that.
        sign: &'static str,
    },
    /// There is no such register.
    #[error("expected an election to forget, found none of this name")]
    Absent,
    /// The candidate that was to raise the term could not be elected.
    #[error("expected the store to have the term raised above {above} within {waited:?}: {why}")]
    Refused {
        /// The term.
        above: u64,
        /// How long it was tried.
        waited: Duration,
        /// What the candidate met last.
        why: Arc<str>,
    },
    /// Wrong settings.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sees that the next leader of `election` leads above the term `above`, and
/// waits up to `max_wait` for it; each call of the store may take `within`.
/// Returns the term that the register has reached. It is left vacant, or to the
/// candidate that leads above by then.
///
/// # Errors
/// See [`RepairError`].
pub async fn repair(
    store: Arc<dyn Store>,
    election: &Name,
    above: Term,
    within: Duration,
    max_wait: Duration,
) -> Result<Term, RepairError> {
    if above.get() > TermRegression::ASKED_MAX {
        return Err(RepairError::TooHigh { found: above.get() });
    }
    let election = election.clone();
    on_background(async move {
        let (_, record) = look(store.as_ref(), &election, within).await?;
        if let Some(record) = record {
            if record.is_last() {
                let (term, sequence) = (record.term.get(), record.sequence);
                return Err(RepairError::Last {
                    election,
                    term,
                    sequence,
                });
            }
            // From a vacant election the next leader takes the next term.
            let vacant = record.holder().is_none();
            if record.term > above || (vacant && record.term == above) {
                return Ok(record.term);
            }
        }
        let builder = Election::builder(Arc::clone(&store), election.as_str());
        let stand = builder.name(NAME).floor(above).start()?;
        let (mut trouble, begun) = (None, clock::boot());
        let raised = tokio::select! {
            raised = tokio::time::timeout(max_wait, risen(&stand, above, within, &mut trouble)) => {
                raised.ok().flatten().ok_or_else(|| {
                    let waited = clock::boot().since(begun).min(max_wait);
                    unheard(above, waited, trouble)
                })
            }
            error = unasked(store.as_ref(), &election, above, within) => Err(error),
            error = tell_what_is_waited_for(store.as_ref(), &election, above, within, max_wait) => {
                match error {}
            }
        };
        // It hands out no leadership, so the election is vacated at once.
        stand.stop().await;
        raised
    })
    .await
}

/// The same once, after [`NOTICE_AFTER`]. Never ends.
async fn tell_what_is_waited_for(
    store: &dyn Store,
    election: &Name,
    above: Term,
    within: Duration,
    max_wait: Duration,
) -> Infallible {
    tokio::time::sleep(NOTICE_AFTER).await;
    // A store that fails is told by the candidate.
    let _ = say_what_is_waited_for(store, election, above, within, max_wait).await;
    std::future::pending().await
}

/// Tells a person who waits who leads the election, and what would free it
/// sooner.
async fn say_what_is_waited_for(
    store: &dyn Store,
    election: &Name,
    above: Term,
    within: Duration,
    max_wait: Duration,
) -> Option<()> {
    let reading = store.read(&Key::of_election(election), within).await.ok()?;
    let record = Record::decode(&reading.register?.value).ok()?;
    let (term, lease) = (record.term, record.lease);
    let held = match record.holder() {
        Some(holder) => format!(
            "is led by {} in term {term}, with a lease of {lease:?}",
            holder.id
        ),
        None => format!("has no leader in term {term}"),
    };
    let waits = format!("a leader above term {above} is waited for, up to {max_wait:?}");
    if let Some(session) = reading.bound {
        tracing::warn!(
            "{election} {held}, and its register is bound to session {session}; {waits}. If the \
             process of that session has ended, or its token was taken out: `tenure session close \
             {session} --holder-is-gone`"
        );
    } else if record.holder().is_some() {
        tracing::warn!(
            "{election} {held}, and was asked to hand over; {waits}. If no process leads it: \
             `tenure forget {election} --holder-is-gone`, then this command again"
        );
    }
    Some(())
}

/// Asks a leader whose term is at most `above` to hand over to the candidate that
/// stands for the repair, which asks as well, for as long as it stands. Ends
/// only where that cannot be done from here, so that a person is told so. Both
/// write the same request, so what comes second finds it there.
async fn unasked(store: &dyn Store, election: &Name, above: Term, within: Duration) -> RepairError {
    let Ok(name) = Name::new(NAME) else {
        return std::future::pending().await;
    };
    let request = Request::Transfer(name);
    let request_writer = RequestWriter::new(store, election, &request, within);
    let asked = request_writer.write(|leader| {
        if leader.term > above {
            return Err(LeaderRequestError::Vacant);
        }
        Ok(())
    });
    match asked.await {
        Err(outrun @ LeaderRequestError::Outrun { .. }) => RepairError::Unasked(outrun),
        // Asked, or no leader to ask; and the candidate waits out a store that
        // fails.
        _ => std::future::pending().await,
    }
}

/// Why the term was not raised in time.
fn unheard(above: Term, waited: Duration, trouble: Option<Failure>) -> RepairError {
    let above = above.get();
    match trouble {
        Some(Failure {
            class: FailureClass::Broken,
            why,
        }) => RepairError::Store(StoreError::broken(why)),
        Some(Failure { why, .. }) => RepairError::Refused { above, waited, why },
        None => RepairError::Unheard { above, waited },
    }
}

/// The term above `above` that this candidate, or another, is elected in. Trouble that
/// is not over is left in `trouble`; where it is one that a person must mend, and lasts
/// for `within`, nothing more is waited for.
async fn risen(
    stand: &Election,
    above: Term,
    within: Duration,
    trouble: &mut Option<Failure>,
) -> Option<Term> {
    let mut events = stand.events();
    let mut give_up_at = None;
    loop {
        let event = tokio::select! {
            event = events.next() => event?,
            () = clock::until(give_up_at) => return None,
        };
        let term = match event {
            Event::Elected { fence, .. } => fence.term,
            Event::LeaderChanged(seen) => match seen.leader {
                Some(leader) => leader.term,
                None => continue,
            },
            Event::Trouble { failure, .. } => {
                // A store that is away may come back in time.
                if failure.class == FailureClass::Broken {
                    give_up_at = give_up_at.or_else(|| Some(clock::boot().after(within)));
                }
                *trouble = Some(failure);
                continue;
            }
            Event::Recovered => {
                (*trouble, give_up_at) = (None, None);
                continue;
            }
            _ => continue,
        };
        if term > above {
            return Some(term);
        }
    }
}

/// Deletes the register of `election`, if nobody holds the election; waits for
/// up to a lease where it takes that to know. Returns the term that was
/// forgotten. The next leader leads in term 1, unless a candidate lives that
/// remembers.
///
/// # Errors
/// See [`RepairError`].
pub async fn forget(
    store: Arc<dyn Store>,
    election: &Name,
    within: Duration,
) -> Result<Term, RepairError> {
    let election = election.clone();
    on_background(async move {
        let key = Key::of_election(&election);
        let (mut seen, mut record) = look(store.as_ref(), &election, within).await?;
        if seen.leader.is_some() && seen.certainty < Certainty::Proven {
            // One read cannot say whether it is led.
            if let Some(found) = record.filter(|found| found.lease > within) {
                tracing::warn!(
                    "{election} is held in term {}, with a lease of {:?}; it is forgotten when \
                     that is over without a renewal (if no process holds it: \
                     --holder-is-gone)",
                    found.term,
                    found.lease
                );
            }
            (seen, record) = confirm(store.as_ref(), &election, within).await?;
        }
        if let Some(leader) = seen.leader {
            let (leader, term) = (leader.id, leader.term.get());
            return Err(RepairError::Held { leader, term });
        }
        let reading = store.read(&key, within).await?;
        let (Some(judged), Some(register)) = (record, reading.register) else {
            return Err(RepairError::Absent);
        };
        // What is deleted must be what was judged: somebody may have been
        // elected in between. What is written from here on has another
        // version.
        if Record::decode(&register.value).as_ref() != Ok(&judged) {
            return Err(StoreError::Conflict.into());
        }
        match store.delete(&key, &register.version, within).await {
            Ok(()) => Ok(judged.term),
            Err(StoreError::Conflict) => {
                let now = store.read(&key, within).await?;
                let same = Expect::Version(register.version).is_met_by(now.register.as_ref());
                let refused = || StoreError::broken(now.refusal(&key));
                Err(if same {
                    refused()
                } else {
                    StoreError::Conflict
                }
                .into())
            }
            Err(error) => Err(error.into()),
        }
    })
    .await
}

/// The same at once, on the word of a person that no process holds the election:
/// the process that the register names has ended, with all of its work, and so
/// has every candidate. What that saves is the rest of the lease. Where the word
/// is false two may lead, until the one that the register named has noticed.
///
/// So the register is looked at twice, a lease apart or `within` if that is
/// less, and kept if it was written meanwhile. One that is bound to a session
/// is kept as well: its server vacates it by itself when the process is gone.
///
/// # Errors
/// See [`RepairError`].
pub async fn forget_abandoned(
    store: Arc<dyn Store>,
    election: &Name,
    within: Duration,
) -> Result<Term, RepairError> {
    let election = election.clone();
    on_background(async move {
        let key = Key::of_election(&election);
        let reading = store.read(&key, within).await?;
        decoded(&election, &reading)?;
        let bound = reading.bound;
        let Some(first) = reading.register else {
            return Err(RepairError::Absent);
        };
        let Ok(record) = Record::decode(&first.value) else {
            return Err(StoreError::Conflict.into());
        };
        let held = record.holder().map(|holder| holder.id);
        if let Some(leader) = held {
            let term = record.term.get();
            let lives = |sign| RepairError::Lives { leader, term, sign };
            if bound.is_some() {
                return Err(lives("has a session that lives"));
            }
            tokio::time::sleep(record.lease.min(within)).await;
            let again = store.read(&key, within).await?.register;
            if again.map(|register| register.version) != Some(first.version.clone()) {
                return Err(lives("has written the register meanwhile"));
            }
        }
        // A comparison: what is written from here on has another version.
        store.delete(&key, &first.version, within).await?;
        Ok(record.term)
    })
    .await
}
