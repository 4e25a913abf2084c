//! Faults of the machines under the servers, in a storm: disks and clocks.
//!
//! A network can be put as it is to be, at once. What is done to a machine
//! takes until it is felt: a disk is full when somebody asks it for room, and a
//! calendar is seen when something is written down with its date. So a storm
//! comes by here at every look, and what is counted is what was seen.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure_api::v1::{self, cluster_client::ClusterClient};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::faulty::{
    Tracer, ahead, ahead_by, calendar_hook, clocks_move, date, fill_up, resize, set_calendar,
    small_disk, traceable,
};
use crate::room::Room;
use crate::servers::Servers;
use crate::weather::{Fault, Needs};

/// The words of a server whose disk is full, and of one whose sync failed.
pub(crate) const FULL: &str = "the disk is full: free some space";
pub(crate) const FAILED: &str = "Input/output error";

/// Room for all that a server keeps in a storm of an hour.
const LARGE: &str = "2g";
/// How long a snapshot is waited for.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(1);
/// How far a clock that was read may be from where it was put.
const NEAR_SECONDS: f64 = 5.0;

pub(crate) struct Machines {
    room: Room,
    /// Calendars, and what tracers write.
    dir: TempDir,
    /// By server: what is being done to its syncs, and to how many others of
    /// the same fault it was done.
    tracers: BTreeMap<u64, (Tracer, usize)>,
    /// How many tracers there were.
    traced: u64,
    /// By server with a full disk: a snapshot that it was asked for.
    asked: BTreeMap<u64, JoinHandle<()>>,
    /// Clocks and calendars that were moved and not seen yet.
    unseen: Vec<Moved>,
    /// To how many syncs something was done.
    pub(crate) syncs: usize,
}

struct Moved {
    who: u64,
    sight: Sight,
}

/// By what it is seen.
enum Sight {
    /// This process' clock is so many seconds ahead.
    Clock { pid: u32, seconds: u64 },
    /// In the server's log, from this byte on, a line begins with one of these
    /// dates, of now and soon.
    Calendar { from: u64, dates: [String; 2] },
}

impl Machines {
    pub(crate) fn new(room: Room) -> Self {
        Self {
            room,
            dir: tempfile::tempdir().expect("a directory"),
            tracers: BTreeMap::new(),
            traced: 0,
            asked: BTreeMap::new(),
            unseen: Vec::new(),
            syncs: 0,
        }
    }

    /// What there is here for faults. What there is not is said.
    pub(crate) fn means(&self) -> Vec<Needs> {
        let own = self.room == Room::Own;
        let all = [
            (Needs::Mounts, own, "full disks: none can be mounted"),
            (Needs::Traces, traceable(), "slow disks: no strace"),
            (Needs::Clocks, own && clocks_move(), "clocks: they stand"),
            (
                Needs::Calendars,
                cfg!(debug_assertions),
                "calendars: a release without debug assertions has none to step",
            ),
        ];
        let mut means = vec![Needs::Nothing];
        for (needs, there, otherwise) in all {
            if there {
                means.push(needs);
            } else {
                eprintln!("\n*** LEFT OUT of the storm: {otherwise}\n");
            }
        }
        means
    }

    /// Small disks for all servers but the last, whose syncs are those of a
    /// real one; calendars that can be set, for all.
    pub(crate) fn furnish(&self, servers: &mut Servers) {
        for who in servers.ids() {
            if self.room == Room::Own && who < servers.count {
                small_disk(servers, who, LARGE);
            }
            self.wrap(servers, who, &[]);
        }
    }

    fn calendar(&self, who: u64) -> PathBuf {
        self.dir.path().join(format!("calendar-{who}"))
    }

    fn wrap(&self, servers: &mut Servers, who: u64, before: &[String]) {
        let prefix = [before, &calendar_hook(&self.calendar(who))].concat();
        let prefix: Vec<_> = prefix.iter().map(String::as_str).collect();
        servers.wrap(who, &prefix, &[]);
    }

    /// Has a server come back with another clock.
    pub(crate) fn move_clock(&mut self, servers: &mut Servers, who: u64, seconds: u64) {
        servers.kill(who);
        self.wrap(servers, who, &ahead_by(seconds));
        servers.start(who);
        let pid = servers.pid(who);
        let sight = Sight::Clock { pid, seconds };
        self.unseen.push(Moved { who, sight });
    }

