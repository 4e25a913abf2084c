//! Private servers of NATS for one test: on free ports, in directories of their own,
//! stopped when dropped.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure::clock;
use tokio_stream::StreamExt as _;

use super::installed::installed;
use super::ports;
use super::stopped::await_stopped;

/// How long a server may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server has to have to be a store.
pub(crate) const JETSTREAM: &str = "jetstream { sync_interval: always, store_dir: \"DIR\" }";

/// What a server says when it has read its configuration again.
const RELOADED: &str = "Reloaded server configuration";

/// Private servers, of one cluster if they are several.
pub(crate) struct Nats {
    servers: Vec<Server>,
}

struct Server {
    directory: tempfile::TempDir,
    client: u16,
    process: Option<Child>,
}

fn pid(child: &Child) -> Pid {
    let id = i32::try_from(child.id()).ok();
    id.and_then(Pid::from_raw).expect("a process id")
}

/// A directory in memory, where there is one: how slow a disk is is nothing that is
/// tried here.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a directory")
}

impl Nats {
    /// A server with JetStream, that serves.
    pub(crate) fn start() -> Self {
        Self::start_with(JETSTREAM)
    }

    /// One with this configuration, in which `DIR` is its directory.
    pub(crate) fn start_with(config: &str) -> Self {
        let mut server = Self::prepared(config);
        server.launch(0);
        server
    }

    /// One that does not run yet.
    pub(crate) fn prepared(config: &str) -> Self {
        Self {
            servers: vec![Server::new(0, config)],
        }
    }

    /// A cluster of so many servers with JetStream, that serves.
    pub(crate) fn cluster(count: usize) -> Self {
        let route = |_| ports::address();
        let routes: Vec<_> = (0..count).map(route).collect();
        let all: Vec<_> = routes.iter().map(|it| format!("nats://{it}")).collect();
        let server = |at: usize| {
            let own = &routes[at];
            let all = all.join(", ");
            let config =
                format!("{JETSTREAM}\ncluster {{ name: c, listen: \"{own}\", routes: [{all}] }}");
            Server::new(at, &config)
        };
        let mut cluster = Self {
            servers: (0..count).map(server).collect(),
        };
        (0..count).for_each(|at| cluster.launch(at));
        cluster.await_log("new metadata leader");
        cluster
    }

