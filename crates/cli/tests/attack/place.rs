//! Three real servers that are attacked, and what must not change about them.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tenure::core::ids::Term;
use tenure_alpo::{ClusterId, Position};

use crate::common::servers::{SOON, free, led, objects};
use crate::common::{TENURE, poll_until};

pub(crate) const PATIENCE: Duration = Duration::from_secs(40);
/// Long enough that no server stands because the machine is busy: if another
/// one leads, the attack did it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) fn attacked() -> String {
    std::env::var("TENURE_ATTACKED").unwrap_or_else(|_| TENURE.to_owned())
}

/// How servers know each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Nothing,
    Secret,
    Certificates,
    /// Those that name no number are taken for a server's, too.
    AnyServer,
    /// Servers have an authority of their own, and clients another.
    Authorities,
}

impl By {
    const fn has_tls(self) -> bool {
        !matches!(self, Self::Nothing | Self::Secret)
    }
}

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    by: By,
    pub(crate) peers: Vec<String>,
    pub(crate) clients: Vec<String>,
    pub(crate) servers: Vec<Child>,
}

/// A member's number, and where it is reached by servers and by clients.
type Contact = (u64, String, String);

/// What must not change.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Seen {
    pub(crate) leader: u64,
    /// Of each server: its number, whether it leads, its term, and where it
    /// has everybody.
    servers: Vec<(u64, bool, u64, Vec<Contact>)>,
    pub(crate) log: String,
}

impl Place {
    pub(crate) fn found(by: By) -> Self {
        let [a, b, c, d, clients @ ..] = free::<8>();
        let mut place = Self {
            dir: tempfile::tempdir().expect("a directory"),
            by,
            peers: vec![a, b, c, d],
            clients: clients.into(),
            servers: Vec::new(),
        };
        if by.has_tls() {
            for server in 1..=4 {
                let (name, server) = (format!("server-{server}"), server.to_string());
                place.tenure(&[
                    "certs",
                    &place.path("certs"),
                    "--name",
                    &name,
                    "--server",
                    &server,
                ]);
            }
            place.tenure(&["certs", &place.path("certs"), "--name", "client"]);
            let clients = ["certs", &place.path("clients"), "--name"];
            place.tenure(&[&clients[..], &["client"]].concat());
            place.tenure(&[&clients[..], &["server-2", "--server", "2"]].concat());
        }
        std::fs::write(place.path("secret"), "a secret of all servers\n").expect("written");
        place.close("secret");
        for number in 1..=3 {
            let server = place.serve(number, 3);
            place.servers.push(server);
        }
        led(&place.url());
        if attacked() == TENURE {
            // Before that servers of an earlier release may be among them.
            let risen = || {
                let status = place.status();
                let risen = |it: &&Value| it["cluster_version"].as_u64() >= Some(2);
                (status.iter().filter(risen).count() == 3).then_some(())
            };
            poll_until(SOON, risen).expect("the second version");
        }
        place.tenure(&["log", "append", "--store", &place.url(), "kept"]);
        place
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn close(&self, name: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let only_ours = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(self.path(name), only_ours).expect("set");
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join("certs").join(name)
    }

    pub(crate) fn serve(&self, number: usize, of: usize) -> Child {
        let mut peers: Vec<_> = (1..=of).collect();
        if !peers.contains(&number) {
            peers.push(number);
        }
        let named = |it: &usize| format!("{it}={}", self.peers[it - 1]);
        let peers: Vec<_> = peers.iter().map(named).collect();
        let mut serve = Command::new(attacked());
        serve
            .args(["serve", "--id", &number.to_string()])
            .args([
                "--peers",
                &peers.join(","),
                "--listen",
                &self.clients[number - 1],
            ])
            .args(["--election-timeout", "3s", "--heartbeat", "100ms"])
            .args(["--data", &self.path(&number.to_string())])
            // What servers of one machine share by themselves is not meant.
            .env_remove("HOME")
            .env_remove("XDG_STATE_HOME");
        match self.by {
            By::Nothing => {}
            By::Secret => {
                serve.args(["--peer-secret-file", &self.path("secret")]);
            }
            By::Certificates | By::AnyServer | By::Authorities => {
                serve
                    .arg("--tls-cert")
                    .arg(self.file(&format!("server-{number}.pem")));
                serve
                    .arg("--tls-key")
                    .arg(self.file(&format!("server-{number}.key")));
            }
        }
        match self.by {
            By::Nothing | By::Secret => {}
            By::Certificates => drop(serve.arg("--tls-ca").arg(self.file("ca.pem"))),
            By::AnyServer => {
                serve.arg("--tls-ca").arg(self.file("ca.pem"));
                serve.arg("--tls-any-server");
            }
            By::Authorities => {
                serve.args(["--tls-ca", &self.path("clients/ca.pem")]);
                serve.arg("--tls-peer-ca").arg(self.file("ca.pem"));
            }
        }
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path(&format!("{number}.log")));
        serve.stdout(Stdio::null()).stderr(log.expect("a file"));
        serve.spawn().expect("a server")
    }

