//! Servers that are attacked, and what is seen of them meanwhile.
//!
//! `TENURE_ATTACKED` names another binary to attack: that of before falls.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::convert::Infallible;
use std::future::poll_fn;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::{Body, Frame};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Code;
use tonic::body::Body as Content;
use tonic::codegen::{Bytes, Service as _, http};
use tonic::transport::{Channel, Endpoint};

use crate::common::TENURE;
use crate::common::servers::{answer, call, free, ready};

/// How long anything is waited for, where other tests have the processors:
/// these move hundreds of megabytes.
pub(crate) const SOON: Duration = Duration::from_secs(120);

pub(crate) fn attacked() -> String {
    std::env::var("TENURE_ATTACKED").unwrap_or_else(|_| TENURE.to_owned())
}

pub(crate) fn runtime() -> Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    { runtime }
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The memory of a process: what it has, or the most it had.
pub(crate) fn memory(process: u32, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.expect("it runs");
    let line = status.lines().find_map(|it| it.strip_prefix(which));
    let kib = line.and_then(|it| it.trim_start_matches(':').trim().split(' ').next());
    kib.and_then(|it| it.parse::<u64>().ok()).expect("a number") * 1024
}

pub(crate) fn resident(process: u32) -> u64 {
    memory(process, "VmRSS")
}

/// The most that a process has had beyond `before`.
pub(crate) fn growth(process: u32, before: u64) -> u64 {
    memory(process, "VmHWM").saturating_sub(before)
}

/// A connection of its own, from one of this machine's addresses.
pub(crate) async fn connect(address: &str, from: u8) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let local = std::net::Ipv4Addr::new(127, 0, 0, from);
    let endpoint = endpoint.local_address(Some(local.into()));
    endpoint.connect().await.expect("it listens")
}

/// Makes a call and reads of its answer nothing but the head.
pub(crate) async fn head(
    mut channel: Channel,
    path: &str,
    body: Content,
) -> http::Response<Content> {
    let request = http::Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request");
    poll_fn(|context| channel.poll_ready(context))
        .await
        .expect("it is connected");
    channel.call(request).await.expect("an answer")
}

/// Waits for what a test began; fails if it takes too long.
pub(crate) async fn all<T: 'static>(mut begun: JoinSet<T>) -> Vec<T> {
    let mut done = Vec::new();
    let waiting = async {
        while let Some(one) = begun.join_next().await {
            done.push(one.expect("no panic"));
        }
    };
    timeout(SOON, waiting).await.expect("all in time");
    done
}

pub(crate) fn code(head: &http::Response<Content>) -> Option<Code> {
    tonic::Status::from_header_map(head.headers()).map(|it| it.code())
}

/// Asks a server for its health, again and again, each time anew.
pub(crate) struct Probes {
    over: Arc<AtomicBool>,
    asking: JoinHandle<Duration>,
}

/// For how long the threads of a process have run.
pub(crate) fn worked(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let nanos = tasks.filter_map(|task| {
        // One may have ended since.
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

impl Probes {
    pub(crate) fn start(address: &str, process: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (address, ended) = (address.to_owned(), Arc::clone(&over));
        let asking = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !ended.load(Ordering::Relaxed) {
                for path in ["GET /healthz", "GET /readyz"] {
                    let before = worked(process);
                    let said = answer(call(&address, path, ""));
                    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
                    longest = longest.max(worked(process).saturating_sub(before));
                }
            }
            longest
        });
        Self { over, asking }
    }

    /// For how long the server has worked, at most, before it came to one.
    pub(crate) fn end(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.asking.join().expect("each is answered")
    }
}

/// What a server may work at before it comes to a probe, in time of its own
/// threads: what a busy machine adds is not meant. A build for tests takes ten
/// times as long as the released one, which is to answer within 100 ms.
pub(crate) const PROMPT: Duration = Duration::from_secs(1);

/// One server, killed when this is dropped.
pub(crate) struct Alone {
    pub(crate) server: Child,
    pub(crate) address: String,
    directory: tempfile::TempDir,
}

impl Alone {
    pub(crate) fn start(tokens: Option<&str>) -> Self {
        let [peer, address] = free();
        let directory = tempfile::tempdir().expect("a directory");
        let mut serve = std::process::Command::new(attacked());
        serve
            .args(["serve", "--quiet", "--id", "1", "--listen", &address])
            .args(["--peers", &format!("1={peer}"), "--data"])
            .arg(directory.path().join("1"))
            // Calls are made by hand, and without a token.
            .env("TENURE_NO_TOKEN", "true")
            .stdout(Stdio::null());
        if let Some(text) = tokens {
            let file = directory.path().join("tokens.toml");
            std::fs::write(&file, text).expect("written");
            serve.arg("--tokens").arg(file);
        }
        let server = serve.spawn().expect("a server");
        let alone = Self {
            server,
            address,
            directory,
        };
        ready(&alone.address);
        alone
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        assert!(self.directory.path().exists());
    }
}

/// A body of one piece.
pub(crate) struct Whole(pub(crate) Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|it| Ok(Frame::data(it))))
    }
}
