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

#[path = "../../../tenure/tests/common/certificates.rs"]
#[allow(dead_code, reason = "another binary uses the rest")]
mod certificates;
#[path = "../../../tenure/tests/common/etcd.rs"]
mod etcd;
#[path = "../../../tenure/tests/common/installed.rs"]
mod installed;
#[path = "../../../tenure/tests/common/mariadb.rs"]
mod mariadb;
#[path = "../../../tenure/tests/common/nats.rs"]
mod nats;
#[path = "../../../tenure/tests/object/servers.rs"]
mod object_servers;
#[path = "../../../tenure/tests/common/ports.rs"]
mod ports;
#[path = "../../../tenure/tests/common/postgres.rs"]
mod postgres;
#[path = "../../../tenure/tests/object/proxy.rs"]
#[allow(dead_code, reason = "another binary uses the rest")]
mod proxy;
#[path = "../../../tenure/tests/common/redis.rs"]
mod redis;
#[path = "../../../client/tests/client/servers.rs"]
mod servers;
#[path = "../../../tenure/tests/common/stand_in.rs"]
mod stand_in;
#[path = "../../../tenure/tests/consul/standin.rs"]
mod standin_of_consul;
#[path = "../../../tenure/tests/kubernetes/standin.rs"]
mod standin_of_kubernetes;
#[path = "../../../tenure/tests/common/stopped.rs"]
mod stopped;
#[path = "../../../tenure/tests/common/takeovers.rs"]
mod takeovers;

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
mod resigned;
mod scene;
mod stand_ins;
