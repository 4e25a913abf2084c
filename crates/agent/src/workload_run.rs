//! One start of a workload, in the shim. Its instances start and end together.
//!
//! ```text
//!             all run for long enough          told to stop
//!  starting ─────────────────────────> running ────────────> stopping ──> ended
//!      │                                  │ │                              ^
//!      └── one ends, or cannot start ─────┘ └─ all completed: kept ────────┤
//!          the others are stopped ─────────────────────────────────────────┘
//! ```
//!
//! Each instance has a guardian of its own (`guard/`), a task here that feeds it,
//! and a file for its output. An instance has ended when its guardian says so. If
//! the guardian cannot say so any more, it has ended when the guardian must have
//! killed it.
//!
//! A run that completed, by its restart policy, is kept until the agent has had
//! it undeployed. If it were reported as ended, it would be started again.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock;
use tenure::core::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::env_file;
use super::messages::{RestartPolicy, RunPhase, RunSpec, RunState};
use super::output_log::OutputLogs;
use super::spec::INSTANCE;
use crate::guard::{ExitStatus, Guardian, GuardianEvent, SLACK, StartOrder};

/// What a task of an instance is ordered to do.
#[derive(Clone, Copy, Debug)]
enum InstanceOrder {
    Extend(Instant, Instant),
    Stop(Duration),
    Kill,
}

/// What happened to an instance.
#[derive(Debug)]
pub(super) enum InstanceEvent {
    Started,
    /// It did not start.
    Failed(String),
    Exited(ExitStatus, bool),
    /// Nothing is left of it.
    Gone,
}

/// An event of an instance, with the number of its run.
pub(super) type InstanceReport = (u64, InstanceEvent);

/// What an event means for the run.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum RunOutcome {
    Nothing,
    Completed,
    Ended,
}

pub(super) struct WorkloadRun {
    spec: Arc<RunSpec>,
    instances: Vec<UnboundedSender<InstanceOrder>>,
    live_instances: u32,
    started: u32,
    completed: u32,
    ready_at: Option<Instant>,
    phase: RunPhase,
    /// The agent has ordered its end.
    stop_requested: bool,
    failed: Option<String>,
}

impl WorkloadRun {
    /// Starts all instances.
    pub(super) fn new(
        output_logs: &OutputLogs,
        spec: RunSpec,
        sender: &UnboundedSender<InstanceReport>,
    ) -> Self {
        let grant = spec.times.grant();
        let mut run = Self {
            instances: Vec::new(),
            live_instances: spec.instances,
            started: 0,
            completed: 0,
            ready_at: None,
            phase: RunPhase::Starting,
            stop_requested: false,
            failed: None,
            spec: Arc::new(spec),
        };
        for instance in 0..run.spec.instances {
            let (orders, receiver) = unbounded_channel();
            run.instances.push(orders);
            let start = StartOrder {
                drain_at: grant.drain_at,
                kill_at: grant.kill_at,
                argv: run.spec.argv.iter().map(Into::into).collect(),
                env: run.env(instance),
            };
            let instance_task = InstanceTask {
                instance,
                output_logs: output_logs.clone(),
                spec: Arc::clone(&run.spec),
                sender: sender.clone(),
            };
            tokio::spawn(instance_task.supervise(start, receiver));
        }
        run
    }

    fn env(&self, instance: u32) -> Vec<(OsString, OsString)> {
        let given = self.spec.env.iter();
        let given = given.map(|(key, value)| (key.into(), value.into()));
        let own = (INSTANCE.into(), instance.to_string().into());
        given.chain([own]).collect()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.live_instances == 0
    }

    /// Whether it has completed, and is kept until it is undeployed.
    pub(super) fn awaits_undeploy(&self) -> bool {
        self.live_instances == 0 && !self.stop_requested && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.failed.is_none() && self.completed == self.spec.instances
    }

    /// Why it ended, if that was not asked for.
    pub(super) fn failed(&self) -> Option<String> {
        self.failed.clone().filter(|_| !self.stop_requested)
    }

