//! What a person is told while a store is in trouble.
//!
//! A campaign meets the same failure with every attempt, several times a
//! second perhaps; to warn each time would bury the log, and to warn only of
//! the first would hide the reason: the first failure is often a mere "no
//! answer", and the verdict ("upgrade this one") comes with the second look.
//! So a warning is due whenever what is wrong differs from what was said last.
//! Where two hosts fail in two ways, the two take turns, and a store may fail for
//! a moment again and again: what was said within [`SAID_FOR`] is not said again.
//!
//! A store that was lost names the command that makes another. The store
//! does not know the election and the term for that command; the candidate does.

use std::time::{Duration, Instant};

use tenure::Term;
use tenure::election::{Failure, TermRegression};
use tenure::store::REPAIR;

/// For how long a failure is not told again that comes back.
const SAID_FOR: Duration = Duration::from_secs(30);

/// How many failures are remembered. Beyond that the oldest is forgotten, and told again
/// when it comes back.
const REMEMBERED_MAX: usize = 8;

/// What was told of a store.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// The failures that were told, and when; the last of them last.
    reported: Vec<(Failure, Instant)>,
    /// A failure was told last, and not its end.
    is_open: bool,
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
        if self.is_news(failure, Instant::now()) {
            tracing::warn!("{election}: {why}");
        } else {
            tracing::debug!("{election}: {why} ({in_a_row} in a row)");
        }
    }

    /// Whether a failure is to be told at `now`; if so, it is remembered as told.
    fn is_news(&mut self, failure: &Failure, now: Instant) -> bool {
        let last = self.reported.last().map(|(last, _)| last);
        if self.is_open && last == Some(failure) {
            return false;
        }
        let fresh = |at: Instant| now.saturating_duration_since(at) < SAID_FOR;
        let is_same = |(told, _): &(Failure, Instant)| told == failure;
        if let Some(at) = self.reported.iter().position(is_same) {
            if fresh(self.reported[at].1) {
                return false;
            }
            self.reported.remove(at);
        } else if self.reported.len() == REMEMBERED_MAX {
            self.reported.remove(0);
        }
        self.reported.push((failure.clone(), now));
        self.is_open = true;
        true
    }

    /// Tells that it is over, if a failure was told.
    pub(super) fn report_recovery(&mut self, election: &str) {
        if std::mem::take(&mut self.is_open) {
            tracing::warn!("{election}: the store answers again");
        } else {
            tracing::debug!("{election}: the store answers again");
        }
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

#[cfg(test)]
mod tests {
    use tenure::election::FailureClass;

    use super::*;

    fn failure(why: &str) -> Failure {
        Failure {
            class: FailureClass::Unavailable,
            why: why.into(),
        }
    }

    #[test]
    fn failures_that_take_turns_are_told_twice_a_minute() {
        let (mut trouble, begun) = (Trouble::default(), Instant::now());
        let mut told = 0;
        for half_second in 0..600 {
            let now = begun + Duration::from_millis(500) * half_second;
            let host = if half_second % 2 == 0 { "a" } else { "b" };
            told += u32::from(trouble.is_news(&failure(host), now));
        }
        assert_eq!(told, 2 * 10);
        // What did not change is not told again.
        let later = begun + Duration::from_secs(3_600);
        assert!(trouble.is_news(&failure("c"), later));
        assert!(!trouble.is_news(&failure("c"), later + 2 * SAID_FOR));
    }

    #[test]
    fn a_failure_that_comes_back_is_told_twice_a_minute_and_so_is_its_end() {
        let (mut trouble, begun) = (Trouble::default(), Instant::now());
        let [mut told, mut ended] = [0; 2];
        for second in 0..300 {
            let now = begun + Duration::from_secs(1) * second;
            told += u32::from(trouble.is_news(&failure("reset"), now));
            ended += u32::from(trouble.is_open);
            trouble.report_recovery("e");
        }
        assert_eq!((told, ended), (10, 10));
        // A failure that lasts is told once more, when `SAID_FOR` is over.
        assert!(!trouble.is_news(&failure("reset"), begun + Duration::from_secs(299)));
        assert!(trouble.is_news(&failure("reset"), begun + Duration::from_secs(300)));
        assert!(!trouble.is_news(&failure("reset"), begun + Duration::from_secs(900)));
    }

    #[test]
    fn a_few_failures_are_remembered() {
        let (mut trouble, now) = (Trouble::default(), Instant::now());
        for host in 0..1_000 {
            assert!(trouble.is_news(&failure(&host.to_string()), now));
        }
        assert_eq!(trouble.reported.len(), REMEMBERED_MAX);
        assert!(!trouble.is_news(&failure("995"), now));
        assert!(trouble.is_news(&failure("0"), now));
    }
}
