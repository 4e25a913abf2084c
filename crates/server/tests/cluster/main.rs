//! Real servers on real sockets and disks, in one process.

mod bindings;
mod cases;
mod catching_up;
#[path = "../../../tenure/tests/common/certificates.rs"]
mod certificates;
mod copies;
mod given_up;
mod groups;
mod health_status;
mod no_vote_time;
mod outsiders;
mod pages;
mod restored;
mod servers;
mod sessions;
mod shares;
mod snapshots;
mod space;
mod strangers;
mod tls;
mod tokens;
mod two_clusters;
mod unread;
mod watches;
