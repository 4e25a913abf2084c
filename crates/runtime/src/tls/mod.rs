//! TLS on connections: what servers and clients share, and the client's side.
//!
//! All files are read again when they change: a renewed certificate is in use
//! a moment after it was written, without a restart and without a word to the
//! process. Connections that are up stay as they are, but for those whose
//! certificate is revoked, which end.
//!
//! | file | what it holds |
//! |---|---|
//! | `files.rs` | certificates, keys and authorities, in PEM |
//! | `renewed.rs` | what is made of files, and made again when they change |
//! | `revoked.rs` | lists of revoked certificates |
//! | `connect.rs` | the side that connects |
//! | `line.rs`, `client.rs` | a connection, and that of a client |
//! | `distrust.rs` | why TLS could not be made of a connection, for people |
//!
//! The side that is connected to is the server's (`tenure-server`).

mod client;
mod connect;
mod distrust;
mod files;
mod line;
mod renewed;
pub mod revoked;

pub use client::ClientLine;
pub use connect::{ClientTls, ClientTlsFiles, OwnFiles, at, connect};
pub use distrust::{Mismatch, date, distrust, flaw, is_refusal};
pub use files::{Own, client, roots};
pub use line::Line;
pub use renewed::{Renewed, Unread, in_time};
pub use revoked::{Lists, Secured, serial_number};
