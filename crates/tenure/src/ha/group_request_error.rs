//! Why something asked of a group was not done.

use tenure_core::ids::NameError;
use tenure_group::{NodeId, Refusal};

use super::content::CONFIG_BYTES_MAX;
use crate::error::StoreError;

/// Why something asked of a group was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupRequestError {
    /// A name is not one.
    #[error("{what}: {source}")]
    Name {
        /// Which.
        what: &'static str,
        /// Why.
        source: NameError,
    },
    /// No factory for such workloads is registered on this node.
    #[error(
        "expected a kind of workload that this node has a factory for ({known}), found {kind}; \
         register it before the node starts"
    )]
    Kind {
        /// What was asked for.
        kind: String,
        /// What there is.
        known: String,
    },
    /// The config does not fit into a register.
    #[error(
        "expected a config of at most {CONFIG_BYTES_MAX} bytes, found {bytes}; keep it elsewhere \
         and say where"
    )]
    ConfigTooLong {
        /// How many bytes it has.
        bytes: usize,
    },
    /// The group refused it; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// More requests wait than may.
    #[error("expected at most {most} requests at a time; wait for some of them", most = tenure_group::COMMANDS_MAX)]
    TooMany,
    /// It was deployed, but placed on another node before it ran here: this
    /// one could not start it, or was fenced.
    #[error("expected it to run here, found it placed on node {0}, where it runs or is to run")]
    Elsewhere(NodeId),
    /// It was deployed, but undeployed before it ran here.
    #[error("expected it to run here, found that somebody has undeployed it")]
    Undeployed,
    /// The node has left, or was dropped, or could not join; whether the
    /// request was carried out can be seen from another node.
    #[error("expected a node of the group, found one that has left or could not join")]
    Stopped,
    /// The store failed before anything was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}
