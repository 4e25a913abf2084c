//! TLS on connections: what servers and clients share, and the client's side.
//!
//! All files are read again when they change: a renewed certificate is in use
//! a moment after it was written, without a restart and without a word to the
//! process. Connections that are up are judged again by authorities and lists
//! of revoked certificates that have changed, and end if the other side is
//! believed no more.
//!
//! | file | what it holds |
//! |---|---|
//! | `files.rs` | certificates, keys and authorities, in PEM |
//! | `reloaded.rs` | what is made of files, and made again when they change |
//! | `revocation.rs` | lists of revoked certificates |
//! | `issued.rs` | what a certificate says of itself, and of whom it is |
//! | `short_chain.rs` | chains that are too long are refused |
//! | `secured.rs` | a connection, whose other side is judged again while it is up |
//! | `connect.rs`, `client_files.rs` | the side that connects, and where its certificates are |
//! | `maybe_tls_stream.rs`, `client_stream.rs` | a connection with TLS or without, and that of a client |
//! | `tls_error.rs` | why TLS could not be made of a connection, for people |
//!
//! The side that is connected to is the server's (`tenure-server`).

mod client_files;
mod client_stream;
mod connect;
mod files;
mod issued;
mod maybe_tls_stream;
mod reloaded;
pub mod revocation;
mod secured;
mod short_chain;
mod tls_error;

pub use client_files::{ClientTlsFiles, OwnFiles};
pub use client_stream::ClientStream;
pub use connect::{ClientTls, connect, verify_server_certificate};
pub use files::{CertificateAndKey, client, roots};
pub use issued::Issued;
pub use maybe_tls_stream::MaybeTlsStream;
pub use reloaded::{FilesError, Reloaded, read_in_time};
pub use revocation::RevocationLists;
pub use secured::{Judge, Judging, Recheck, Secured, again};
pub use tls_error::{Mismatch, date, describe_certificate_error, explain_tls_error, is_refusal};
