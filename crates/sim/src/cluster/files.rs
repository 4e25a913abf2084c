//! A directory in memory that fails, fills up and loses power.
//!
//! It keeps what the system would show (the cache) apart from what the
//! platters hold. A sync moves the one to the other; losing power keeps the
//! platters and, of what was not synced, any sectors in any order. Names are
//! the same: what was done to them since the last sync of the directory
//! survives up to any point.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use tenure_alpo::wal;
use tenure_core::rng::Rng;

const SECTOR: usize = 512;

/// How a step fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DiskFault {
    /// Nothing happens but the error.
    Refused,
    /// Half of a write, or a whole sync, happens; then the error.
    Half,
    /// A sync fails and the system forgets that anything was to be written:
    /// the cache looks right, and the next sync will say that all is well.
    Forgotten,
}

/// What a step says that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileError {
    Failed,
    Full,
    Missing,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed => "the disk failed",
            Self::Full => "the disk is full",
            Self::Missing => "no such file",
        })
    }
}

#[derive(Clone, Default)]
struct Inode {
    cache: Vec<u8>,
    platter: Vec<u8>,
    /// Sectors of the cache that are to be written to the platter.
    dirty: Vec<usize>,
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.cache.len() < end {
            self.cache.resize(end, 0);
        }
        self.cache[offset..end].copy_from_slice(bytes);
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            if !self.dirty.contains(&sector) {
                self.dirty.push(sector);
            }
        }
    }

    /// Puts those of the dirty sectors on the platter that `keep` says.
    fn sync(&mut self, mut keep: impl FnMut() -> bool) {
        self.platter.resize(self.cache.len(), 0);
        for sector in self.dirty.drain(..) {
            if keep() {
                let start = sector * SECTOR;
                let end = self.cache.len().min(start + SECTOR);
                self.platter[start..end].copy_from_slice(&self.cache[start..end]);
            }
        }
    }
}

type Names = BTreeMap<String, usize>;

#[derive(Default)]
struct Inner {
    inodes: BTreeMap<usize, Inode>,
    made: usize,
    names: Names,
    /// The names as they are durable, and as they were after each change
    /// since but the last.
    past: Vec<Names>,
    /// After so many more steps one fails.
    disk_fault: Option<(u64, DiskFault)>,
    /// How many more bytes can be written.
    room: Option<usize>,
}

impl Inner {
    /// Counts a step and says how it fails, if it does.
    fn step(&mut self) -> Option<DiskFault> {
        let (left, how) = self.disk_fault?;
        match left.checked_sub(1) {
            Some(left) => {
                self.disk_fault = Some((left, how));
                None
            }
            // What comes after the failure fails too.
            None => Some(how),
        }
    }

    fn find(&self, name: &str) -> Result<usize, FileError> {
        self.names.get(name).copied().ok_or(FileError::Missing)
    }

    /// Changes the names, as a step.
    fn rename(&mut self, change: impl FnOnce(&mut Names)) -> Result<(), FileError> {
        if self.step().is_some() {
            return Err(FileError::Failed);
        }
        self.past.push(self.names.clone());
        change(&mut self.names);
        Ok(())
    }

    /// What the names are is durable; what has none is gone.
    fn settle(&mut self) {
        self.past.clear();
        let used: Vec<_> = self.names.values().copied().collect();
        self.inodes.retain(|number, _| used.contains(number));
    }
}

/// The directory; clones are the same one.
#[derive(Clone, Default)]
pub(super) struct Files(Rc<RefCell<Inner>>);

