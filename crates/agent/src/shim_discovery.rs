//! How an agent that begins finds its shim, or starts one; and what it resumes or
//! ends of a previous incarnation.
//!
//! A shim that hangs from the start, or while it ends what a previous incarnation
//! has left, is killed by the same rule as one that hangs later
//! (`shim_client.rs`). A new agent has not sent a heartbeat yet, and no other
//! process sends heartbeats for it, so what its shim holds ends within a lease.
//! The agent may kill the shim at any time: the guardians see the end of their
//! channels and end their commands. It waits first, because a shim that was only
//! stopped goes on and keeps what runs.
//!
//! A shim reads the clock of the agent that started it, and so do its guardians.
//! An agent that is shown another clock (another time namespace), or cannot tell,
//! would send them times that mean nothing to them. If their clock were a day
//! behind, what they hold would live a day longer than its lease. So such an agent
//! has everything ended, and starts a shim of its own.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::Name;
use tenure::clock;
use tenure::core::ha::{Plant, is_one_clock, may_resume};
use tenure::core::time::{ClockId, Instant};
use tenure::ha::{Config, Digest, Job, NodeId, Phase, ResumeState, Run};

use super::messages::{self, Connection, Incarnation, ShimOrder, ShimReport, State};
use super::shim;
use super::state_directory::{SHIM_SOCKET, SocketDirectory};
use crate::guard::SLACK;

/// How long a shim may take to send its first report.
const FIRST_MESSAGE_WITHIN: Duration = Duration::from_secs(10);
/// How long a shim may take to answer a heartbeat, at the least.
pub(super) const HUNG_AFTER: Duration = Duration::from_secs(1);

/// A shim that was found or started, and what it has.
pub(super) struct ConnectedShim {
    pub(super) connection: Connection,
    pub(super) state: State,
    /// By when what it holds has ended, if no heartbeat comes.
    ended_by: Instant,
    /// Whether its clock is the one that is read here.
    same_clock: bool,
}

/// What an agent compares after a restart: its settings, and the clock that it
/// reads.
pub(super) fn settings(url: &str, config: &Config, clock: Option<ClockId>) -> String {
    format!("{url} {config:?} {clock:?}")
}

/// A workload that has completed, and is to be undeployed. The digest tells it
/// from another one of its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CompletedWorkload {
    pub(super) name: Name,
    pub(super) digest: Digest,
}

impl CompletedWorkload {
    pub(super) fn new(name: &str, digest: &str) -> Option<Self> {
        let (name, digest) = (Name::new(name).ok()?, Digest::new(digest)?);
        Some(Self { name, digest })
    }
}

/// Finds the shim of a previous incarnation of the node, or starts one. The
/// node has this lease, and reads this clock.
pub(super) async fn find(
    directory: &Path,
    lease: Duration,
    clock: Option<ClockId>,
) -> io::Result<ConnectedShim> {
    let sockets = SocketDirectory::open(directory)?;
    let Ok(stream) = sockets.connect(SHIM_SOCKET).await else {
        return start(directory, &sockets).await;
    };
    // What it holds has ended by then: it has got no heartbeat for a lease.
    let over = lease.saturating_add(SLACK).saturating_add(SLACK);
    let mut connection = Connection::new(stream);
    if let Some(state) = first_state(&mut connection, FIRST_MESSAGE_WITHIN.max(over)).await? {
        return Ok(ConnectedShim::new(connection, state, clock));
    }
    kill_hung(&mut connection).await;
    start(directory, &sockets).await
}

/// Kills a shim that does not answer, and waits until it has gone.
async fn kill_hung(connection: &mut Connection) {
    tracing::error!(
        "the steward (shim) of this node does not answer, and what it held is over; it is killed, \
         and another one is started"
    );
    kill_and_wait(connection).await;
}

async fn kill_and_wait(connection: &mut Connection) {
    // While the connection is open the shim lives, and no other process has
    // its number.
    if let Some(pid) = connection.peer().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let gone = async { while let Ok(Some(_)) = connection.next::<ShimReport>().await {} };
    let _ = tokio::time::timeout(HUNG_AFTER, gone).await;
}

pub(super) async fn start(
    directory: &Path,
    sockets: &SocketDirectory,
) -> io::Result<ConnectedShim> {
    shim::spawn(directory).await?;
    let mut connection = Connection::new(sockets.connect(SHIM_SOCKET).await?);
    match first_state(&mut connection, FIRST_MESSAGE_WITHIN).await? {
        // It is a child of this process, and reads its clock.
        Some(state) => Ok(ConnectedShim {
            same_clock: true,
            ended_by: Instant::ZERO,
            connection,
            state,
        }),
        None => Err(io::Error::other(
            "expected the steward (shim) that was just started to answer, found that it does not",
        )),
    }
}

/// The first report of a shim; `None` if it does not come in time.
async fn first_state(connection: &mut Connection, within: Duration) -> io::Result<Option<State>> {
    match tokio::time::timeout(within, connection.next::<ShimReport>()).await {
        Ok(Ok(Some(ShimReport::State(state)))) => Ok(Some(state)),
        Ok(Err(error)) => Err(error),
        Ok(Ok(_)) | Err(_) => Ok(None),
    }
}

