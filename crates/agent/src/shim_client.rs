//! The agent's side of the steward: the host of its workloads, and a porter
//! that carries words to and fro.
//!
//! The porter lives on the background thread, beside the beats: a terminal
//! that takes no more output, or a command that keeps the agent busy, must not
//! keep a confirmed beat from the guardians.
//!
//! Two things can go wrong with a steward. If it is *gone*, its guardians end
//! everything at once; the porter cannot see that, so it waits until the last
//! `kill_at` that it sent is over, which is when they have ended it at the
//! latest, and only then says so. If it *hangs*, the beats it is sent do not
//! come to the guardians, which end everything at the last `kill_at` it has
//! heard; after that the porter kills it, and it is gone. Either way another
//! steward is started, and the machine starts its workloads anew. So that one
//! is noticed that hangs while no beats are sent, because the node was fenced
//! or the agent ends, the last beat is sent once more while an end is waited
//! for: it moves no time, and is answered.

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
use super::shim_discovery::{CompletedWorkload, ConnectedShim, HUNG, start};
use super::spec::WorkloadDefaults;
use super::state_directory::SocketDirectory;
use crate::guard::SLACK;

/// How long to wait between attempts to start a steward.
const RETRY: Duration = Duration::from_secs(1);
/// How long what is to start waits for a steward.
const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// The host that the manager is given.
pub(super) struct ShimHost {
    defaults: WorkloadDefaults,
    orders: Arc<OrderQueue>,
    say: UnboundedSender<Report>,
    reports: UnboundedReceiver<Report>,
}

/// What the agent keeps of it.
pub(super) struct ShimHandle {
    orders: Arc<OrderQueue>,
    /// Workloads that have ended as they should.
    pub(super) completed: UnboundedReceiver<CompletedWorkload>,
    /// How many stewards were lost.
    pub(super) lost: watch::Receiver<u64>,
    relay: JoinHandle<()>,
}

/// Puts a porter between the steward and the two.
pub(super) fn connect(
    found: ConnectedShim,
    defaults: WorkloadDefaults,
    settings: String,
    directory: PathBuf,
) -> io::Result<(ShimHost, ShimHandle)> {
    let orders = Arc::new(OrderQueue::default());
    let (say, reports) = unbounded_channel();
    let (complete, completed) = unbounded_channel();
    let (lose, lost) = watch::channel(0);
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
        wire: found.wire.driven_by(background)?,
        ordered: Arc::clone(&orders),
        say: say.clone(),
        complete,
        lose,
        runs,
        sent: kill_at,
        heard: kill_at,
        unheard: None,
        incarnation: found.state.incarnation.clone(),
        asked_at: Instant::ZERO,
        ending: BTreeSet::new(),
        notes: found.state.notes,
        settings,
        quitting: false,
    };
    let relay = background.spawn(relay.carry());
    let link = ShimHost {
        defaults,
        orders: Arc::clone(&orders),
        say,
        reports,
    };
    let handle = ShimHandle {
        orders,
        completed,
        lost,
        relay,
    };
    Ok((link, handle))
}

