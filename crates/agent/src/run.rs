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
use super::spool::Spools;
use super::wire::{Begin, Phase, Restart, RunState};
use crate::guard::{Event, Guardian, SLACK, Start, Status};

/// Between what an instance is told and told to stop at once.
#[derive(Clone, Copy, Debug)]
enum Word {
    Extend(Instant, Instant),
    Stop(Duration),
    Kill,
}

/// What became of an instance.
#[derive(Debug)]
pub(super) enum Fate {
    Started,
    /// It did not start.
    Failed(String),
    Exited(Status, bool),
    /// Nothing is left of it.
    Gone,
}

/// News of an instance of a run.
pub(super) type Told = (u64, Fate);

/// What a run has to say.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Said {
    Nothing,
    Completed,
    Ended,
}

pub(super) struct Run {
    begin: Arc<Begin>,
    instances: Vec<UnboundedSender<Word>>,
    live: u32,
    started: u32,
    completed: u32,
    ready_at: Option<Instant>,
    phase: Phase,
    /// The agent has asked for its end.
    asked: bool,
    failed: Option<String>,
}

impl Run {
    /// Starts all instances.
    pub(super) fn new(spools: &Spools, begin: Begin, told: &UnboundedSender<Told>) -> Self {
        let grant = begin.times.grant();
        let mut run = Self {
            instances: Vec::new(),
            live: begin.instances,
            started: 0,
            completed: 0,
            ready_at: None,
            phase: Phase::Starting,
            asked: false,
            failed: None,
            begin: Arc::new(begin),
        };
        for instance in 0..run.begin.instances {
            let (words, heard) = unbounded_channel();
            run.instances.push(words);
            let start = Start {
                drain_at: grant.drain_at,
                kill_at: grant.kill_at,
                argv: run.begin.argv.iter().map(Into::into).collect(),
                env: run.env(instance),
            };
            let kept = Kept {
                instance,
                spools: spools.clone(),
                begin: Arc::clone(&run.begin),
                told: told.clone(),
            };
            tokio::spawn(kept.keep(start, heard));
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
    pub(super) fn is_hollow(&self) -> bool {
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
            self.tell(Word::Extend(drain_at, kill_at));
        }
    }

    /// The agent wants its end; true if there is nothing to end.
    pub(super) fn stop(&mut self) -> bool {
        self.asked = true;
        if matches!(self.phase, Phase::Stopping { .. }) {
            return self.live == 0;
        }
        self.end();
        self.live == 0
    }

    /// The same, at once.
    pub(super) fn kill(&mut self) -> bool {
        self.asked = true;
        self.stopping(Duration::ZERO);
        self.tell(Word::Kill);
        self.live == 0
    }

    fn end(&mut self) {
        let grace = Duration::from_millis(self.begin.grace_ms);
        self.stopping(grace);
        self.tell(Word::Stop(grace));
    }

    fn stopping(&mut self, grace: Duration) {
        let kill_at = clock::boot().after(grace).as_nanos();
        self.phase = Phase::Stopping { kill_at };
        self.ready_at = None;
    }

    fn tell(&self, word: Word) {
        for instance in &self.instances {
            // Those that have ended hear nothing, and need not.
            let _ = instance.send(word);
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
            self.phase = Phase::Running;
        }
        ready
    }

    /// Takes in what became of an instance.
    pub(super) fn hear(&mut self, fate: Fate) -> Said {
        match fate {
            Fate::Started => {
                self.started += 1;
                if self.started == self.begin.instances && self.phase == Phase::Starting {
                    let ready = Duration::from_millis(self.begin.ready_ms);
                    self.ready_at = Some(clock::boot().after(ready));
                }
            }
            Fate::Failed(why) => self.fails(why),
            Fate::Exited(_, _) if self.asked => {}
            Fate::Exited(_, true) => {
                self.fails("its node could not confirm in time that it lives".into());
            }
            Fate::Exited(status, false) => self.exited(status),
            Fate::Gone => {
                self.live = self.live.saturating_sub(1);
                if self.live == 0 {
                    return self.over();
                }
            }
        }
        Said::Nothing
    }

    fn exited(&mut self, status: Status) {
        let complete = match self.begin.restart {
            Restart::Always => false,
            Restart::OnFailure => status == Status::Code(0),
            Restart::Never => true,
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
        if !matches!(self.phase, Phase::Stopping { .. }) {
            self.end();
        }
    }

    fn over(&mut self) -> Said {
        if self.is_hollow() {
            (self.phase, self.ready_at) = (Phase::Running, None);
            return Said::Completed;
        }
        if !self.asked && self.failed.is_none() {
            // Some had completed when the last one was lost.
            self.failed = Some("its guardian has failed".into());
        }
        Said::Ended
    }
}

/// One instance of a run.
struct Kept {
    instance: u32,
    spools: Spools,
    begin: Arc<Begin>,
    told: UnboundedSender<Told>,
}

impl Kept {
    async fn guardian(&self) -> std::io::Result<Guardian> {
        let (name, log) = (&self.begin.name, self.begin.log);
        let output = self.spools.begin(name, self.instance, log).await?;
        let mut output = std::fs::File::from(output);
        // Fits into the empty pipe.
        let _ = writeln!(
            output,
            "tenure: {} instance {} starts with fence {}",
            crate::words::timestamp(clock::wall()),
            self.instance,
            self.begin.fence
        );
        Guardian::stand_by_to(output.into(), name)
    }

    fn tell(&self, fate: Fate) {
        // The steward hears as long as it lives.
        let _ = self.told.send((self.begin.run, fate));
    }

    /// The variables of the file that the workload names, if it names one.
    async fn variables(&self) -> Result<Vec<(OsString, OsString)>, String> {
        let Some(file) = &self.begin.env_file else {
            return Ok(Vec::new());
        };
        let read = self.spools.look(Path::new(file), env_file::read).await;
        read.map_err(|why| format!("env-file {why}"))
    }

    /// Feeds the guardian until nothing of the instance is left.
    async fn keep(self, mut start: Start, mut words: UnboundedReceiver<Word>) {
        match self.variables().await {
            // Before the others, which count for more.
            Ok(variables) => drop(start.env.splice(0..0, variables)),
            Err(why) => {
                self.tell(Fate::Failed(why));
                return self.tell(Fate::Gone);
            }
        }
        let mut guardian = match self.guardian().await {
            Ok(guardian) => guardian,
            Err(error) => {
                self.tell(Fate::Failed(format!(
                    "no process could be started: {error}"
                )));
                return self.tell(Fate::Gone);
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
                Some(word) = words.recv() => {
                    match word {
                        Word::Extend(drain, kill) => {
                            kill_at = kill_at.max(kill);
                            guardian.extend(drain, kill);
                        }
                        Word::Stop(grace) => guardian.stop(grace),
                        Word::Kill => guardian.kill(),
                    }
                    continue;
                }
            };
            let last = event.is_last();
            match event {
                Event::Ready => {}
                Event::Started { .. } => self.tell(Fate::Started),
                Event::Refused { why } => self.tell(Fate::Failed(why.to_string())),
                Event::Exited {
                    status,
                    asked: true,
                } => told_to_end = Some(status),
                Event::Exited { status, .. } => self.tell(Fate::Exited(status, false)),
                Event::Lost { why } => self.tell(Fate::Failed(why)),
                Event::Gone => {
                    if let Some(status) = told_to_end {
                        self.tell(Fate::Exited(status, true));
                    }
                }
                Event::Blind => {
                    self.tell(Fate::Failed("the keeper of its guardian has failed".into()));
                    // The guardian hears that too, and has killed it by then.
                    let left = kill_at.after(SLACK).since(clock::boot());
                    tokio::time::sleep(left).await;
                }
            }
            if last {
                return self.tell(Fate::Gone);
            }
        }
    }
}
