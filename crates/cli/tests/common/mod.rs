//! Real processes of the real binary, and what their commands wrote down.

#![allow(
    dead_code,
    unused_imports,
    clippy::print_stderr,
    reason = "each test binary uses a part of it"
)]

#[path = "../../../tenure/tests/common/certificates.rs"]
pub(crate) mod certificates;
#[path = "../../../tenure/tests/common/etcd.rs"]
pub(crate) mod etcd;
#[path = "../../../tenure/tests/common/installed.rs"]
pub(crate) mod installed;
#[path = "../../../tenure/tests/common/mariadb.rs"]
pub(crate) mod mariadb;
#[cfg(feature = "nats")]
#[path = "../../../tenure/tests/common/nats.rs"]
pub(crate) mod nats;
/// `servers` is another file here.
#[path = "../../../tenure/tests/object/servers.rs"]
pub(crate) mod objects;
#[path = "../../../tenure/tests/common/ports.rs"]
pub(crate) mod ports;
#[path = "../../../tenure/tests/common/postgres.rs"]
pub(crate) mod postgres;
#[path = "../../../tenure/tests/common/redis.rs"]
pub(crate) mod redis;
#[path = "../../../tenure/tests/common/secrets.rs"]
pub(crate) mod secrets;
pub(crate) mod servers;
pub(crate) mod shared;
pub(crate) mod stalls;
#[path = "../../../tenure/tests/common/stopped.rs"]
pub(crate) mod stopped;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::clock;

pub(crate) use shared::Shared;

/// The binary under test.
pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// A directory in memory, where there is one: a disk that others keep busy for
/// seconds must not end the leaderships, nor fence the agents, of a test of
/// something else.
pub(crate) fn memory_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    directory.expect("a directory")
}

/// What commands write to: a line `seconds term process-id candidate` every
/// few milliseconds for as long as they run.
pub(crate) struct Ledger {
    directory: tempfile::TempDir,
}

/// When the command of one leadership ran, in seconds of the calendar.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) candidate: String,
    pub(crate) term: u64,
    pub(crate) first: f64,
    pub(crate) last: f64,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("ledger"), "").expect("a file");
        Self { directory }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("ledger")
    }

    /// A command that writes lines for ever, and ignores TERM if it is to be
    /// stubborn.
    pub(crate) fn command(&self, stubborn: bool) -> Vec<String> {
        let trap = if stubborn { "trap '' TERM; " } else { "" };
        let path = self.path().display().to_string();
        let script = format!(
            "{trap}while :; do echo \"$(date +%s.%N) $TENURE_TERM $$ $CANDIDATE\" >> {path}; \
             sleep 0.01; done"
        );
        ["sh", "-c", &script].map(str::to_owned).to_vec()
    }

    /// The runs of all commands, by their first line.
    ///
    /// # Panics
    /// If two of them overlap, or terms do not grow.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let text = fs::read_to_string(self.path()).expect("the ledger");
        let mut runs: BTreeMap<(u64, u64), Run> = BTreeMap::new();
        // A line that a kill has cut short has no end.
        for line in text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
        {
            let mut words = line.split_whitespace();
            let mut word = || {
                words
                    .next()
                    .unwrap_or_else(|| panic!("a ledger line: {line:?}"))
            };
            let at: f64 = word().parse().expect("a time");
            let term: u64 = word().parse().expect("a term");
            let pid: u64 = word().parse().expect("a process id");
            let candidate = word().to_owned();
            let run = Run {
                candidate,
                term,
                first: at,
                last: at,
            };
            let run = runs.entry((term, pid)).or_insert(run);
            run.first = run.first.min(at);
            run.last = run.last.max(at);
        }
        let mut runs: Vec<Run> = runs.into_values().collect();
        runs.sort_by(|a, b| a.first.total_cmp(&b.first));
        for pair in runs.windows(2) {
            let [before, after] = pair else {
                unreachable!("pairs")
            };
            assert!(
                before.last < after.first,
                "two commands at once: {before:?} {after:?}"
            );
            assert!(
                before.term < after.term,
                "terms do not grow: {before:?} {after:?}"
            );
        }
        runs
    }

    /// Waits until a command of a term above `term` writes.
    pub(crate) fn await_term_above(&self, term: u64, within: Duration) -> Run {
        let found = poll_until(within, || {
            self.runs().into_iter().find(|run| run.term > term)
        });
        found.unwrap_or_else(|| panic!("no command of a term above {term} in {within:?}"))
    }
}

