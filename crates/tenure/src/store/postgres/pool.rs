//! Which connection a register is asked for over.
//!
//! A connection carries out one statement after the other, and each commit waits for
//! the disk. A process with a few elections has time for that. One with thousands would
//! wait for the sum of all, although a server syncs what commits at the same time once.
//! So beyond the first [`FIRST_KEYS`] registers, others go over more connections.
//!
//! A register stays with its connection: a read that follows a write of which it is not
//! known whether it was replicated has to come behind it ([`super::client`]).

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::client::PgClient;
use crate::store::Key;

/// So many registers share the first connection.
const FIRST_KEYS: usize = 64;
/// How many connections there are for all others.
const OTHERS: usize = 7;

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Pool {
    first: Arc<PgClient>,
    of_first: Mutex<BTreeSet<Key>>,
    others: OnceLock<Vec<PgClient>>,
}

impl Pool {
    pub(super) fn new(first: Arc<PgClient>) -> Self {
        Self {
            first,
            of_first: Mutex::default(),
            others: OnceLock::new(),
        }
    }

    /// What asks for no register in particular.
    pub(super) fn first(&self) -> &PgClient {
        &self.first
    }

    /// What asks for this register.
    pub(super) fn of(&self, key: &Key) -> &PgClient {
        if self.is_of_first(key) {
            return &self.first;
        }
        let others = || (0..OTHERS).map(|_| self.first.beside()).collect();
        let others = self.others.get_or_init(others);
        let mut hash = DefaultHasher::new();
        key.hash(&mut hash);
        let at = usize::try_from(hash.finish() % OTHERS as u64).unwrap_or(0);
        others.get(at).unwrap_or(&self.first)
    }

    fn is_of_first(&self, key: &Key) -> bool {
        let of_first = self.of_first.lock();
        let mut of_first = of_first.unwrap_or_else(PoisonError::into_inner);
        of_first.contains(key) || (of_first.len() < FIRST_KEYS && of_first.insert(key.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    #[tokio::test]
    async fn a_register_stays_with_its_connection_and_a_few_share_one() {
        let settings = Settings::parse("postgres://u@h/d").expect("a URL");
        let pool = Pool::new(Arc::new(PgClient::new(Arc::new(settings))));
        let key = |number: usize| Key::new(&format!("elections/{number}")).expect("a key");
        let of = |number| std::ptr::from_ref(pool.of(&key(number)));
        let before: Vec<_> = (0..1_000).map(of).collect();
        let few = before.iter().take(FIRST_KEYS);
        assert!(few.eq([std::ptr::from_ref(pool.first()); FIRST_KEYS].iter()));
        let mut counts = std::collections::BTreeMap::new();
        for connection in &before {
            *counts.entry(*connection).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 1 + OTHERS);
        assert!(counts.values().all(|count| *count < 250), "{counts:?}");
        assert_eq!((0..1_000).map(of).collect::<Vec<_>>(), before);
    }
}
