//! Where servers are that the log does not name.

use std::collections::{BTreeMap, VecDeque};

use tenure_alpo::{MAX_MEMBERS, ServerId, StorageId};

use crate::transport::Contact;

/// Servers that are no members and have said where they are, at most.
pub(super) const UNCONFIRMED_MAX: usize = 2 * MAX_MEMBERS;

/// Where servers are that the log does not name with the disk that they have:
/// not yet, or not any more. No other server is told of them, and clients are
/// not sent to them.
#[derive(Clone, Default, Debug)]
pub(super) struct UnconfirmedContacts(
    pub(super) BTreeMap<(ServerId, StorageId), Contact>,
    /// In the order in which they came.
    pub(super) VecDeque<(ServerId, StorageId)>,
);

impl UnconfirmedContacts {
    /// One more; if there are too many, the oldest goes that is not connected.
    pub(super) fn keep(
        &mut self,
        who: (ServerId, StorageId),
        contact: &Contact,
        connected: &BTreeMap<ServerId, StorageId>,
    ) {
        if self.0.len() >= UNCONFIRMED_MAX && !self.0.contains_key(&who) {
            let is_there = |(server, storage)| connected.get(server) == Some(storage);
            let gone = self
                .1
                .iter()
                .position(|(server, it)| !is_there((server, it)));
            let Some(gone) = gone.and_then(|index| self.1.remove(index)) else {
                return;
            };
            self.0.remove(&gone);
        }
        if self.0.insert(who, contact.clone()).is_none() {
            self.1.push_back(who);
        }
    }
}
