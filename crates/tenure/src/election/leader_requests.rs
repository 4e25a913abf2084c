//! Asking the leader to go, through the register (§4.7).
//!
//! The request is written by compare-and-swap beside what the leader wrote,
//! without touching leader, term or renewal: only the holder empties the
//! election, after its work has ended. Then we wait to see it happen.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::ids::{LeaderId, Name};
use tenure_election::{Event, Leader, Observation, Request};

use super::leader_request_error::LeaderRequestError;
use super::observe::{Observer, on_background, watch};
use super::request_writer::RequestWriter;
use crate::store::Store;

/// Asks the leader of `election` to resign, and waits up to `max_wait` until
/// it has; each call of the store may take `within`, and no attempt to write
/// the request begins later than that, or than 16 round trips. With `only` it is asked
/// only if it is that very incarnation. Returns who went.
///
/// # Errors
/// See [`LeaderRequestError`].
pub async fn ask_to_resign(
    store: Arc<dyn Store>,
    election: &Name,
    only: Option<LeaderId>,
    within: Duration,
    max_wait: Duration,
) -> Result<Leader, LeaderRequestError> {
    let election = election.clone();
    on_background(async move {
        let mut watcher = watch(Arc::clone(&store), election.clone(), false);
        let request_writer =
            RequestWriter::new(store.as_ref(), &election, &Request::Resign, within);
        let (asked, _) = request_writer
            .write(|leader| match only {
                Some(expected) if expected != leader.id => Err(LeaderRequestError::AnotherLeader {
                    expected,
                    found: leader.id,
                    term: leader.term.get(),
                }),
                _ => Ok(()),
            })
            .await?;
        let gone = until(&mut watcher, max_wait, |seen| {
            let leader = seen.leader.as_ref();
            seen.term >= asked.term && leader.is_none_or(|leader| leader.id != asked.id)
        });
        gone.await.map(|_| asked)
    })
    .await
}

/// Asks the leader of `election` to hand over to the candidate named `to`, and
/// waits up to `max_wait` until somebody else leads; each call of the store may
/// take `within`, and no attempt to write the request begins later than that,
/// or than 16 round trips. Returns who was asked, and who leads then.
///
/// If the leader has that name already, nothing is written and it is what is
/// returned: it would resign, and since it is also the one that all others hold
/// back for, win the election again. If the one named does not come within one
/// and a half intervals, anybody may lead, and mostly the leader that was asked
/// leads again, in a new term.
///
/// Where the store knows who stands ([`Store::candidates`]) nobody is asked for
/// the sake of one who does not.
///
/// # Errors
/// See [`LeaderRequestError`].
pub async fn ask_to_transfer(
    store: Arc<dyn Store>,
    election: &Name,
    to: Name,
    within: Duration,
    max_wait: Duration,
) -> Result<(Leader, Observation), LeaderRequestError> {
    let election = election.clone();
    on_background(async move {
        let mut watcher = watch(Arc::clone(&store), election.clone(), false);
        let request = Request::Transfer(to.clone());
        let store = store.as_ref();
        if let Some(standing) = store.candidates(&election)
            && !standing.contains(&to)
        {
            return Err(LeaderRequestError::NotStanding { to, standing });
        }
        let request_writer = RequestWriter::new(store, &election, &request, within);
        let (asked, seen) = request_writer.write(|_| Ok(())).await?;
        if asked.name == to {
            return Ok((asked, seen));
        }
        let taken = |seen: &Observation| seen.leader.is_some() && seen.term > asked.term;
        let seen = until(&mut watcher, max_wait, taken).await?;
        Ok((asked, seen))
    })
    .await
}

/// The first observation that fits.
async fn until(
    watcher: &mut Observer,
    max_wait: Duration,
    fits: impl Fn(&Observation) -> bool,
) -> Result<Observation, LeaderRequestError> {
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
    let found = tokio::time::timeout(max_wait, found).await;
    let unheard = LeaderRequestError::Unheard { waited: max_wait };
    found.ok().flatten().ok_or(unheard)
}
