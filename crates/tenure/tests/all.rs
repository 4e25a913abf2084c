//! The tests of the library that need neither a process nor a processor for themselves,
//! in one binary: cargo compiles and links each further one by itself, and that was most
//! of a cold run of the tests.
//!
//! By themselves are `leaks`, since a process has one log; `many`, which measures; and
//! `postgres` and `heartbeats`, or this one would take much longer than any other.

#[allow(dead_code, reason = "each store uses a part of it")]
mod common {
    pub(crate) mod calls;
    pub(crate) mod certificates;
    pub(crate) mod etcd;
    pub(crate) mod faulty;
    pub(crate) mod installed;
    pub(crate) mod intercepted;
    pub(crate) mod mariadb;
    pub(crate) mod misanswered;
    #[cfg(feature = "nats")]
    pub(crate) mod nats;
    pub(crate) mod ports;
    pub(crate) mod postgres;
    pub(crate) mod redis;
    pub(crate) mod secrets;
    pub(crate) mod stand_in;
    pub(crate) mod stand_in_trials;
    pub(crate) mod stopped;
    pub(crate) mod takeovers;
    pub(crate) mod versions;
}

mod backends;
#[cfg(feature = "consul")]
#[path = "consul/main.rs"]
mod consul;
#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "kubernetes")]
#[path = "kubernetes/main.rs"]
mod kubernetes;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
#[cfg(all(feature = "s3", feature = "azure", feature = "gcs"))]
#[path = "object/main.rs"]
mod object;
mod observing;
mod programs;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_journal_files;
#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod stores;
