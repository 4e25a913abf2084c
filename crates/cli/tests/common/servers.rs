//! Three real servers of a cluster, and what asks them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{TENURE, poll_until, ports};

/// How long anything is waited for; nothing waits for it to pass.
pub(crate) const SOON: Duration = Duration::from_secs(40);

/// What a command says, within 90 s.
pub(crate) fn tenure(args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["90", TENURE])
        .args(args)
        .output()
        .expect("tenure runs")
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn objects(args: &[&str]) -> Vec<Value> {
    let output = tenure(args);
    let text = String::from_utf8(output.stdout).expect("text");
    let object = |line: &str| serde_json::from_str(line).expect("an object a line");
    text.lines().map(object).collect()
}

/// Addresses that are free now.
pub(crate) fn free<const N: usize>() -> [String; N] {
    std::array::from_fn(|_| ports::address())
}

/// Begins a call over HTTP/1.1, on a connection of its own; `head` is its
/// method and path.
pub(crate) fn call(address: &str, head: &str, body: &str) -> TcpStream {
    call_with(address, head, "", body)
}

/// The same with more headers, each with its end of line.
pub(crate) fn call_with(address: &str, head: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    stream
}

/// What comes of it: the head and the body.
pub(crate) fn answer(mut call: TcpStream) -> String {
    let mut text = String::new();
    call.read_to_string(&mut text).expect("an answer");
    text
}

/// The value of one of a server's metrics, without its prefix.
pub(crate) fn metric(address: &str, name: &str) -> f64 {
    let text = answer(call(address, "GET /metrics", ""));
    let value = |line: &str| {
        line.strip_prefix("tenure_")?
            .strip_prefix(name)?
            .parse()
            .ok()
    };
    let found = text.lines().find_map(value);
    found.unwrap_or_else(|| panic!("expected {name:?} in {text}"))
}

/// Waits until one of the servers of `url` leads.
pub(crate) fn led(url: &str) {
    let leads = || tenure(&["status", "--store", url]).status.success();
    poll_until(SOON, || leads().then_some(())).expect("a leader");
}

/// Waits until the server at this address follows, or leads.
pub(crate) fn ready(address: &str) {
    let listens = || TcpStream::connect(address).ok();
    let ready = || {
        let said = answer(call(address, "GET /readyz", ""));
        said.contains("200 OK").then_some(())
    };
    poll_until(SOON, || listens().and_then(|_| ready())).expect("it is ready");
}

/// Waits until all servers of `url` have raised the cluster's version to the
/// second: from then on everybody has to prove a secret, and sessions have
/// owners.
pub(crate) fn risen(url: &str) {
    let risen = || {
        let all = objects(&["status", "--json", "--store", url]);
        let risen = |it: &Value| it["cluster_version"].as_u64() >= Some(2);
        (!all.is_empty() && all.iter().all(risen)).then_some(())
    };
    poll_until(SOON, risen).expect("the second version");
}

