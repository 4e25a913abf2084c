//! One file per command, or family of commands.

pub(crate) mod ask;
pub(crate) mod observe;
mod reign;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod sim_cluster;
pub(crate) mod sim_ha;
mod trouble;
pub(crate) mod wal;
