//! What comes from outside, as bytes, and what must hold whatever they are.
//!
//! A *target* takes any bytes, gives them to the code that reads such bytes in
//! a running server or client, and panics if a promise is broken: not only if
//! that code panics, but also if what was read and is written again reads as
//! something else, or if a limit is passed.
//!
//! Only tests need this, so it is compiled for them alone, and for the
//! fuzzer (`fuzz/run.sh`), which searches for bytes that reach code that no
//! bytes have reached before. What it found worth keeping lies in
//! `fuzz/corpus/`, and the tests replay it (`replay`).
//!
//! Most formats have checksums, which no search finds. So a target also takes
//! the same bytes with the checksums put right.
//!
//! Those of agents and of the command line are in `crates/agent/src/fuzzed.rs`
//! and `crates/cli/src/fuzzed.rs`. Those
//! that need private parts of a module lie there, in a file of this name.

mod clients;
mod disk;
mod messages;
mod registers;
#[cfg(test)]
mod replay;
mod segments;

use crate::transport;

/// A target: its name, which is also that of its corpus, and what takes the
/// bytes.
pub type Target = (&'static str, fn(&[u8]));

/// The targets.
pub const TARGETS: &[Target] = &[
    ("greeting", transport::fuzzed::greeting),
    ("book", transport::fuzzed::address_book),
    ("frames", transport::fuzzed::frames),
    ("messages", messages::messages),
    ("records", registers::records),
    ("views", registers::views),
    ("segments", segments::segments),
    ("tokens", clients::tokens),
    ("http", clients::requests),
    ("backup", clients::backup),
];

#[cfg(test)]
mod tests {
    use super::{TARGETS, replay};

    #[test]
    fn every_corpus_has_a_target() {
        let elsewhere = ["settings", "workloads"];
        let known = TARGETS.iter().map(|(name, _)| *name).chain(elsewhere);
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        assert_eq!(replay::corpora(), known);
    }

    /// A test for each, so that they run beside each other.
    macro_rules! replayed {
        ($($name:ident)*) => {$(
            #[test]
            fn $name() {
                let wanted = stringify!($name);
                let target = TARGETS.iter().find(|(name, _)| *name == wanted);
                replay::replay(*target.expect("a target"));
            }
        )*};
    }

    replayed! { greeting book frames messages records views segments tokens http backup }
}
