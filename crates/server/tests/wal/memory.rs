//! A disk in memory that fills, fails, lies and loses power on command.
//!
//! It keeps what the system would show (the cache) apart from what the
//! platters hold. A sync moves the one to the other; losing power keeps the
//! platters and, of what was not synced, any sectors in any order. Names are
//! the same: what was done to them since the last sync of the directory
//! survives up to any point.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use tenure_core::rng::Rng;
use tenure_server::wal::{Disk, DiskFile};

const SECTOR: usize = 512;

/// How a step fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// Nothing happens but the error.
    Refused,
    /// Half of a write, or a whole sync, happens; then the error.
    Half,
    /// A sync fails and the system forgets that anything was to be written:
    /// the cache looks right, and the next sync will say that all is well.
    Forgotten,
}

#[derive(Clone, Default, Debug)]
struct Inode {
    cache: Vec<u8>,
    platter: Vec<u8>,
    /// Sectors of the cache that are to be written to the platter.
    dirty: Vec<usize>,
}

#[derive(Clone, Default, Debug)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    /// The names as they are durable, and as they were after each change
    /// since.
    past: Vec<BTreeMap<String, usize>>,
    /// Steps so far; each changes something or syncs.
    steps: u64,
    fail_at: Option<(u64, Failure)>,
    /// How many more bytes can be written.
    room: Option<u64>,
}

/// The disk; clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Mutex<State>>);

impl Memory {
    pub(crate) fn new() -> Self {
        let mut state = State::default();
        state.past.push(BTreeMap::new());
        Self(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics inside")
    }

    /// The same contents as another disk of their own.
    pub(crate) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.state().clone())))
    }

    pub(crate) fn fail_at(&self, step: u64, failure: Failure) {
        self.state().fail_at = Some((step, failure));
    }

    pub(crate) fn set_room(&self, bytes: Option<u64>) {
        self.state().room = bytes;
    }

    pub(crate) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// The names that can be seen, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    /// What can be read.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.inodes[state.names[name]].cache.clone()
    }

    /// Puts something else in place of a file.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state();
        let inode = Inode {
            platter: bytes.clone(),
            cache: bytes,
            dirty: Vec::new(),
        };
        state.inodes.push(inode);
        let number = state.inodes.len() - 1;
        state.names.insert(name.to_owned(), number);
        state.past = vec![state.names.clone()];
    }

    /// Changes a byte of a file.
    pub(crate) fn flip(&self, name: &str, at: usize, bits: u8) {
        let mut state = self.state();
        let number = state.names[name];
        state.inodes[number].cache[at] ^= bits;
        state.inodes[number].platter[at] ^= bits;
    }

    /// Takes a file away.
    pub(crate) fn delete(&self, name: &str) {
        let mut state = self.state();
        state.names.remove(name).expect("the file to delete");
        state.past = vec![state.names.clone()];
    }

    /// The disk after the process was killed: what it wrote is there, synced
    /// or not, and failures are over.
    pub(crate) fn after_kill(&self) -> Self {
        let mut state = self.state().clone();
        state.fail_at = None;
        state.room = None;
        Self(Arc::new(Mutex::new(state)))
    }

    /// The disk after a loss of power.
    pub(crate) fn after_power_loss(&self, rng: &mut Rng) -> Self {
        let mut state = self.state().clone();
        let survives = rng.below(state.past.len() as u64) as usize;
        state.names = state.past[survives].clone();
        state.past = vec![state.names.clone()];
        // All, none or some: each is worth a visit.
        let style = rng.below(4);
        for inode in &mut state.inodes {
            inode.platter.resize(inode.cache.len(), 0);
            for start in std::mem::take(&mut inode.dirty) {
                let written = match style {
                    0 => false,
                    1 => true,
                    _ => rng.below(2) == 0,
                };
                if written {
                    let end = inode.cache.len().min(start + SECTOR);
                    inode.platter[start..end].copy_from_slice(&inode.cache[start..end]);
                }
            }
            inode.cache = inode.platter.clone();
        }
        state.fail_at = None;
        state.room = None;
        Self(Arc::new(Mutex::new(state)))
    }
}

impl State {
    /// Counts a step and says how it fails, if it does.
    fn step(&mut self) -> Option<Failure> {
        self.steps += 1;
        match self.fail_at {
            Some((step, failure)) if step == self.steps => Some(failure),
            _ => None,
        }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, number: usize, offset: usize, bytes: &[u8]) {
        let inode = &mut self.inodes[number];
        let end = offset + bytes.len();
        if inode.cache.len() < end {
            inode.cache.resize(end, 0);
        }
        inode.cache[offset..end].copy_from_slice(bytes);
        for start in (offset / SECTOR * SECTOR..end).step_by(SECTOR) {
            if !inode.dirty.contains(&start) {
                inode.dirty.push(start);
            }
        }
    }

    fn renamed(&mut self) {
        self.past.push(self.names.clone());
    }
}

fn broken() -> io::Error {
    io::Error::other("the disk failed because the test says so")
}

impl Disk for Memory {
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/memory").join(name)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files())
    }

    fn read(&self, name: &str, into: &mut Vec<u8>) -> io::Result<()> {
        let state = self.state();
        let number = state.find(name)?;
        into.clone_from(&state.inodes[number].cache);
        Ok(())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if state.step().is_some() {
            return Err(broken());
        }
        // Like a file system that cannot reserve room: a full disk is found
        // out when the bytes are written.
        let size = usize::try_from(bytes).expect("a small file");
        state.inodes.push(Inode {
            cache: vec![0; size],
            platter: Vec::new(),
            dirty: Vec::new(),
        });
        let number = state.inodes.len() - 1;
        state.names.insert(name.to_owned(), number);
        state.renamed();
        Ok(Box::new(Handle(self.clone(), number)))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = self.state().find(name)?;
        Ok(Box::new(Handle(self.clone(), number)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.step().is_some() {
            return Err(broken());
        }
        let number = state.find(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), number);
        state.renamed();
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.step().is_some() {
            return Err(broken());
        }
        state.find(name)?;
        state.names.remove(name);
        state.renamed();
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state();
        let failure = state.step();
        if failure.is_none_or(|failure| failure == Failure::Half) {
            state.past = vec![state.names.clone()];
        }
        failure.map_or(Ok(()), |_| Err(broken()))
    }
}

struct Handle(Memory, usize);

impl DiskFile for Handle {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.0.state();
        let offset = usize::try_from(offset).expect("a small file");
        match state.step() {
            None => {}
            Some(Failure::Half) => {
                state.write(self.1, offset, &bytes[..bytes.len() / 2]);
                return Err(broken());
            }
            Some(_) => return Err(broken()),
        }
        let room = state.room.map_or(bytes.len(), |room| {
            bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))
        });
        state.write(self.1, offset, &bytes[..room]);
        if let Some(left) = &mut state.room {
            *left -= room as u64;
        }
        if room < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.0.state();
        let failure = state.step();
        let inode = &mut state.inodes[self.1];
        match failure {
            Some(Failure::Refused) => {}
            Some(Failure::Forgotten) => inode.dirty.clear(),
            None | Some(Failure::Half) => {
                inode.platter.resize(inode.cache.len(), 0);
                for start in std::mem::take(&mut inode.dirty) {
                    let end = inode.cache.len().min(start + SECTOR);
                    inode.platter[start..end].copy_from_slice(&inode.cache[start..end]);
                }
            }
        }
        failure.map_or(Ok(()), |_| Err(broken()))
    }
}
