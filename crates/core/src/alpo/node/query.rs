//! Reading the applied state.

use super::super::state::TooOld;
use super::server::Server;
use super::types::{Found, Query};

/// Entries of the plain log in one answer, at most.
const MAX_READ: usize = 4_096;

impl Server {
    pub(super) fn find(&self, query: Query) -> Found {
        match query {
            Query::Register(key) => {
                let register = self.state.registers().read(&key).cloned();
                Found::Register(register, self.state.store_time())
            }
            Query::List(prefix) => {
                let list = self.state.registers().list(&prefix);
                Found::List(list.map(|(k, r)| (k.clone(), r.clone())).collect())
            }
            Query::Journal { from, count } => {
                let read = self.state.journal().read(from);
                Found::Journal(match read {
                    Ok(entries) => Ok(entries
                        .take(count.min(MAX_READ))
                        .map(|(number, bytes)| (number, bytes.clone()))
                        .collect()),
                    Err(TooOld { first }) => Err(first),
                })
            }
            Query::Barrier => Found::Barrier(self.state.applied().id),
        }
    }
}
