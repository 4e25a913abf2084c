//! How a server ended.

use tenure_alpo::{Fault, JoinError};

use crate::wal::WalError;

/// How a server ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It was told to.
    #[error("the server was stopped")]
    Stopped,
    /// Its disk failed.
    #[error("{0}")]
    Disk(#[from] WalError),
    /// It must not take part as it is.
    #[error("{0}")]
    JoinError(#[from] JoinError),
    /// Its number went to another disk: an operator has to choose.
    #[error("{0}")]
    Replaced(String),
    /// It found a broken rule.
    #[error("{0}")]
    Fault(String),
}

impl Ended {
    pub(super) fn of(fault: &Fault) -> Self {
        let text = fault.to_string();
        match fault {
            Fault::Replaced { .. } => Self::Replaced(text),
            _ => Self::Fault(text),
        }
    }
}
