//! The agent's side of the shim: the host of its workloads, and a relay that
//! passes orders to the shim and its reports back.
//!
//! The relay lives on the background thread, beside the heartbeats. A terminal
//! that takes no more output, or a command that keeps the agent busy, must not
//! keep a confirmed heartbeat from the guardians.
//!
//! Two things can go wrong with a shim:
//!
//! * It is *gone*. Then its guardians end everything at once. The relay cannot
//!   see that. So it waits until the last `kill_at` that it sent is over, by when
//!   they have ended it, and only then reports the end.
//! * It *hangs*. Then heartbeats do not reach the guardians, which end everything
//!   at the last `kill_at` they know. After that the relay kills the shim, and it
//!   is gone.
//!
//! Either way the relay starts another shim, and the machine starts its workloads
//! anew. A shim may also hang while no heartbeats are sent, because the node was
//! fenced or the agent ends. To notice that, the relay sends the last heartbeat
//! once more while it waits for an end: that moves no time, and is answered.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;
use tenure::core::election::Grant;
use tenure::core::time::Instant;
use tenure::drive;
use tenure::ha::{Host, NodeId, Report, Run, Start};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::messages::{Connection, Incarnation, LINE_MAX, ShimOrder, ShimReport};
use super::order_queue::OrderQueue;
use super::shim_discovery::{CompletedWorkload, ConnectedShim, HUNG_AFTER, start};
use super::spec::WorkloadDefaults;
use super::state_directory::SocketDirectory;
use crate::guard::SLACK;

/// How long to wait between attempts to start a shim.
const RETRY: Duration = Duration::from_secs(1);
/// How long a start waits for a shim.
const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// The host that the manager gets.
pub(super) struct ShimHost {
    defaults: WorkloadDefaults,
    orders: Arc<OrderQueue>,
    report_sender: UnboundedSender<Report>,
    reports: UnboundedReceiver<Report>,
}

/// What the agent keeps: it ends the shim, and sees what the shim reports.
pub(super) struct ShimHandle {
    orders: Arc<OrderQueue>,
    /// Workloads that have completed.
    pub(super) completed: UnboundedReceiver<CompletedWorkload>,
    /// How many shims were lost.
    pub(super) lost: watch::Receiver<u64>,
    relay: JoinHandle<()>,
}

/// Starts the relay between a shim and these two.
pub(super) fn connect(
    found: ConnectedShim,
    defaults: WorkloadDefaults,
    settings: String,
    directory: PathBuf,
) -> io::Result<(ShimHost, ShimHandle)> {
    let orders = Arc::new(OrderQueue::default());
    let (report_sender, reports) = unbounded_channel();
    let (completed_sender, completed) = unbounded_channel();
    let (lost_sender, lost) = watch::channel(0);
    let mut runs = BTreeMap::new();
    for run in &found.state.runs {
        runs.insert(run.run, CompletedWorkload::new(&run.name, &run.digest));
    }
    let incarnation = found.state.incarnation.as_ref();
    let kill_at = incarnation.map_or(Instant::ZERO, |incarnation| {
        incarnation.times.grant().kill_at
    });
    let background = drive::background();
    let relay = ShimRelay {
        sockets: SocketDirectory::open(&directory)?,
        directory,
        connection: found.connection.driven_by(background)?,
        orders: Arc::clone(&orders),
        report_sender: report_sender.clone(),
        completed_sender,
        lost_sender,
        runs,
        sent_kill_at: kill_at,
        confirmed_kill_at: kill_at,
        unconfirmed_since: None,
        incarnation: found.state.incarnation.clone(),
        last_sent_at: Instant::ZERO,
        ending_runs: BTreeSet::new(),
        notes: found.state.notes,
        settings,
        quitting: false,
    };
    let relay = background.spawn(relay.run());
    let host = ShimHost {
        defaults,
        orders: Arc::clone(&orders),
        report_sender,
        reports,
    };
    let handle = ShimHandle {
        orders,
        completed,
        lost,
        relay,
    };
    Ok((host, handle))
}

impl Host for ShimHost {
    fn begin(&mut self, start: Start) {
        match self.defaults.run_spec(&start) {
            Ok(begin) => self.order(ShimOrder::Begin(Box::new(begin))),
            Err(why) => {
                let failed = Some(why.into());
                let run = start.run;
                // The receiver is our own.
                let _ = self.report_sender.send(Report::Ended { run, failed });
            }
        }
    }

    fn extend(&mut self, id: NodeId, grant: Grant) {
        let (id, times) = (id.to_string(), grant.into());
        self.order(ShimOrder::Extend { id, times });
    }

    fn stop(&mut self, run: Run) {
        self.order(ShimOrder::Stop { run: run.0 });
    }

