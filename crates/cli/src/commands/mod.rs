//! One file per command, or family of commands.

pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod observe;
mod reign;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod sim_cluster;
mod trouble;
pub(crate) mod wal;
