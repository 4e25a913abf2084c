//! What of the directory is known to be on disk.
//!
//! A register can be read as soon as it was renamed, and is on disk when the directory
//! was synced. A process may be killed between the two. If a candidate then read it,
//! acted on it, and the power failed, the register would be as before and its term be
//! used twice. So a reader that has not seen a state synced yet syncs the directory
//! before it returns that state, once for each state.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::directory::{Identity, Opened};
use crate::store::{Key, Register, Version};

/// Of so many keys the state is remembered; then all are forgotten, which costs a
/// sync for each of them.
const KEYS_MAX: usize = 4_096;

/// The state of each key that is on disk, in the directory that was used last.
#[derive(Debug, Default)]
pub(super) struct SyncedStates {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    of: Option<Identity>,
    versions: HashMap<Key, Version>,
}

impl Known {
    /// What is known of this directory.
    fn of(&mut self, directory: &Opened) -> &mut HashMap<Key, Version> {
        if self.of != Some(directory.identity) {
            self.of = Some(directory.identity);
            self.versions.clear();
        }
        &mut self.versions
    }
}

impl SyncedStates {
    /// Sees to it that what was read is on disk. That a register is absent is always
    /// made sure of: it is rarely read.
    pub(super) fn settle<'a>(
        &self,
        directory: &Opened,
        read: impl Iterator<Item = (&'a Key, Option<&'a Register>)> + Clone,
    ) -> io::Result<()> {
        let is_settled = |(key, register): (&Key, Option<&Register>)| {
            let mut known = self.lock();
            let version = known.of(directory).get(key);
            register.is_some_and(|it| version == Some(&it.version))
        };
        if read.clone().all(is_settled) {
            return Ok(());
        }
        sync(directory)?;
        for (key, register) in read {
            self.note(directory, key, register);
        }
        Ok(())
    }

    /// This state was written, and the directory synced.
    pub(super) fn note(&self, directory: &Opened, key: &Key, register: Option<&Register>) {
        let mut known = self.lock();
        let versions = known.of(directory);
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

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the disk has what was renamed and removed in the directory.
fn sync(directory: &Opened) -> io::Result<()> {
    match directory.file.sync_all() {
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
        let directory = Opened::at(parent.path()).expect("a directory");
        let settled = SyncedStates::default();
        let register = |version| Register {
            value: b"".as_slice().into(),
            version: Version::from_u64(version),
            stamp: None,
        };
        for number in 0..2 * KEYS_MAX as u64 {
            let key = Key::new(&format!("k{number}")).expect("a key");
            settled.note(&directory, &key, Some(&register(number)));
            assert!(settled.lock().versions.len() <= KEYS_MAX);
        }
        let (key, held) = (Key::new("new").expect("a key"), register(7));
        let known = |directory| settled.lock().of(directory).get(&key).cloned();
        let one = [(&key, Some(&held))];
        settled.settle(&directory, one.into_iter()).expect("synced");
        assert_eq!(known(&directory), Some(held.version.clone()));
        settled.note(&directory, &key, None);
        assert_eq!(known(&directory), None);
        settled.note(&directory, &key, Some(&held));
        let other = tempfile::tempdir().expect("a directory");
        let other = Opened::at(other.path()).expect("a directory");
        assert_eq!(known(&other), None, "another directory");
    }
}
