//! What runs Tenure's machines on a real machine; internal to `tenure`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | the only reader of system time |
//! | [`drive`] | the background thread, the loop that runs any machine, streams of events |
//! | [`error`] | errors by what the caller does next |
//! | [`small`] | the reader of small files |
//! | [`distance`] | how far away a store is, and which lease that allows |

pub mod clock;
pub mod distance;
pub mod drive;
pub mod error;
pub mod small;
