//! A private PostgreSQL (and PgBouncer) for one test: on a free port, in a
//! directory of its own, stopped when dropped.
//!
//! The servers refuse to run as root, so as root they run as `postgres`.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::ports;
use super::stopped::await_stopped;

/// How long a server may take to come up or go down.
const PATIENCE: Duration = Duration::from_secs(60);

/// A private server.
pub(crate) struct Postgres {
    directory: tempfile::TempDir,
    port: u16,
    /// Whether a commit waits for the disk.
    syncs: bool,
    environment: Vec<(String, String)>,
    server: Option<Child>,
}

/// A private transaction-pooling proxy before a [`Postgres`].
pub(crate) struct Bouncer {
    _directory: tempfile::TempDir,
    port: u16,
    server: Child,
}

/// The user that servers run as, when we are root.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let line = users.lines().find(|line| line.starts_with("postgres:"));
    let mut fields = line.expect("a user called postgres").split(':').skip(2);
    let mut number = || {
        fields
            .next()
            .and_then(|field| field.parse().ok())
            .expect("an id")
    };
    Some((number(), number()))
}

fn as_server_user(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    // What the terminal sends is not for the server.
    command.process_group(0);
    command
}

fn binaries() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL, by apt-get");
    let mut versions: Vec<_> = versions
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    versions.sort();
    versions.pop().expect("a version of PostgreSQL")
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    if let Some((user, group)) = server_user() {
        chown(directory.path(), Some(user), Some(group)).expect("to give it away");
    }
    directory
}

/// Waits until the server says `ready` on its standard error, which is read
/// on until it ends.
fn await_line(server: &mut Child, ready: &'static str) {
    let log = server.stderr.take().expect("its log");
    let (send, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = String::new();
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            lines.push_str(&line);
            lines.push('\n');
            if line.contains(ready) {
                let _ = send.send(());
            }
        }
        lines
    });
    told.recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("the server never said {ready:?}"));
}

fn pid(child: &Child) -> Pid {
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .expect("a process id")
}

impl Postgres {
    /// Makes a database cluster and starts its server. Its processes are killed, its
    /// machine is not: a disk that others keep busy must not decide how soon it
    /// answers, so it does not wait for that.
    pub(crate) fn start() -> Self {
        Self::make(false, Vec::new())
    }

    /// The same with a server whose commits wait for the disk, as those of one that
    /// is in use do: to be measured.
    pub(crate) fn start_durable() -> Self {
        Self::make(true, Vec::new())
    }

    /// As [`start`](Self::start), with these variables in the server's environment.
    pub(crate) fn start_in(environment: Vec<(String, String)>) -> Self {
        Self::make(false, environment)
    }

    fn make(syncs: bool, environment: Vec<(String, String)>) -> Self {
        let mut postgres = Self {
            directory: directory(),
            port: ports::free(),
            syncs,
            environment,
            server: None,
        };
        postgres.make_data();
        postgres.launch();
        postgres
    }

    fn make_data(&self) {
        let directory = &self.directory;
        let made = as_server_user(binaries().join("initdb"))
            .args([
                "--auth=scram-sha-256",
                "--username=tenure",
                "--no-locale",
                "--encoding=UTF8",
            ])
            .arg("--no-sync")
            .arg(format!(
                "--pwfile={}",
                password_file(directory.path(), PASSWORD).display()
            ))
            .arg(directory.path().join("data"))
            .current_dir(directory.path())
            .output()
            .expect("initdb runs");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
    }

    /// Starts a standby that follows it.
    pub(crate) fn standby(&self) -> Self {
        self.copied_as(&["-R"])
    }

    /// A server of its own on a copy of the directory of this one.
    pub(crate) fn copied(&self) -> Self {
        self.copied_as(&[])
    }

