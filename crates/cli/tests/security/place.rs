//! The servers of a cluster, and the certificates of it and of its clients.

use std::process::Command;

use crate::common::TENURE;
use crate::common::servers::{Heard, free, said, tenure};

/// The servers of a cluster, each of which is heard.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) peers: Vec<String>,
    pub(crate) clients: Vec<String>,
}

impl Place {
    pub(crate) fn new<const N: usize>() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a directory"),
            peers: free::<N>().into(),
            clients: free::<N>().into(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    pub(crate) fn start(&self, id: usize, more: &[&str]) -> Heard {
        let peers = self.peers.iter().enumerate();
        let peers: Vec<_> = peers.map(|(at, it)| format!("{}={it}", at + 1)).collect();
        let data = self.path(&format!("data{id}"));
        let mut command = Command::new(TENURE);
        command
            .args([
                "serve",
                "--id",
                &id.to_string(),
                "--peers",
                &peers.join(","),
            ])
            .args(["--data", &data, "--listen", &self.clients[id - 1]])
            .args(more);
        Heard::start(command)
    }

    pub(crate) fn certs(&self, more: &[&str]) {
        self.certs_in("certs", more);
    }

    pub(crate) fn certs_in(&self, dir: &str, more: &[&str]) {
        let made = tenure(&[&["certs", &self.path(dir)], more].concat());
        assert!(made.status.success(), "{}", said(&made));
    }

    /// The flags of a server with certificates.
    pub(crate) fn tls(&self, id: usize) -> [String; 8] {
        let path = |name: &str| self.path(&format!("certs/{name}"));
        let own = |end: &str| path(&format!("server-{id}.{end}"));
        [
            "--tls-cert".into(),
            own("pem"),
            "--tls-key".into(),
            own("key"),
            "--tls-ca".into(),
            path("ca.pem"),
            "--tls-crl".into(),
            path("ca.crl"),
        ]
    }

    /// The URL of a client with this certificate.
    pub(crate) fn url(&self, name: &str) -> String {
        let path = |name: &str| self.path(&format!("certs/{name}"));
        format!(
            "tenure://{}?ca={}&cert={}&key={}",
            self.clients.join(","),
            path("ca.pem"),
            path(&format!("{name}.pem")),
            path(&format!("{name}.key")),
        )
    }
}

pub(crate) fn flags(of: &[String]) -> Vec<&str> {
    of.iter().map(String::as_str).collect()
}
