//! What calls of a connection wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio_postgres::SimpleQueryRow;

use super::connect::PgConnection;
use super::error_text::PgError;

/// How many answers may be due; a call beyond that is refused unsent.
pub(super) const IN_FLIGHT_MAX: usize = 4096;

/// What came of a call.
pub(super) struct Answer {
    pub(super) rows: Result<Vec<Vec<SimpleQueryRow>>, PgError>,
    /// A warning came before it.
    pub(super) warned: bool,
    pub(super) connected: PgConnection,
}

/// Counts an answer that is due.
pub(super) struct InFlightGuard(Arc<AtomicUsize>);

impl InFlightGuard {
    /// One more of those that `due` counts; `None` if they are as many as there may be.
    pub(super) fn of(due: &Arc<AtomicUsize>) -> Option<Self> {
        let guard = Self(Arc::clone(due));
        (guard.0.fetch_add(1, Ordering::AcqRel) < IN_FLIGHT_MAX).then_some(guard)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
