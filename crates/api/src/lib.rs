//! What clients and servers of a cluster say to each other: gRPC.
//!
//! `proto/tenure/v1/tenure.proto` is the interface; what is here is made from
//! it by `UPDATE_GOLDENFILES=1 cargo test -p tenure-proto` and kept in
//! the repository, so that a build needs no compiler for it. The same test
//! fails when the two differ. Names beyond those of the file do not exist:
//! what a call means is said there.

mod base64;
mod codec;

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    elided_lifetimes_in_paths,
    clippy::all,
    clippy::too_many_lines,
    clippy::use_self,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "generated/tenure.v1.rs"]
pub mod v1;

pub use codec::decode;

/// The interface as data, for reflection.
pub const DESCRIPTOR: &[u8] = include_bytes!("generated/descriptor.bin");

/// The trailer in which a failed call carries its [`v1::Error`].
pub const ERROR_TRAILER: &str = "tenure-error-bin";
