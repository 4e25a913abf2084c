//! Servers of a cluster, in this process, on free ports and private
//! directories.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;
use std::time::Duration;

use super::ports;
use tenure_alpo::ServerId;
use tenure_server::{Config, Server};

/// How long anything in a test may take.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// See the [module](self).
pub(crate) struct Servers {
    directory: tempfile::TempDir,
    peers: BTreeMap<ServerId, String>,
    clients: BTreeMap<ServerId, String>,
    running: BTreeMap<ServerId, Server>,
}

pub(crate) fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("a number")
}

/// Addresses on free ports.
fn addresses(count: u64) -> BTreeMap<ServerId, String> {
    let address = |number| (id(number), ports::address());
    (1..=count).map(address).collect()
}

impl Servers {
    /// As many servers, founding a cluster.
    pub(crate) fn start(count: u64) -> Self {
        let mut servers = Self {
            directory: tempfile::tempdir().expect("a directory"),
            peers: addresses(count),
            clients: addresses(count),
            running: BTreeMap::new(),
        };
        for number in 1..=count {
            servers.run(number);
        }
        servers
    }

    /// Starts a server (again).
    pub(crate) fn run(&mut self, number: u64) {
        let server = id(number);
        let data = self.directory.path().join(number.to_string());
        let listen = self.clients[&server].clone();
        let config = Config::new(server, self.peers.clone(), data, listen);
        ports::await_free(&self.peers[&server]);
        ports::await_free(&self.clients[&server]);
        let running = Server::start(config).expect("it starts");
        self.running.insert(server, running);
    }

    /// Stops a server and waits until it has ended.
    pub(crate) async fn stop(&mut self, number: u64) {
        if let Some(server) = self.running.remove(&id(number)) {
            server.stop();
            server.ended().await;
        }
    }

    /// `h1:p1,h2:p2,…` of all of them.
    pub(crate) fn list(&self) -> String {
        let addresses: Vec<_> = self.clients.values().map(String::as_str).collect();
        addresses.join(",")
    }

    pub(crate) fn address(&self, number: u64) -> &str {
        &self.clients[&id(number)]
    }

    pub(crate) fn url(&self) -> String {
        format!("tenure://{}", self.list())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in self.running.values() {
            server.stop();
        }
    }
}