impl Host for ShimHost {
    fn begin(&mut self, start: Start) {
        match self.defaults.begin(&start) {
            Ok(begin) => self.order(ShimOrder::Begin(Box::new(begin))),
            Err(why) => {
                let failed = Some(why.into());
                let run = start.run;
                // The receiver is our own.
                let _ = self.say.send(Report::Ended { run, failed });
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
        if let Some((run, failed)) = self.orders.put(order) {
            let (run, failed) = (Run(run), failed.map(Into::into));
            let _ = self.say.send(Report::Ended { run, failed });
        }
    }
}

impl ShimHandle {
    /// What a next life should know.
    pub(super) fn note(&self, text: String) {
        let _ = self.orders.put(ShimOrder::Notes { text });
    }

    /// Kills what is left, ends the steward and waits until it has ended.
    pub(super) async fn quit(self) {
        let _ = self.orders.put(ShimOrder::Quit);
        let _ = self.relay.await;
    }
}

struct ShimRelay {
    directory: PathBuf,
    sockets: SocketDirectory,
    wire: Connection,
    ordered: Arc<OrderQueue>,
    say: UnboundedSender<Report>,
    complete: UnboundedSender<CompletedWorkload>,
    lose: watch::Sender<u64>,
    /// What the steward has; `None` is what could not be named.
    runs: BTreeMap<u64, Option<CompletedWorkload>>,
    /// The last `kill_at` that was sent, and that was heard; and since when
    /// one is unheard of.
    sent: Instant,
    heard: Instant,
    unheard: Option<Instant>,
    /// The last beat that was sent.
    incarnation: Option<Incarnation>,
    /// When something was sent last.
    asked_at: Instant,
    /// What is to end, and has not yet.
    ending: BTreeSet<u64>,
    settings: String,
    notes: String,
    quitting: bool,
}

impl ShimRelay {
    async fn carry(mut self) {
        let text = self.settings.clone();
        self.wire.queue(&ShimOrder::Settings { text });
        loop {
            let (hung_at, ask_at) = (self.hung_at(), self.ask_at());
            // One that does not read gets no more than this ahead.
            let reads = self.wire.backlog() <= LINE_MAX;
            tokio::select! {
                biased;
                news = self.wire.next::<ShimReport>() => match news {
                    Ok(Some(news)) => self.hear(news),
                    Ok(None) | Err(_) if self.quitting => return,
                    Ok(None) => if !self.replace("it has ended").await {
                        return;
                    },
                    Err(error) => if !self.replace(&error.to_string()).await {
                        return;
                    },
                },
                order = self.ordered.next(), if reads => self.pass(order),
                () = until(hung_at) => self.kill(),
                () = until(ask_at) => self.ask(),
            }
        }
    }

    fn pass(&mut self, order: ShimOrder) {
        match &order {
            ShimOrder::Begin(begin) => {
                let done = CompletedWorkload::new(&begin.name, &begin.digest);
                self.runs.insert(begin.run, done);
                self.sent = self.sent.max(begin.times.grant().kill_at);
            }
            ShimOrder::Extend { id, times } => {
                self.sent = self.sent.max(times.grant().kill_at);
                self.unheard.get_or_insert_with(clock::boot);
                let (id, times) = (id.clone(), *times);
                self.incarnation = Some(Incarnation { id, times });
            }
            ShimOrder::Notes { text } => self.notes.clone_from(text),
            ShimOrder::Quit => {
                self.quitting = true;
                if self.incarnation.is_none() {
                    // It holds nothing, so its end is all that can be heard.
                    self.unheard.get_or_insert_with(clock::boot);
                }
            }
            ShimOrder::Stop { run } | ShimOrder::Kill { run } => {
                // One that has ended meanwhile is not answered for once more.
                if self.runs.contains_key(run) {
                    self.ending.insert(*run);
                }
            }
            ShimOrder::Settings { .. } => {}
        }
        self.wire.queue(&order);
        self.asked_at = clock::boot();
    }

    /// When to find out whether the steward still answers, if nothing that is
    /// answered was sent: while an end is waited for.
    fn ask_at(&self) -> Instant {
        let waits = self.quitting || !self.ending.is_empty();
        if waits && self.unheard.is_none() && self.incarnation.is_some() {
            self.asked_at.after(HUNG)
        } else {
            Instant::MAX
        }
    }

    /// Sends the last beat once more: it moves no time, and is answered.
    fn ask(&mut self) {
        if let Some(Incarnation { id, times }) = self.incarnation.clone() {
            self.unheard.get_or_insert_with(clock::boot);
            self.wire.queue(&ShimOrder::Extend { id, times });
            self.asked_at = clock::boot();
        }
    }

    fn hear(&mut self, news: ShimReport) {
        // The machine hears for as long as the link is there.
        match news {
            ShimReport::Started { run } => drop(self.say.send(Report::Started(Run(run)))),
            ShimReport::Completed { run } => {
                if let Some(done) = self.runs.get(&run).cloned().flatten() {
                    let _ = self.complete.send(done);
                }
            }
            ShimReport::Ended { run, failed } => {
                self.runs.remove(&run);
                self.ended(run, failed.map(Into::into));
            }
            ShimReport::Heard { kill_at } => {
                self.heard = Instant::from_nanos(kill_at);
                self.unheard = (self.heard < self.sent).then(clock::boot);
            }
            ShimReport::State(_) => {}
        }
    }

    fn ended(&mut self, run: u64, failed: Option<Arc<str>>) {
        self.ending.remove(&run);
        let run = Run(run);
        let _ = self.say.send(Report::Ended { run, failed });
    }

    /// When a steward that has not heard the last beat is taken for hung: its
    /// guardians have ended everything by then.
    fn hung_at(&self) -> Instant {
        let ended = self.heard.after(SLACK).after(SLACK);
        let since = self.unheard.map(|since| since.after(HUNG));
        since.map_or(Instant::MAX, |since| since.max(ended))
    }

    fn kill(&mut self) {
        tracing::error!("the steward does not answer, and what it held is over; it is killed");
        let pid = self.wire.peer().and_then(Pid::from_raw);
        // While the connection is open the steward lives, and no other process has
        // its number.
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::KILL);
        }
        self.unheard = None;
        self.asked_at = clock::boot();
    }