impl ConnectedShim {
    fn new(connection: Connection, state: State, clock: Option<ClockId>) -> Self {
        let noted = noted_clock(&state.settings, clock);
        let same_clock = is_one_clock(noted, clock, Plant::NONE);
        let grant = state
            .incarnation
            .as_ref()
            .map(|incarnation| incarnation.times.grant());
        let ended_by = grant.map_or(Instant::ZERO, |grant| {
            // Its times mean nothing on another clock, but spans do: the last
            // heartbeat was before now.
            let span = grant.kill_at.since(grant.start);
            let kill_at = if same_clock {
                grant.kill_at
            } else {
                clock::boot().after(span)
            };
            kill_at.after(SLACK).after(SLACK)
        });
        Self {
            connection,
            state,
            ended_by,
            same_clock,
        }
    }

    /// What the node may go on from, if it has the same settings as before and
    /// there is time; else why not, for the log.
    pub(super) fn resume_state(
        &self,
        settings: &str,
        clock: Option<ClockId>,
    ) -> Result<ResumeState, &'static str> {
        const UNKNOWN: &str = "what is noted of it cannot be read";
        let incarnation = self.state.incarnation.as_ref().ok_or(UNKNOWN)?;
        let grant = incarnation.times.grant();
        let one_incarnation = self.state.runs.iter().all(|run| run.id == incarnation.id);
        let noted = noted_clock(&self.state.settings, clock);
        let resumes = may_resume(noted, clock, clock::boot(), &grant, Plant::NONE);
        // The clock first: it is a part of the settings' text.
        if !self.same_clock {
            return Err("its clock cannot be told to be this one");
        }
        if self.state.settings != settings {
            return Err("its settings were others");
        }
        if !one_incarnation {
            return Err("it had not ended all of the one before it");
        }
        if !resumes {
            return Err("its deadline has passed");
        }
        let mut jobs = BTreeMap::new();
        for run in &self.state.runs {
            let job = Job {
                run: Run(run.run),
                digest: Digest::new(&run.digest).ok_or(UNKNOWN)?,
                instances: run.instances,
                fence: run.fence,
                phase: match run.phase {
                    messages::RunPhase::Starting => Phase::Starting,
                    messages::RunPhase::Running => Phase::Running,
                    messages::RunPhase::Stopping { kill_at } => Phase::Stopping {
                        kill_at: Instant::from_nanos(kill_at),
                        killed: false,
                    },
                },
            };
            let name = Name::new(&run.name).map_err(|_| UNKNOWN)?;
            jobs.insert(name, job);
        }
        let id = NodeId::parse(&incarnation.id).ok_or(UNKNOWN)?;
        Ok(ResumeState { id, grant, jobs })
    }

    /// The id that the node had before.
    pub(super) fn former_id(&self) -> Option<NodeId> {
        NodeId::parse(&self.state.incarnation.as_ref()?.id)
    }

    /// Ends all runs that a previous incarnation has left. Returns those that
    /// had completed before.
    pub(super) async fn end_all(&mut self, directory: &Path) -> io::Result<Vec<CompletedWorkload>> {
        let mut left: Vec<u64> = self.state.runs.iter().map(|run| run.run).collect();
        for run in &left {
            self.connection.queue(&ShimOrder::Stop { run: *run });
        }
        let mut done = Vec::new();
        while !left.is_empty() {
            match self.next_report().await {
                Some(ShimReport::Ended { run, .. }) => left.retain(|it| *it != run),
                Some(ShimReport::Completed { run }) => {
                    let completed = self.state.runs.iter().find(|it| it.run == run);
                    done.extend(
                        completed.and_then(|it| CompletedWorkload::new(&it.name, &it.digest)),
                    );
                }
                Some(_) => {}
                None => {
                    // Gone, and with it in time what it held.
                    let over = self.ended_by.since(clock::boot());
                    tokio::time::sleep(over).await;
                    *self = start(directory, &SocketDirectory::open(directory)?).await?;
                    return Ok(done);
                }
            }
        }
        Ok(done)
    }

    /// Makes sure that the shim reads the clock that is read here. A shim that
    /// does not, and whose runs have ended, is killed, and another is started.
    pub(super) async fn ensure_same_clock(&mut self, directory: &Path) -> io::Result<()> {
        if self.same_clock {
            return Ok(());
        }
        tracing::debug!(
            "the steward (shim) of an earlier incarnation reads another clock, and is replaced"
        );
        kill_and_wait(&mut self.connection).await;
        let notes = std::mem::take(&mut self.state.notes);
        *self = start(directory, &SocketDirectory::open(directory)?).await?;
        self.state.notes = notes;
        Ok(())
    }

    /// The next report of the shim while it ends its runs; `None` once it has
    /// gone, by itself or because it did not answer.
    async fn next_report(&mut self) -> Option<ShimReport> {
        let mut probed = false;
        loop {
            let timeout = HUNG_AFTER.max(self.ended_by.since(clock::boot()));
            match tokio::time::timeout(timeout, self.connection.next::<ShimReport>()).await {
                // It lives, and a process that the kernel does not end keeps
                // a run for long.
                Ok(Ok(Some(ShimReport::Heard { .. }))) => probed = false,
                Ok(news) => return news.ok().flatten(),
                Err(_) => {
                    // The last heartbeat of the previous incarnation moves no time
                    // any more, and is answered. Without one nothing was ever
                    // started.
                    let incarnation = self.state.incarnation.clone().filter(|_| !probed);
                    let Some(Incarnation { id, times }) = incarnation else {
                        kill_hung(&mut self.connection).await;
                        return None;
                    };
                    self.connection.queue(&ShimOrder::Extend { id, times });
                    probed = true;
                }
            }
        }
    }
}

/// The clock that a previous incarnation has noted with its settings, if it is
/// this one.
fn noted_clock(settings: &str, clock: Option<ClockId>) -> Option<ClockId> {
    clock.filter(|_| settings.ends_with(&format!(" {clock:?}")))
}
