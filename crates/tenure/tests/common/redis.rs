//! Private servers of Redis for one test: on free ports, in directories of their
//! own, stopped when dropped.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

use super::certificates::{authority, certified};
use super::ports;
use super::stopped::await_stopped;

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Keeps what it acknowledges, whatever happens to its process.
pub(crate) const SAFE: [&str; 8] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--maxmemory-policy",
    "noeviction",
    "--save",
    "",
];

/// A private server.
pub(crate) struct Redis {
    directory: tempfile::TempDir,
    port: u16,
    flags: Vec<String>,
    process: Option<Child>,
    is_encrypted: bool,
    environment: Vec<(String, String)>,
}

fn pid(child: &Child) -> Pid {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id")
}

/// A directory in memory, where there is one: how slow a disk is is nothing that is
/// tried here.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a directory")
}

impl Redis {
    /// Starts a server that keeps what it acknowledges, and waits until it serves.
    pub(crate) fn start() -> Self {
        Self::start_with(&SAFE)
    }

    /// Starts one with these flags.
    pub(crate) fn start_with(flags: &[&str]) -> Self {
        let mut server = Self::prepared(flags);
        server.launch();
        server
    }

    /// Starts one that keeps what it acknowledges, with these variables in its
    /// environment.
    pub(crate) fn start_in(environment: Vec<(String, String)>) -> Self {
        let mut server = Self::prepared(&SAFE);
        server.environment = environment;
        server.launch();
        server
    }

    /// One that does not run yet.
    pub(crate) fn prepared(flags: &[&str]) -> Self {
        let (directory, port) = (directory(), ports::free());
        let path = directory.path().display().to_string();
        let mut all = vec![
            "--port".to_owned(),
            port.to_string(),
            "--bind".to_owned(),
            "127.0.0.1".to_owned(),
            "--dir".to_owned(),
            path,
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Self {
            directory,
            port,
            flags: all,
            process: None,
            is_encrypted: false,
            environment: Vec::new(),
        }
    }

    /// One that speaks TLS only, with a certificate of an authority of its own.
    pub(crate) fn start_encrypted() -> Self {
        let mut server = Self::prepared(&SAFE);
        let authority = authority();
        let [certificate, key] = certified(&authority, false);
        let file = |name: &str, text: &str| {
            let path = server.directory.path().join(name);
            fs::write(&path, text).expect("to write it");
            path.display().to_string()
        };
        let flags = [
            "--tls-port".to_owned(),
            server.port.to_string(),
            "--tls-cert-file".to_owned(),
            file("cert", &certificate),
            "--tls-key-file".to_owned(),
            file("key", &key),
            "--tls-ca-cert-file".to_owned(),
            file("ca", &authority.pem()),
            "--tls-auth-clients".to_owned(),
            "no".to_owned(),
        ];
        // Instead of the other port.
        server.flags[1] = "0".to_owned();
        server.flags.extend(flags);
        server.is_encrypted = true;
        server.launch();
        server
    }

    /// A sentinel that watches this server under the name `main`.
    pub(crate) fn sentinel_of(primary: &Self) -> Self {
        let (directory, port) = (directory(), ports::free());
        let file = directory.path().join("sentinel.conf");
        let text = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor main 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 3000\n",
            directory.path().display(),
            primary.port
        );
        fs::write(&file, text).expect("to write it");
        let mut sentinel = Self {
            directory,
            port,
            flags: vec![file.display().to_string(), "--sentinel".to_owned()],
            process: None,
            is_encrypted: false,
            environment: Vec::new(),
        };
        sentinel.launch();
        sentinel
    }

    /// Starts it, and waits until it serves.
    pub(crate) fn launch(&mut self) {
        self.launch_with(&[]);
    }

    /// The same with flags that override its own.
    fn launch_with(&mut self, flags: &[&str]) {
        // Of what it said before nothing is of interest.
        let log = fs::File::create(self.log());
        let server = Command::new("redis-server")
            .args(&self.flags)
            .args(flags)
            .current_dir(self.directory.path())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(log.expect("a log"))
            .stderr(Stdio::null())
            // What the terminal sends is not for the server.
            .process_group(0)
            .spawn();
        self.process = Some(server.expect("redis-server, by apt-get install redis-server"));
        let until = clock::boot().after(PATIENCE);
        let said = || fs::read_to_string(self.log()).unwrap_or_default();
        let serves = |said: &str| {
            // The second is a sentinel's.
            said.contains("Ready to accept connections") || said.contains("+monitor master")
        };
        while !serves(&said()) {
            assert!(clock::boot() < until, "no server came up: {}", said());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_encrypted { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The authority's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.path().join("ca")
    }

    /// Kills it, without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.process.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }

    /// Kills it, without a chance to clean up, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// Kills it, takes what it kept away, and starts it empty.
    pub(crate) fn wipe(&mut self) {
        self.kill();
        self.empty();
        self.launch();
    }

    /// Kills it, and starts it with what `redis-cli --rdb` has written to `file`.
    pub(crate) fn restore(&mut self, file: &Path) {
        self.kill();
        self.empty();
        fs::copy(file, self.directory.path().join("dump.rdb")).expect("room");
        // With its log of writes it would read that alone, and there is none.
        self.launch_with(&["--appendonly", "no"]);
        self.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    }

    /// The directory it lives in.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn empty(&self) {
        for kept in fs::read_dir(self.directory.path()).expect("its directory") {
            let path = kept.expect("an entry").path();
            if path.is_dir() {
                fs::remove_dir_all(path).expect("to remove it");
            } else {
                fs::remove_file(path).expect("to remove it");
            }
        }
    }

    /// Freezes it until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        await_stopped(pid(self.process.as_ref().expect("it runs")));
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let server = self.process.as_ref().expect("it runs");
        kill_process(pid(server), signal).expect("it runs");
    }

    /// Runs a command by `redis-cli`, and returns what it printed.
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        let ran = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(arguments)
            .output()
            .expect("redis-cli, by apt-get install redis-server");
        let said = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
        assert!(
            ran.status.success() && !said.starts_with("ERR") && !said.starts_with("NO"),
            "{arguments:?}: {said} {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        said
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}