    fn kill(&mut self, run: Run) {
        self.order(ShimOrder::Kill { run: run.0 });
    }

    async fn next(&mut self) -> Report {
        match self.reports.recv().await {
            Some(report) => report,
            // A sender of it is our own.
            None => std::future::pending().await,
        }
    }
}

impl ShimHost {
    fn order(&self, order: ShimOrder) {
        if let Some((run, failed)) = self.orders.push(order) {
            let (run, failed) = (Run(run), failed.map(Into::into));
            let _ = self.report_sender.send(Report::Ended { run, failed });
        }
    }
}

impl ShimHandle {
    /// Leaves a note for the next incarnation.
    pub(super) fn note(&self, text: String) {
        let _ = self.orders.push(ShimOrder::Notes { text });
    }

    /// Kills what is left, ends the shim and waits until it has ended.
    pub(super) async fn quit(self) {
        let _ = self.orders.push(ShimOrder::Quit);
        let _ = self.relay.await;
    }
}

struct ShimRelay {
    directory: PathBuf,
    sockets: SocketDirectory,
    connection: Connection,
    orders: Arc<OrderQueue>,
    report_sender: UnboundedSender<Report>,
    completed_sender: UnboundedSender<CompletedWorkload>,
    lost_sender: watch::Sender<u64>,
    /// The runs that the shim has; `None` is one whose name does not parse.
    runs: BTreeMap<u64, Option<CompletedWorkload>>,
    /// The last `kill_at` that was sent, and that was confirmed; and since when
    /// one is not confirmed.
    sent_kill_at: Instant,
    confirmed_kill_at: Instant,
    unconfirmed_since: Option<Instant>,
    /// The last heartbeat that was sent.
    incarnation: Option<Incarnation>,
    /// When an order was sent last.
    last_sent_at: Instant,
    /// The runs that are to end, and have not yet.
    ending_runs: BTreeSet<u64>,
    settings: String,
    notes: String,
    quitting: bool,
}

impl ShimRelay {
    async fn run(mut self) {
        let text = self.settings.clone();
        self.connection.queue(&ShimOrder::Settings { text });
        loop {
            let (hung_at, probe_at) = (self.hung_at(), self.probe_at());
            // A shim that does not read gets no more than this ahead.
            let reads = self.connection.backlog() <= LINE_MAX;
            tokio::select! {
                biased;
                report = self.connection.next::<ShimReport>() => match report {
                    Ok(Some(report)) => self.handle_report(report),
                    Ok(None) | Err(_) if self.quitting => return,
                    Ok(None) => if !self.replace_shim("it has ended").await {
                        return;
                    },
                    Err(error) => if !self.replace_shim(&error.to_string()).await {
                        return;
                    },
                },
                order = self.orders.next(), if reads => self.forward(order),
                () = until(hung_at) => self.kill_shim(),
                () = until(probe_at) => self.probe(),
            }
        }
    }

    fn forward(&mut self, order: ShimOrder) {
        match &order {
            ShimOrder::Begin(begin) => {
                let completed = CompletedWorkload::new(&begin.name, &begin.digest);
                self.runs.insert(begin.run, completed);
                self.sent_kill_at = self.sent_kill_at.max(begin.times.grant().kill_at);
            }
            ShimOrder::Extend { id, times } => {
                self.sent_kill_at = self.sent_kill_at.max(times.grant().kill_at);
                self.unconfirmed_since.get_or_insert_with(clock::boot);
                let (id, times) = (id.clone(), *times);
                self.incarnation = Some(Incarnation { id, times });
            }
            ShimOrder::Notes { text } => self.notes.clone_from(text),
            ShimOrder::Quit => {
                self.quitting = true;
                if self.incarnation.is_none() {
                    // It holds nothing, so only its end can be seen.
                    self.unconfirmed_since.get_or_insert_with(clock::boot);
                }
            }
            ShimOrder::Stop { run } | ShimOrder::Kill { run } => {
                // The end of a run is reported once.
                if self.runs.contains_key(run) {
                    self.ending_runs.insert(*run);
                }
            }
            ShimOrder::Settings { .. } => {}
        }
        self.connection.queue(&order);
        self.last_sent_at = clock::boot();
    }

    /// When to find out whether the shim still answers: while an end is waited
    /// for, and nothing that is answered was sent.
    fn probe_at(&self) -> Instant {
        let waits = self.quitting || !self.ending_runs.is_empty();
        if waits && self.unconfirmed_since.is_none() && self.incarnation.is_some() {
            self.last_sent_at.after(HUNG_AFTER)
        } else {
            Instant::MAX
        }
    }

