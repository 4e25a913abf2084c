//! What of the directory is known to be on disk.
//!
//! A register can be read as soon as it was renamed, and is on disk when the directory
//! was synced. A process may be killed between the two. If a candidate then read it,
//! acted on it, and the power failed, the register would be as before and its term be
//! used twice. So who reads a state that it has not found settled before syncs the
//! directory first: once for each state, however often that is read.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::{Key, Register, Version};

/// Of so many keys the state is remembered; then all are forgotten, which costs a
/// sync for each of them.
const KEYS_MAX: usize = 4_096;

/// The state of each key that is on disk.
#[derive(Debug, Default)]
pub(super) struct Settled {
    versions: Mutex<HashMap<Key, Version>>,
}

impl Settled {
    /// Sees to it that what was read is on disk. That a register is absent is always
    /// made sure of: it is rarely read.
    pub(super) fn settle<'a>(
        &self,
        directory: &File,
        read: impl Iterator<Item = (&'a Key, Option<&'a Register>)> + Clone,
    ) -> io::Result<()> {
        let is_settled = |(key, register): (&Key, Option<&Register>)| {
            let known = self.lock();
            register.is_some_and(|it| known.get(key).is_some_and(|known| *known == it.version))
        };
        if read.clone().all(is_settled) {
            return Ok(());
        }
        sync(directory)?;
        for (key, register) in read {
            self.note(key, register);
        }
        Ok(())
    }

    /// This state was written, and the directory synced.
    pub(super) fn note(&self, key: &Key, register: Option<&Register>) {
        let mut versions = self.lock();
        match register {
            Some(register) => {
                if versions.len() >= KEYS_MAX {
                    versions.clear();
                }
                versions.insert(key.clone(), register.version.clone());
            }
            None => drop(versions.remove(key)),
        }
    }

    /// Another directory was opened.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Version>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the disk has what was renamed and removed in the directory.
fn sync(directory: &File) -> io::Result<()> {
    match directory.sync_all() {
        // Nothing can have been written there.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_settled_once_and_a_limited_number_is_remembered() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = File::open(parent.path()).expect("a directory");
        let settled = Settled::default();
        let register = |version| Register {
            value: b"".as_slice().into(),
            version: Version::from_u64(version),
            stamp: None,
        };
        for number in 0..2 * KEYS_MAX as u64 {
            let key = Key::new(&format!("k{number}")).expect("a key");
            settled.note(&key, Some(&register(number)));
            assert!(settled.lock().len() <= KEYS_MAX);
        }
        let (key, held) = (Key::new("new").expect("a key"), register(7));
        let one = [(&key, Some(&held))];
        settled.settle(&directory, one.into_iter()).expect("synced");
        assert_eq!(settled.lock().get(&key), Some(&held.version));
        let key = Key::new("k1").expect("a key");
        settled.note(&key, Some(&register(1)));
        settled.note(&key, None);
        assert_eq!(settled.lock().get(&key), None);
    }
}
