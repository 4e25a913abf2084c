//! Kinds of faults, and how rarely each comes.
//!
//! A world has a kind or does not, and each kind that it has comes at a rate of
//! its own (*swarm testing*).

use tenure_core::rng::Rng;

use crate::clock::pick;

/// One of `choices` in so many of 100 cases, else 0.
pub(crate) fn sometimes(rng: &mut Rng, percent: u64, choices: &[u64]) -> u64 {
    if rng.chance(percent) {
        *pick(rng, choices)
    } else {
        0
    }
}

/// The kinds of faults of a simulator, each beside the field that has its rate.
macro_rules! fault_kinds {
    (
        $(#[$kind_doc:meta])* enum $kind:ident;
        $(#[$rates_doc:meta])* struct $rates:ident;
        $($(#[$doc:meta])* $fault:ident: $rate:ident,)*
    ) => {
        $(#[$kind_doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum $kind {
            $($fault,)*
        }

        $(#[$rates_doc])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $rates {
            $($(#[$doc])* pub(crate) $rate: u64,)*
        }

        impl $kind {
            pub(crate) const ALL: &[Self] = &[$(Self::$fault,)*];

            /// The mean pause between two of them in thousandths of a lease.
            pub(crate) const fn rarity(self, rates: &$rates) -> u64 {
                match self {
                    $(Self::$fault => rates.$rate,)*
                }
            }
        }
    };
}
pub(crate) use fault_kinds;
