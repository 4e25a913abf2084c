//! A connection, and who called last over it. [`Account::connection`] is here, so
//! that the account takes nothing from callers.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::tokens::{Caller, Known};
use super::super::unsent_count::UnsentCount;
use super::{Account, CallerAccount, CallerId, Usage};

impl Account {
    /// That of one more connection, from this address.
    pub(crate) fn connection(self: &Arc<Self>, address: IpAddr) -> Arc<Connection> {
        Arc::new(Connection {
            usage: Arc::default(),
            unsent: Arc::default(),
            account: Arc::clone(self),
            address,
            known: Mutex::default(),
            place: Mutex::default(),
        })
    }
}

/// What is counted of one connection, and who called last over it.
#[derive(Debug)]
pub(crate) struct Connection {
    usage: Arc<Usage>,
    unsent: Arc<UnsentCount>,
    account: Arc<Account>,
    address: IpAddr,
    known: Mutex<Option<Known>>,
    place: Mutex<Option<Arc<CallerAccount>>>,
}

impl Connection {
    /// Who is at the other end.
    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// What is unsent of it.
    pub(crate) const fn unsent(&self) -> &Arc<UnsentCount> {
        &self.unsent
    }

    /// Where the caller is counted who called last; before the first has, those
    /// without a token.
    pub(crate) fn last(&self) -> Arc<CallerAccount> {
        let last = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let last = last.clone();
        last.unwrap_or_else(|| self.alone())
    }

    /// Looks whose token the caller has, if it was not the last one's.
    pub(crate) fn recognise(&self, caller: &mut Caller) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        caller.recognise(&mut known);
    }

    /// Where callers without a token are counted.
    pub(crate) fn alone(&self) -> Arc<CallerAccount> {
        let caller_id = CallerId::address(self.address);
        Arc::new(CallerAccount {
            connection: Arc::clone(&self.usage),
            unsent: Arc::clone(&self.unsent),
            caller: self.account.caller(&caller_id),
            account: Arc::clone(&self.account),
            caller_id,
        })
    }

    /// Where this caller is counted.
    pub(crate) fn place(&self, caller: &Caller) -> Arc<CallerAccount> {
        let mut last = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = &*last
            && caller.is(&place.caller_id)
        {
            return Arc::clone(place);
        }
        let caller_id = caller.caller_id();
        let place = Arc::new(CallerAccount {
            connection: Arc::clone(&self.usage),
            unsent: Arc::clone(&self.unsent),
            caller: self.account.caller(&caller_id),
            account: Arc::clone(&self.account),
            caller_id,
        });
        *last = Some(Arc::clone(&place));
        place
    }
}
