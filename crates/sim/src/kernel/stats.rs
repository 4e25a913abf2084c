//! What happened, counted: a sweep in which something never happened has not
//! tested it.

use std::fmt;

/// What a simulator counts, in one run or in many.
pub trait Counts: Copy + Default + fmt::Display {
    /// Adds the counts of other runs.
    fn add(&mut self, other: &Self);

    /// How many runs there were.
    fn runs(&self) -> u64;

    /// Everything that may happen in a run: its name for machines, its words for
    /// people, and how often it happened.
    fn fields(&self) -> Vec<(&'static str, &'static str, u64)>;
}

/// The counts of a simulator. Those of several runs are their sums, but of the
/// first one it may be the greatest.
macro_rules! stats {
    (
        $(#[$first_doc:meta])* $first:ident by $join:ident;
        $($(#[$doc:meta])* $field:ident: $text:literal,)*
    ) => {
        /// What happened in a run, or in many.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Stats {
            /// Runs.
            pub runs: u64,
            $(#[$first_doc])* pub $first: u64,
            $($(#[$doc])* #[doc = concat!("Reported as *", $text, "*.")] pub $field: u64,)*
        }

        impl $crate::kernel::Counts for Stats {
            fn add(&mut self, other: &Self) {
                self.runs += other.runs;
                self.$first = self.$first.$join(other.$first);
                $(self.$field += other.$field;)*
            }

            fn runs(&self) -> u64 {
                self.runs
            }

            fn fields(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($field), $text, self.$field),)*]
            }
        }
    };
}
pub(crate) use stats;

/// A line for all runs, and one for each count.
pub(crate) fn show(f: &mut fmt::Formatter<'_>, stats: &impl Counts, more: &str) -> fmt::Result {
    let runs = stats.runs();
    write!(f, "{runs:>12}  runs{more}")?;
    let runs = runs.max(1) as f64;
    for (_, text, count) in stats.fields() {
        write!(
            f,
            "\n{count:>12}  {text} ({:.2} a run)",
            count as f64 / runs
        )?;
    }
    Ok(())
}

/// The same, with the time that passed in the worlds.
pub(crate) fn show_hours(
    f: &mut fmt::Formatter<'_>,
    stats: &impl Counts,
    simulated_ns: u64,
) -> fmt::Result {
    let hours = simulated_ns / 3_600_000_000_000;
    show(f, stats, &format!(", {hours} simulated hours"))
}
