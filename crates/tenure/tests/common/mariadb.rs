//! A private MariaDB for one test: on a free port, in a directory of its own, stopped
//! when dropped.
//!
//! The server refuses to run as root, so as root it runs as `mysql`. What it needs of
//! tables of its own takes seconds to make, so they are made once and copied.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use tenure::clock;

use super::ports;
use super::stopped::await_stopped;

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The password of the user `tenure`.
pub(crate) const PASSWORD: &str = "open sesame";

/// A private server.
pub(crate) struct MariaDb {
    directory: tempfile::TempDir,
    port: u16,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    server: Option<Child>,
}

/// The user that servers run as, when we are root.
fn server_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let line = users.lines().find(|line| line.starts_with("mysql:"));
    let line = line.expect("a user called mysql: MariaDB, by apt-get");
    let mut numbers = line.split(':').skip(2).map(str::parse);
    let mut number = || numbers.next().expect("an id").expect("a number");
    Some((number(), number()))
}

fn as_server_user(program: &str) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = server_user() {
        command.uid(user).gid(group);
    }
    // What the terminal sends is not for the server.
    command.process_group(0);
    command
}

fn give_away(path: &Path) {
    if let Some((user, group)) = server_user() {
        chown(path, Some(user), Some(group)).expect("to give it away");
    }
}

/// Copies a directory and gives the copy to the server.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    give_away(to);
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).expect("to copy it");
            give_away(&to);
        }
    }
}

/// The tables of a new server, of this version.
fn template() -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let version = Command::new("mariadbd").arg("--version").output();
    let version = version.expect("MariaDB, by apt-get").stdout;
    let version: String = String::from_utf8_lossy(&version)
        .chars()
        .filter(|it| it.is_ascii_alphanumeric() || ".-".contains(*it))
        .collect();
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(version);
    if !kept.exists() {
        let directory = tempfile::tempdir().expect("a directory");
        give_away(directory.path());
        let made = as_server_user("mariadb-install-db")
            .arg("--no-defaults")
            .arg(format!(
                "--datadir={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--tmpdir={}", directory.path().display()))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .args([
                "--innodb-log-file-size=8M",
                "--innodb-flush-log-at-trx-commit=0",
            ])
            .current_dir(directory.path())
            .output()
            .expect("mariadb-install-db runs");
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stdout)
        );
        // Another process may make one as well: the first that is whole counts.
        let whole = kept.with_extension(std::process::id().to_string());
        copy(&directory.path().join("data"), &whole);
        let _ = fs::rename(&whole, &kept);
        let _ = fs::remove_dir_all(&whole);
    }
    kept
}

fn pid(child: &Child) -> Pid {
    let number = i32::try_from(child.id()).ok();
    number.and_then(Pid::from_raw).expect("a process id")
}

