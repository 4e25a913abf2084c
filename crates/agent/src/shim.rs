//! The shim: a process beside the agent that holds its workloads.
//!
//! An agent may be killed, stopped, upgraded or starved. What it runs must not
//! die with it at once, because it may come back in time and go on. Nor may it
//! live on beyond the agent's lease. So the agent starts this process. It holds a
//! guardian for every instance, and passes on what the agent orders:
//!
//! ```text
//!   agent ──steward.sock──► shim ──control channel──► guardian ──► CMD
//!   (heartbeats, decides)   (own session, keeps       (one each, keeps
//!                            output, reports)          the times)
//! ```
//!
//! * If the agent goes, the guardians keep the times of the last heartbeat: TERM
//!   at `drain_at`, KILL at `kill_at`. An agent that comes back before that finds
//!   here what runs, under which id, until when ([`State`]).
//! * If the shim goes, the guardians see the end of their channels and end
//!   everything at once. The agent counts it as gone once the last `kill_at` that
//!   it had sent is over.
//! * If the shim is stopped, the guardians keep the times.
//! * If the shim and a guardian are stopped and the agent is killed, the kernel
//!   wakes the shim (the parent-death signal CONT).
//!
//! The shim decides nothing. It starts what it is ordered to, moves times as it
//! is ordered to, and reports what ended. One agent is connected at a time. What
//! a former one sent is read to the end before another is served. A process of
//! another user than its own or root is no agent, and not heard (`peer_check.rs`).
//!
//! It ends when it is ordered to, or when no agent has come back by `kill_at`. If
//! no agent ever comes, it ends within ten seconds.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use tenure::clock;
use tenure::core::time::Instant;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use super::log_rate_limit::LogRateLimit;
use super::messages::{Connection, Incarnation, RunSpec, ShimOrder, ShimReport, State};
use super::output_log::OutputLogs;
use super::peer_check::check_peer;
use super::spec::CONFIG;
use super::state_directory::{SHIM_SOCKET, SocketDirectory};
use super::workload_run::{InstanceReport, RunOutcome, WorkloadRun};
use crate::guard::SLACK;

/// The hidden subcommand that makes this process a shim.
pub(super) const SUBCOMMAND: &str = "__steward";
/// This very binary, even if its file has been replaced meanwhile.
const SELF: &str = "/proc/self/exe";
/// How long the first agent may take to come.
const FIRST_AGENT_WITHIN: Duration = Duration::from_secs(10);
/// Bytes that may wait for an agent that does not read. Beyond that only ends
/// are reported, and no heartbeats are confirmed.
const BACKLOG: usize = 64 << 10;

/// Starts a shim for the node of this directory, and waits until it can be
/// reached.
///
/// A thread of its own starts and reaps it. The kernel signals the shim when the
/// *thread* that started it ends (`run`), and the shim may outlive the agent.
pub(super) async fn spawn(directory: &Path) -> io::Result<()> {
    let directory = directory.to_owned();
    let (report_sender, report_receiver) = oneshot::channel();
    let reaper = std::thread::Builder::new().name("tenure-reaper".into());
    reaper.spawn(move || match spawn_process(&directory) {
        Ok(mut child) => {
            // The receiver is there unless the agent ends just now.
            let _ = report_sender.send(Ok(()));
            let _ = child.wait();
        }
        Err(error) => {
            let _ = report_sender.send(Err(error));
        }
    })?;
    report_receiver.await.map_err(io::Error::other)?
}

fn spawn_process(directory: &Path) -> io::Result<Child> {
    let log = std::fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(directory.join("steward.log"))?;
    let mut child = Command::new(SELF)
        .arg(SUBCOMMAND)
        .arg(directory)
        // The agent's own settings and config are not for its workloads.
        .env_remove("TENURE_CONFIG")
        .env_remove(CONFIG)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()?;
    let mut word = String::new();
    if let Some(stdout) = &mut child.stdout {
        io::Read::read_to_string(stdout, &mut word)?;
    }
    if word == "ready\n" {
        return Ok(child);
    }
    let status = child.wait()?;
    Err(io::Error::other(format!(
        "expected the steward (shim) to begin, found that it {status}; see steward.log in {}",
        directory.display()
    )))
}

