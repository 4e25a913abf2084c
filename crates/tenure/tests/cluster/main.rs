//! Real servers on real sockets and disks, in one process.

mod bindings;
mod cases;
#[path = "../common/certificates.rs"]
mod certificates;
mod servers;
mod silence;
mod standing;
mod strangers;
mod tls;
mod tokens;
mod watches;
