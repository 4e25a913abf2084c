//! What calls return.

use bytes::Bytes;
use tenure_core::cas::Register;
use tenure_core::ids::{Key, Version};
use tenure_core::time::StoreTime;

/// One entry of the user log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its place, from 1 without gaps.
    pub number: u64,
    /// What was appended.
    pub data: Bytes,
}

/// A register was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swapped {
    /// To be expected by the next write.
    pub version: Version,
    /// The log's time of the write. `None` if the command had to be asked for
    /// again and the server remembers only that it was done.
    pub now: Option<StoreTime>,
}

/// A page of registers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// In the order of their keys.
    pub registers: Vec<(Key, Register)>,
    /// Whether there are more after the last of them.
    pub more: bool,
    /// The log's time when it was read.
    pub now: Option<StoreTime>,
}