/// Holds the workloads of the node of this directory, until they have ended.
pub(super) fn main(directory: &Path) -> ExitCode {
    match run(directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "tenure: steward: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(directory: &Path) -> io::Result<()> {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
        // Caught, not ignored: what is ignored would be so in CMD too. The
        // agent gets them as well, and decides.
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    let _ = setsid();
    // If this process is stopped when the agent ends, the kernel wakes it. A
    // guardian that is stopped as well is killed by its watchdog here, in time.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let sockets = SocketDirectory::open(directory)?;
        let listener = sockets.listen(SHIM_SOCKET)?;
        io::stdout().write_all(b"ready\n")?;
        io::stdout().flush()?;
        // A reader of our output sees its end.
        rustix::stdio::dup2_stdout(std::fs::File::options().write(true).open("/dev/null")?)?;
        Shim::new(directory.to_owned(), listener).serve().await;
        sockets.remove(SHIM_SOCKET).await;
        Ok(())
    })
}

struct Shim {
    output_logs: OutputLogs,
    listener: UnixListener,
    strangers: LogRateLimit,
    agent: Option<Connection>,
    /// That of the last heartbeat, and what a restarted agent wants to know.
    incarnation: Option<Incarnation>,
    settings: String,
    notes: String,
    runs: BTreeMap<u64, WorkloadRun>,
    report_sender: UnboundedSender<InstanceReport>,
    report_receiver: UnboundedReceiver<InstanceReport>,
    /// Until when the first agent must come.
    first_agent_until: Instant,
    quitting: bool,
}

/// What the shim handles.
enum ShimEvent {
    AgentConnected(Connection),
    Order(ShimOrder),
    AgentLeft(Option<io::Error>),
    InstanceReport(InstanceReport),
    Timer,
}

impl Shim {
    fn new(directory: PathBuf, listener: UnixListener) -> Self {
        let (report_sender, report_receiver) = unbounded_channel();
        Self {
            output_logs: OutputLogs::new(directory),
            listener,
            strangers: LogRateLimit::default(),
            agent: None,
            incarnation: None,
            settings: String::new(),
            notes: String::new(),
            runs: BTreeMap::new(),
            report_sender,
            report_receiver,
            first_agent_until: clock::boot().after(FIRST_AGENT_WITHIN),
            quitting: false,
        }
    }

    async fn serve(mut self) {
        while !self.is_done() {
            match self.next().await {
                ShimEvent::AgentConnected(agent) => self.send_state(agent),
                ShimEvent::Order(order) => self.handle_order(order),
                ShimEvent::AgentLeft(why) => {
                    if let Some(why) = why {
                        let _ = writeln!(io::stderr(), "tenure: steward: the agent: {why}");
                    }
                    self.agent = None;
                }
                ShimEvent::InstanceReport((run, event)) => {
                    let outcome = self.runs.get_mut(&run).map(|it| it.handle_event(event));
                    match outcome {
                        Some(RunOutcome::Ended) => self.report_ended(run),
                        Some(RunOutcome::Completed) => {
                            self.send_report(&ShimReport::Completed { run });
                        }
                        Some(RunOutcome::Nothing) | None => {}
                    }
                }
                ShimEvent::Timer => self.check_deadlines(),
            }
        }
        // The last reports, if an agent is connected.
        if let Some(agent) = &mut self.agent {
            let _ = tokio::time::timeout(SLACK, agent.flush()).await;
        }
        let _ = tokio::time::timeout(SLACK, self.output_logs.finish()).await;
    }