impl MariaDb {
    /// Starts a server with a database `elections` and a user for it.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with options of the server.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::prepared(options, Vec::new(), &template())
    }

    /// The same with these variables in the server's environment.
    pub(crate) fn start_in(environment: Vec<(String, String)>) -> Self {
        Self::prepared(&[], environment, &template())
    }

    fn prepared(options: &[&str], environment: Vec<(String, String)>, from: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        give_away(directory.path());
        copy(from, &directory.path().join("data"));
        let users = format!(
            "CREATE DATABASE IF NOT EXISTS elections;\n\
             CREATE USER IF NOT EXISTS tenure@'%' IDENTIFIED BY '{PASSWORD}';\n\
             GRANT ALL ON elections.* TO tenure@'%';\n"
        );
        fs::write(directory.path().join("init"), users).expect("to write it");
        let mut server = Self {
            directory,
            port: ports::free(),
            options: options.iter().map(ToString::to_string).collect(),
            environment,
            server: None,
        };
        server.launch();
        server
    }

    /// Starts servers that are one cluster of Galera. The first makes the database, and
    /// the others copy it.
    pub(crate) fn start_cluster(count: usize) -> Vec<Self> {
        let (first, group) = Self::start_member(None, None, &[]);
        let mut servers = vec![first];
        for _ in 1..count {
            servers.push(Self::start_member(Some(&group), None, &[]).0);
        }
        servers
    }

    /// Starts two clusters of two servers, whose state and addresses are copies.
    pub(crate) fn start_twin_clusters() -> [[Self; 2]; 2] {
        let named =
            ["one:3306", "two:3306"].map(|it| format!("--wsrep-node-incoming-address={it}"));
        let (mut made, _) = Self::start_member(None, None, &[]);
        made.stop();
        [(); 2].map(|()| {
            let (first, group) = Self::start_member(None, Some(&made), &[&named[0]]);
            let (second, _) = Self::start_member(Some(&group), None, &[&named[1]]);
            [first, second]
        })
    }

    /// Starts a server of a cluster of Galera. It joins the member at the address `cluster`,
    /// or begins a new cluster. Its data is a copy of that of `copied`, if that is given.
    /// Returns the address by which others join it.
    fn start_member(cluster: Option<&str>, copied: Option<&Self>, more: &[&str]) -> (Self, String) {
        let [group, state, changes] = [(); 3].map(|()| ports::address());
        let base = group.rsplit(':').next().unwrap_or_default();
        let mut options = vec![
            "--binlog-format=ROW".to_owned(),
            "--innodb-autoinc-lock-mode=2".into(),
            "--wsrep-on=ON".into(),
            "--wsrep-dirty-reads=ON".into(),
            "--wsrep-provider=/usr/lib/galera/libgalera_smm.so".into(),
            "--wsrep-cluster-name=test".into(),
            format!(
                "--wsrep-cluster-address=gcomm://{}",
                cluster.unwrap_or_default()
            ),
            format!("--wsrep-node-address={group}"),
            "--wsrep-sst-method=rsync".into(),
            format!("--wsrep-sst-receive-address={state}"),
            format!(
                "--wsrep-provider-options=base_port={base};gcache.size=8M;pc.recovery=false;\
                 ist.recv_addr={changes};gmcast.listen_addr=tcp://{group}"
            ),
        ];
        if cluster.is_none() {
            options.push("--wsrep-new-cluster".into());
        }
        let mut options: Vec<_> = options.iter().map(String::as_str).collect();
        options.extend(more);
        let from = copied.map_or_else(template, |it| it.directory.path().join("data"));
        let server = Self::prepared(&options, Vec::new(), &from);
        server.await_status("wsrep_ready", "ON");
        (server, group)
    }

    /// Waits until the server says this of itself. (It takes connections before it is a
    /// part of its cluster.)
    pub(crate) fn await_status(&self, name: &str, value: &str) {
        let give_up = clock::boot().after(PATIENCE);
        let asked = format!("SHOW STATUS LIKE '{name}'");
        while self.sql(&asked).split_whitespace().nth(1) != Some(value) {
            assert!(clock::boot() < give_up, "{name} was never {value}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill).
    pub(crate) fn launch(&mut self) {
        let directory = self.directory.path().display();
        let mut server = as_server_user("mariadbd")
            .arg("--no-defaults")
            .arg(format!("--datadir={directory}/data"))
            // A server that starts deletes the temporary tables in its directory, also
            // those of another server.
            .arg(format!("--tmpdir={directory}"))
            .arg(format!("--socket={directory}/socket"))
            .arg(format!("--pid-file={directory}/pid"))
            .arg(format!("--init-file={directory}/init"))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            // Its process is killed, its machine is not: a disk that others keep busy
            // must not decide how soon it answers.
            .args([
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-log-file-size=8M",
                "--innodb-flush-method=nosync",
            ])
            .args(["--innodb-buffer-pool-size=16M", "--performance-schema=OFF"])
            .args(&self.options)
            .current_dir(self.directory.path())
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("mariadbd runs");
        let log = server.stderr.take().expect("its log");
        let (send, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let mut said = Vec::new();
        loop {
            let line = told.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("it never came up: {said:?}"));
            if line.contains("ready for connections") {
                break;
            }
            said.push(line);
        }
        self.server = Some(server);
    }

    /// Takes away all that a stopped server has.
    pub(crate) fn empty(&self) {
        let data = self.directory.path().join("data");
        fs::remove_dir_all(&data).expect("its data");
        copy(&template(), &data);
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        self.url_of("tenure", PASSWORD)
    }

    /// The same without the password.
    pub(crate) fn url_without_password(&self) -> String {
        format!("mysql://tenure@{}/elections", self.host())
    }

    /// The same of another user, or with another password.
    pub(crate) fn url_of(&self, user: &str, password: &str) -> String {
        let password = password.replace(' ', "%20");
        format!("mysql://{user}:{password}@{}/elections", self.host())
    }

    /// Where it listens.
    pub(crate) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The directory it lives in.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// One of the programs that come with it, as root.
    fn program(&self, name: &str) -> Command {
        let mut program = Command::new(name);
        program
            .args(["--no-defaults", "-u", "root", "-S"])
            .arg(self.directory.path().join("socket"));
        program
    }

    fn client(&self) -> Command {
        let mut client = self.program("mariadb");
        client.args(["-N", "-B", "elections"]);
        client
    }

    /// Writes the table of registers to a file of statements.
    pub(crate) fn dump(&self, file: &Path) {
        let dumped = self
            .program("mariadb-dump")
            .args(["--hex-blob", "--single-transaction"])
            .arg(format!("--result-file={}", file.display()))
            .args(["elections", "tenure_register"])
            .status();
        assert!(dumped.expect("mariadb-dump runs").success());
    }

    /// Runs the statements of a file.
    pub(crate) fn run_file(&self, file: &Path) {
        let statements = fs::File::open(file).expect("to read it");
        let ran = self.client().stdin(statements).status();
        assert!(ran.expect("the client runs").success());
    }

    /// Runs statements as root, and returns what was printed.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let ran = self.client().args(["-e", statements]).output();
        let ran = ran.expect("the client runs");
        assert!(
            ran.status.success(),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    /// A session of root in which this was done, and that waits.
    pub(crate) fn hold(&self, statements: &str) -> Session {
        use std::io::Write as _;
        let mut client = self.client();
        // Unbuffered: what it prints comes when it prints it.
        let client = client
            .arg("-n")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut client = client.spawn().expect("the client runs");
        let mut to = client.stdin.take().expect("its input");
        writeln!(to, "{statements}; SELECT 'held';").expect("it reads");
        let mut line = String::new();
        let mut from = BufReader::new(client.stdout.take().expect("its output"));
        while line.trim() != "held" {
            line.clear();
            assert_ne!(
                from.read_line(&mut line).expect("it answers"),
                0,
                "it ended"
            );
        }
        Session { client, _to: to }
    }

    /// Stops it, with its data kept.
    pub(crate) fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// Kills it without a chance to clean up.
    pub(crate) fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Kills it, without a chance to clean up, and starts it again.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(pid(&server), Signal::CONT);
            let _ = kill_process(pid(&server), signal);
            server.wait().expect("it ends");
        }
    }

    /// Freezes it until [`resume`](Self::resume).
    pub(crate) fn pause(&self) {
        let server = self.server.as_ref().expect("it runs");
        kill_process(pid(server), Signal::STOP).expect("it runs");
        await_stopped(pid(server));
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&self) {
        let server = self.server.as_ref().expect("it runs");
        kill_process(pid(server), Signal::CONT).expect("it runs");
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A session that ends when it is dropped.
pub(crate) struct Session {
    client: Child,
    _to: ChildStdin,
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}
