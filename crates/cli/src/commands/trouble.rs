//! What a person is told while a store is in trouble.
//!
//! A campaign meets the same failure with every attempt, several times a
//! second perhaps; to warn each time would bury the log, and to warn only of
//! the first would hide the reason: the first failure is often a mere "no
//! answer", and the verdict ("upgrade this one") comes with the second look.
//! So a warning is due whenever what is wrong differs from what was said last.
//!
//! A store that was lost names the command that makes another. The store
//! does not know the election and the term for that command; the candidate does.

use tenure::Term;
use tenure::election::{Failure, TermRegression};
use tenure::store::REPAIR;

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    last_reported: Option<Failure>,
    /// The highest term that was heard of.
    highest: Option<Term>,
}

impl Trouble {
    /// Remembers a term.
    pub(super) fn remember_term(&mut self, term: Term) {
        self.highest = self.highest.max(Some(term));
    }

    /// Tells of a failure: as a warning if it is news.
    pub(super) fn report_failure(&mut self, election: &str, failure: &Failure, in_a_row: u32) {
        let why = self.fill_in_repair(election, &failure.why);
        if self.last_reported.as_ref() == Some(failure) {
            tracing::debug!("{election}: {why} ({in_a_row} in a row)");
        } else {
            tracing::warn!("{election}: {why}");
            self.last_reported = Some(failure.clone());
        }
    }

    /// Tells that it is over.
    pub(super) fn report_recovery(&mut self, election: &str) {
        self.last_reported = None;
        tracing::warn!("{election}: the store answers again");
    }

    /// A command of the store's with what it takes.
    fn fill_in_repair(&self, election: &str, why: &str) -> String {
        let term = self
            .highest
            .map_or_else(|| "N".to_owned(), |term| term.to_string());
        let command = REPAIR
            .replace("above N", &format!("above {term}"))
            .replace("ELECTION", election);
        why.replace(REPAIR, &command)
    }
}

/// Tells that the register shows a lower term than this process has seen, or
/// the same under another leader. Each
/// time it is news: the machine tells it once for each floor and term.
pub(super) fn warn_of_regression(election: &str, regression: TermRegression) {
    let TermRegression { shown, floor } = regression;
    let found = if shown == Term::ZERO {
        "nothing there".to_owned()
    } else if shown == floor {
        format!("term {shown} again, under another leader")
    } else {
        format!("term {shown}")
    };
    if floor.get() > TermRegression::ASKED_MAX {
        // No such term is ever reached: nobody leads above it on purpose.
        tracing::warn!(
            "{election}: expected a term of at most 2^62, remembered {floor}, found {found}: the \
             record with that term was written by hand; if candidates go on leading above it, \
             stop them all, and tenure forget {election} (fences begin again at 1)"
        );
        return;
    }
    tracing::warn!(
        "{election}: expected term {floor} or a higher one in the store, found {found}: a \
         register, table or file was lost, or an older copy came back; candidates that remember \
         lead above it again. If none does: tenure repair {election} --term-above {floor}"
    );
}
