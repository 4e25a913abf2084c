//! One start of a workload, in the steward: its instances stand and fall
//! together.
//!
//! ```text
//!             all run for long enough          told to stop
//!  starting ─────────────────────────> running ────────────> stopping ──> ended
//!      │                                  │ │                              ^
//!      └── one ends, or cannot start ─────┘ └─ all completed: hollow ──────┤
//!          the others are stopped ─────────────────────────────────────────┘
//! ```
//!
//! Each instance has a guardian of its own (`guard/`), a task here that feeds
//! it, and a file for its output. Nothing has ended before its guardian says
//! so; if that cannot be known, not before the guardian must have killed it.
//!
//! A run that completed, by its restart policy, is kept *hollow* until the
//! agent has had it undeployed: if it were told as an end, it would be started
//! again.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tenure::clock;
use tenure::core::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::env_file;
use super::messages::{Begin, RestartPolicy, RunPhase, RunState};
use super::output_log::OutputLogs;
use crate::guard::{Event, ExitStatus, Guardian, SLACK, Start};

/// Between what an instance is told and told to stop at once.
#[derive(Clone, Copy, Debug)]
enum InstanceOrder {
    Extend(Instant, Instant),
    Stop(Duration),
    Kill,
}

/// What became of an instance.
#[derive(Debug)]
pub(super) enum InstanceEvent {
    Started,
    /// It did not start.
    Failed(String),
    Exited(ExitStatus, bool),
    /// Nothing is left of it.
    Gone,
}

/// News of an instance of a run.
pub(super) type InstanceReport = (u64, InstanceEvent);

/// What a run has to say.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum RunOutcome {
    Nothing,
    Completed,
    Ended,
}

pub(super) struct WorkloadRun {
    begin: Arc<Begin>,
    instances: Vec<UnboundedSender<InstanceOrder>>,
    live: u32,
    started: u32,
    completed: u32,
    ready_at: Option<Instant>,
    phase: RunPhase,
    /// The agent has asked for its end.
    asked: bool,
    failed: Option<String>,
}

impl WorkloadRun {
    /// Starts all instances.
    pub(super) fn new(
        output_logs: &OutputLogs,
        begin: Begin,
        told: &UnboundedSender<InstanceReport>,
    ) -> Self {
        let grant = begin.times.grant();
        let mut run = Self {
            instances: Vec::new(),
            live: begin.instances,
            started: 0,
            completed: 0,
            ready_at: None,
            phase: RunPhase::Starting,
            asked: false,
            failed: None,
            begin: Arc::new(begin),
        };
        for instance in 0..run.begin.instances {
            let (orders, heard) = unbounded_channel();
            run.instances.push(orders);
            let start = Start {
                drain_at: grant.drain_at,
                kill_at: grant.kill_at,
                argv: run.begin.argv.iter().map(Into::into).collect(),
                env: run.env(instance),
            };
            let instance_task = InstanceTask {
                instance,
                output_logs: output_logs.clone(),
                begin: Arc::clone(&run.begin),
                told: told.clone(),
            };
            tokio::spawn(instance_task.supervise(start, heard));
        }
        run
    }

    fn env(&self, instance: u32) -> Vec<(OsString, OsString)> {
        let given = self.begin.env.iter();
        let given = given.map(|(key, value)| (key.into(), value.into()));
        let own = ("TENURE_INSTANCE".into(), instance.to_string().into());
        given.chain([own]).collect()
    }

    pub(super) fn is_over(&self) -> bool {
        self.live == 0
    }

    /// Whether nothing of it is left although nobody has asked for its end.
    pub(super) fn awaits_undeploy(&self) -> bool {
        self.live == 0 && !self.asked && self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.failed.is_none() && self.completed == self.begin.instances
    }

    /// Why it ended, if that was not asked for.
    pub(super) fn failed(&self) -> Option<String> {
        self.failed.clone().filter(|_| !self.asked)
    }

    pub(super) fn state(&self) -> RunState {
        RunState {
            run: self.begin.run,
            id: self.begin.id.clone(),
            name: self.begin.name.clone(),
            digest: self.begin.digest.clone(),
            instances: self.begin.instances,
            fence: self.begin.fence,
            phase: self.phase,
        }
    }

    /// A beat of the node of this id was confirmed.
    pub(super) fn extend(&mut self, id: &str, drain_at: Instant, kill_at: Instant) {
        // What another incarnation began keeps the times it has.
        if id == self.begin.id {
            self.tell(InstanceOrder::Extend(drain_at, kill_at));
        }
    }

    /// The agent wants its end; true if there is nothing to end.
    pub(super) fn stop(&mut self) -> bool {
        self.asked = true;
        if matches!(self.phase, RunPhase::Stopping { .. }) {
            return self.live == 0;
        }
        self.end();
        self.live == 0
    }

    /// The same, at once.
    pub(super) fn kill(&mut self) -> bool {
        self.asked = true;
        self.stopping(Duration::ZERO);
        self.tell(InstanceOrder::Kill);
        self.live == 0
    }

    fn end(&mut self) {
        let grace = Duration::from_millis(self.begin.grace_ms);
        self.stopping(grace);
        self.tell(InstanceOrder::Stop(grace));
    }

