//! What a person is told while a store is in trouble.
//!
//! A campaign meets the same failure with every attempt, several times a
//! second perhaps; to warn each time would bury the log, and to warn only of
//! the first would hide the reason: the first failure is often a mere "no
//! answer", and the verdict ("upgrade this one") comes with the second look.
//! So a warning is due whenever what is wrong differs from what was said last.

use tenure::Term;
use tenure::election::{Failure, Fallen};

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Trouble(Option<Failure>);

impl Trouble {
    /// Tells of a failure: as a warning if it is news.
    pub(super) fn tell(&mut self, election: &str, failure: &Failure, in_a_row: u32) {
        if self.0.as_ref() == Some(failure) {
            tracing::debug!("{election}: {} ({in_a_row} in a row)", failure.why);
        } else {
            tracing::warn!("{election}: {}", failure.why);
            self.0 = Some(failure.clone());
        }
    }

    /// Tells that it is over.
    pub(super) fn over(&mut self, election: &str) {
        self.0 = None;
        tracing::warn!("{election}: the store answers again");
    }
}

/// Tells that the register shows a lower term than this process has seen. Each
/// time it is news: the machine tells it once for each floor and term.
pub(super) fn fell(election: &str, fallen: Fallen) {
    let Fallen { shown, floor } = fallen;
    let found = if shown == Term::ZERO {
        "nothing there".to_owned()
    } else {
        format!("term {shown}")
    };
    tracing::warn!(
        "{election}: expected term {floor} or a higher one in the store, found {found}: a \
         register, table or file was lost, or an older copy came back; candidates that remember \
         lead above it again. If none does: tenure repair {election} --term-above {floor}"
    );
}
