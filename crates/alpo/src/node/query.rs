//! Reading the applied state.
//!
//! A leader that reads after a confirmed round also says what the log's time is
//! *now*, not when the last entry was written: on an idle cluster nothing is
//! written, and a candidate that judges a dead leader's lease by the log's time
//! would wait for ever. It runs no faster than this leader's clock and goes on
//! from what the log says, so what it shows to have passed has passed.

use alloc::vec::Vec;

use tenure_core::cas::{Bytes, Register};
use tenure_core::ids::Key;
use tenure_core::time::StoreTime;

use super::super::entry::LogTime;
use super::super::state::{State, TooOld};
use super::server::Server;
use super::types::{Query, QueryResult};

/// Entries of the user log, or registers, in one answer, at most.
const MAX_READ: usize = 4_096;

/// After about how many bytes an answer takes nothing more: it has to fit
/// into one message to the client.
const MAX_READ_BYTES: usize = 1024 * 1024;

impl Server {
    pub(super) fn find(&self, query: Query, now: LogTime) -> QueryResult {
        self.state.find(query, now)
    }
}

impl State {
    /// What the applied state holds; `now` is the log's time as far as it is
    /// known, if that is later than the last entry's.
    pub fn find(&self, query: Query, now: LogTime) -> QueryResult {
        let now = StoreTime {
            nanos: now.max(self.time()),
            ..self.store_time()
        };
        match query {
            Query::Register(key) => {
                QueryResult::Register(self.register(&key), now, self.bound(&key))
            }
            Query::List {
                prefix,
                after,
                count,
            } => self.page(&prefix, after.as_ref(), count, now),
            Query::UserLog { from, count } => {
                if let Some(gap) = self.user_log().gap(from) {
                    return QueryResult::Restored(gap.to);
                }
                let read = self.user_log().read(from);
                QueryResult::UserLog(match read {
                    Ok(entries) => {
                        let mut budget = PageBudget::new(count);
                        Ok(entries
                            .take_while(|(_, bytes)| budget.takes(bytes))
                            .map(|(number, bytes)| (number, bytes.clone()))
                            .collect())
                    }
                    Err(TooOld { first }) => Err(first),
                })
            }
            Query::Barrier => QueryResult::Barrier(self.applied().id),
        }
    }

    fn page(&self, prefix: &str, after: Option<&Key>, count: usize, now: StoreTime) -> QueryResult {
        let mut budget = PageBudget::new(count);
        let mut more = false;
        let mut registers: Vec<(Key, Register)> = Vec::new();
        for (key, register) in self.registers().list_after(prefix, after) {
            if !budget.takes(&register.value) {
                more = true;
                break;
            }
            registers.push((key.clone(), self.seen(key, register)));
        }
        QueryResult::List {
            registers,
            more,
            now,
        }
    }
}

/// What still fits an answer; the first thing always does.
struct PageBudget {
    count: usize,
    bytes: usize,
}

impl PageBudget {
    fn new(count: usize) -> Self {
        Self {
            count: count.min(MAX_READ),
            bytes: MAX_READ_BYTES,
        }
    }

    fn takes(&mut self, value: &Bytes) -> bool {
        if self.count == 0 || self.bytes == 0 {
            return false;
        }
        self.count -= 1;
        self.bytes = self.bytes.saturating_sub(value.len() + 64);
        true
    }
}