impl Files {
    fn inner(&self) -> RefMut<'_, Inner> {
        self.0.borrow_mut()
    }

    /// Another directory with the same in it.
    pub(super) fn copy(&self) -> Self {
        let inner = self.inner();
        Self(Rc::new(RefCell::new(Inner {
            inodes: inner.inodes.clone(),
            made: inner.made,
            names: inner.names.clone(),
            ..Inner::default()
        })))
    }

    /// After `steps` more steps one fails like this, and all after it.
    pub(super) fn fail_after(&self, steps: u64, how: DiskFault) {
        self.inner().disk_fault = Some((steps, how));
    }

    /// Only so many bytes more can be written.
    pub(super) fn fill_up(&self, room: usize) {
        self.inner().room = Some(room);
    }

    /// Failures are over.
    pub(super) fn repair(&self) {
        let mut inner = self.inner();
        inner.disk_fault = None;
        inner.room = None;
    }

    /// Whether there is a file of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.inner().names.contains_key(name)
    }

    /// The machine loses power, or only the process dies; then what it wrote
    /// is still there, synced or not.
    pub(super) fn crash(&self, rng: &mut Rng) {
        self.repair();
        if rng.chance(30) {
            return;
        }
        let mut inner = self.inner();
        let survives = rng.below(inner.past.len() as u64 + 1) as usize;
        if let Some(names) = inner.past.get(survives).cloned() {
            inner.names = names;
        }
        inner.settle();
        // All, none or some: each is worth a visit.
        let style = rng.below(4);
        for inode in inner.inodes.values_mut() {
            inode.sync(|| match style {
                0 => false,
                1 => true,
                _ => rng.chance(50),
            });
            inode.cache.clone_from(&inode.platter);
        }
    }

    /// Some bits of a byte change that is not zero; neither do they become
    /// zero, because a sector of zeros looks like one never written. Gives
    /// the file and the place.
    pub(super) fn rot(&self, rng: &mut Rng) -> Option<(String, usize)> {
        let mut inner = self.inner();
        let count = inner.names.len() as u64;
        let index = rng.below(count.max(1)) as usize;
        // More often than not where the log was written last.
        let newest = inner.names.iter().rfind(|(name, _)| name.ends_with(".wal"));
        let newest = newest.filter(|_| rng.chance(60));
        let (name, number) = newest.or_else(|| inner.names.iter().nth(index))?;
        let (name, number) = (name.clone(), *number);
        let inode = inner.inodes.get_mut(&number)?;
        let end = inode.cache.iter().rposition(|byte| *byte != 0)? + 1;
        let at = rng.below(end as u64) as usize;
        let bits = 1 << rng.below(8);
        if inode.cache[at] == bits || at >= inode.platter.len() {
            return None;
        }
        inode.cache[at] ^= bits;
        inode.platter[at] ^= bits;
        Some((name, at))
    }
}

impl wal::Disk for Files {
    type Error = FileError;
    type File = Handle;

    fn names(&self) -> Result<Vec<String>, FileError> {
        Ok(self.inner().names.keys().cloned().collect())
    }

    fn read(&self, name: &str, into: &mut Vec<u8>) -> Result<(), FileError> {
        let inner = self.inner();
        let number = inner.find(name)?;
        into.clone_from(&inner.inodes[&number].cache);
        Ok(())
    }

    fn create(&self, name: &str, bytes: u64) -> Result<Handle, FileError> {
        let mut inner = self.inner();
        let number = inner.made;
        inner.rename(|names| {
            names.insert(name.to_owned(), number);
        })?;
        inner.made += 1;
        let cache = vec![0; bytes as usize];
        let inode = Inode {
            cache,
            ..Inode::default()
        };
        inner.inodes.insert(number, inode);
        Ok(Handle(self.clone(), number))
    }

    fn open(&self, name: &str) -> Result<Handle, FileError> {
        let number = self.inner().find(name)?;
        Ok(Handle(self.clone(), number))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let mut inner = self.inner();
        let number = inner.find(from)?;
        inner.rename(|names| {
            names.remove(from);
            names.insert(to.to_owned(), number);
        })
    }

    fn remove(&self, name: &str) -> Result<(), FileError> {
        let mut inner = self.inner();
        inner.find(name)?;
        inner.rename(|names| {
            names.remove(name);
        })
    }

    fn sync_names(&self) -> Result<(), FileError> {
        let mut inner = self.inner();
        let disk_fault = inner.step();
        if disk_fault.is_none_or(|how| how == DiskFault::Half) {
            inner.settle();
        }
        disk_fault.map_or(Ok(()), |_| Err(FileError::Failed))
    }

    fn warn(&self, _what: fmt::Arguments<'_>) {}
}

/// A file that is open.
pub(super) struct Handle(Files, usize);

impl wal::DiskFile for Handle {
    type Error = FileError;

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let mut inner = self.0.inner();
        let (written, outcome) = match (inner.step(), &mut inner.room) {
            (Some(DiskFault::Half), _) => (bytes.len() / 2, Err(FileError::Failed)),
            (Some(_), _) => (0, Err(FileError::Failed)),
            (None, Some(room)) if *room < bytes.len() => {
                (std::mem::take(room), Err(FileError::Full))
            }
            (None, Some(room)) => {
                *room -= bytes.len();
                (bytes.len(), Ok(()))
            }
            (None, None) => (bytes.len(), Ok(())),
        };
        if let Some(inode) = inner.inodes.get_mut(&self.1) {
            inode.write(offset as usize, &bytes[..written]);
        }
        outcome
    }

    fn sync(&mut self) -> Result<(), FileError> {
        let mut inner = self.0.inner();
        let disk_fault = inner.step();
        if let Some(inode) = inner.inodes.get_mut(&self.1) {
            match disk_fault {
                Some(DiskFault::Refused) => {}
                Some(DiskFault::Forgotten) => inode.dirty.clear(),
                None | Some(DiskFault::Half) => inode.sync(|| true),
            }
        }
        disk_fault.map_or(Ok(()), |_| Err(FileError::Failed))
    }
}
