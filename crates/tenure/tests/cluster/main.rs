//! Real servers on real sockets and disks, in one process.

mod bindings;
mod cases;
mod servers;
mod standing;
mod strangers;
mod tls;
mod tokens;
mod watches;
