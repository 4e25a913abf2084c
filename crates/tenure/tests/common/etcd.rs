//! Private etcd servers for one test: on free ports, in directories of their
//! own, stopped when dropped.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

use super::ports;
use super::stopped::await_stopped;

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Private servers of one cluster.
pub(crate) struct Etcd {
    servers: Vec<Server>,
    scheme: &'static str,
}

struct Server {
    directory: tempfile::TempDir,
    client: u16,
    peer: u16,
    process: Option<Child>,
    flags: Vec<String>,
}

fn pid(child: &Child) -> Pid {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id")
}

/// What the servers of several tests take at once, in bytes: each makes two files of
/// 64 MB for its log when it begins.
const ROOM: u64 = 4 * 1_024 * 1_024 * 1_024;

/// A directory in memory, where there is room: a disk that others keep busy for seconds
/// ends leaderships on a store that waits for it.
fn directory() -> tempfile::TempDir {
    let memory = "/dev/shm";
    let room = rustix::fs::statvfs(memory).map_or(0, |it| it.f_bavail * it.f_frsize);
    let made = if room > ROOM {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.expect("a directory")
}

impl Etcd {
    /// Starts a cluster of so many servers and waits until they serve.
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, "http", &[])
    }

    /// One server that speaks TLS only, with a certificate of its own making.
    pub(crate) fn start_encrypted() -> Self {
        Self::start_with(1, "https", &["--auto-tls"])
    }

    fn start_with(count: usize, scheme: &'static str, flags: &[&str]) -> Self {
        let two = |_| (ports::free(), ports::free());
        let ports: Vec<_> = (0..count).map(two).collect();
        let peers: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(at, (_, peer))| format!("s{at}=http://127.0.0.1:{peer}"))
            .collect();
        let servers = ports.iter().enumerate().map(|(at, (client, peer))| {
            let directory = directory();
            let (client_url, peer_url) = (
                format!("{scheme}://127.0.0.1:{client}"),
                format!("http://127.0.0.1:{peer}"),
            );
            let mut all = vec![
                format!("--name=s{at}"),
                format!("--data-dir={}", directory.path().join("data").display()),
                format!("--listen-client-urls={client_url}"),
                format!("--advertise-client-urls={client_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster={}", peers.join(",")),
                "--initial-cluster-state=new".to_owned(),
            ];
            all.extend(flags.iter().map(|flag| (*flag).to_owned()));
            Server {
                directory,
                client: *client,
                peer: *peer,
                process: None,
                flags: all,
            }
        });
        let mut cluster = Self {
            servers: servers.collect(),
            scheme,
        };
        cluster.launch_all();
        cluster
    }

    /// A server with the name, the token and the initial peer URLs of this only one, and so
    /// with its ids, in a directory and on ports of its own: another cluster.
    pub(crate) fn twin(&self) -> Self {
        let mut twin = self.prepared_twin();
        twin.launch_all();
        twin
    }

    /// The same on a copy of the data of this server, which stands still meanwhile.
    pub(crate) fn copy(&mut self) -> Self {
        self.end_all();
        let mut twin = self.prepared_twin();
        let [from, to] = [&*self, &twin].map(|it| it.only().data());
        let copied = Command::new("cp").arg("-a").args([from, to]).status();
        assert!(copied.expect("cp").success());
        self.launch_all();
        twin.launch_all();
        twin
    }

    fn prepared_twin(&self) -> Self {
        let server = self.only();
        let directory = directory();
        let (client, peer) = (ports::free(), ports::free());
        let client_url = format!("{}://127.0.0.1:{client}", self.scheme);
        // Of an option that is given twice etcd takes the last.
        let mut flags = server.flags.clone();
        flags.extend([
            format!("--data-dir={}", directory.path().join("data").display()),
            format!("--listen-client-urls={client_url}"),
            format!("--advertise-client-urls={client_url}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        ]);
        let twin = Server {
            directory,
            client,
            peer,
            process: None,
            flags,
        };
        Self {
            servers: vec![twin],
            scheme: self.scheme,
        }
    }

    fn only(&self) -> &Server {
        let [server] = &self.servers[..] else {
            panic!("expected one server")
        };
        server
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        let hosts = self.servers.iter();
        let hosts: Vec<_> = hosts
            .map(|server| format!("127.0.0.1:{}", server.client))
            .collect();
        format!("etcd://{}", hosts.join(","))
    }

    /// The directory that the first server lives in.
    pub(crate) fn directory(&self) -> &Path {
        self.servers.first().expect("a server").directory.path()
    }

    /// Where its first server is asked over HTTP, for instance for `/metrics`.
    pub(crate) fn first(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.servers.first().expect("a server").client)
    }

    /// The processes of the servers that run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let running = self.servers.iter().filter_map(|it| it.process.as_ref());
        running.map(Child::id).collect()
    }

    /// The certificate that a server made for itself.
    pub(crate) fn certificate(&self) -> PathBuf {
        let server = self.servers.first().expect("a server");
        server
            .directory
            .path()
            .join("data/fixtures/client/cert.pem")
    }

    /// Kills a server, without a chance to clean up.
    pub(crate) fn kill(&mut self, at: usize) {
        self.servers.get_mut(at).expect("a server").end();
    }

    /// Starts a killed server again.
    pub(crate) fn restart(&mut self, at: usize) {
        let server = self.servers.get_mut(at).expect("a server");
        server.launch();
        server.await_ready();
    }

    /// Kills a server, and starts it as a cluster of its own, which the others do not
    /// reach: as a person does who has given them up.
    pub(crate) fn force_new_cluster(&mut self, at: usize) {
        self.kill(at);
        let server = self.servers.get_mut(at).expect("a server");
        // Of an option that is given twice etcd takes the last.
        server.flags.extend([
            "--force-new-cluster".to_owned(),
            format!("--listen-peer-urls=http://127.0.0.1:{}", ports::free()),
        ]);
        self.restart(at);
    }

    /// Where clients reach a server.
    pub(crate) fn host(&self, at: usize) -> String {
        format!(
            "127.0.0.1:{}",
            self.servers.get(at).expect("a server").client
        )
    }

    /// Kills all servers and starts them again.
    pub(crate) fn restart_all(&mut self) {
        self.end_all();
        self.launch_all();
    }

    /// Kills all servers, takes their disks away, and starts them on empty
    /// ones: everything is lost.
    pub(crate) fn wipe(&mut self) {
        self.end_all();
        for server in &self.servers {
            fs::remove_dir_all(server.data()).expect("its data");
        }
        self.launch_all();
    }

    /// The same, and the servers begin another cluster, to etcd as well.
    pub(crate) fn begin_anew(&mut self) {
        self.end_all();
        for server in &mut self.servers {
            fs::remove_dir_all(server.data()).expect("its data");
            server.flags.push("--initial-cluster-token=anew".to_owned());
        }
        self.launch_all();
    }

    /// Kills the only server, and starts it with what `etcdctl snapshot save`
    /// has written to `file`.
    pub(crate) fn restore(&mut self, file: &Path) {
        self.end_all();
        let [server] = &self.servers[..] else {
            panic!("expected one server")
        };
        fs::remove_dir_all(server.data()).expect("its data");
        let is_meant = |flag: &&String| {
            let meant = [
                "--name",
                "--data-dir",
                "--initial-advertise",
                "--initial-cluster=",
            ];
            meant.iter().any(|start| flag.starts_with(start))
        };
        let restored = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["snapshot", "restore"])
            .arg(file)
            .args(server.flags.iter().filter(is_meant))
            .output()
            .expect("etcdctl, by apt-get install etcd-client");
        let said = String::from_utf8_lossy(&restored.stderr);
        assert!(restored.status.success(), "{said}");
        self.launch_all();
    }

    fn end_all(&mut self) {
        self.servers.iter_mut().for_each(Server::end);
    }

    fn launch_all(&mut self) {
        self.servers.iter_mut().for_each(Server::launch);
        self.servers.iter().for_each(Server::await_ready);
    }

    /// Freezes a server until [`resume`](Self::resume).
    pub(crate) fn pause(&self, at: usize) {
        let server = self.servers.get(at).expect("a server");
        server.signal(Signal::STOP);
        await_stopped(pid(server.process.as_ref().expect("it runs")));
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&self, at: usize) {
        self.servers.get(at).expect("a server").signal(Signal::CONT);
    }

    /// Runs `etcdctl` on the cluster and returns what it printed.
    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let first = self.servers.first().expect("a server");
        let ran = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .arg(format!(
                "--endpoints={}://127.0.0.1:{}",
                self.scheme, first.client
            ))
            .args(arguments)
            .output()
            .expect("etcdctl, by apt-get install etcd-client");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }
}

impl Server {
    fn launch(&mut self) {
        // Of what it said before it was killed nothing is of interest.
        let log = fs::File::create(self.log());
        let server = Command::new("etcd")
            .args(&self.flags)
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            // What the terminal sends is not for the server.
            .process_group(0)
            .spawn();
        self.process = Some(server.expect("etcd, by apt-get install etcd-server"));
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// It listens before it serves: one that is killed in between may never
    /// come up again.
    fn await_ready(&self) {
        let until = clock::boot().after(PATIENCE);
        let log = || fs::read_to_string(self.log()).unwrap_or_default();
        while !log().contains("ready to serve client requests") {
            assert!(clock::boot() < until, "etcd did not come up: {}", log());
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn signal(&self, signal: Signal) {
        let server = self.process.as_ref().expect("it runs");
        kill_process(pid(server), signal).expect("it runs");
    }

    fn end(&mut self) {
        if let Some(mut server) = self.process.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
