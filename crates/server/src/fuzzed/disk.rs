//! A disk in memory that never fails, for logs of which each is read once.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::wal::{Disk, DiskFile};

type Files = BTreeMap<String, Content>;
type Content = Arc<Mutex<Vec<u8>>>;

/// The disk; clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Memory(Arc<Mutex<Files>>);

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Memory {
    /// Puts a file there, in place of one that has the name.
    pub(super) fn put(&self, name: &str, bytes: Vec<u8>) {
        let content = Arc::new(Mutex::new(bytes));
        lock(&self.0).insert(name.to_owned(), content);
    }

    fn find(&self, name: &str) -> io::Result<Content> {
        let found = lock(&self.0).get(name).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for Memory {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/memory").join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.0).keys().cloned().collect())
    }

    fn read(&self, name: &str, into: &mut Vec<u8>) -> io::Result<()> {
        into.clone_from(&lock(&*self.find(name)?));
        Ok(())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        let size = usize::try_from(bytes).map_err(|_| io::ErrorKind::StorageFull)?;
        self.put(name, vec![0; size]);
        self.open(name)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Handle(self.find(name)?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let content = self.find(from)?;
        let mut files = lock(&self.0);
        files.remove(from);
        files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let gone = lock(&self.0).remove(name);
        gone.map(drop).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }
}

struct Handle(Content);

impl DiskFile for Handle {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut content = lock(&self.0);
        let offset = usize::try_from(offset).map_err(|_| io::ErrorKind::StorageFull)?;
        let end = offset + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset..end].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}
