//! What the simulators of elections, of clusters and of HA groups share.
//!
//! | module | what it holds |
//! |---|---|
//! | `queue` | everything that will happen in a world, in order |

mod queue;

pub(crate) use queue::Queue;
