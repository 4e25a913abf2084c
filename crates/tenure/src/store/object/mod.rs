//! Object stores: an object for each register, written on the condition that it
//! still has the tag that was read.
//!
//! A register's version is the tag of its object and a counter in it
//! ([`envelope`](super::envelope)), since tags of most providers are made of the bytes
//! and repeat; Google's are numbers that do not. A register that is deleted leaves an
//! object that says so ([`body`]). Changes of others are looked for: nothing tells of
//! them, and each look is a request that costs money ([`settings`]). There is no clock
//! that can be trusted.
//!
//! A server that ignores conditions would let two lead. So each process tries them
//! on an object of its own before its first write ([`calls`]).
//!
//! The client library sends each request once: one that repeats a write which was
//! done takes its own write for another's.

use object_store::RetryConfig;

#[cfg(any(feature = "azure", feature = "s3"))]
use super::Polled;
#[cfg(any(feature = "azure", feature = "s3"))]
use crate::error::StoreError;

#[cfg(feature = "azure")]
mod az;
mod body;
mod bucket;
mod calls;
mod classify;
mod credentials;
#[cfg(feature = "gcs")]
mod gcs;
mod http;
#[cfg(feature = "gcs")]
mod json_api;
mod names;
mod objects;
#[cfg(feature = "gcs")]
mod race_entries;
#[cfg(feature = "gcs")]
mod race_entry;
#[cfg(feature = "s3")]
mod s3;
mod settings;

#[cfg(any(feature = "azure", feature = "s3"))]
use objects::Objects;

#[cfg(feature = "azure")]
pub(super) use az::open as open_az;
#[cfg(feature = "gcs")]
pub(super) use gcs::{SCHEMES as GCS_SCHEMES, open as open_gcs};
#[cfg(feature = "s3")]
pub(super) use s3::open as open_s3;

/// What opening gives.
#[cfg(any(feature = "azure", feature = "s3"))]
pub(super) type Opened = Result<Polled<Objects>, StoreError>;

/// No retries, of nothing.
fn send_once() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: std::time::Duration::ZERO,
        ..RetryConfig::default()
    }
}