/// Looks every 5 ms until `look` finds something.
pub(crate) fn poll_until<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = clock::boot().after(within);
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if clock::boot() >= until {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A `tenure run` of the test's own; killed when dropped.
pub(crate) struct Candidate {
    pub(crate) process: Child,
    log: PathBuf,
}

impl Candidate {
    pub(crate) fn start(url: &str, name: &str, ledger: &Ledger, flags: &[&str]) -> Self {
        Self::start_with(url, name, ledger, flags, &ledger.command(false))
    }

    /// One that logs as much as it does without being asked for more.
    pub(crate) fn start_plain(url: &str, name: &str, ledger: &Ledger, flags: &[&str]) -> Self {
        Self::spawn(
            &[TENURE],
            url,
            name,
            ledger,
            flags,
            &ledger.command(false),
            &[],
        )
    }

    /// One that is started by these words, the last of which is the binary.
    pub(crate) fn start_by(
        words: &[&str],
        url: &str,
        name: &str,
        ledger: &Ledger,
        flags: &[&str],
    ) -> Self {
        Self::spawn(words, url, name, ledger, flags, &ledger.command(false), &[])
    }

    pub(crate) fn start_with(
        url: &str,
        name: &str,
        ledger: &Ledger,
        flags: &[&str],
        command: &[String],
    ) -> Self {
        Self::start_in(url, name, ledger, flags, command, &[])
    }

    /// One with variables in its environment.
    pub(crate) fn start_in(
        url: &str,
        name: &str,
        ledger: &Ledger,
        flags: &[&str],
        command: &[String],
        env: &[(&str, &str)],
    ) -> Self {
        let flags = [flags, &["-v"]].concat();
        Self::spawn(&[TENURE], url, name, ledger, &flags, command, env)
    }

    fn spawn(
        words: &[&str],
        url: &str,
        name: &str,
        ledger: &Ledger,
        flags: &[&str],
        command: &[String],
        env: &[(&str, &str)],
    ) -> Self {
        let log = ledger.directory.path().join(format!("{name}.log"));
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        let (program, rest) = words.split_first().expect("a binary");
        let process = Command::new(program)
            .args(rest)
            .args(["run", "payroll", "--store", url, "--name", name])
            .args(flags)
            .arg("--")
            .args(command)
            .env("CANDIDATE", name)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(file))
            .spawn()
            .expect("tenure runs");
        Self { process, log }
    }

    pub(crate) fn pid(&self) -> Pid {
        i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// See [`stop_between_transactions`].
    pub(crate) fn stop(&self) {
        stop_between_transactions(self.pid());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

/// The children of a process, and theirs.
pub(crate) fn descendants(of: u32) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let fields = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest)
            .unwrap_or_default();
        let parent = fields
            .split_whitespace()
            .nth(1)
            .and_then(|field| field.parse::<u32>().ok());
        if parent == Some(of) {
            let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, line.replace('\0', " ")));
            found.extend(descendants(u32::try_from(pid).unwrap_or(0)));
        }
    }
    found
}

/// The guardian of a candidate that leads, or soon does: on a machine that stands still for a
/// second it may lose its first term, and stands again.
pub(crate) fn guardian_of(candidate: &Candidate) -> Pid {
    let found = poll_until(Duration::from_secs(40), || {
        let all = descendants(candidate.process.id()).into_iter();
        let mut guardians = all.filter(|(_, line)| line.contains("__guardian"));
        guardians.next().and_then(|(pid, _)| Pid::from_raw(pid))
    });
    found.expect("a guardian")
}

/// The median of some figures.
pub(crate) fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Stops a process when it is in no transaction of SQLite. A process that is stopped
/// in a transaction keeps its lock until it goes on. The lock of a writer keeps others
/// from reading and writing, and the lock of a reader keeps them from writing.
pub(crate) fn stop_between_transactions(process: Pid) {
    let patience = Duration::from_secs(5);
    let between = || {
        kill_process(process, Signal::STOP).expect("it runs");
        poll_until(patience, || all_stopped(process).then_some(())).expect("it stops");
        if !within_a_transaction(process) {
            return Some(());
        }
        kill_process(process, Signal::CONT).expect("it runs");
        None
    };
    poll_until(patience, between).expect("it is in transactions without an end");
}

/// That each of its threads is stopped.
fn all_stopped(process: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.expect("its threads").flatten().all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which may hold anything.
        stat.rsplit(')')
            .next()
            .is_none_or(|rest| rest.starts_with(" T"))
    })
}

/// That it holds a lock that SQLite takes. Asked of each of its files:
/// the kernel's list of all locks comes in several parts, and a lock is missed
/// where others before it are released between two of them.
fn within_a_transaction(process: Pid) -> bool {
    let files = fs::read_dir(format!("/proc/{}/fdinfo", process.as_raw_nonzero()));
    files.expect("its files").flatten().any(|file| {
        let locks = fs::read_to_string(file.path()).unwrap_or_default();
        locks.lines().any(|line| line.contains("POSIX"))
    })
}
