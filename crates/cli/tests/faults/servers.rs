//! Servers as processes of the real binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure_api::v1::{self, cluster_client::ClusterClient};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use crate::network::Network;

/// The binary under test.
pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");
/// Long enough on the slowest machine; nothing waits for it to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
/// How long a server that may be paused or cut off is waited for.
const ASK_WITHIN: Duration = Duration::from_millis(300);

/// Addresses that are free now, and that nobody is given before they are used:
/// below the range from which the system draws.
pub(crate) fn free<const N: usize>() -> [String; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let seed = (std::process::id() % 150) as u16 * 100;
    std::array::from_fn(|_| {
        loop {
            let port = 15_000 + seed + NEXT.fetch_add(1, Ordering::Relaxed);
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return format!("127.0.0.1:{port}");
            }
        }
    })
}

/// Looks every 20 ms until `look` finds something.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, look).await
}

/// The same for so long.
pub(crate) async fn until_within<T>(
    within: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + within;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {within:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// One running server.
pub(crate) struct Process {
    child: Child,
    /// Stopped by a signal.
    pub(crate) paused: bool,
    /// Where its words begin in the log of all its lives.
    said_from: u64,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It may have ended by itself; the process that waits for it finds out.
        let _ = kill_process(pid.expect("a process id"), signal);
    }
}

/// The servers of one cluster, running or not.
pub(crate) struct Servers {
    pub(crate) count: u64,
    dir: TempDir,
    pub(crate) network: Network,
    pub(crate) running: BTreeMap<u64, Process>,
    /// By server: where its data are, if not where they usually are.
    places: BTreeMap<u64, PathBuf>,
    /// By server: what stands before its command, and what after.
    wraps: BTreeMap<u64, (Vec<String>, Vec<String>)>,
    /// By server: with what words on its lips it may end by itself.
    excuses: BTreeSet<(u64, &'static str)>,
    /// Those that did, with these words, until somebody asks.
    fallen: Vec<(u64, &'static str)>,
}

impl Servers {
    /// Servers 1 to `count`; none of them runs yet.
    pub(crate) fn new(count: u64, network: Network) -> Self {
        Self {
            count,
            dir: tempfile::tempdir().expect("a directory"),
            network,
            running: BTreeMap::new(),
            places: BTreeMap::new(),
            wraps: BTreeMap::new(),
            excuses: BTreeSet::new(),
            fallen: Vec::new(),
        }
    }

    /// The same, all started, and one of them leads.
    pub(crate) async fn found(count: u64, network: Network) -> Self {
        let mut servers = Self::new(count, network);
        for server in servers.ids() {
            servers.start(server);
        }
        servers.leader().await;
        servers
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        (1..=self.count).collect()
    }

    pub(crate) fn data(&self, server: u64) -> PathBuf {
        let usual = || self.dir.path().join(server.to_string());
        self.places.get(&server).cloned().unwrap_or_else(usual)
    }

    pub(crate) fn keep_data_in(&mut self, server: u64, place: PathBuf) {
        self.places.insert(server, place);
    }

    /// From its next start on a server runs under `prefix`, with `flags`.
    pub(crate) fn wrap(&mut self, server: u64, prefix: &[&str], flags: &[&str]) {
        let own = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect();
        self.wraps.insert(server, (own(prefix), own(flags)));
    }

    pub(crate) fn start(&mut self, server: u64) {
        let places = self.ids().into_iter();
        let peers: Vec<_> = places
            .map(|id| format!("{id}={}", self.network.place(id).peer))
            .collect();
        let place = self.network.place(server);
        let (wrap, flags) = self.wraps.get(&server).cloned().unwrap_or_default();
        let mut words = self.network.prefix(server);
        words.extend(wrap);
        words.extend([TENURE.to_owned(), "serve".into()]);
        words.extend(["--insecure".into(), "--id".into(), server.to_string()]);
        words.extend(["--peers".into(), peers.join(",")]);
        words.extend(["--listen".into(), place.client]);
        if let Some(listen) = place.listen_peers {
            words.extend(["--listen-peers".into(), listen]);
        }
        words.extend(["--data".into(), self.data(server).display().to_string()]);
        words.extend(flags);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file(server))
            .expect("a log");
        let said_from = log.metadata().expect("its length").len();
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a server");
        let process = Process {
            child,
            paused: false,
            said_from,
        };
        self.running.insert(server, process);
    }

    fn log_file(&self, server: u64) -> PathBuf {
        self.dir.path().join(format!("{server}.log"))
    }

    /// What a server has written to its log in all its lives.
    pub(crate) fn log(&self, server: u64) -> String {
        let bytes = std::fs::read(self.log_file(server)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How long that is by now, in bytes.
    pub(crate) fn log_length(&self, server: u64) -> u64 {
        std::fs::metadata(self.log_file(server)).map_or(0, |it| it.len())
    }

    /// What a server has written to its log from this byte on.
    pub(crate) fn log_from(&self, server: u64, from: u64) -> String {
        let mut bytes = Vec::new();
        let read = std::fs::File::open(self.log_file(server)).and_then(|mut file| {
            file.seek(SeekFrom::Start(from))?;
            file.read_to_end(&mut bytes)
        });
        read.expect("its log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// From now on, a server may end by itself if it says these words.
    pub(crate) fn excuse(&mut self, server: u64, words: &'static str) {
        self.excuses.insert((server, words));
    }

    /// It may not any more.
    pub(crate) fn expect_to_live(&mut self, server: u64, words: &'static str) {
        self.excuses.remove(&(server, words));
    }

    /// One has ended by itself.
    fn fell(&mut self, server: u64, process: &Process, status: ExitStatus) {
        let said = self.log_from(server, process.said_from);
        let mut excuses = self.excuses.iter();
        let excuse = excuses.find(|(who, words)| *who == server && said.contains(words));
        let Some(excuse) = excuse.filter(|_| !status.success()) else {
            panic!("server {server} ended by itself ({status}):\n{said}");
        };
        self.fallen.push(*excuse);
    }

    /// Those that have ended by themselves since this was asked last, and with
    /// which of the words that they were allowed.
    ///
    /// # Panics
    /// If one has ended without an excuse.
    pub(crate) fn fallen(&mut self) -> Vec<(u64, &'static str)> {
        for server in self.ids() {
            let Some(process) = self.running.get_mut(&server) else {
                continue;
            };
            if let Some(status) = process.child.try_wait().expect("a child") {
                let process = self.running.remove(&server).expect("it was there");
                self.fell(server, &process, status);
            }
        }
        std::mem::take(&mut self.fallen)
    }

    /// Kills a server, as a crash does.
    pub(crate) fn kill(&mut self, server: u64) {
        if let Some(mut process) = self.running.remove(&server) {
            process.signal(Signal::KILL);
            let status = process.child.wait().expect("it ends");
            if status.signal() != Some(9) {
                self.fell(server, &process, status);
            }
        }
    }

    /// Asks a server to end, as an operator does, and waits until it has.
    pub(crate) async fn terminate(&mut self, server: u64) {
        if let Some(process) = self.running.get_mut(&server) {
            process.signal(Signal::TERM);
            let (process, status) = self.end_of(server).await;
            // One that has only just begun hears no such request yet.
            let early = status.signal() == Some(Signal::TERM.as_raw());
            if !status.success() && !early {
                self.fell(server, &process, status);
            }
        }
    }

    /// Waits for the end of a server that ends by itself.
    pub(crate) async fn ended(&mut self, server: u64) -> ExitStatus {
        self.end_of(server).await.1
    }

    async fn end_of(&mut self, server: u64) -> (Process, ExitStatus) {
        let process = self.running.get_mut(&server).expect("it runs");
        let child = &mut process.child;
        let what = format!("the end of server {server}");
        let status = until(&what, async || child.try_wait().expect("a child")).await;
        let process = self.running.remove(&server);
        (process.expect("it was there"), status)
    }

    /// Stops a server as SIGSTOP does, or lets it go on.
    pub(crate) fn pause(&mut self, server: u64, paused: bool) {
        if let Some(process) = self.running.get_mut(&server) {
            process.signal(if paused { Signal::STOP } else { Signal::CONT });
            process.paused = paused;
        }
    }

    /// How a server has ended, if it has.
    pub(crate) fn try_ended(&mut self, server: u64) -> Option<ExitStatus> {
        let process = self.running.get_mut(&server)?;
        let ended = process.child.try_wait().expect("a child");
        if ended.is_some() {
            self.running.remove(&server);
        }
        ended
    }

    pub(crate) fn pid(&self, server: u64) -> u32 {
        self.running[&server].pid()
    }

    /// # Panics
    /// If a server has ended that nobody has ended.
    pub(crate) fn assert_all_live(&mut self) {
        assert_eq!(self.fallen(), [], "servers ended by themselves");
    }

    pub(crate) fn url(&self) -> String {
        let places = self.ids().into_iter();
        let addresses: Vec<_> = places.map(|id| self.network.place(id).client).collect();
        format!("tenure://{}", addresses.join(","))
    }

    /// A connection to one server, made when it is first used.
    pub(crate) fn channel(&self, server: u64) -> Channel {
        let address = format!("http://{}", self.network.place(server).client);
        let endpoint = Endpoint::from_shared(address).expect("an address");
        endpoint.connect_timeout(ASK_WITHIN).connect_lazy()
    }

    /// What a server says of itself, if it can be asked at the moment.
    pub(crate) async fn status(&self, server: u64) -> Option<v1::StatusResponse> {
        status(self.channel(server)).await
    }

    /// Who leads at the moment, by its own word, of those with the highest
    /// term.
    pub(crate) async fn leads(&self) -> Option<u64> {
        leader_of(self.channels()).await.map(|it| it.id)
    }

    /// Connections to all of them.
    pub(crate) fn channels(&self) -> Vec<Channel> {
        let ids = self.ids().into_iter();
        ids.map(|server| self.channel(server)).collect()
    }

    /// Waits until somebody leads.
    pub(crate) async fn leader(&self) -> u64 {
        until("a leader", async || self.leads().await).await
    }

    /// What `/metrics` of a server says of `name`, with its labels as they
    /// stand there.
    pub(crate) async fn metric(&self, server: u64, name: &str) -> f64 {
        // In a flood this may have to make room for another.
        let text = until("its metrics", async || self.get(server, "/metrics").await).await;
        let line = text.lines().find_map(|line| {
            let value = line.strip_prefix(name)?.strip_prefix(' ')?;
            value.trim().parse().ok()
        });
        line.unwrap_or(0.0)
    }

    /// A page of a server, by plain HTTP, if it gets through.
    async fn get(&self, server: u64, path: &str) -> Option<String> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let address = self.network.place(server).client;
        let talk = async {
            let mut stream = tokio::net::TcpStream::connect(address).await?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            Ok::<_, std::io::Error>(text)
        };
        timeout(PATIENCE, talk).await.ok()?.ok()
    }

    /// Resident memory of a server, in bytes.
    pub(crate) fn resident(&self, server: u64) -> u64 {
        let path = format!("/proc/{}/status", self.pid(server));
        resident(&path).expect("it runs")
    }
}

/// Resident memory, in bytes, by `/proc/…/status`.
pub(crate) fn resident(path: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line?.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}

/// What the leader among these servers says of itself.
pub(crate) async fn leader_of(servers: Vec<Channel>) -> Option<v1::StatusResponse> {
    let asking: JoinSet<_> = servers.into_iter().map(status).collect();
    let seen = asking.join_all().await.into_iter().flatten();
    let leaders = seen.filter(|it| it.role() == v1::Role::Leader);
    leaders.max_by_key(|it| it.term)
}

pub(crate) async fn status(channel: Channel) -> Option<v1::StatusResponse> {
    let mut cluster = ClusterClient::new(channel);
    let asked = timeout(ASK_WITHIN, cluster.status(v1::StatusRequest::default())).await;
    Some(asked.ok()?.ok()?.into_inner())
}

impl Drop for Servers {
    fn drop(&mut self) {
        for process in self.running.values_mut() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        if std::thread::panicking() {
            for server in self.ids() {
                let log = self.log(server);
                let lines: Vec<_> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(60)..];
                eprintln!("--- the log of server {server}\n{}", last.join("\n"));
            }
        }
    }
}
