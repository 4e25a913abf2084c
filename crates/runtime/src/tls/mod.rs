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
//! | `reloaded.rs` | what is made of files, and made again when they change |
//! | `revocation.rs` | lists of revoked certificates |
//! | `connect.rs` | the side that connects |
//! | `maybe_tls_stream.rs`, `client_stream.rs` | a connection, and that of a client |
//! | `tls_error.rs` | why TLS could not be made of a connection, for people |
//!
//! The side that is connected to is the server's (`tenure-server`).

mod client_stream;
mod connect;
mod files;
mod maybe_tls_stream;
mod reloaded;
pub mod revocation;
mod tls_error;

pub use client_stream::ClientStream;
pub use connect::{ClientTls, ClientTlsFiles, OwnFiles, connect, verify_server_certificate};
pub use files::{CertificateAndKey, client, roots};
pub use maybe_tls_stream::MaybeTlsStream;
pub use reloaded::{FilesError, Reloaded, read_in_time};
pub use revocation::{CheckedTlsStream, RevocationLists, serial_number};
pub use tls_error::{Mismatch, date, describe_certificate_error, explain_tls_error, is_refusal};