    async fn next(&mut self) -> ShimEvent {
        let at = self.deadline();
        let agent = &mut self.agent;
        let alone = agent.is_none();
        let ordered = async {
            match agent {
                Some(agent) => agent.next::<ShimOrder>().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(report) = self.report_receiver.recv() => ShimEvent::InstanceReport(report),
            ordered = ordered => match ordered {
                Ok(Some(order)) => ShimEvent::Order(order),
                Ok(None) => ShimEvent::AgentLeft(None),
                Err(error) => ShimEvent::AgentLeft(Some(error)),
            },
            Ok(stream) = accept_agent(&self.listener, &self.strangers), if alone => {
                ShimEvent::AgentConnected(Connection::new(stream))
            }
            () = until(at) => ShimEvent::Timer,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let ready = self.runs.values().filter_map(WorkloadRun::ready_at);
        // Looked at after it has passed, not before.
        ready.chain(self.agent_until()).min()
    }

    /// Until when an agent may come back; `None` while one is connected.
    fn agent_until(&self) -> Option<Instant> {
        let incarnation = self.incarnation.as_ref();
        let at = incarnation.map_or(self.first_agent_until, |incarnation| {
            incarnation.times.grant().kill_at
        });
        (self.agent.is_none() && clock::boot() < at).then_some(at)
    }

    /// Whether nothing is left, and no agent is to come.
    fn is_done(&self) -> bool {
        let empty = self.runs.values().all(WorkloadRun::has_ended);
        let left = self.agent.is_none() && self.agent_until().is_none();
        empty && (self.quitting || left)
    }

    fn send_report(&mut self, report: &ShimReport) {
        if let Some(agent) = &mut self.agent {
            agent.queue(report);
        }
    }

    fn send_state(&mut self, agent: Connection) {
        self.agent = Some(agent);
        let state = State {
            incarnation: self.incarnation.clone(),
            settings: self.settings.clone(),
            notes: self.notes.clone(),
            runs: self.runs.values().map(WorkloadRun::state).collect(),
        };
        self.send_report(&ShimReport::State(state));
        let over: Vec<(u64, bool)> = self
            .runs
            .iter()
            .filter(|(_, run)| run.has_ended())
            .map(|(number, run)| (*number, run.awaits_undeploy()))
            .collect();
        for (run, completed) in over {
            if completed {
                self.send_report(&ShimReport::Completed { run });
            } else {
                self.report_ended(run);
            }
        }
    }

    /// Nothing is left of a run. If no agent is connected, the next
    /// one gets the report.
    fn report_ended(&mut self, run: u64) {
        if self.agent.is_some()
            && let Some(ended) = self.runs.remove(&run)
        {
            let failed = ended.failed();
            self.send_report(&ShimReport::Ended { run, failed });
        }
    }

    fn handle_order(&mut self, order: ShimOrder) {
        match order {
            ShimOrder::Settings { text } => self.settings = text,
            ShimOrder::Notes { text } => self.notes = text,
            ShimOrder::Begin(begin) => self.start_run(*begin),
            ShimOrder::Extend { id, times } => {
                let grant = times.grant();
                for run in self.runs.values_mut() {
                    run.extend(&id, grant.drain_at, grant.kill_at);
                }
                self.incarnation = Some(Incarnation { id, times });
                if self.agent.as_ref().is_some_and(|it| it.backlog() < BACKLOG) {
                    let kill_at = grant.kill_at.as_nanos();
                    self.send_report(&ShimReport::Heard { kill_at });
                }
            }
            ShimOrder::Stop { run } => {
                if self.runs.get_mut(&run).is_some_and(WorkloadRun::stop) {
                    self.report_ended(run);
                }
            }
            ShimOrder::Kill { run } => {
                if self.runs.get_mut(&run).is_some_and(WorkloadRun::kill) {
                    self.report_ended(run);
                }
            }
            ShimOrder::Quit => {
                self.quitting = true;
                let runs: Vec<u64> = self.runs.keys().copied().collect();
                for run in runs {
                    self.handle_order(ShimOrder::Kill { run });
                }
            }
        }
    }

    fn start_run(&mut self, begin: RunSpec) {
        let run = begin.run;
        if self.runs.contains_key(&run) || self.quitting {
            let failed = Some(format!("expected a new run, found {run} once more"));
            return self.send_report(&ShimReport::Ended { run, failed });
        }
        self.output_logs.prune();
        let new_run = WorkloadRun::new(&self.output_logs, begin, &self.report_sender);
        self.runs.insert(run, new_run);
    }

    fn check_deadlines(&mut self) {
        let now = clock::boot();
        let ready = self.runs.iter_mut();
        let ready = ready.filter_map(|(run, it)| it.has_become_ready(now).then_some(*run));
        for run in ready.collect::<Vec<_>>() {
            self.send_report(&ShimReport::Started { run });
        }
    }
}

/// The next connection of this user or root. Cancelling this loses nothing.
async fn accept_agent(
    listener: &UnixListener,
    log_rate_limit: &LogRateLimit,
) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        match check_peer(&stream) {
            Ok(()) => return Ok(stream),
            Err(refused) => {
                if log_rate_limit.should_log(clock::boot()) {
                    let _ = writeln!(
                        io::stderr(),
                        "tenure: steward: a connection is refused: {refused}"
                    );
                }
            }
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep(at.since(clock::boot())).await,
        None => std::future::pending().await,
    }
}