    /// The steward is gone: says that everything has ended, once that is
    /// certain, and starts another; false if none can be started and the agent
    /// wants to end.
    async fn replace(&mut self, why: &str) -> bool {
        tracing::error!(
            "the steward was lost: {why}; its guardians end what it held, and another one is \
             started"
        );
        let over = self.sent.after(SLACK).since(clock::boot());
        tokio::time::sleep(over).await;
        for (run, _) in std::mem::take(&mut self.runs) {
            self.ended(run, Some("its steward was lost".into()));
        }
        self.ending.clear();
        self.lose.send_modify(|lost| *lost += 1);
        let Some(found) = self.another().await else {
            return false;
        };
        self.wire = found.wire;
        (self.heard, self.unheard) = (self.sent, None);
        let text = self.settings.clone();
        self.wire.queue(&ShimOrder::Settings { text });
        let text = self.notes.clone();
        self.wire.queue(&ShimOrder::Notes { text });
        true
    }

    /// Another steward; `None` if the agent wants to end before one is started.
    ///
    /// Starts that have waited for [`STARTED_WITHIN`] have failed, so that the
    /// group can have another node start them.
    async fn another(&self) -> Option<ConnectedShim> {
        let mut starting = std::pin::pin!(self.start());
        let mut patience = clock::boot().after(STARTED_WITHIN);
        while !self.ordered.is_quitting() {
            tokio::select! {
                found = &mut starting => return Some(found),
                () = tokio::time::sleep(RETRY) => {}
            }
            if clock::boot() >= patience {
                patience = clock::boot().after(STARTED_WITHIN);
                self.give_up_starts();
            }
        }
        None
    }

    /// Tries until a steward is started.
    async fn start(&self) -> ConnectedShim {
        loop {
            match start(&self.directory, &self.sockets).await {
                Ok(found) => return found,
                Err(error) => tracing::error!("expected to start a steward: {error}"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn give_up_starts(&self) {
        tracing::error!(
            "no steward has started within {STARTED_WITHIN:?}, so nothing can start on this node: \
             look at {}, whose file system may hang",
            self.directory.display()
        );
        for run in self.ordered.give_up_starts() {
            let (run, why) = (Run(run), "no steward could be started for it");
            let failed = Some(why.into());
            let _ = self.say.send(Report::Ended { run, failed });
        }
    }
}

async fn until(at: Instant) {
    if at == Instant::MAX {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(at.since(clock::boot())).await;
}
