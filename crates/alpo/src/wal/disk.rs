//! The few things that the log asks of what keeps its files.
//!
//! What is asked for is little: a new file reads as zeros; a name that was
//! synced stays; a write that was synced stays; a sector of 512 bytes is
//! written whole or not at all. A real directory does that, and so does the
//! disk of the simulator, which loses everything else at the worst moment.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{Arguments, Display};

use crate::Snapshot;

/// A directory with files.
pub trait Disk {
    /// What it says when it fails.
    type Error: Display;
    /// A file that is open for writing.
    type File: DiskFile<Error = Self::Error>;

    /// The names in the directory, in no particular order.
    ///
    /// # Errors
    /// If it cannot be read.
    fn names(&self) -> Result<Vec<String>, Self::Error>;

    /// Reads a whole file into `into`, replacing what was in it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read(&self, name: &str, into: &mut Vec<u8>) -> Result<(), Self::Error>;

    /// A new file of `bytes` zeros, with room on the disk for them; one of
    /// the same name is replaced.
    ///
    /// # Errors
    /// Above all that there is no room.
    fn create(&self, name: &str, bytes: u64) -> Result<Self::File, Self::Error>;

    /// A file that is there, for writing.
    ///
    /// # Errors
    /// If there is none, or it cannot be written.
    fn open(&self, name: &str) -> Result<Self::File, Self::Error>;

    /// Gives a file another name, replacing one that has it.
    ///
    /// # Errors
    /// If that cannot be done.
    fn rename(&self, from: &str, to: &str) -> Result<(), Self::Error>;

    /// Removes a file.
    ///
    /// # Errors
    /// If that cannot be done.
    fn remove(&self, name: &str) -> Result<(), Self::Error>;

    /// Makes the names durable as they are now.
    ///
    /// # Errors
    /// If that cannot be done; after that, nobody knows what is durable.
    fn sync_names(&self) -> Result<(), Self::Error>;

    /// The name of a file that has this snapshot already: its
    /// [`snapshot_header`](super::snapshot_header), its bytes, all of it
    /// synced. The file is the log's then, which only gives it its name.
    fn prepared(&self, snapshot: &Snapshot) -> Option<String> {
        let _ = snapshot;
        None
    }

    /// Something went wrong that costs only room, and is tried again.
    fn warn(&self, what: Arguments<'_>);
}

/// A file that is written.
pub trait DiskFile {
    /// What it says when it fails.
    type Error;

    /// Writes all of `bytes` at a place.
    ///
    /// # Errors
    /// If that cannot be done; any part of it may have been written.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// If that cannot be done; after that, nobody knows what is durable.
    fn sync(&mut self) -> Result<(), Self::Error>;
}