    /// Sends the last heartbeat once more: it moves no time, and is answered.
    fn probe(&mut self) {
        if let Some(Incarnation { id, times }) = self.incarnation.clone() {
            self.unconfirmed_since.get_or_insert_with(clock::boot);
            self.connection.queue(&ShimOrder::Extend { id, times });
            self.last_sent_at = clock::boot();
        }
    }

    fn handle_report(&mut self, report: ShimReport) {
        // The receiver lives as long as the host.
        match report {
            ShimReport::Started { run } => drop(self.report_sender.send(Report::Started(Run(run)))),
            ShimReport::Completed { run } => {
                if let Some(completed) = self.runs.get(&run).cloned().flatten() {
                    let _ = self.completed_sender.send(completed);
                }
            }
            ShimReport::Ended { run, failed } => {
                self.runs.remove(&run);
                self.ended(run, failed.map(Into::into));
            }
            ShimReport::Heard { kill_at } => {
                self.confirmed_kill_at = Instant::from_nanos(kill_at);
                self.unconfirmed_since =
                    (self.confirmed_kill_at < self.sent_kill_at).then(clock::boot);
            }
            ShimReport::State(_) => {}
        }
    }

    fn ended(&mut self, run: u64, failed: Option<Arc<str>>) {
        self.ending_runs.remove(&run);
        let run = Run(run);
        let _ = self.report_sender.send(Report::Ended { run, failed });
    }

    /// When a shim that has not confirmed the last heartbeat is taken for hung.
    /// Its guardians have ended everything by then.
    fn hung_at(&self) -> Instant {
        let ended = self.confirmed_kill_at.after(SLACK).after(SLACK);
        let since = self.unconfirmed_since.map(|since| since.after(HUNG_AFTER));
        since.map_or(Instant::MAX, |since| since.max(ended))
    }

    fn kill_shim(&mut self) {
        tracing::error!(
            "the steward (shim) does not answer, and what it held is over; it is killed"
        );
        let pid = self.connection.peer().and_then(Pid::from_raw);
        // While the connection is open the shim lives, and no other process has
        // its number.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::KILL);
        }
        self.unconfirmed_since = None;
        self.last_sent_at = clock::boot();
    }

    /// The shim is gone: reports that everything has ended, once that is
    /// certain, and starts another. False if none can be started and the agent
    /// wants to end.
    async fn replace_shim(&mut self, why: &str) -> bool {
        tracing::error!(
            "the steward (shim) was lost: {why}; its guardians end what it held, and another one is \
             started"
        );
        let over = self.sent_kill_at.after(SLACK).since(clock::boot());
        tokio::time::sleep(over).await;
        for (run, _) in std::mem::take(&mut self.runs) {
            self.ended(run, Some("its steward (shim) was lost".into()));
        }
        self.ending_runs.clear();
        self.lost_sender.send_modify(|lost| *lost += 1);
        let Some(found) = self.start_another().await else {
            return false;
        };
        self.connection = found.connection;
        (self.confirmed_kill_at, self.unconfirmed_since) = (self.sent_kill_at, None);
        let text = self.settings.clone();
        self.connection.queue(&ShimOrder::Settings { text });
        let text = self.notes.clone();
        self.connection.queue(&ShimOrder::Notes { text });
        true
    }

    /// Another shim; `None` if the agent wants to end before one is started.
    ///
    /// Starts that have waited for [`STARTED_WITHIN`] have failed, so that the
    /// group can have another node start them.
    async fn start_another(&self) -> Option<ConnectedShim> {
        let mut starting = std::pin::pin!(self.start());
        let mut give_up_at = clock::boot().after(STARTED_WITHIN);
        while !self.orders.is_quitting() {
            tokio::select! {
                found = &mut starting => return Some(found),
                () = tokio::time::sleep(RETRY) => {}
            }
            if clock::boot() >= give_up_at {
                give_up_at = clock::boot().after(STARTED_WITHIN);
                self.give_up_starts();
            }
        }
        None
    }

    /// Tries until a shim is started.
    async fn start(&self) -> ConnectedShim {
        loop {
            match start(&self.directory, &self.sockets).await {
                Ok(found) => return found,
                Err(error) => tracing::error!("cannot start a steward (shim): {error}"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn give_up_starts(&self) {
        tracing::error!(
            "no steward (shim) has started within {STARTED_WITHIN:?}, so nothing can start on this node: \
             look at {}, whose file system may hang",
            self.directory.display()
        );
        for run in self.orders.give_up_starts() {
            let (run, why) = (Run(run), "no steward (shim) could be started for it");
            let failed = Some(why.into());
            let _ = self.report_sender.send(Report::Ended { run, failed });
        }
    }
}

async fn until(at: Instant) {
    if at == Instant::MAX {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(at.since(clock::boot())).await;
}
