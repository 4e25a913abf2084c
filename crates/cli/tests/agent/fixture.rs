//! Agents of the real binary on one machine, over one store.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::common::etcd::Etcd;
use super::common::postgres::Postgres;
use super::common::servers::Cluster;
use super::common::{TENURE, descendants, memory_directory, poll_until, stop_between_transactions};
use super::stamps::{Run, Stamps};

/// How long anything is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(25);

/// What the agents share.
enum Backend {
    Sqlite(tempfile::TempDir),
    Postgres(Box<Postgres>),
    Etcd(Etcd),
    Cluster(Box<Cluster>),
}

/// A store, a place for agents, and what their workloads write.
pub(crate) struct Fixture {
    backend: Arc<Backend>,
    pub(crate) directory: tempfile::TempDir,
    pub(crate) stamps: Arc<Stamps>,
}

/// A `tenure node`; killed when dropped, with all it runs.
pub(crate) struct Agent {
    pub(crate) process: Child,
    pub(crate) name: String,
    pub(crate) log: PathBuf,
}

impl Fixture {
    pub(crate) fn sqlite() -> Self {
        Self::on(Backend::Sqlite(memory_directory()))
    }

    pub(crate) fn postgres() -> Self {
        Self::on(Backend::Postgres(Box::new(Postgres::start())))
    }

    /// One server of etcd.
    pub(crate) fn etcd() -> Self {
        Self::on(Backend::Etcd(Etcd::start(1)))
    }

    pub(crate) fn cluster() -> Self {
        Self::on(Backend::Cluster(Box::new(Cluster::start())))
    }

    /// One whose servers listen on that address of this machine.
    pub(crate) fn cluster_at(host: &str) -> Self {
        Self::on(Backend::Cluster(Box::new(Cluster::start_at(host))))
    }

    fn on(backend: Backend) -> Self {
        Self {
            backend: Arc::new(backend),
            directory: tempfile::tempdir().expect("a directory"),
            stamps: Arc::new(Stamps::new()),
        }
    }

