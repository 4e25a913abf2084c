//! A notation of runs for people, and the last lines of it.
//!
//! ```text
//!   12.345678901  b     +1042.118273s  sends write v7 (call 12)
//!   true time     node  its own clock  what
//! ```
//!
//! A trace costs more than the run it tells of. So a sweep runs without one,
//! and a run that fails is run *again* with it: the same seed takes the same
//! way, to the nanosecond.

use std::collections::VecDeque;

use tenure_core::time::Instant;

use crate::clock::{SECOND, TrueTime};

/// The last lines of a run; none at all when it keeps none.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    lines: VecDeque<String>,
    most: usize,
}

impl Trace {
    pub(crate) const fn new(most: usize) -> Self {
        Self {
            lines: VecDeque::new(),
            most,
        }
    }

    /// Whether it is worth while to word a line.
    pub(crate) const fn is_on(&self) -> bool {
        self.most > 0
    }

    pub(crate) fn note(&mut self, t: TrueTime, who: &str, local: Option<Instant>, what: &str) {
        if self.lines.len() >= self.most {
            self.lines.pop_front();
        }
        let local = local.map_or_else(String::new, |local| format!("+{local}"));
        let (whole, part) = (t / SECOND, t % SECOND);
        self.lines.push_back(format!(
            "{whole:>5}.{part:09}  {who:<8} {local:>18}  {what}"
        ));
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
