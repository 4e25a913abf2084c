//! Stores that go wrong under two candidates: away at the start, away in mid term, back
//! without their data, with other credentials, without their table, with a clock that
//! steps, farther away than a lease, and with answers of which a half arrives.
//!
//! One scenario for each fault, the same for every store that it can happen to. All
//! stores of a test go through it side by side, since they wait most of the time. Which
//! store has which fault in which test is in `docs/evidence/stores.md`.
//!
//! Of each fault three things are asked. No two lead at the same instant, and no term
//! comes again (`ledger.rs`). A candidate says what is wrong, in words that a person
//! can act on. And somebody leads again when the fault is over.

#![allow(clippy::print_stdout, reason = "figures are printed")]

#[path = "../common/certificates.rs"]
#[allow(dead_code, reason = "another binary uses the rest")]
mod certificates;
#[path = "../common/etcd.rs"]
mod etcd;
#[path = "../common/installed.rs"]
mod installed;
#[path = "../common/mariadb.rs"]
mod mariadb;
#[path = "../common/nats.rs"]
mod nats;
#[path = "../object/servers.rs"]
mod object_servers;
#[path = "../common/ports.rs"]
mod ports;
#[path = "../common/postgres.rs"]
mod postgres;
#[path = "../object/proxy.rs"]
#[allow(dead_code, reason = "another binary uses the rest")]
mod proxy;
#[path = "../common/redis.rs"]
mod redis;
#[path = "../common/servers.rs"]
mod servers;
#[path = "../common/stand_in.rs"]
mod stand_in;
#[path = "../consul/standin.rs"]
mod standin_of_consul;
#[path = "../kubernetes/standin.rs"]
mod standin_of_kubernetes;
#[path = "../common/stopped.rs"]
mod stopped;

mod clocks;
mod databases;
mod interface;
mod keys;
mod ledger;
mod line;
mod lines;
mod local;
mod objects;
mod outage;
mod own;
mod scene;
mod stand_ins;
