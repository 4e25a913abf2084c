//! How the seeds of a sweep are shared out among threads.

/// How many seeds a thread takes at a time.
pub(super) const BLOCK: u64 = 16;