    pub(super) fn state(&self) -> RunState {
        RunState {
            run: self.spec.run,
            id: self.spec.id.clone(),
            name: self.spec.name.clone(),
            digest: self.spec.digest.clone(),
            instances: self.spec.instances,
            fence: self.spec.fence,
            phase: self.phase,
        }
    }

    /// A heartbeat of the node of this id was confirmed.
    pub(super) fn extend(&mut self, id: &str, drain_at: Instant, kill_at: Instant) {
        // What another incarnation began keeps the times it has.
        if id == self.spec.id {
            self.send_order(InstanceOrder::Extend(drain_at, kill_at));
        }
    }

    /// The agent orders its end; true if nothing is left to end.
    pub(super) fn stop(&mut self) -> bool {
        self.stop_requested = true;
        if matches!(self.phase, RunPhase::Stopping { .. }) {
            return self.live_instances == 0;
        }
        self.stop_instances();
        self.live_instances == 0
    }

    /// The same, at once.
    pub(super) fn kill(&mut self) -> bool {
        self.stop_requested = true;
        self.set_stopping(Duration::ZERO);
        self.send_order(InstanceOrder::Kill);
        self.live_instances == 0
    }

    fn stop_instances(&mut self) {
        let grace = Duration::from_millis(self.spec.grace_ms);
        self.set_stopping(grace);
        self.send_order(InstanceOrder::Stop(grace));
    }

    fn set_stopping(&mut self, grace: Duration) {
        let kill_at = clock::boot().after(grace).as_nanos();
        self.phase = RunPhase::Stopping { kill_at };
        self.ready_at = None;
    }

    fn send_order(&self, order: InstanceOrder) {
        for instance in &self.instances {
            // An instance that has ended takes no orders.
            let _ = instance.send(order);
        }
    }

    /// When it has run for long enough, if nothing ends before.
    pub(super) const fn ready_at(&self) -> Option<Instant> {
        self.ready_at
    }

    /// Whether it has just run for long enough.
    pub(super) fn has_become_ready(&mut self, now: Instant) -> bool {
        let ready = self.ready_at.is_some_and(|at| now >= at);
        if ready {
            self.ready_at = None;
            self.phase = RunPhase::Running;
        }
        ready
    }

    /// Updates the run by an event of an instance.
    pub(super) fn handle_event(&mut self, event: InstanceEvent) -> RunOutcome {
        match event {
            InstanceEvent::Started => {
                self.started += 1;
                if self.started == self.spec.instances && self.phase == RunPhase::Starting {
                    let ready = Duration::from_millis(self.spec.ready_ms);
                    self.ready_at = Some(clock::boot().after(ready));
                }
            }
            InstanceEvent::Failed(why) => self.fail(why),
            InstanceEvent::Exited(_, _) if self.stop_requested => {}
            InstanceEvent::Exited(_, true) => {
                self.fail("its node could not confirm in time that it lives".into());
            }
            InstanceEvent::Exited(status, false) => self.handle_exit(status),
            InstanceEvent::Gone => {
                self.live_instances = self.live_instances.saturating_sub(1);
                if self.live_instances == 0 {
                    return self.finish();
                }
            }
        }
        RunOutcome::Nothing
    }

    fn handle_exit(&mut self, status: ExitStatus) {
        let complete = match self.spec.restart {
            RestartPolicy::Always => false,
            RestartPolicy::OnFailure => status == ExitStatus::Code(0),
            RestartPolicy::Never => true,
        };
        if complete {
            self.completed += 1;
        } else {
            self.fail(status.to_string());
        }
    }

    /// One instance has failed: the others end with it.
    fn fail(&mut self, why: String) {
        self.failed.get_or_insert(why);
        if !matches!(self.phase, RunPhase::Stopping { .. }) {
            self.stop_instances();
        }
    }

    fn finish(&mut self) -> RunOutcome {
        if self.awaits_undeploy() {
            (self.phase, self.ready_at) = (RunPhase::Running, None);
            return RunOutcome::Completed;
        }
        if !self.stop_requested && self.failed.is_none() {
            // Some had completed when the last one was lost.
            self.failed = Some("its guardian has failed".into());
        }
        RunOutcome::Ended
    }
}