    fn stopping(&mut self, grace: Duration) {
        let kill_at = clock::boot().after(grace).as_nanos();
        self.phase = RunPhase::Stopping { kill_at };
        self.ready_at = None;
    }

    fn tell(&self, order: InstanceOrder) {
        for instance in &self.instances {
            // Those that have ended hear nothing, and need not.
            let _ = instance.send(order);
        }
    }

    /// When it is to be looked at.
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

    /// Takes in what became of an instance.
    pub(super) fn handle_event(&mut self, event: InstanceEvent) -> RunOutcome {
        match event {
            InstanceEvent::Started => {
                self.started += 1;
                if self.started == self.begin.instances && self.phase == RunPhase::Starting {
                    let ready = Duration::from_millis(self.begin.ready_ms);
                    self.ready_at = Some(clock::boot().after(ready));
                }
            }
            InstanceEvent::Failed(why) => self.fails(why),
            InstanceEvent::Exited(_, _) if self.asked => {}
            InstanceEvent::Exited(_, true) => {
                self.fails("its node could not confirm in time that it lives".into());
            }
            InstanceEvent::Exited(status, false) => self.exited(status),
            InstanceEvent::Gone => {
                self.live = self.live.saturating_sub(1);
                if self.live == 0 {
                    return self.over();
                }
            }
        }
        RunOutcome::Nothing
    }

    fn exited(&mut self, status: ExitStatus) {
        let complete = match self.begin.restart {
            RestartPolicy::Always => false,
            RestartPolicy::OnFailure => status == ExitStatus::Code(0),
            RestartPolicy::Never => true,
        };
        if complete {
            self.completed += 1;
        } else {
            self.fails(status.to_string());
        }
    }

    /// One instance has failed: the others end with it.
    fn fails(&mut self, why: String) {
        self.failed.get_or_insert(why);
        if !matches!(self.phase, RunPhase::Stopping { .. }) {
            self.end();
        }
    }

    fn over(&mut self) -> RunOutcome {
        if self.awaits_undeploy() {
            (self.phase, self.ready_at) = (RunPhase::Running, None);
            return RunOutcome::Completed;
        }
        if !self.asked && self.failed.is_none() {
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
    begin: Arc<Begin>,
    told: UnboundedSender<InstanceReport>,
}

impl InstanceTask {
    async fn guardian(&self) -> std::io::Result<Guardian> {
        let (name, log) = (&self.begin.name, self.begin.log);
        let output = self.output_logs.begin(name, self.instance, log).await?;
        let mut output = std::fs::File::from(output);
        // Fits into the empty pipe.
        let _ = writeln!(
            output,
            "tenure: {} instance {} starts with fence {}",
            crate::format::timestamp(clock::wall()),
            self.instance,
            self.begin.fence
        );
        Guardian::stand_by_to(output.into(), name)
    }

    fn tell(&self, event: InstanceEvent) {
        // The steward hears as long as it lives.
        let _ = self.told.send((self.begin.run, event));
    }

    /// The variables of the file that the workload names, if it names one.
    async fn variables(&self) -> Result<Vec<(OsString, OsString)>, String> {
        let Some(file) = &self.begin.env_file else {
            return Ok(Vec::new());
        };
        let read = self.output_logs.look(Path::new(file), env_file::read).await;
        read.map_err(|why| format!("env-file {why}"))
    }

    /// Feeds the guardian until nothing of the instance is left.
    async fn supervise(self, mut start: Start, mut orders: UnboundedReceiver<InstanceOrder>) {
        match self.variables().await {
            // Before the others, which count for more.
            Ok(variables) => drop(start.env.splice(0..0, variables)),
            Err(why) => {
                self.tell(InstanceEvent::Failed(why));
                return self.tell(InstanceEvent::Gone);
            }
        }
        let mut guardian = match self.guardian().await {
            Ok(guardian) => guardian,
            Err(error) => {
                self.tell(InstanceEvent::Failed(format!(
                    "no process could be started: {error}"
                )));
                return self.tell(InstanceEvent::Gone);
            }
        };
        let mut kill_at = start.kill_at;
        // The exit of CMD after it was signalled. It is reported with the last
        // event alone: if the guardian was killed, the kernel has killed CMD too.
        let mut told_to_end = None;
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
                Event::Ready => {}
                Event::Started { .. } => self.tell(InstanceEvent::Started),
                Event::Refused { why } => self.tell(InstanceEvent::Failed(why.to_string())),
                Event::Exited {
                    status,
                    asked: true,
                } => told_to_end = Some(status),
                Event::Exited { status, .. } => self.tell(InstanceEvent::Exited(status, false)),
                Event::Lost { why } => self.tell(InstanceEvent::Failed(why)),
                Event::Gone => {
                    if let Some(status) = told_to_end {
                        self.tell(InstanceEvent::Exited(status, true));
                    }
                }
                Event::WatchdogLost => {
                    self.tell(InstanceEvent::Failed(
                        "the keeper of its guardian has failed".into(),
                    ));
                    // The guardian hears that too, and has killed it by then.
                    let left = kill_at.after(SLACK).since(clock::boot());
                    tokio::time::sleep(left).await;
                }
            }
            if last {
                return self.tell(InstanceEvent::Gone);
            }
        }
    }
}
