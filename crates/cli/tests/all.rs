//! Most integration tests of the command line, in one binary: cargo compiles and links
//! each further one by itself, with all that starts servers. What has a binary of its own
//! needs the machine for itself, or begins early because it takes long
//! (`tools/tests/run.sh`), or is started anew by its own tests.

mod affinity;
#[cfg(feature = "tenure")]
#[path = "attack/main.rs"]
mod attack;
mod bad_input;
mod bench;
mod check;
#[cfg(feature = "tenure")]
mod cluster;
mod commands;
mod common;
#[path = "compatibility/main.rs"]
mod compatibility;
mod copies;
#[cfg(feature = "tenure")]
mod dist;
#[cfg(feature = "tenure")]
mod distrust;
mod fence;
mod floors;
mod fuse;
mod heartbeats;
mod identity;
#[cfg(feature = "tenure")]
mod members;
mod mismatch;
mod modes;
#[cfg(feature = "tenure")]
mod own_token;
mod restore;
#[cfg(all(feature = "tenure", feature = "postgres"))]
#[path = "security/main.rs"]
mod security;
mod sessions;
mod sqlite;
mod stderr;
#[cfg(feature = "tenure")]
mod terminal_escapes;
#[cfg(feature = "tenure")]
mod tutorial;
mod unconfirmed;
#[cfg(feature = "tenure")]
mod upgrade;
#[cfg(feature = "tenure")]
mod wal;
