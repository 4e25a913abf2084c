//! Who holds office now, until when, and how does everybody else find out?
#![warn(missing_docs)]

pub mod clock;
pub mod drive;
pub mod error;
pub mod store;

pub use tenure_core as core;
