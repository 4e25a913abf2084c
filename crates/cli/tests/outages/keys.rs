//! Redis, etcd and NATS.

use serde_json::json;
use tokio::runtime::Handle;

use super::etcd::Etcd;
use super::interface::{Fault, Subject, never};
use super::nats::{JETSTREAM, Nats};
use super::redis::{Redis, SAFE};

struct RedisServer(Redis);

/// With a user, whom the server knows at each start.
pub(crate) fn redis() -> Box<dyn Subject> {
    let user = ["--user", "web", "on", ">sesame", "~*", "&*", "+@all"];
    Box::new(RedisServer(Redis::start_with(&[&SAFE[..], &user].concat())))
}

impl Subject for RedisServer {
    fn url(&self) -> String {
        self.0.url().replacen("//", "//web:sesame@", 1)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.0.port())
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.0.kill();
                &["onnection refused"]
            }
            Fault::Revoked => {
                self.0.cli(&["ACL", "SETUSER", "web", "off"]);
                self.0.cli(&["CLIENT", "KILL", "USER", "web"]);
                &["check the user and password in the store's URL"]
            }
            Fault::Missing => never(fault),
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.0.launch(),
            Fault::Emptied => self.0.wipe(),
            Fault::Revoked => drop(self.0.cli(&["ACL", "SETUSER", "web", "on"])),
            Fault::Missing => never(fault),
        }
    }
}

struct EtcdServer {
    server: Etcd,
    user: &'static str,
}

pub(crate) fn etcd() -> Box<dyn Subject> {
    Box::new(EtcdServer {
        server: Etcd::start(1),
        user: "",
    })
}

/// With a user for the prefix.
pub(crate) fn etcd_with_users() -> Box<dyn Subject> {
    let server = Etcd::start(1);
    for command in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "web:sesame"],
        &["role", "add", "elects"],
        &[
            "role",
            "grant-permission",
            "elects",
            "readwrite",
            "tenure/",
            "--prefix",
        ],
        &["user", "grant-role", "web", "elects"],
        &["auth", "enable"],
    ] {
        server.ctl(command);
    }
    Box::new(EtcdServer {
        server,
        user: "web:sesame@",
    })
}

impl Subject for EtcdServer {
    fn url(&self) -> String {
        self.server
            .url()
            .replacen("//", &format!("//{}", self.user), 1)
    }

    fn address(&self) -> String {
        self.server.url().replacen("etcd://", "", 1)
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.kill(0);
                &["onnection refused"]
            }
            Fault::Revoked => {
                let root = ["--user", "root:secret"];
                self.server
                    .ctl(&[&root[..], &["user", "delete", "web"]].concat());
                &["check the user and password"]
            }
            Fault::Missing => never(fault),
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.restart(0),
            Fault::Emptied => self.server.wipe(),
            Fault::Revoked => {
                let root = ["--user", "root:secret", "user"];
                for command in [&["add", "web:sesame"][..], &["grant-role", "web", "elects"]] {
                    self.server.ctl(&[&root[..], command].concat());
                }
            }
            Fault::Missing => never(fault),
        }
    }
}

struct NatsServer {
    server: Nats,
    user: &'static str,
}

pub(crate) fn nats() -> Box<dyn Subject> {
    Box::new(NatsServer {
        server: Nats::start(),
        user: "",
    })
}

/// With a user.
pub(crate) fn nats_with_users() -> Box<dyn Subject> {
    Box::new(NatsServer {
        server: Nats::start_with(&configuration("web")),
        user: "web:sesame@",
    })
}

fn configuration(user: &str) -> String {
    format!("{JETSTREAM}\nauthorization {{ users: [{{ user: {user}, password: sesame }}] }}")
}

impl Subject for NatsServer {
    fn url(&self) -> String {
        self.server
            .url()
            .replacen("//", &format!("//{}", self.user), 1)
    }

    fn address(&self) -> String {
        self.server.host(0)
    }

    fn strike(&mut self, fault: Fault) -> &'static [&'static str] {
        match fault {
            Fault::Away | Fault::Emptied => {
                self.server.kill(0);
                &["onnection refused"]
            }
            Fault::Revoked => {
                self.server.reconfigure(0, &configuration("another"));
                &["check the user and password"]
            }
            Fault::Missing => {
                let question = json!({});
                let answer = self.server.api("STREAM.DELETE.KV_tenure", &question);
                let deleted = Handle::current().block_on(answer);
                assert_eq!(deleted["success"], true, "{deleted}");
                &["tenure repair ELECTION --create"]
            }
        }
    }

    fn relieve(&mut self, fault: Fault) {
        match fault {
            Fault::Away => self.server.launch(0),
            Fault::Emptied => {
                self.server.empty(0);
                self.server.launch(0);
            }
            Fault::Revoked => self.server.reconfigure(0, &configuration("web")),
            Fault::Missing => {}
        }
    }
}
