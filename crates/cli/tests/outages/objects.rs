//! SeaweedFS, which speaks the protocol of S3, and emulators of Google's and Azure's
//! object stores.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::interface::{Fault, Subject};
use super::object_servers::{AZURITE_KEY, SECRET, Server};
use super::proxy::{Proxy, Rule};

/// A key that is not the account's.
const OTHER_KEY: &str = "Z3Vlc3NlZA==";
/// What Google answers to a token that is good no more.
const UNAUTHORIZED: &str = "HTTP/1.1 401 x\r\nConnection: close\r\n\
    Content-Type: application/json\r\n\r\n\
    {\"error\": {\"message\": \"No.\", \"errors\": [{\"reason\": \"authError\"}]}}";
const REVOKED: &[&str] = &["expected credentials that may read, write and list the bucket"];
const MISSING: &[&str] = &["expected that the bucket is there; make it"];
const AWAY: &[&str] = &["onnection refused"];

fn secret_file(directory: &Path, text: &str) -> PathBuf {
    let file = directory.join("credentials");
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
    file
}

fn host(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

struct Seaweed {
    server: Server,
    directory: tempfile::TempDir,
}

pub(crate) fn s3() -> Box<dyn Subject> {
    let directory = tempfile::tempdir().expect("a directory");
    let text = format!("[default]\naws_access_key_id = tenure\naws_secret_access_key = {SECRET}\n");
    secret_file(directory.path(), &text);
    Box::new(Seaweed {
        server: Server::seaweed(),
        directory,
    })
}

impl Subject for Seaweed {
    fn url(&self) -> String {
        let file = self.directory.path().join("credentials");
        let (endpoint, file) = (self.server.endpoint(), file.display());
        format!("s3://bucket/a/b?endpoint={endpoint}&credentials_file={file}&poll=50ms")
    }

    fn address(&self) -> String {
        host(&self.server)
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.kill();
                AWAY
            }
            Fault::Revoked => {
                self.server.kill();
                self.server.know("another-secret");
                self.server.launch();
                REVOKED
            }
            Fault::Missing => {
                // A write that is under way when a bucket is removed makes it again.
                self.server.kill();
                self.server.empty();
                self.server.launch();
                MISSING
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.launch(),
            Fault::Emptied => {
                self.server.empty();
                self.server.launch();
                self.server.make_bucket();
            }
            Fault::Revoked => {
                self.server.kill();
                self.server.know(SECRET);
                self.server.launch();
            }
            Fault::Missing => self.server.make_bucket(),
        }
    }
}

struct Google {
    server: Server,
    /// It looks at no credentials; this says what Google would.
    proxy: Option<Proxy>,
}

pub(crate) fn gcs() -> Box<dyn Subject> {
    Box::new(Google {
        server: Server::google(),
        proxy: None,
    })
}

pub(crate) fn gcs_behind_a_proxy() -> Box<dyn Subject> {
    let server = Server::google();
    let proxy = Some(Proxy::before(server.port()));
    Box::new(Google { server, proxy })
}

impl Google {
    fn answer(&self, rule: Rule) {
        self.proxy.as_ref().expect("a proxy").set(rule);
    }
}

impl Subject for Google {
    fn url(&self) -> String {
        let proxied = self.proxy.as_ref().map(Proxy::endpoint);
        let endpoint = proxied.unwrap_or_else(|| self.server.endpoint());
        format!("gs://bucket/a/b?endpoint={endpoint}&poll=50ms")
    }

    fn address(&self) -> String {
        host(&self.server)
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.kill();
                AWAY
            }
            Fault::Revoked => {
                // Of any method.
                self.answer(Rule::Answer("", UNAUTHORIZED));
                REVOKED
            }
            Fault::Missing => {
                // A write that is under way would make the directory again.
                self.server.kill();
                self.server.remove_directory();
                self.server.launch();
                MISSING
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.launch(),
            Fault::Emptied => {
                self.server.empty();
                self.server.make_directory();
                self.server.launch();
            }
            Fault::Revoked => self.answer(Rule::Pass),
            Fault::Missing => self.server.make_directory(),
        }
    }
}

struct Azurite {
    server: Server,
    directory: tempfile::TempDir,
}

pub(crate) fn azure() -> Box<dyn Subject> {
    let directory = tempfile::tempdir().expect("a directory");
    secret_file(directory.path(), AZURITE_KEY);
    Box::new(Azurite {
        server: Server::azurite(),
        directory,
    })
}

impl Subject for Azurite {
    fn url(&self) -> String {
        let file = self.directory.path().join("credentials");
        let (endpoint, file) = (self.server.endpoint(), file.display());
        let account = "devstoreaccount1";
        format!(
            "az://bucket/a/b?account={account}&endpoint={endpoint}/{account}&\
             credentials_file={file}&poll=50ms"
        )
    }

    fn address(&self) -> String {
        host(&self.server)
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.stop();
                AWAY
            }
            Fault::Revoked => {
                self.server.stop();
                self.server.know(OTHER_KEY);
                self.server.launch();
                REVOKED
            }
            Fault::Missing => {
                self.server.remove_container();
                MISSING
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.launch(),
            Fault::Emptied => {
                self.server.empty();
                self.server.launch();
                self.server.make_container();
            }
            Fault::Revoked => {
                self.server.stop();
                self.server.know(SECRET);
                self.server.launch();
            }
            Fault::Missing => self.server.make_container(),
        }
    }
}
