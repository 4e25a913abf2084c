//! What stands in for Consul and for the API server of Kubernetes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::interface::{Fault, Subject, never};
use super::standin_of_consul::Consul;
use super::standin_of_kubernetes::{Kubernetes, May};

const AWAY: &[&str] = &["onnection refused"];

/// A file with the token of the candidates.
fn token_file(directory: &tempfile::TempDir) -> PathBuf {
    let file = directory.path().join("token");
    fs::write(&file, "sesame\n").expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    file
}

struct ConsulServer {
    server: Consul,
    directory: tempfile::TempDir,
}

pub(crate) fn consul() -> Box<dyn Subject> {
    let server = ConsulServer {
        server: Consul::start(),
        directory: tempfile::tempdir().expect("a directory"),
    };
    token_file(&server.directory);
    server.know_the_token();
    Box::new(server)
}

impl ConsulServer {
    fn know_the_token(&self) {
        self.server.ask_for_tokens(&[("sesame", "tenure/", true)]);
    }
}

impl Subject for ConsulServer {
    fn url(&self) -> String {
        let file = self.directory.path().join("token");
        format!("{}?token_file={}", self.server.url(), file.display())
    }

    fn address(&self) -> String {
        self.server.host()
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.stop();
                AWAY
            }
            Fault::Revoked => {
                self.server.ask_for_tokens(&[]);
                &["token_file="]
            }
            Fault::Missing => never(fault),
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.launch(),
            Fault::Emptied => {
                self.server.empty();
                self.server.launch();
            }
            Fault::Revoked => self.know_the_token(),
            Fault::Missing => never(fault),
        }
    }
}

struct KubernetesServer {
    server: Kubernetes,
    directory: tempfile::TempDir,
}

pub(crate) fn kubernetes() -> Box<dyn Subject> {
    let server = KubernetesServer {
        server: Kubernetes::start(),
        directory: tempfile::tempdir().expect("a directory"),
    };
    token_file(&server.directory);
    server.know_the_token();
    Box::new(server)
}

impl KubernetesServer {
    fn know_the_token(&self) {
        self.server.ask_for_tokens(&[("sesame", May::Write)]);
    }
}

impl Subject for KubernetesServer {
    fn url(&self) -> String {
        let file = self.directory.path().join("token");
        format!("{}&token_file={}", self.server.url(), file.display())
    }

    fn address(&self) -> String {
        self.server.host()
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.stop();
                AWAY
            }
            Fault::Revoked => {
                self.server.ask_for_tokens(&[]);
                &["401"]
            }
            Fault::Missing => {
                self.server.remove_namespace();
                &["kubectl create namespace"]
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.launch(),
            Fault::Emptied => {
                self.server.empty();
                self.server.launch();
            }
            Fault::Revoked => self.know_the_token(),
            Fault::Missing => self.server.make_namespace(),
        }
    }
}