    /// The same as another machine sees it: nothing that agents keep in files
    /// is shared, but the store is, and what the workloads write.
    pub(crate) fn elsewhere(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            directory: tempfile::tempdir().expect("a directory"),
            stamps: Arc::clone(&self.stamps),
        }
    }

    pub(crate) fn url(&self) -> String {
        match &*self.backend {
            Backend::Sqlite(directory) => {
                format!("sqlite://{}", directory.path().join("db").display())
            }
            Backend::Postgres(server) => server.url(),
            Backend::Etcd(server) => server.url(),
            Backend::Cluster(cluster) => cluster.url(),
        }
    }

    /// The processes of the store's servers.
    pub(crate) fn servers(&self) -> Vec<Pid> {
        match &*self.backend {
            Backend::Sqlite(_) | Backend::Postgres(_) | Backend::Etcd(_) => Vec::new(),
            Backend::Cluster(cluster) => cluster.servers.iter().map(pid).collect(),
        }
    }

    /// The term of the store's servers, if it has any that elect a leader.
    pub(crate) fn term(&self) -> Option<u64> {
        match &*self.backend {
            Backend::Sqlite(_) | Backend::Postgres(_) | Backend::Etcd(_) => None,
            Backend::Cluster(cluster) => Some(cluster.term()),
        }
    }

    /// Makes the store, without a group in it.
    pub(crate) fn make_store(&self) {
        self.done(&["run", "other", "--once", "--", "true"]);
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// A command with the store, the group and the directory of this fixture.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        self.command_of(TENURE, args)
    }

    /// The same for so many seconds, and without what it says.
    pub(crate) fn with_timeout(&self, seconds: &str, args: &[&str]) -> Command {
        let mut command = self.command_of("timeout", &[seconds, TENURE]);
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn command_of(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("TENURE_STORE", self.url())
            .env("TENURE_STATE", self.state())
            .env("TENURE_GROUP", "town")
            .stdin(Stdio::null());
        command
    }

    /// The usual lease of an agent, in seconds: longer where a disk must answer.
    pub(crate) fn lease(&self) -> f64 {
        match &*self.backend {
            Backend::Sqlite(_) => 3.0,
            Backend::Postgres(_) | Backend::Etcd(_) | Backend::Cluster(_) => 5.0,
        }
    }

    /// Starts an agent, with the usual lease unless another is named, and waits
    /// for nothing.
    pub(crate) fn start(&self, name: &str, flags: &[&str]) -> Agent {
        self.start_in(&[], name, flags)
    }

    /// The same with some words before the command, such as `nsenter`.
    pub(crate) fn start_in(&self, prefix: &[&str], name: &str, flags: &[&str]) -> Agent {
        let log = self.directory.path().join(format!("{name}.log"));
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        let err = file.try_clone().expect("a log");
        let lease = format!("{}s", self.lease());
        let usual: &[&str] = if flags.contains(&"--lease") {
            &[]
        } else {
            &["--lease", &lease]
        };
        let (program, words) = prefix
            .split_first()
            .map_or((TENURE, &[][..]), |(first, rest)| (*first, rest));
        let mut command = self.command_of(program, words);
        if !prefix.is_empty() {
            command.arg(TENURE);
        }
        let process = command
            .args(["node", "--name", name, "--grace", "400ms"])
            .args(usual)
            .args(flags)
            .stdout(file)
            .stderr(err)
            .spawn()
            .expect("tenure runs");
        Agent {
            process,
            name: name.to_owned(),
            log,
        }
    }

    /// Starts an agent and waits until it has joined.
    pub(crate) fn node(&self, name: &str, flags: &[&str]) -> Agent {
        // The log goes on where one of this name has ended.
        let joins = |said: &str| said.matches("joined as").count();
        let before = fs::read_to_string(self.directory.path().join(format!("{name}.log")));
        let before = joins(&before.unwrap_or_default());
        let agent = self.start(name, flags);
        let joined = || (joins(&agent.log_text()) > before).then_some(());
        let joined = poll_until(PATIENCE, joined);
        assert!(
            joined.is_some(),
            "{name} does not join:\n{}",
            agent.log_text()
        );
        agent
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("tenure runs")
    }

    /// What a command prints that succeeds.
    pub(crate) fn done(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// The code of one that fails, and what it says.
    pub(crate) fn fails(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let code = output.status.code().expect("it ends by itself");
        assert_ne!(code, 0, "{args:?} succeeded");
        (code, said)
    }

    /// Deploys a workload that writes stamps, and waits until it runs, by its
    /// node's word and, if that was waited for, its own: on a busy machine it
    /// may count as ready before it has come to write anything.
    pub(crate) fn deploy(&self, name: &str, flags: &[&str]) {
        self.deploy_as(name, flags, &self.stamps.command());
        if !flags.contains(&"--no-wait") {
            self.writes(name);
        }
    }

    /// Waits until a workload has written something.
    pub(crate) fn writes(&self, name: &str) -> Run {
        let written = poll_until(PATIENCE, || self.stamps.last(name));
        written.unwrap_or_else(|| panic!("{name} writes nothing: {:?}", self.workload(name)))
    }

    pub(crate) fn deploy_as(&self, name: &str, flags: &[&str], command: &[String]) {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let output = self.run(&[&["deploy", name], flags, &["--"], &command].concat());
        if output.status.success() {
            return;
        }
        // Where the machine stood still for seconds: "It stays deployed and is tried again".
        let said = String::from_utf8_lossy(&output.stderr);
        let is_late = said.contains("was about to end before it started");
        assert!(is_late, "deploy {name} {flags:?}: {said}");
        self.shows(name, |it| it["state"] == "running");
    }

    /// What `ps` shows, an object each.
    pub(crate) fn ps(&self) -> Vec<Value> {
        let text = self.done(&["ps", "--json"]);
        let object = |line: &str| serde_json::from_str(line).expect("an object a line");
        text.lines().map(object).collect()
    }

    /// What it shows of one workload.
    pub(crate) fn workload(&self, name: &str) -> Option<Value> {
        let all = self.ps();
        all.into_iter()
            .find(|it| it["workload"] == name && it["type"] == "workload")
    }

    /// The workloads that run, as their nodes say.
    pub(crate) fn running(&self) -> std::collections::BTreeSet<String> {
        let all = self.ps().into_iter();
        let running = all.filter(|it| it["type"] == "workload" && it["state"] == "running");
        running
            .filter_map(|it| Some(it["workload"].as_str()?.to_owned()))
            .collect()
    }

    pub(crate) fn member(&self, name: &str) -> Option<Value> {
        let all = self.ps();
        all.into_iter()
            .find(|it| it["node"] == name && it["type"] == "node")
    }

    /// Waits until `ps` shows a workload that fits.
    pub(crate) fn shows(&self, name: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let found = poll_until(PATIENCE, || self.workload(name).filter(&fits));
        found.unwrap_or_else(|| panic!("{name} is {:?}", self.workload(name)))
    }

    /// Waits until all of these write, each on a node that fits.
    pub(crate) fn all_run(&self, names: &[&str], fits: impl Fn(&str) -> bool) {
        let runs = |name: &&str| self.stamps.runs_on(name).is_some_and(|node| fits(&node));
        let all = poll_until(PATIENCE, || names.iter().all(runs).then_some(()));
        if all.is_none() {
            let shown = names.iter().map(|name| (name, self.stamps.last(name)));
            panic!("not all run: {:?}", shown.collect::<Vec<_>>());
        }
    }
}

fn pid(process: &Child) -> Pid {
    let raw = i32::try_from(process.id()).ok();
    raw.and_then(Pid::from_raw).expect("a process id")
}

impl Agent {
    /// The number of its process.
    pub(crate) fn process_id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(&self.process), signal).expect("it runs");
    }

    /// See [`stop_between_transactions`].
    pub(crate) fn stop(&self) {
        stop_between_transactions(pid(&self.process));
    }

    /// KILL, for the agent alone.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("it ends");
    }

    /// KILL for everything at once, as when a machine loses its power.
    pub(crate) fn kill_all(&mut self) {
        if matches!(self.process.try_wait(), Ok(Some(_))) {
            // It has gone, and its number may be another's.
            return;
        }
        let all = descendants(self.process.id());
        let _ = self.process.kill();
        for (pid, _) in all {
            // Many have gone by the time their turn comes.
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
        let _ = self.process.wait();
    }

    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until its log has this; returns the log.
    pub(crate) fn wait_for_log(&self, text: &str) -> String {
        let heard = || Some(self.log_text()).filter(|said| said.contains(text));
        poll_until(PATIENCE, heard)
            .unwrap_or_else(|| panic!("{} does not say {text:?}:\n{}", self.name, self.log_text()))
    }

    /// Waits for its end.
    pub(crate) fn wait_for_exit(&mut self) -> i32 {
        let ended = poll_until(PATIENCE, || self.process.try_wait().expect("a child"));
        ended.expect("it ends").code().expect("it ends by itself")
    }

    /// The id under which it last joined.
    pub(crate) fn id(&self) -> String {
        let said = self.log_text();
        let (_, id) = said.rsplit_once("joined as ").expect("it has joined");
        id.chars().take(32).collect()
    }

    /// One of the processes below it, by a word of its command line.
    pub(crate) fn below(&self, word: &str) -> Pid {
        self.try_below(word)
            .unwrap_or_else(|| panic!("{word} among {:?}", descendants(self.process.id())))
    }

    /// The same, if there is one.
    pub(crate) fn try_below(&self, word: &str) -> Option<Pid> {
        let all = descendants(self.process.id());
        let (pid, _) = all.into_iter().find(|(_, line)| line.contains(word))?;
        Pid::from_raw(pid)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // A stopped one hears nothing but this.
        self.kill_all();
        if std::thread::panicking() {
            super::print(&format!("--- {}\n{}", self.name, self.log_text()));
        }
    }
}

/// Whether a file with this name is below a directory.
pub(crate) fn files_below(directory: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if let Ok(data) = entry.metadata() {
            found.push((path, data.len()));
        }
    }
    found
}
