//! What runs Tenure's machines on a real machine. Internal to Tenure.
//!
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | the only reader of system time |
//! | [`drive`] | the background thread, the loop that runs any machine, streams of events |
//! | [`error`] | errors by what the caller does next |
//! | [`filesystem`] | whether files lie where one machine's locks reach all who use them |
//! | [`small`] | the reader of small files |
//! | [`system_authorities`] | what `SSL_CERT_FILE` names is looked at before a library reads it |
//! | [`round_trip`] | how far away a store is, and which lease that allows |
//! | `lookup` | host names, for connections that are tried again and again (feature `lookup`) |
//! | `failure` | how a command fails (feature `failure`) |
//! | `tls` | certificates and their renewal, for servers and clients (feature `tls`) |
//! | `own_token` | the token that servers and clients of one user share (feature `tls`) |

pub mod clock;
pub mod drive;
pub mod error;
#[cfg(feature = "failure")]
pub mod failure;
pub mod filesystem;
#[cfg(feature = "lookup")]
pub mod lookup;
#[cfg(feature = "tls")]
pub mod own_token;
pub mod round_trip;
pub mod small;
pub mod system_authorities;
#[cfg(feature = "tls")]
pub mod tls;

/// What this machine calls itself: the name of who is given none.
pub fn host_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}
