//! Planted bugs: what the lists of all protocols have in common.
//!
//! A planted bug is a deliberate mistake by which a checker proves itself:
//! a one-line switch at the place in production code where the mistake would
//! really be made. The feature `planted-bugs` compiles the switches in;
//! without it [`Plant::is`] is the constant `false`.

/// A list of planted mistakes, as an enumeration that knows all of them.
#[doc(hidden)]
#[macro_export]
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident,)*) => {
        /// One planted mistake.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$bug,)*];
        }
    };
}

/// Which bug is planted (injected on purpose, for a checker to catch), if any. A release
/// has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plant<B> {
    #[cfg(feature = "planted-bugs")]
    bug: Option<B>,
    #[cfg(not(feature = "planted-bugs"))]
    none: core::marker::PhantomData<B>,
}

impl<B> Default for Plant<B> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<B> Plant<B> {
    /// None.
    pub const NONE: Self = Self {
        #[cfg(feature = "planted-bugs")]
        bug: None,
        #[cfg(not(feature = "planted-bugs"))]
        none: core::marker::PhantomData,
    };
}

#[cfg(feature = "planted-bugs")]
impl<B: Copy + PartialEq> Plant<B> {
    /// This one.
    pub const fn bug(bug: B) -> Self {
        Self { bug: Some(bug) }
    }

    /// This one, or none.
    pub const fn of(bug: Option<B>) -> Self {
        Self { bug }
    }

    /// Whether `bug` was planted; the constant `false` in every release.
    pub fn is(self, bug: B) -> bool {
        self.bug == Some(bug)
    }
}

#[cfg(not(feature = "planted-bugs"))]
impl<B: Copy> Plant<B> {
    /// Whether `bug` was planted; the constant `false` in every release.
    pub const fn is(self, _: B) -> bool {
        false
    }
}
