//! The promise of the user log: each append exactly once.
//!
//! A log that only grows can be judged at its end. What an append's answer
//! says is a *number*, and the final log has every number, so no search is
//! needed: each acknowledged append must stand at its number and nowhere
//! else, each that was never answered may stand somewhere once, nothing may
//! stand there that nobody asked for, and the order of the log must be the
//! order of each session's serials and of real time.
//!
//! The checker tells appends apart by their payloads, so a test gives each
//! append one of its own.

use std::collections::BTreeMap;
use std::fmt;

use tenure_core::cas::Bytes;

use super::history::shown;

/// An append as its client saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    /// The session it was made in.
    pub session: u64,
    /// Its serial in the session.
    pub serial: u64,
    /// What was appended; no two appends of a test have the same.
    pub payload: Bytes,
    /// When it was made, by any count that grows with every event.
    pub invoked: u64,
    /// When it was answered, by the same count, and the number it was told;
    /// `None` if it was never answered.
    pub answered: Option<(u64, u64)>,
}

/// What is wrong with a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Misdeed {
    /// Numbers of the log do not follow each other.
    Gap {
        /// The number that was expected.
        expected: u64,
        /// The number that was found.
        found: u64,
    },
    /// Two appends of the test have one payload: nothing can be said.
    Alike(Bytes),
    /// An acknowledged append is not where it was told to be.
    Lost {
        /// Which.
        append: Append,
        /// What stands there instead, `None` if the log ends before.
        instead: Option<Bytes>,
    },
    /// Something stands in the log more than once.
    Twice {
        /// What.
        payload: Bytes,
        /// Where first.
        first: u64,
        /// Where again.
        again: u64,
    },
    /// Something stands in the log that nobody asked for.
    Unasked {
        /// Where.
        number: u64,
        /// What.
        payload: Bytes,
    },
    /// A session's appends stand in another order than their serials.
    Serials {
        /// The one that should come first.
        first: Append,
        /// The one that does.
        second: Append,
    },
    /// An append was answered before another was made, and stands after it.
    Time {
        /// The one that was answered.
        first: Append,
        /// The one that was made then.
        second: Append,
    },
}

/// Judges the final log, given as numbered payloads. If it begins after
/// number 1, then what was before was trimmed and is not judged.
///
/// # Errors
/// Everything that is wrong.
pub fn exactly_once(appends: &[Append], log: &[(u64, Bytes)]) -> Result<(), Vec<Misdeed>> {
    let mut misdeeds = Vec::new();
    let first = log.first().map_or(1, |(number, _)| *number);
    for ((number, _), expected) in log.iter().zip(first..) {
        if *number != expected {
            let found = *number;
            return Err(vec![Misdeed::Gap { expected, found }]);
        }
    }
    let mut asked: BTreeMap<&Bytes, &Append> = BTreeMap::new();
    for append in appends {
        if asked.insert(&append.payload, append).is_some() {
            return Err(vec![Misdeed::Alike(append.payload.clone())]);
        }
    }
    let mut places: BTreeMap<&Bytes, u64> = BTreeMap::new();
    for (number, payload) in log {
        if !asked.contains_key(payload) {
            let (number, payload) = (*number, payload.clone());
            misdeeds.push(Misdeed::Unasked { number, payload });
        } else if let Some(first) = places.get(payload) {
            misdeeds.push(Misdeed::Twice {
                payload: payload.clone(),
                first: *first,
                again: *number,
            });
        } else {
            places.insert(payload, *number);
        }
    }
    for append in appends {
        let Some((_, told)) = append.answered else {
            continue;
        };
        // What was trimmed is taken at its word, unless it stands elsewhere.
        let trimmed = told < first && told > 0 && !places.contains_key(&append.payload);
        if !trimmed && places.get(&append.payload) != Some(&told) {
            let at = told
                .checked_sub(first)
                .and_then(|at| usize::try_from(at).ok());
            let instead = at
                .and_then(|at| log.get(at))
                .map(|(_, found)| found.clone());
            let append = append.clone();
            misdeeds.push(Misdeed::Lost { append, instead });
        }
    }
    let mut placed: Vec<(&Append, u64)> = appends
        .iter()
        .filter_map(|append| {
            let told = append.answered.map(|(_, told)| told);
            let place = places.get(&append.payload).copied();
            Some((append, place.or(told)?))
        })
        .collect();
    serials(&mut placed, &mut misdeeds);
    real_time(&mut placed, &mut misdeeds);
    if misdeeds.is_empty() {
        Ok(())
    } else {
        Err(misdeeds)
    }
}

/// Each session's appends stand in the order of their serials.
fn serials(placed: &mut [(&Append, u64)], misdeeds: &mut Vec<Misdeed>) {
    placed.sort_by_key(|(append, _)| (append.session, append.serial));
    for pair in placed.windows(2) {
        let [(first, before), (second, after)] = pair else {
            continue;
        };
        if first.session == second.session && before >= after {
            misdeeds.push(Misdeed::Serials {
                first: (*first).clone(),
                second: (*second).clone(),
            });
        }
    }
}

/// What was answered before another append was made stands before it.
fn real_time(placed: &mut [(&Append, u64)], misdeeds: &mut Vec<Misdeed>) {
    placed.sort_by_key(|(append, _)| append.invoked);
    let mut answers: Vec<(u64, u64, &Append)> = placed
        .iter()
        .filter_map(|(append, place)| Some((append.answered?.0, *place, *append)))
        .collect();
    answers.sort_by_key(|(at, place, _)| (*at, *place));
    let mut answers = answers.into_iter().peekable();
    // The highest place of those answered so far.
    let mut highest: Option<(u64, &Append)> = None;
    for (append, place) in placed {
        while let Some((_, other, first)) = answers.next_if(|(at, ..)| *at < append.invoked) {
            if highest.is_none_or(|(so_far, _)| so_far < other) {
                highest = Some((other, first));
            }
        }
        if let Some((before, first)) = highest
            && before >= *place
        {
            misdeeds.push(Misdeed::Time {
                first: first.clone(),
                second: (*append).clone(),
            });
        }
    }
}

impl fmt::Display for Append {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = shown(&self.payload);
        write!(f, "append {payload} (session {}, ", self.session)?;
        match self.answered {
            Some((_, told)) => write!(f, "serial {}, told {told})", self.serial),
            None => write!(f, "serial {}, never answered)", self.serial),
        }
    }
}

impl fmt::Display for Misdeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gap { expected, found } => {
                write!(f, "expected entry {expected} of the log, found {found}")
            }
            Self::Alike(payload) => write!(
                f,
                "expected appends that can be told apart, found two of {}",
                shown(payload)
            ),
            Self::Lost { append, instead } => match instead {
                Some(other) => write!(f, "{append} was lost: {} stands there", shown(other)),
                None => write!(f, "{append} was lost: the log has no such entry"),
            },
            Self::Twice {
                payload,
                first,
                again,
            } => {
                let payload = shown(payload);
                write!(
                    f,
                    "{payload} stands in the log twice, as {first} and {again}"
                )
            }
            Self::Unasked { number, payload } => {
                let payload = shown(payload);
                write!(f, "entry {number} is {payload}, which nobody asked for")
            }
            Self::Serials { first, second } => {
                write!(f, "{first} stands after the same session's {second}")
            }
            Self::Time { first, second } => write!(
                f,
                "{first} was answered before the call to {second}, and stands after it"
            ),
        }
    }
}