    /// Waits until a server has said this.
    pub(crate) fn await_log(&self, words: &str) {
        let until = clock::boot().after(PATIENCE);
        while !self
            .servers
            .iter()
            .any(|server| server.said().contains(words))
        {
            let first = self.servers.first().map(Server::said);
            assert!(clock::boot() < until, "nobody said {words}: {first:?}");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Starts a server, and waits until it serves.
    pub(crate) fn launch(&mut self, at: usize) {
        let server = self.servers.get_mut(at).expect("a server");
        server.launch();
        let until = clock::boot().after(PATIENCE);
        while !server.said().contains("Server is ready") {
            assert!(clock::boot() < until, "no server: {}", server.said());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Kills a server, without a chance to clean up.
    pub(crate) fn kill(&mut self, at: usize) {
        self.servers.get_mut(at).expect("a server").end();
    }

    /// Kills all servers, and starts them again.
    pub(crate) fn restart_all(&mut self) {
        (0..self.servers.len()).for_each(|at| self.kill(at));
        (0..self.servers.len()).for_each(|at| self.launch(at));
    }

    /// Kills one server after the other, and starts it again; until all have all of the
    /// stream.
    pub(crate) async fn restart_each(&mut self, stream: &str) {
        for at in 0..self.servers.len() {
            self.kill(at);
            self.launch(at);
            self.await_current(stream).await;
        }
    }

    /// Takes away all that a killed server has.
    pub(crate) fn empty(&self, at: usize) {
        let server = self.servers.get(at).expect("a server");
        let data = server.directory.path().join("jetstream");
        fs::remove_dir_all(data).expect("its data");
    }

    /// Has a server read this configuration in the place of the one that it has.
    pub(crate) fn reconfigure(&self, at: usize, config: &str) {
        let server = self.servers.get(at).expect("a server");
        let reloads = || server.said().matches(RELOADED).count();
        let before = reloads();
        server.configure(at, config);
        server.signal(Signal::HUP);
        let until = clock::boot().after(PATIENCE);
        while reloads() == before {
            assert!(clock::boot() < until, "not reloaded: {}", server.said());
            std::thread::park_timeout(Duration::from_millis(5));
        }
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

    /// `host:port` of a server.
    pub(crate) fn host(&self, at: usize) -> String {
        let server = self.servers.get(at).expect("a server");
        format!("127.0.0.1:{}", server.client)
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = (0..self.servers.len()).map(|at| self.host(at)).collect();
        format!("nats://{}", hosts.join(","))
    }

    /// Another client of the first server that runs.
    pub(crate) async fn client(&self) -> async_nats::Client {
        let runs = self.servers.iter().position(|it| it.process.is_some());
        let host = self.host(runs.expect("a server that runs"));
        async_nats::connect(host).await.expect("a connection")
    }

    /// Asks the interface of JetStream something.
    pub(crate) async fn api(&self, call: &str, question: &Value) -> Value {
        self.ask(call, question).await.expect("an answer")
    }

    /// The same of servers that may not answer.
    async fn ask(&self, call: &str, question: &Value) -> Option<Value> {
        let client = self.client().await;
        let question = question.to_string().into();
        let answer = client.request(format!("$JS.API.{call}"), question).await;
        Some(serde_json::from_slice(&answer.ok()?.payload).expect("JSON"))
    }

    /// Waits until the stream is led, and all servers have all of it.
    async fn await_current(&self, stream: &str) {
        let until = clock::boot().after(PATIENCE);
        loop {
            let info = self.ask(&format!("STREAM.INFO.{stream}"), &json!({})).await;
            let info = info.unwrap_or_default();
            let cluster = &info["cluster"];
            let replicas = cluster["replicas"]
                .as_array()
                .map_or(&[][..], Vec::as_slice);
            let are_current = replicas.iter().all(|it| it["current"] == true);
            let is_led = cluster["leader"].is_string();
            let is_alone = self.servers.len() == 1;
            if is_alone || is_led && are_current && replicas.len() + 1 == self.servers.len() {
                return;
            }
            assert!(clock::boot() < until, "they never had all: {info}");
        }
    }

    /// Writes a stream to a directory, as `nats stream backup` does.
    pub(crate) async fn backup(&self, stream: &str, directory: &Path) {
        let client = self.client().await;
        let inbox = client.new_inbox();
        let mut parts = client.subscribe(inbox.clone()).await.expect("to listen");
        client.flush().await.expect("to listen");
        let question = json!({ "deliver_subject": inbox, "no_consumers": true });
        let kept = self
            .api(&format!("STREAM.SNAPSHOT.{stream}"), &question)
            .await;
        let mut all = Vec::new();
        loop {
            let part = parts.next().await.expect("a part");
            if part.payload.is_empty() {
                break;
            }
            all.extend_from_slice(&part.payload);
            // Where the server asks whether to go on, it waits for that.
            if let Some(reply) = part.reply {
                client.publish(reply, "".into()).await.expect("to answer");
            }
        }
        fs::create_dir(directory).expect("a directory");
        fs::write(directory.join("backup.json"), kept.to_string()).expect("room");
        fs::write(directory.join("stream.tar.s2"), all).expect("room");
    }

    /// Deletes a stream, and makes it anew of that, as `nats stream restore` does.
    pub(crate) async fn restore(&self, stream: &str, directory: &Path) {
        let kept = fs::read_to_string(directory.join("backup.json")).expect("a backup");
        let kept: Value = serde_json::from_str(&kept).expect("JSON");
        self.done(&format!("STREAM.DELETE.{stream}"), &json!({}))
            .await;
        let question = json!({ "config": kept["config"], "state": kept["state"] });
        let to = self
            .done(&format!("STREAM.RESTORE.{stream}"), &question)
            .await;
        let to = to["deliver_subject"].as_str().expect("whom to send it to");
        let all = fs::read(directory.join("stream.tar.s2")).expect("a backup");
        let client = self.client().await;
        // The last one, which is empty, says that this is all.
        for part in all.chunks(128 * 1_024).chain([&[][..]]) {
            let taken = client.request(to.to_owned(), part.to_vec().into()).await;
            let said = taken.expect("an answer").payload;
            assert!(!said.windows(7).any(|it| it == b"\"error\""), "{said:?}");
        }
    }

    /// Asks the interface of JetStream for something that it has to do.
    pub(crate) async fn done(&self, call: &str, question: &Value) -> Value {
        let answer = self.api(call, question).await;
        assert!(answer["error"].is_null(), "{call}: {answer}");
        answer
    }

    /// The directory that the first server lives in.
    pub(crate) fn directory(&self) -> &Path {
        self.servers.first().expect("a server").directory.path()
    }

    /// The number of the server that leads the stream of the bucket.
    pub(crate) async fn leader(&self, stream: &str) -> usize {
        let info = self.api(&format!("STREAM.INFO.{stream}"), &json!({})).await;
        let name = info["cluster"]["leader"].as_str().expect("a leader");
        let number = name.strip_prefix('s').and_then(|it| it.parse().ok());
        number.expect("one of these servers")
    }
}

impl Server {
    fn new(at: usize, config: &str) -> Self {
        let (directory, client) = (directory(), ports::free());
        let server = Self {
            directory,
            client,
            process: None,
        };
        server.configure(at, config);
        server
    }

    fn configure(&self, at: usize, config: &str) {
        let client = self.client;
        let path = self.directory.path().display().to_string();
        let config = config.replace("DIR", &path);
        let text = format!("listen: \"127.0.0.1:{client}\"\nserver_name: s{at}\n{config}\n");
        fs::write(self.directory.path().join("nats.conf"), text).expect("to write it");
    }

    fn launch(&mut self) {
        // Of what it said before it was killed nothing is of interest.
        let log = fs::File::create(self.log()).expect("a log");
        let server = Command::new(installed("bin/nats-server"))
            .arg("-c")
            .arg(self.directory.path().join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            // What the terminal sends is not for the server.
            .process_group(0)
            .spawn();
        self.process = Some(server.expect("a server"));
    }

    fn log(&self) -> PathBuf {
        Path::new(self.directory.path()).join("log")
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
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
