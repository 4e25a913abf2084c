//! How servers of a cluster reach each other.
//!
//! Each server keeps one connection to each other one and sends all it has to
//! say over it, questions and answers alike; what the others have to say
//! comes over theirs. So each direction has one queue, in order, with one
//! limit, and a connection that breaks tells which process is gone.
//!
//! ```text
//!   dialler                      acceptor
//!      │ ── greeting ───────────────▶ │  who I am, whom I know, how I am set
//!      │ ◀── greeting or refusal ──── │
//!      │ ── frame, frame, frame … ──▶ │
//! ```
//!
//! `greeting` is the first thing said in each direction, `handshake` how it is
//! exchanged (with random bytes before it), `frames` reads what follows, `link`
//! dials and writes, `address_book` is who can be reached where, `tls` makes
//! sure that it is they (with [`tenure_runtime::tls`], which clients have too),
//! `peer_identity` which of them, `certificate_expiry` for how long the own
//! certificate is good, and `tasks` gives all of this its turn with the event
//! loop.
//!
//! Whatever is not a frame (garbage, another program, another version) closes
//! the connection and is counted; nothing is ever guessed.
//!
//! The protocol above loses nothing when messages are lost, so a queue that
//! is full drops what comes ([`Link::send`]), and a broken connection is
//! simply made again.

mod address_book;
mod certificate_expiry;
mod frames;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
mod greeting;
mod handshake;
mod link;
mod peer_identity;
mod plaintext_detection;
mod tasks;
mod tls;
mod tls_files;

pub use address_book::{AddressBook, Contact, MAX_ADDRESS_BYTES};
pub use frames::{FrameReader, PeerKeepAlive, ReadError};
pub use greeting::{CommittedMembers, Details, Greeting, GreetingAnswer, GreetingError, Settings};
pub use handshake::{
    Form, GreetingReply, Introduced, Piece, Proof, Prover, Side, Transcript, greet, introduced,
};
pub use link::{Link, LinkEvent, QUEUE_BYTES};
pub use peer_identity::{PeerSecret, server_name};
pub use tasks::Tasks;
pub use tenure_runtime::own_token::OwnToken;
pub(crate) use tenure_runtime::own_token::{Arrival, Verdict};
pub use tenure_runtime::tls::{FilesError, MaybeTlsStream};
pub(crate) use tenure_runtime::tls::{Reloaded, explain_tls_error};
pub use tls::{Demand, PeerRules, Tls, accept_plain};
pub use tls_files::TlsFiles;
