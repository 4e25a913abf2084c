//! The messages between agent, shim and commands on this machine: JSON, one
//! message a line, over Unix sockets.
//!
//! Agent and shim are the same binary, but after an upgrade the agent may be
//! newer than the shim that it finds. A message that does not parse ends the
//! connection. Then the shim ends everything in time and the agent joins anew, so
//! no message has to be guessed.
//!
//! Nothing here blocks. What the socket does not take is kept and sent when it
//! does. Limit: [`LINE_MAX`] bytes a message.

use std::io;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tenure::core::election::Grant;
use tenure::core::time::Instant;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::runtime::Handle;

/// The longest message. A config takes up to 100 KiB of it, twice escaped.
pub(super) const LINE_MAX: usize = 4 << 20;

/// When an ended process is started again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Whenever it ends.
    #[default]
    Always,
    /// If it failed; a success is its end, and it is undeployed.
    OnFailure,
    /// Never: when it ends it is undeployed. It still moves off a dead node.
    Never,
}

/// The times of a grant, in nanoseconds of the boot-time clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct LeaseTimes {
    start: u64,
    drain_at: u64,
    kill_at: u64,
    valid_until: u64,
}

impl From<Grant> for LeaseTimes {
    fn from(grant: Grant) -> Self {
        Self {
            start: grant.start.as_nanos(),
            drain_at: grant.drain_at.after(late_for_a_test()).as_nanos(),
            kill_at: grant.kill_at.after(late_for_a_test()).as_nanos(),
            valid_until: grant.valid_until.as_nanos(),
        }
    }
}

/// Lets a test plant the mistake that its checker is there for: guardians that
/// are told to wait too long. No release does this.
fn late_for_a_test() -> Duration {
    #[cfg(debug_assertions)]
    if let Some(millis) = std::env::var_os("TENURE_TEST_LATE_MS") {
        let millis = millis.to_str().and_then(|text| text.parse().ok());
        return Duration::from_millis(millis.unwrap_or(0));
    }
    Duration::ZERO
}

impl LeaseTimes {
    pub(super) fn grant(self) -> Grant {
        Grant {
            start: Instant::from_nanos(self.start),
            drain_at: Instant::from_nanos(self.drain_at),
            kill_at: Instant::from_nanos(self.kill_at),
            valid_until: Instant::from_nanos(self.valid_until),
        }
    }
}

/// What the shim is to start: a run of a workload.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RunSpec {
    pub(super) run: u64,
    /// The incarnation of the node that wants it.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) digest: String,
    pub(super) instances: u32,
    pub(super) fence: u64,
    pub(super) times: LeaseTimes,
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// A file with more of them; those in `env` count for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) env_file: Option<String>,
    pub(super) restart: RestartPolicy,
    /// How long it must run to have been started.
    pub(super) ready_ms: u64,
    pub(super) grace_ms: u64,
    pub(super) log: LogLimits,
}

/// How much of its output is kept, for each instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogLimits {
    /// The most bytes of a file.
    pub bytes: u64,
    /// How many older files are kept beside it.
    pub files: u32,
}

/// From the agent to the shim.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub(super) enum ShimOrder {
    /// The settings of the node, to be compared after a restart.
    Settings { text: String },
    /// What the agent wants to know after a restart.
    Notes { text: String },
    /// Start this.
    Begin(Box<RunSpec>),
    /// A heartbeat was confirmed.
    Extend { id: String, times: LeaseTimes },
    /// Stop it, in its grace.
    Stop { run: u64 },
    /// Kill it.
    Kill { run: u64 },
    /// Kill everything and end.
    Quit,
}

/// From the shim to the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(super) enum ShimReport {
    /// The first message: what there is.
    State(State),
    /// All instances have run for long enough.
    Started { run: u64 },
    /// It has ended as it should, and is not to be started again.
    Completed { run: u64 },
    /// Nothing is left of it.
    Ended { run: u64, failed: Option<String> },
    /// An [`ShimOrder::Extend`] was heard.
    Heard { kill_at: u64 },
}

/// What a shim has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// That of the last heartbeat.
    #[serde(rename = "life")]
    pub(super) incarnation: Option<Incarnation>,
    pub(super) settings: String,
    pub(super) notes: String,
    pub(super) runs: Vec<RunState>,
}