    pub(crate) fn set_calendar(&mut self, servers: &Servers, who: u64, days: i64) {
        let is_old = |it: &Moved| it.who == who && matches!(it.sight, Sight::Calendar { .. });
        self.unseen.retain(|it| !is_old(it));
        set_calendar(&self.calendar(who), days);
        let sight = Sight::Calendar {
            from: servers.log_length(who),
            dates: [0, 20].map(|minutes| date(days, minutes)),
        };
        self.unseen.push(Moved { who, sight });
    }

    /// How many of those that were moved are seen now, and were not before, by
    /// what they are called in reports.
    pub(crate) fn seen(&mut self, servers: &Servers) -> Vec<&'static str> {
        let mut seen = Vec::new();
        self.unseen.retain(|Moved { who, sight }| match sight {
            Sight::Clock { pid, seconds } => {
                let process = servers.running.get(who);
                let same = process.is_some_and(|it| it.pid() == *pid);
                let found = ahead(*pid).filter(|_| same);
                let there = found.is_some_and(|it| (it - *seconds as f64).abs() < NEAR_SECONDS);
                if there {
                    seen.push("clock ahead");
                }
                same && !there
            }
            Sight::Calendar { from, dates } => {
                let said = servers.log_from(*who, *from);
                let mut begins = said.lines().filter_map(|line| line.get(..10));
                let there = begins.any(|it| dates.iter().any(|date| date == it));
                if there {
                    seen.push("calendar set");
                }
                !there
            }
        });
        seen
    }

    /// Whether something is being done to a server's syncs.
    pub(crate) fn is_traced(&self, who: u64) -> bool {
        self.tracers.contains_key(&who)
    }

    /// Does what a fault that is under way does, to a server that runs and is
    /// not paused.
    pub(crate) async fn press(&mut self, servers: &Servers, fault: Fault) {
        match fault {
            Fault::FullDisk(who) => self.fill(servers, who),
            Fault::SlowDisk(who, millis) => {
                let inject = format!("delay_enter={}", millis * 1_000);
                self.trace(servers, who, &inject).await;
            }
            Fault::FailedSync(who) => self.trace(servers, who, "error=EIO").await,
            _ => {}
        }
    }

    /// Takes what room there is, and has the server ask for some: its log has
    /// room for a while, a snapshot has not.
    fn fill(&mut self, servers: &Servers, who: u64) {
        let full = fill_up(who);
        if full && self.asked.get(&who).is_none_or(JoinHandle::is_finished) {
            let mut cluster = ClusterClient::new(servers.channel(who));
            let asking = tokio::spawn(async move {
                let asked = cluster.snapshot(v1::SnapshotRequest {});
                let _ = timeout(SNAPSHOT_WITHIN, asked).await;
            });
            self.asked.insert(who, asking);
        }
    }

    async fn trace(&mut self, servers: &Servers, who: u64, inject: &str) {
        let pid = servers.pid(who);
        let mut before = 0;
        if let Some((tracer, _)) = self.tracers.get_mut(&who) {
            if tracer.pid == pid && !tracer.is_over() {
                return;
            }
            // It was another process of the same server.
            before = self.let_go(who).await;
        }
        self.traced += 1;
        let lines = self.dir.path().join(format!("syncs-{}", self.traced));
        let tracer = Tracer::attach(pid, inject, &lines);
        self.tracers.insert(who, (tracer, before));
    }

    async fn let_go(&mut self, who: u64) -> usize {
        let Some((tracer, before)) = self.tracers.remove(&who) else {
            return 0;
        };
        let done = tracer.detach().await;
        self.syncs += done;
        before + done
    }

    /// Ends a fault. Whether it was a slow disk that was seen to be slow.
    pub(crate) async fn relieve(&mut self, fault: Fault) -> bool {
        match fault {
            Fault::FullDisk(who) => {
                resize(who, LARGE);
                self.asked.remove(&who);
                false
            }
            Fault::SlowDisk(who, _) => self.let_go(who).await > 0,
            Fault::FailedSync(who) => {
                self.let_go(who).await;
                false
            }
            _ => false,
        }
    }
}