    /// How often a server warned of a connection or message of another one.
    pub(crate) fn warnings(&self, number: usize) -> usize {
        let log = std::fs::read_to_string(self.path(&format!("{number}.log")));
        let log = log.expect("the server's log");
        let of_peers = ["a connection is closed", "a message is rejected"];
        let is_one = |line: &&str| of_peers.iter().any(|text| line.contains(text));
        log.lines().filter(is_one).count()
    }

    pub(crate) fn url(&self) -> String {
        let url = format!("tenure://{}", self.clients[..3].join(","));
        if !self.by.has_tls() {
            return url;
        }
        let own = match self.by {
            By::Authorities => self.path("clients"),
            _ => self.path("certs"),
        };
        let ca = self.path("certs/ca.pem");
        format!("{url}?ca={ca}&cert={own}/client.pem&key={own}/client.key")
    }

    pub(crate) fn tenure(&self, args: &[&str]) -> String {
        let done = Command::new(TENURE).args(args).output().expect("it runs");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{args:?}: {said}");
        String::from_utf8(done.stdout).expect("text")
    }

    pub(crate) fn status(&self) -> Vec<Value> {
        objects(&["status", "--json", "--store", &self.url()])
    }

    pub(crate) fn seen(&mut self) -> Seen {
        for (index, server) in self.servers.iter_mut().enumerate() {
            let ended = server.try_wait().expect("it can be asked");
            assert_eq!(ended, None, "server {} has ended", index + 1);
        }
        let mut seen = None;
        let settled = || {
            let status = self.status();
            let ready = status
                .iter()
                .filter(|it| it["ready"] == true && it["removed"] != true);
            if ready.count() < 3 {
                return None;
            }
            let mut servers: Vec<_> = status.iter().map(server_seen).collect();
            servers.sort_by_key(|it| it.0);
            let leader = servers.iter().find(|it| it.1)?.0;
            Some((leader, servers))
        };
        if let Some((leader, servers)) = poll_until(SOON, settled) {
            let log = self.tenure(&["log", "read", "--store", &self.url()]);
            seen = Some(Seen {
                leader,
                servers,
                log,
            });
        }
        seen.unwrap_or_else(|| panic!("expected three that are ready, found {:#?}", self.status()))
    }

    /// The cluster's id, and the disks of its servers.
    pub(crate) fn known(&self) -> (ClusterId, Vec<u128>) {
        let status = self.status();
        let hex = |it: &Value| {
            let text = it.as_str().expect("text");
            u128::from_str_radix(text, 16).expect("a number")
        };
        let mut disks: Vec<_> = status
            .iter()
            .map(|it| (it["id"].as_u64(), hex(&it["storage"])))
            .collect();
        disks.sort_unstable();
        let cluster = ClusterId::from_u128(hex(&status[0]["cluster"]));
        (cluster, disks.into_iter().map(|(_, disk)| disk).collect())
    }

    /// Where the leader's log ends.
    pub(crate) fn end(&self) -> Position {
        let status = self.status();
        let leader = status.iter().find(|it| it["role"] == "leader");
        let leader = leader.expect("a leader");
        let number = |name: &str| leader[name].as_u64().expect("a number");
        let term = Term::new(number("last_log_term")).expect("a term");
        Position::new(term, number("last_log_id"))
    }

    /// A server that belongs is taken in.
    pub(crate) fn takes_in_a_fourth(&mut self) {
        let server = self.serve(4, 3);
        self.servers.push(server);
        let url = self
            .url()
            .replace(&self.clients[..3].join(","), &self.clients[3]);
        let fourth = || {
            objects(&["status", "--json", "--store", &url])
                .into_iter()
                .next()
        };
        let storage = poll_until(SOON, || {
            let status = fourth()?;
            let waits = status["waiting"].as_str()?.contains("member add 4");
            waits.then(|| status["storage"].as_str().map(str::to_owned))?
        });
        let storage = storage.unwrap_or_else(|| panic!("it waits: {:?}", fourth()));
        self.tenure(&[
            "member",
            "add",
            "4",
            "--storage",
            &storage,
            "--store",
            &self.url(),
        ]);
        let follows = || (fourth()?["ready"] == true).then_some(());
        poll_until(SOON, follows).unwrap_or_else(|| panic!("it follows: {:?}", fourth()));
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn server_seen(status: &Value) -> (u64, bool, u64, Vec<(u64, String, String)>) {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let members = status["members"].as_array().cloned().unwrap_or_default();
    let member = |it: &Value| {
        let number = it["id"].as_u64().unwrap_or_default();
        (
            number,
            text(&it["peer_address"]),
            text(&it["client_address"]),
        )
    };
    (
        status["id"].as_u64().unwrap_or_default(),
        status["role"] == "leader",
        status["term"].as_u64().unwrap_or_default(),
        members.iter().map(member).collect(),
    )
}