    fn copied_as(&self, how: &[&str]) -> Self {
        let mut standby = Self {
            directory: directory(),
            port: ports::free(),
            syncs: self.syncs,
            environment: self.environment.clone(),
            server: None,
        };
        let made = as_server_user(binaries().join("pg_basebackup"))
            .args(["-d", &self.url(), "-X", "stream", "-c", "fast"])
            .args(how)
            .args(["--no-sync", "-D"])
            .arg(standby.directory.path().join("data"))
            .current_dir(standby.directory.path())
            .output()
            .expect("pg_basebackup runs");
        let said = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "{said}");
        standby.launch();
        standby
    }

    /// Makes a primary of a standby.
    pub(crate) fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t");
    }

    /// Takes away all that a stopped server has, users and tables.
    pub(crate) fn empty(&self) {
        fs::remove_dir_all(self.directory.path().join("data")).expect("its data");
        self.make_data();
    }

    /// Starts it again after [`stop`](Self::stop).
    pub(crate) fn launch(&mut self) {
        let directory = self.directory.path();
        let mut server = as_server_user(binaries().join("postgres"))
            .arg("-D")
            .arg(directory.join("data"))
            .args(["-p", &self.port.to_string(), "-k"])
            .arg(directory)
            .args([
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "max_connections=200",
                "-c",
                if self.syncs { "fsync=on" } else { "fsync=off" },
            ])
            .current_dir(directory)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("postgres runs");
        // "connections", or "read-only connections" of a standby.
        await_line(&mut server, "ready to accept ");
        self.server = Some(server);
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        url(self.port, PASSWORD)
    }

    /// The same for a command line: without the password, which is in a file.
    pub(crate) fn url_to_type(&self) -> String {
        self.url_of("tenure", PASSWORD)
    }

    /// The same of another user, or with another password.
    pub(crate) fn url_of(&self, user: &str, password: &str) -> String {
        let file = password_file(self.directory.path(), password);
        let (port, file) = (self.port, file.display());
        format!("postgres://{user}@127.0.0.1:{port}/postgres?password_file={file}")
    }

    /// Where it listens on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The same with a wrong password.
    pub(crate) fn url_with_wrong_password(&self) -> String {
        url(self.port, "wrong")
    }

    /// The directory it lives in.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The server's version.
    pub(crate) fn version(&self) -> String {
        let version = self.sql("SHOW server_version");
        version.split(' ').next().unwrap_or_default().to_owned()
    }

    /// Runs statements by `psql` and returns what it printed.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let ran = Command::new(binaries().join("psql"))
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-c",
                statements,
                &self.url(),
            ])
            .output()
            .expect("psql runs");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    fn psql(&self) -> Command {
        let mut psql = Command::new(binaries().join("psql"));
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", &self.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        psql
    }

    /// Runs a statement in a transaction of another session, which ends so
    /// much later.
    pub(crate) fn hold(&self, statement: &str, time: Duration) -> Session {
        let mut psql = self.psql().spawn().expect("psql runs");
        let mut to = psql.stdin.take().expect("its input");
        let seconds = time.as_secs_f64();
        writeln!(
            to,
            "BEGIN; {statement}; SELECT pg_sleep({seconds}); COMMIT;"
        )
        .expect("it reads");
        Session { psql, to: Some(to) }
    }

    /// Listens to a channel in another session.
    pub(crate) fn listen(&self, channel: &str) -> Session {
        let mut psql = self.psql().spawn().expect("psql runs");
        let mut to = psql.stdin.take().expect("its input");
        writeln!(to, "LISTEN {channel}; SELECT 'it listens';").expect("it reads");
        let from = psql.stdout.as_mut().expect("its output");
        let mut line = String::new();
        BufReader::with_capacity(1, from)
            .read_line(&mut line)
            .expect("it answers");
        assert_eq!(line.trim(), "it listens");
        Session { psql, to: Some(to) }
    }

    /// Stops it (connections are cut) and starts it again.
    pub(crate) fn restart(&mut self) {
        self.end(Signal::INT);
        self.launch();
    }

    /// Kills it without a chance to clean up, and starts it again.
    pub(crate) fn crash(&mut self) {
        self.end(Signal::QUIT);
        self.launch();
    }

    /// Stops it.
    pub(crate) fn stop(&mut self) {
        self.end(Signal::INT);
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut server) = self.server.take() {
            kill_process(pid(&server), signal).expect("it was running");
            server.wait().expect("it ends");
        }
    }

    /// Freezes every process of the server until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    fn signal_all(&self, signal: Signal) {
        let server = self.server.as_ref().expect("it runs");
        let postmaster = pid(server);
        kill_process(postmaster, signal).expect("it runs");
        let heeded = |process| {
            if signal == Signal::STOP {
                await_stopped(process);
            }
        };
        // After this it has no more of them.
        heeded(postmaster);
        for child in self.processes() {
            let child = i32::try_from(child).ok().and_then(Pid::from_raw);
            if let Some(child) = child.filter(|child| *child != postmaster) {
                let _ = kill_process(child, signal);
                heeded(child);
            }
        }
    }

    /// The processes of the server. Its children make sessions of their own, so they
    /// are found by their parent.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let postmaster = self.server.as_ref().expect("it runs").id();
        let parent = |process: &u32| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            let (_, fields) = stat.rsplit_once(')')?;
            fields.split_whitespace().nth(1)?.parse::<u32>().ok()
        };
        let entries = fs::read_dir("/proc").expect("/proc").flatten();
        let all = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let of_it = |process: &u32| *process == postmaster || parent(process) == Some(postmaster);
        all.filter(of_it).collect()
    }
}

