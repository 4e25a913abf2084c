//! A network of the kernel's: a namespace for each server, a bridge between
//! them, and `nft` to drop what is not to arrive.
//!
//! Clients are in the test's own namespace, on the bridge. Rules stand where
//! packets come *in*, one table a server, replaced in one step. Nothing is
//! undone at the end: all of it goes with the room it was made in.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use crate::network::{CLIENTS, Edge, Edges, Place};
use crate::room::sh;

const PEER_PORT: u16 = 7500;
const CLIENT_PORT: u16 = 7400;
/// The last number of the clients' address.
const HUB: u64 = 254;

pub(crate) struct Namespaces {
    /// By server: a process that keeps the namespace.
    keepers: BTreeMap<u64, Child>,
    /// By server: the rules as they are.
    rules: BTreeMap<u64, String>,
}

fn address(place: u64) -> String {
    let last = if place == CLIENTS { HUB } else { place };
    format!("10.77.0.{last}")
}

impl Namespaces {
    pub(crate) fn new(count: u64) -> Self {
        sh(&format!(
            "ip link set lo up; ip link add hub type bridge; ip addr add {}/24 dev hub; \
             ip link set hub up",
            address(CLIENTS)
        ));
        let mut keepers = BTreeMap::new();
        for server in 1..=count {
            // It says that it is there, and then waits for an end that never
            // comes.
            let mut keeper = Command::new("unshare")
                .args(["--net", "sh", "-c", "ip link set lo up; echo; exec cat"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a namespace");
            let mut byte = [0];
            let said = keeper.stdout.as_mut().expect("its output");
            std::io::Read::read_exact(said, &mut byte).expect("it is there");
            let pid = keeper.id();
            sh(&format!(
                "ip link add v{server} type veth peer name eth0 netns {pid}; \
                 ip link set v{server} master hub up; \
                 nsenter --net=/proc/{pid}/ns/net sh -ec \
                 'ip addr add {}/24 dev eth0; ip link set eth0 up'",
                address(server)
            ));
            keepers.insert(server, keeper);
        }
        Self {
            keepers,
            rules: BTreeMap::new(),
        }
    }

    pub(crate) fn place(&self, server: u64) -> Place {
        let ip = address(server);
        Place {
            peer: format!("{ip}:{PEER_PORT}"),
            listen_peers: None,
            client: format!("{ip}:{CLIENT_PORT}"),
        }
    }

    pub(crate) fn prefix(&self, server: u64) -> Vec<String> {
        let pid = self.keepers[&server].id();
        ["nsenter".into(), format!("--net=/proc/{pid}/ns/net")].into()
    }

    pub(crate) fn apply(&mut self, edges: &Edges) {
        for server in self.keepers.keys().copied().collect::<Vec<_>>() {
            let mut rules = String::new();
            // What a server sends to clients is dropped where it leaves.
            let mut out = String::new();
            for ((from, to), edge) in edges {
                if *to == server {
                    rules.push_str(&rule("saddr", *from, edge));
                } else if (*from, *to) == (server, CLIENTS) {
                    out.push_str(&rule("daddr", *to, edge));
                }
            }
            let script = format!(
                "table inet faults\ndelete table inet faults\ntable inet faults {{\n\
                 chain in {{ type filter hook input priority 0;\n{rules}}}\n\
                 chain out {{ type filter hook output priority 0;\n{out}}}\n}}\n"
            );
            if self.rules.get(&server) != Some(&script) {
                self.load(server, &script);
                self.rules.insert(server, script);
            }
        }
    }

    fn load(&self, server: u64, script: &str) {
        let prefix = self.prefix(server);
        let mut nft = Command::new(&prefix[0])
            .args(&prefix[1..])
            .args(["nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft");
        let mut input = nft.stdin.take().expect("its input");
        input.write_all(script.as_bytes()).expect("it reads");
        drop(input);
        assert!(nft.wait().expect("it ends").success(), "{script}");
    }
}

fn rule(which: &str, place: u64, edge: &Edge) -> String {
    let ip = address(place);
    if edge.cut {
        format!("ip {which} {ip} drop\n")
    } else if edge.loss > 0 {
        let loss = edge.loss;
        format!("ip {which} {ip} numgen random mod 100 < {loss} drop\n")
    } else {
        String::new()
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for keeper in self.keepers.values_mut() {
            let _ = keeper.kill();
            let _ = keeper.wait();
        }
    }
}
