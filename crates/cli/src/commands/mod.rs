//! One file per command, or family of commands.

#[cfg(feature = "tenure")]
mod authority;
pub(crate) mod bench;
#[cfg(feature = "tenure")]
pub(crate) mod certs;
pub(crate) mod check;
#[cfg(feature = "tenure")]
pub(crate) mod cluster;
pub(crate) mod deploy;
#[cfg(feature = "tenure")]
pub(crate) mod dev;
pub(crate) mod fence;
pub(crate) mod leader_requests;
mod leadership;
#[cfg(feature = "tenure")]
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod node;
pub(crate) mod observe;
#[cfg(feature = "tenure")]
pub(crate) mod own_token;
pub(crate) mod ps;
pub(crate) mod repair;
#[cfg(feature = "tenure")]
pub(crate) mod restore;
#[cfg(feature = "tenure")]
mod revoke;
pub(crate) mod run;
#[cfg(feature = "tenure")]
pub(crate) mod secret;
#[cfg(feature = "tenure")]
pub(crate) mod serve;
#[cfg(feature = "tenure")]
pub(crate) mod session;
pub(crate) mod sim;
mod sim_seeds;
#[cfg(feature = "tenure")]
pub(crate) mod token;
mod trouble;
#[cfg(feature = "tenure")]
pub(crate) mod wal;