/// A session of `psql`.
pub(crate) struct Session {
    psql: Child,
    to: Option<std::process::ChildStdin>,
}

impl Session {
    /// Waits for its end.
    pub(crate) fn wait(mut self) {
        self.to = None;
        assert!(self.psql.wait().expect("it ends").success());
    }

    /// What it has been notified of, and whatever else it prints.
    pub(crate) fn heard(mut self) -> String {
        let mut to = self.to.take().expect("its input");
        // It tells of notifications after a statement.
        writeln!(to, "SELECT 1;").expect("it reads");
        drop(to);
        let mut text = String::new();
        let from = self.psql.stdout.as_mut().expect("its output");
        from.read_to_string(&mut text).expect("text");
        text
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.psql.kill();
        let _ = self.psql.wait();
    }
}

const PASSWORD: &str = "open sesame";

/// A file that holds this password, and that only the server's user may read.
fn password_file(directory: &Path, password: &str) -> PathBuf {
    let number = password.bytes().map(u64::from).sum::<u64>();
    let file = directory.join(format!("secret-{number}"));
    if !file.exists() {
        let mut made = fs::OpenOptions::new();
        let made = made.write(true).create(true).truncate(true).mode(0o600);
        let mut made = made.open(&file).expect("to make it");
        made.write_all(password.as_bytes()).expect("to write it");
        if let Some((user, group)) = server_user() {
            chown(&file, Some(user), Some(group)).expect("to give it away");
        }
    }
    file
}

fn url(port: u16, password: &str) -> String {
    let password = password.replace(' ', "%20");
    format!("postgres://tenure:{password}@127.0.0.1:{port}/postgres")
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(pid(&server), Signal::CONT);
            let _ = kill_process(pid(&server), Signal::QUIT);
            let _ = server.wait();
        }
    }
}

impl Bouncer {
    /// Starts a proxy in transaction-pooling mode.
    pub(crate) fn start(postgres: &Postgres) -> Self {
        Self::start_to(postgres, "postgres")
    }

    /// The same to another database of the server.
    pub(crate) fn start_to(postgres: &Postgres, database: &str) -> Self {
        let directory = directory();
        let port = ports::free();
        let users = directory.path().join("users");
        fs::write(&users, format!("\"tenure\" \"{PASSWORD}\"\n")).expect("to write it");
        let settings = directory.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} dbname={database}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = scram-sha-256\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 4\n",
            postgres.port,
            users.display()
        );
        fs::write(&settings, text).expect("to write it");
        let mut server = as_server_user("/usr/sbin/pgbouncer")
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("pgbouncer runs");
        await_line(&mut server, "process up");
        Self {
            _directory: directory,
            port,
            server,
        }
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        url(self.port, PASSWORD)
    }

    /// Where it listens on the loopback interface.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        // It keeps nothing, and waits for clients on some signals, which ones
        // depends on its version.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
