//! What keeps a cluster from strangers: what a server says of how it was started,
//! passwords, revoked certificates, and the log of who changed what.

mod audit;
mod passwords;
mod place;
mod revocation;
mod startup_warnings;
