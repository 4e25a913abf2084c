//! A network namespace for each agent, so that it can be cut off from the
//! store and from nothing else.
//!
//! ```text
//!  servers ── bridge ──┬── veth ── namespace of agent 0
//!                      ├── veth ── namespace of agent 1      link down: cut off
//! ```
//!
//! That needs root and `ip`; without them there are no partitions, and that
//! is said.

use std::process::{Command, Stdio};

/// A bridge and a namespace for each of some agents; removed when dropped.
pub(crate) struct Net {
    tag: String,
    subnet: String,
    nodes: usize,
}

fn ip(words: &str) -> bool {
    let ran = Command::new("ip")
        .args(words.split_whitespace())
        .stderr(Stdio::null())
        .status();
    ran.is_ok_and(|status| status.success())
}

impl Net {
    /// `None` where it cannot be had.
    pub(crate) fn new(nodes: usize) -> Option<Self> {
        let number = std::process::id();
        let net = Self {
            tag: format!("tn{}", number % 100_000),
            subnet: format!("10.211.{}", number % 250 + 1),
            nodes,
        };
        let (tag, subnet) = (&net.tag, &net.subnet);
        let mut made = ip(&format!("link add {tag} type bridge"))
            && ip(&format!("addr add {subnet}.1/24 dev {tag}"))
            && ip(&format!("link set {tag} up"));
        for node in 0..nodes {
            let (inner, outer) = (format!("{tag}i{node}"), format!("{tag}o{node}"));
            let (space, host) = (net.space(node), node + 2);
            made = made
                && ip(&format!("netns add {space}"))
                && ip(&format!("link add {outer} type veth peer name {inner}"))
                && ip(&format!("link set {inner} netns {space}"))
                && ip(&format!("link set {outer} master {tag}"))
                && ip(&format!("link set {outer} up"))
                && ip(&format!(
                    "-n {space} addr add {subnet}.{host}/24 dev {inner}"
                ))
                && ip(&format!("-n {space} link set {inner} up"))
                && ip(&format!("-n {space} link set lo up"));
        }
        // What was made of it is removed when it is dropped.
        made.then_some(net)
    }

    fn space(&self, node: usize) -> String {
        format!("{}-{node}", self.tag)
    }

    /// Where servers listen that all agents reach.
    pub(crate) fn host(&self) -> String {
        format!("{}.1", self.subnet)
    }

    /// What to put before a command that is to run where an agent is.
    pub(crate) fn inside(&self, node: usize) -> [String; 2] {
        let space = self.space(node);
        ["nsenter".to_owned(), format!("--net=/run/netns/{space}")]
    }

    /// Cuts an agent off, or heals it.
    pub(crate) fn cut(&self, node: usize, off: bool) {
        let word = if off { "down" } else { "up" };
        let done = ip(&format!("link set {}o{node} {word}", self.tag));
        assert!(done, "the link of agent {node} goes {word}");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for node in 0..self.nodes {
            // With it goes the link.
            ip(&format!("netns del {}", self.space(node)));
        }
        ip(&format!("link del {}", self.tag));
    }
}