/// A server and what it has said on stderr. Killed when this is dropped.
pub(crate) struct Heard {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Heard {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a server");
        let lines = BufReader::new(child.stderr.take().expect("its stderr")).lines();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                heard.lock().expect("whole").push(line);
            }
        });
        Self { child, said }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        let id = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process id"), Signal::TERM).expect("it runs");
    }

    /// How it has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.child.wait().expect("its status")
    }

    /// How many lines have all of these words.
    pub(crate) fn count(&self, words: &[&str]) -> usize {
        let said = self.said.lock().expect("whole");
        let has_all = |line: &&String| words.iter().all(|word| line.contains(word));
        said.iter().filter(has_all).count()
    }

    /// All lines.
    pub(crate) fn all(&self) -> Vec<String> {
        self.said.lock().expect("whole").clone()
    }

    /// Waits until so many lines with all of these words have been said.
    pub(crate) fn says(&self, times: usize, words: &[&str]) {
        let heard = poll_until(SOON, || (self.count(words) >= times).then_some(()));
        heard.unwrap_or_else(|| panic!("expected {words:?}, found {:#?}", self.said.lock()));
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three `tenure serve`, killed when this is dropped.
pub(crate) struct Cluster {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) peers: String,
    pub(crate) clients: Vec<String>,
    pub(crate) servers: Vec<Child>,
    /// What each server is started with besides.
    pub(crate) args: Vec<String>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1")
    }

    /// The same on another address of this machine.
    pub(crate) fn start_at(host: &str) -> Self {
        Self::start_as(TENURE, host)
    }

    /// The same as any release of tenure.
    pub(crate) fn start_as(binary: &str, host: &str) -> Self {
        Self::start_all(binary, host, &[])
    }

    /// The same with more arguments.
    pub(crate) fn start_with(args: &[&str]) -> Self {
        Self::start_all(TENURE, "127.0.0.1", args)
    }

    /// None of which is started.
    pub(crate) fn apart() -> Self {
        Self::apart_at("127.0.0.1", &[])
    }

    fn apart_at(host: &str, args: &[&str]) -> Self {
        let [one, two, three, clients @ ..] = free::<6>().map(|it| it.replace("127.0.0.1", host));
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            peers: format!("1={one},2={two},3={three}"),
            clients: clients.into(),
            servers: Vec::new(),
            args: args.iter().copied().map(str::to_owned).collect(),
        }
    }

    fn start_all(binary: &str, host: &str, args: &[&str]) -> Self {
        let mut cluster = Self::apart_at(host, args);
        let start = |id| cluster.command(binary, id).stdout(Stdio::null()).spawn();
        cluster.servers = (1..=3).map(|id| start(id).expect("a server")).collect();
        led(&cluster.url());
        cluster
    }

    pub(crate) fn serve(&self, id: usize) -> Child {
        self.command(TENURE, id)
            .stdout(Stdio::null())
            .spawn()
            .expect("a server")
    }

    /// What starts a server, as any release of tenure, which says errors only.
    pub(crate) fn command(&self, binary: &str, id: usize) -> Command {
        let mut command = self.loud(binary, id);
        command.arg("--quiet");
        command
    }

    /// The same, and it says everything.
    pub(crate) fn loud(&self, binary: &str, id: usize) -> Command {
        let data = self.directory.path().join(id.to_string());
        let mut command = Command::new(binary);
        command
            .args(["serve", "--insecure", "--id", &id.to_string()])
            .args(["--peers", &self.peers, "--listen", &self.clients[id - 1]])
            .arg("--data")
            .arg(data)
            .args(&self.args);
        command
    }

    pub(crate) fn kill(&mut self, id: usize) {
        let server = &mut self.servers[id - 1];
        server.kill().expect("killed");
        server.wait().expect("it has ended");
    }

    /// Kills all servers and starts them again.
    pub(crate) fn restart_all(&mut self) {
        (1..=self.servers.len()).for_each(|id| self.kill(id));
        for id in 1..=self.servers.len() {
            self.servers[id - 1] = self.serve(id);
        }
        led(&self.url());
    }

    /// Kills a server, and starts it again; until it follows, or leads.
    pub(crate) fn restart(&mut self, id: usize) {
        self.kill(id);
        self.servers[id - 1] = self.serve(id);
        ready(&self.clients[id - 1]);
    }

    pub(crate) fn url(&self) -> String {
        format!("tenure://{}", self.clients.join(","))
    }

    /// The highest term that a server knows: it grows with each election.
    pub(crate) fn term(&self) -> u64 {
        let terms = || {
            let objects = objects(&["status", "--json", "--store", &self.url()]);
            objects.iter().filter_map(|it| it["term"].as_u64()).max()
        };
        poll_until(SOON, terms).expect("a term")
    }

    /// Which server leads.
    pub(crate) fn leader(&self) -> usize {
        let leads = || {
            let objects = objects(&["status", "--json", "--store", &self.url()]);
            let leader = objects.iter().find(|it| it["role"] == "leader")?;
            usize::try_from(leader["id"].as_u64()?).ok()
        };
        poll_until(SOON, leads).expect("a leader")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
