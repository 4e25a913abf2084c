//! Every planted bug is caught by the ordinary workload of a simulator. That
//! nothing is violated without one is in `seeds`.
//!
//! | file | what it holds |
//! |---|---|
//! | `hunt` | for how long a bug is hunted, and where the hunt begins |
//! | `elections`, `clusters`, `groups` | the bugs of each simulator |
#![allow(clippy::print_stdout)]

mod clusters;
mod elections;
mod groups;
mod hunt;