/// One instance of a run.
struct InstanceTask {
    instance: u32,
    output_logs: OutputLogs,
    spec: Arc<RunSpec>,
    sender: UnboundedSender<InstanceReport>,
}

impl InstanceTask {
    async fn guardian(&self) -> std::io::Result<Guardian> {
        let (name, log) = (&self.spec.name, self.spec.log);
        let output = self.output_logs.open(name, self.instance, log).await?;
        let mut output = std::fs::File::from(output);
        // Fits into the empty pipe.
        let _ = writeln!(
            output,
            "tenure: {} instance {} starts with fence {}",
            crate::format::timestamp(clock::wall()),
            self.instance,
            self.spec.fence
        );
        Guardian::stand_by_to(output.into(), name)
    }

    fn report(&self, event: InstanceEvent) {
        // The receiver lives as long as the shim.
        let _ = self.sender.send((self.spec.run, event));
    }

    /// The variables of the file that the workload names, if it names one.
    async fn variables(&self) -> Result<Vec<(OsString, OsString)>, String> {
        let Some(file) = &self.spec.env_file else {
            return Ok(Vec::new());
        };
        let read = self
            .output_logs
            .read_file(Path::new(file), env_file::read)
            .await;
        read.map_err(|why| format!("env-file {why}"))
    }

    /// Passes orders to the guardian until nothing of the instance is left.
    async fn supervise(self, mut start: StartOrder, mut orders: UnboundedReceiver<InstanceOrder>) {
        match self.variables().await {
            // Before the workload's own variables, which override them.
            Ok(variables) => drop(start.env.splice(0..0, variables)),
            Err(why) => {
                self.report(InstanceEvent::Failed(why));
                return self.report(InstanceEvent::Gone);
            }
        }
        let mut guardian = match self.guardian().await {
            Ok(guardian) => guardian,
            Err(error) => {
                self.report(InstanceEvent::Failed(format!(
                    "no process could be started: {error}"
                )));
                return self.report(InstanceEvent::Gone);
            }
        };
        let mut kill_at = start.kill_at;
        // The exit of CMD after it was signalled. It is reported with the last
        // event alone: if the guardian was killed, the kernel has killed CMD too.
        let mut exit_after_signal = None;
        guardian.start(start);
        loop {
            let event = tokio::select! {
                biased;
                event = guardian.event() => event,
                Some(order) = orders.recv() => {
                    match order {
                        InstanceOrder::Extend(drain, kill) => {
                            kill_at = kill_at.max(kill);
                            guardian.extend(drain, kill);
                        }
                        InstanceOrder::Stop(grace) => guardian.stop(grace),
                        InstanceOrder::Kill => guardian.kill(),
                    }
                    continue;
                }
            };
            let last = event.is_last();
            match event {
                GuardianEvent::Ready => {}
                GuardianEvent::Started { .. } => self.report(InstanceEvent::Started),
                GuardianEvent::Refused { why } => {
                    self.report(InstanceEvent::Failed(why.to_string()));
                }
                GuardianEvent::Exited {
                    status,
                    asked: true,
                } => exit_after_signal = Some(status),
                GuardianEvent::Exited { status, .. } => {
                    self.report(InstanceEvent::Exited(status, false));
                }
                GuardianEvent::Lost { why } => self.report(InstanceEvent::Failed(why)),
                GuardianEvent::Gone => {
                    if let Some(status) = exit_after_signal {
                        self.report(InstanceEvent::Exited(status, true));
                    }
                }
                GuardianEvent::WatchdogLost => {
                    self.report(InstanceEvent::Failed(
                        "the watchdog of its guardian has failed".into(),
                    ));
                    // The guardian sees the end of its channel, and has killed CMD by then.
                    let left = kill_at.after(SLACK).since(clock::boot());
                    tokio::time::sleep(left).await;
                }
            }
            if last {
                return self.report(InstanceEvent::Gone);
            }
        }
    }
}