/// An incarnation of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Incarnation {
    pub(super) id: String,
    pub(super) times: LeaseTimes,
}

/// A run that a shim has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct RunState {
    pub(super) run: u64,
    pub(super) id: String,
    pub(super) name: String,
    pub(super) digest: String,
    pub(super) instances: u32,
    pub(super) fence: u64,
    pub(super) phase: RunPhase,
}

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RunPhase {
    Starting,
    Running,
    Stopping { kill_at: u64 },
}

/// One end of a connection.
pub(super) struct Connection {
    stream: UnixStream,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
}

impl Connection {
    pub(super) const fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            inbox: Vec::new(),
            outbox: Vec::new(),
        }
    }

    /// The same connection, driven by another runtime. A runtime whose thread is
    /// held up reports no news of its connections to any task.
    pub(super) fn driven_by(self, runtime: &Handle) -> io::Result<Self> {
        let stream = self.stream.into_std()?;
        let _entered = runtime.enter();
        Ok(Self {
            stream: UnixStream::from_std(stream)?,
            ..self
        })
    }

    /// The process at the other end.
    pub(super) fn peer(&self) -> Option<i32> {
        self.stream.peer_cred().ok()?.pid()
    }

    /// Leaves a message to be sent by [`next`](Self::next) or
    /// [`flush`](Self::flush).
    pub(super) fn queue(&mut self, message: &impl Serialize) {
        // What is sent here is made of strings, numbers and lists of them.
        if let Ok(line) = serde_json::to_vec(message) {
            self.outbox.extend(line);
            self.outbox.push(b'\n');
        }
    }

    /// Sends a message that nothing follows, as far as the socket takes it now,
    /// and ends the connection.
    pub(super) fn send_last(mut self, message: &impl Serialize) {
        self.queue(message);
        let _ = self.send();
    }

    /// Bytes that wait for the other side to read.
    pub(super) const fn backlog(&self) -> usize {
        self.outbox.len()
    }

    /// The next message; `None` at the end of the connection. Sends meanwhile
    /// what was left. Cancelling this loses nothing.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        loop {
            if let Some(line) = self.line()? {
                let parsed = serde_json::from_slice(&line);
                return parsed.map(Some).map_err(io::Error::from);
            }
            self.send()?;
            let interest = if self.outbox.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            let ready = self.stream.ready(interest).await?;
            if ready.is_readable() && !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Sends all that was left.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        loop {
            self.send()?;
            if self.outbox.is_empty() {
                return Ok(());
            }
            self.stream.writable().await?;
        }
    }

    fn send(&mut self) -> io::Result<()> {
        while !self.outbox.is_empty() {
            match self.stream.try_write(&self.outbox) {
                Ok(sent) => drop(self.outbox.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What the other side sent before it went is read first.
                Err(_) => self.outbox.clear(),
            }
        }
        Ok(())
    }

    fn fill(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 16 << 10];
        match self.stream.try_read(&mut bytes) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.inbox.extend(&bytes[..count]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        let end = self.inbox.iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            if self.inbox.len() > LINE_MAX {
                let why = format!("expected a message of at most {LINE_MAX} bytes, found more");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
            return Ok(None);
        };
        let mut line: Vec<u8> = self.inbox.drain(..=end).collect();
        line.pop();
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_arrives_and_nonsense_is_refused() {
        let (one, two) = UnixStream::pair().expect("a pair");
        let (mut one, mut two) = (Connection::new(one), Connection::new(two));
        let orders = [
            ShimOrder::Settings {
                text: "x".repeat(300_000),
            },
            ShimOrder::Stop { run: 7 },
            ShimOrder::Quit,
        ];
        for order in &orders {
            one.queue(order);
        }
        let both = async { tokio::join!(one.flush(), two.next::<ShimOrder>()) };
        let (sent, first) = both.await;
        sent.expect("sent");
        assert_eq!(first.expect("read").as_ref(), orders.first());
        for order in &orders[1..] {
            let next = two.next::<ShimOrder>().await.expect("read");
            assert_eq!(next.as_ref(), Some(order));
        }
        one.queue(&"nonsense");
        one.flush().await.expect("sent");
        assert!(two.next::<ShimOrder>().await.is_err());
        drop(one);
        assert!(two.next::<ShimOrder>().await.expect("the end").is_none());
    }
}
