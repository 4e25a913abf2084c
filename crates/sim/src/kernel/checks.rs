//! The checkers of a simulator by their names.

/// The checkers of a simulator: what each objects to, and what it is called.
macro_rules! checks {
    ($($(#[$doc:meta])* $check:ident: $text:literal,)*) => {
        /// Which checker.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Check {
            $($(#[$doc])* $check,)*
        }

        impl std::fmt::Display for Check {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$check => $text,)*
                })
            }
        }
    };
}
pub(crate) use checks;
