//! Servers to try things on.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure_alpo::ServerId;
use tenure_api::v1::cluster_client::ClusterClient;
use tenure_api::v1::log_client::LogClient;
use tenure_api::v1::registers_client::RegistersClient;
use tenure_api::v1::{self, Cause};
use tenure_server::{Config, Ended, HealthStatus, Server};
use tonic::transport::Channel;

/// Long enough on the slowest machine; nothing waits for it to pass.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn id(number: u64) -> ServerId {
    ServerId::new(number).expect("a number")
}

/// Ports that are free now, and that nobody is given before they are used:
/// below the range from which the system draws.
pub(crate) fn ports<const N: usize>() -> [u16; N] {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let seed = (std::process::id() % 200) as u16 * 50;
    std::array::from_fn(|_| {
        loop {
            let port = 12_000 + seed + NEXT.fetch_add(1, Ordering::Relaxed);
            if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
    })
}

/// Some servers of a cluster.
pub(crate) struct Servers {
    pub(crate) dir: TempDir,
    pub(crate) configs: BTreeMap<u64, Config>,
    pub(crate) running: BTreeMap<u64, Server>,
}

impl Servers {
    /// Servers 1 to `count`, which found a cluster, and addresses for `more`.
    pub(crate) fn found(count: u64, more: u64) -> Self {
        Self::found_with(count, more, |_| {})
    }

    /// The same with other settings.
    pub(crate) fn found_with(count: u64, more: u64, set: impl Fn(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let all: Vec<_> = (1..=count + more).map(|n| (n, ports::<2>())).collect();
        let address = |port: u16| format!("127.0.0.1:{port}");
        let mut configs = BTreeMap::new();
        for (number, [_, client]) in &all {
            let known = all.iter().filter(|(n, _)| n <= number || *n <= count);
            let peers = known.map(|(n, [peer, _])| (id(*n), address(*peer)));
            let data = dir.path().join(number.to_string());
            let mut config = Config::new(id(*number), peers.collect(), data, address(*client));
            set(&mut config);
            configs.insert(*number, config);
        }
        let mut servers = Self {
            dir,
            configs,
            running: BTreeMap::new(),
        };
        for number in 1..=count {
            servers.start(number);
        }
        servers
    }

    pub(crate) fn start(&mut self, number: u64) {
        let config = self.configs[&number].clone();
        let server = Server::start(config).expect("it starts");
        self.running.insert(number, server);
    }

    /// Stops a server and waits for its end.
    pub(crate) async fn stop(&mut self, number: u64) {
        let server = self.running.remove(&number).expect("it runs");
        server.stop();
        let ended = tokio::time::timeout(PATIENCE, server.ended()).await;
        let ended = ended.expect("it ends");
        assert!(matches!(*ended, Ended::Stopped), "{ended}");
    }

    pub(crate) fn data(&self, number: u64) -> PathBuf {
        self.dir.path().join(number.to_string())
    }

    /// Waits until server `number` stands so.
    pub(crate) async fn until(
        &self,
        number: u64,
        wanted: impl Fn(&HealthStatus) -> bool,
    ) -> HealthStatus {
        let mut health_status = self.running[&number].health_status();
        let waited = health_status.wait_for(|it| wanted(it));
        let waited = tokio::time::timeout(PATIENCE, waited).await;
        match waited.map(|stands| stands.map(|it| it.clone())) {
            Ok(Ok(health_status)) => health_status,
            Ok(Err(_)) => panic!("server {number} has ended"),
            Err(_) => panic!("server {number} stands {:?}", *health_status.borrow()),
        }
    }

    /// Waits until somebody leads and all running servers follow it.
    pub(crate) async fn leader(&self) -> u64 {
        loop {
            let mut leaders = Vec::new();
            for number in self.running.keys() {
                let health_status = self.until(*number, |it| it.ready).await;
                leaders.push((
                    health_status.leader.expect("ready").get(),
                    health_status.term,
                ));
            }
            leaders.dedup();
            if let [(leader, _)] = leaders[..]
                && self.running.contains_key(&leader)
            {
                self.until(leader, |it| it.leads || it.leader != Some(id(leader)))
                    .await;
                if self.running[&leader].health_status().borrow().leads {
                    return leader;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    pub(crate) async fn channel(&self, number: u64) -> Channel {
        let address = format!("http://{}", self.running[&number].address());
        let endpoint = Channel::from_shared(address).expect("an address");
        endpoint.connect().await.expect("it is there")
    }

    pub(crate) async fn registers(&self, number: u64) -> RegistersClient<Channel> {
        RegistersClient::new(self.channel(number).await)
    }

    pub(crate) async fn log(&self, number: u64) -> LogClient<Channel> {
        LogClient::new(self.channel(number).await)
    }

    pub(crate) async fn cluster(&self, number: u64) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel(number).await)
    }

    /// Appends to the log by the leader, trying again where that is safe. What
    /// was under way when its leader lost leadership is looked for: no two
    /// entries of a test are the same.
    pub(crate) async fn append(&self, data: &str) -> u64 {
        loop {
            let leader = self.leader().await;
            let request = v1::AppendRequest {
                entries: vec![data.to_owned().into()],
                numbered: None,
            };
            match self.log(leader).await.append(request).await {
                Ok(response) => return response.into_inner().numbers[0],
                Err(status) if cause(&status) == Cause::Interrupted => {
                    if let Some(number) = self.find(data).await {
                        return number;
                    }
                }
                Err(status) => assert!(not_done(&status), "{status}"),
            }
        }
    }

    /// Under which number the log has this entry, by the server that leads now.
    async fn find(&self, data: &str) -> Option<u64> {
        let mut from = 1;
        loop {
            let leader = self.leader().await;
            let request = v1::ReadLogRequest {
                from,
                limit: 0,
                stale: false,
            };
            match self.log(leader).await.read(request).await {
                Ok(page) => {
                    let page = page.into_inner().entries;
                    if let Some(found) = page.iter().find(|it| *it.data == *data.as_bytes()) {
                        return Some(found.number);
                    }
                    from = page.last()?.number + 1;
                }
                Err(status) => assert!(again(&status), "{status}"),
            }
        }
    }

    /// Writes a register by the leader, which may be another than a moment ago,
    /// trying again where that is safe; its version. What was under way when
    /// its leader lost leadership is looked for.
    pub(crate) async fn write(&self, swap: v1::Swap) -> u64 {
        loop {
            let leader = self.leader().await;
            let request = v1::CompareAndSwapRequest {
                swap: Some(swap.clone()),
                numbered: None,
            };
            match self.registers(leader).await.compare_and_swap(request).await {
                Ok(written) => {
                    let written = written.into_inner();
                    assert!(written.swapped, "{written:?}");
                    return written.version;
                }
                Err(status) if cause(&status) == Cause::Interrupted => {
                    let found = self.read(&swap.key).await.register;
                    if let Some(it) = found.filter(|it| it.value == swap.value) {
                        return it.version;
                    }
                }
                Err(status) => assert!(not_done(&status), "{status}"),
            }
        }
    }

    /// What the leader says of a register.
    pub(crate) async fn read(&self, key: &str) -> v1::ReadResponse {
        loop {
            let leader = self.leader().await;
            let request = v1::ReadRequest {
                key: key.to_owned(),
                stale: false,
            };
            match self.registers(leader).await.read(request).await {
                Ok(answer) => return answer.into_inner(),
                Err(status) => assert!(again(&status), "{status}"),
            }
        }
    }

    /// The plain log as server `number` has it, once it has `count` entries.
    pub(crate) async fn entries(&self, number: u64, count: usize) -> Vec<String> {
        let request = v1::TailRequest { from: 1 };
        let tail = self.log(number).await.tail(request).await;
        let mut tail = tail.expect("a tail").into_inner();
        let mut entries = Vec::new();
        while entries.len() < count {
            let message = tokio::time::timeout(PATIENCE, tail.message()).await;
            let message = message.expect("in time").expect("a message");
            for entry in message.expect("no end").entries {
                entries.push(String::from_utf8_lossy(&entry.data).into_owned());
            }
        }
        entries
    }

    /// The same of a log that was restored from a backup: at a gap it says
    /// where it goes on.
    pub(crate) async fn entries_across(&self, number: u64, count: usize) -> Vec<String> {
        let (mut entries, mut from) = (Vec::new(), 1);
        while entries.len() < count {
            let tail = self.log(number).await.tail(v1::TailRequest { from }).await;
            let mut tail = tail.expect("a tail").into_inner();
            while entries.len() < count {
                let message = tokio::time::timeout(PATIENCE, tail.message()).await;
                match message.expect("in time") {
                    Ok(message) => entries.extend(
                        message
                            .expect("no end")
                            .entries
                            .iter()
                            .map(|entry| String::from_utf8_lossy(&entry.data).into_owned()),
                    ),
                    Err(status) => {
                        assert_eq!(cause(&status), Cause::Restored, "{status}");
                        from = error(&status).expected;
                        break;
                    }
                }
            }
        }
        entries
    }
}

/// The cause that a failed call carries.
pub(crate) fn cause(status: &tonic::Status) -> Cause {
    error(status).cause()
}

pub(crate) fn error(status: &tonic::Status) -> v1::Error {
    let bytes = status.metadata().get_bin(tenure_api::ERROR_TRAILER);
    let bytes = bytes.and_then(|value| value.to_bytes().ok());
    let error = bytes.and_then(|bytes| prost::Message::decode(bytes).ok());
    error.unwrap_or_else(|| panic!("expected an error of ours, found {status}"))
}

/// Whether another may be asked, for what can be asked twice.
pub(crate) fn again(status: &tonic::Status) -> bool {
    not_done(status) || cause(status) == Cause::Interrupted
}

/// Whether it was certainly not done, and may be asked of another.
fn not_done(status: &tonic::Status) -> bool {
    matches!(
        cause(status),
        Cause::NotLeader | Cause::Busy | Cause::NotReady
    )
}
