//! What every driver of a machine does with a store: calls with an end, and
//! watches as hints.
//!
//! A call's failure is handed on by its class and never repeated here; a
//! machine follows one or two lines, and is told that it is *watching* while
//! all of them are up.

use std::time::Duration;

use tenure_core::election::{Failure, FailureClass};

use super::{Key, Register, Selector, Sighting, Store, Watch};
use crate::error::StoreError;

/// Holds a store to its time. A store keeps it by itself; one that does not
/// must not keep a task alive for ever.
pub(crate) async fn patient<T>(
    within: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(within + Duration::from_secs(1), call).await {
        Ok(result) => result.map_err(|error| failure(&error)),
        Err(_) => Err(Failure::new(
            FailureClass::Unknown,
            "the store did not answer in time",
        )),
    }
}

fn failure(error: &StoreError) -> Failure {
    let class = match error {
        StoreError::Conflict => FailureClass::Conflict,
        StoreError::Unavailable(_) => FailureClass::Unavailable,
        StoreError::Unknown(_) => FailureClass::Unknown,
        StoreError::Broken(_) => FailureClass::Broken,
    };
    Failure::new(class, &error.to_string())
}

/// What the lines of a machine report.
pub(crate) enum News {
    /// This register had this state, at some time past.
    Seen(Key, Option<Register>),
    /// Whether all lines are up.
    Watching(bool),
}

/// The one or two watches of a machine.
pub(crate) struct Lines {
    own: Line,
    other: Option<Line>,
}

struct Line {
    watch: Watch,
    up: bool,
}

impl Lines {
    /// Follows what `selectors` select: at least one, and no more than two.
    pub(crate) fn new(store: &dyn Store, selectors: impl IntoIterator<Item = Selector>) -> Self {
        let mut lines = selectors.into_iter().map(|selector| Line {
            watch: store.watch(selector),
            up: false,
        });
        let own = lines.next().expect("a machine follows its own register");
        Self {
            own,
            other: lines.next(),
        }
    }

    /// The next of what they report. Cancelling this loses nothing.
    pub(crate) async fn next(&mut self) -> News {
        let (line, sighting) = match &mut self.other {
            None => (&mut self.own, None),
            Some(other) => tokio::select! {
                sighting = self.own.watch.next() => (&mut self.own, Some(sighting)),
                sighting = other.watch.next() => (other, Some(sighting)),
            },
        };
        let sighting = match sighting {
            Some(sighting) => sighting,
            None => line.watch.next().await,
        };
        match sighting {
            Sighting::State(key, register) => return News::Seen(key, register),
            Sighting::Live => {
                tracing::debug!("the watch is up");
                line.up = true;
            }
            Sighting::Down(why) => {
                tracing::debug!(why, "the watch is down; polling meanwhile");
                line.up = false;
            }
        }
        News::Watching(self.own.up && self.other.as_ref().is_none_or(|other| other.up))
    }
}
