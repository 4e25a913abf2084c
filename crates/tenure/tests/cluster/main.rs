//! Real servers on real sockets and disks, in one process.

mod bindings;
mod cases;
#[path = "../common/certificates.rs"]
mod certificates;
mod copies;
mod servers;
mod standing;
mod strangers;
mod tls;
mod tokens;
mod watches;
