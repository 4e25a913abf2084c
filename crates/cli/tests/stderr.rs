//! A supervisor whose stderr nobody reads, and one whose stderr is read
//! slowly: real pipes, which are full.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::common::{Ledger, Shared, TENURE, poll_until};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};
use tenure::core::election::Record;
use tenure::core::ids::Key;
use tenure::{Name, clock};

const PATIENCE: Duration = Duration::from_secs(30);
/// What a reader finds in front of the log.
const FILLER: u8 = b'x';

/// A `tenure run` whose stderr is a pipe; killed when dropped.
struct Piped {
    process: Child,
    /// The end that the test reads.
    read: Option<File>,
    write: OwnedFd,
}

impl Piped {
    fn start(shared: &Shared, ledger: &Ledger, flags: &[&str]) -> Self {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let process = Command::new(TENURE)
            .args(["run", "payroll", "--store", &shared.url(), "--name", "a"])
            .args(flags)
            .arg("--")
            .args(ledger.command(false))
            .env("CANDIDATE", "a")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(write.try_clone().expect("a clone"))
            .spawn()
            .expect("tenure runs");
        let read = Some(File::from(read));
        Self {
            process,
            read,
            write,
        }
    }

    /// Fills the pipe, so that not a byte more gets in.
    fn fill(&self) {
        // Opened anew: to make the one that the program has non-blocking would
        // be another test.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("a flag");
        let mut pipe = OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(format!("/proc/self/fd/{}", self.write.as_raw_fd()))
            .expect("the pipe");
        for size in [4_096, 1] {
            while pipe.write(&vec![FILLER; size]).is_ok() {}
        }
    }

    /// Reads one byte each time that `pace` has passed, for `slowly`, and then
    /// as fast as it comes; all that the log says, once the program has ended.
    fn read_on(&mut self, pace: Duration, slowly: Duration) -> impl FnOnce() -> String + use<> {
        let mut read = self.read.take().expect("it was not read before");
        let (hurry, hurried) = channel::<()>();
        let reader = std::thread::spawn(move || {
            let (mut all, mut byte) = (Vec::new(), [0]);
            let until = clock::boot().after(slowly);
            while clock::boot() < until && read.read_exact(&mut byte).is_ok() {
                all.extend(byte);
                if hurried.recv_timeout(pace) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            read.read_to_end(&mut all).expect("the rest");
            let from = all.iter().position(|byte| *byte != FILLER);
            String::from_utf8(all.split_off(from.unwrap_or(all.len()))).expect("text")
        });
        move || {
            drop(hurry);
            reader.join().expect("a log")
        }
    }

    fn pid(&self) -> Pid {
        let pid = i32::try_from(self.process.id()).expect("a number");
        Pid::from_raw(pid).expect("a process")
    }

    /// Ends it as a service manager would.
    fn stop(&mut self) {
        kill_process(self.pid(), Signal::TERM).expect("it runs");
        let ended = poll_until(PATIENCE, || self.process.try_wait().expect("its end"));
        assert!(ended.expect("it ends").success());
    }

    /// Closes the test's own end for writing, so that the log has an end.
    fn close(self) {
        drop(self);
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the register says; its sequence counts every write.
fn record(shared: &Shared) -> Record {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let store = tenure::store::open(&shared.url()).await.expect("a store");
        let key = Key::of_election(&Name::new("payroll").expect("a name"));
        let found = Arc::clone(&store)
            .read(&key, PATIENCE)
            .await
            .expect("a read");
        Record::decode(&found.register.expect("a register").value).expect("a record")
    })
}

/// Waits until it has been renewed so many times from now on.
fn await_renewals(shared: &Shared, count: u64) {
    let before = record(shared).sequence;
    let renewed = || (record(shared).sequence >= before + count).then_some(());
    poll_until(PATIENCE, renewed).expect("renewals");
}

#[test]
fn a_log_that_nobody_reads_costs_no_leadership_and_is_counted() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let mut piped = Piped::start(&shared, &ledger, &["--lease", "2s", "-v"]);
    let first = ledger.await_term_above(0, PATIENCE);
    piped.fill();
    // Each renewal is a line of the log, and all of this is three leases.
    await_renewals(&shared, 15);
    let runs = ledger.runs();
    assert_eq!(runs.len(), 1, "one term, one command: {runs:?}");
    let (held, now) = (runs[0].last - runs[0].first, ledger.runs()[0].last);
    assert!(held > 5.0, "the command ran for {held} s only");
    // It runs still.
    poll_until(PATIENCE, || (ledger.runs()[0].last > now).then_some(())).expect("work");
    let log = piped.read_on(Duration::ZERO, Duration::ZERO);
    // Somebody reads again: it says so by itself.
    await_renewals(&shared, 2);
    piped.stop();
    assert_eq!(ledger.runs().len(), 1);
    piped.close();
    let log = log();
    assert!(log.contains("lines of this log were dropped"), "{log}");
    // What waited in the first second was kept, and what came later follows.
    let (before, after) = log.split_once("were dropped").expect("just seen");
    assert!(before.contains("renewed term 1"), "{log}");
    assert!(after.contains("renewed term 1"), "{log}");
    assert!(after.contains("over for us: resigned"), "{log}");
    assert_eq!(first.term, 1);
}

#[test]
fn a_log_that_is_read_slowly_loses_nothing() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let mut piped = Piped::start(&shared, &ledger, &["--lease", "2s", "-v"]);
    ledger.await_term_above(0, PATIENCE);
    piped.fill();
    // No write ends meanwhile: room is made a page at a time.
    let (pace, slowly) = (Duration::from_millis(200), Duration::from_secs(60));
    let log = piped.read_on(pace, slowly);
    await_renewals(&shared, 15);
    let read = std::thread::spawn(log);
    piped.stop();
    let last = record(&shared).sequence;
    piped.close();
    let log = read.join().expect("a log");
    assert!(!log.contains("were dropped"), "{log}");
    // One write elected it, the last one vacated, and a renewal is each other.
    let renewals = log.matches("renewed term 1").count() as u64;
    assert_eq!(renewals, last - 2, "{log}");
    assert_eq!(ledger.runs().len(), 1);
}

#[test]
fn a_program_that_ends_waits_a_second_for_a_reader_and_no_longer() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let mut piped = Piped::start(&shared, &ledger, &["--lease", "2s", "-v"]);
    ledger.await_term_above(0, PATIENCE);
    piped.fill();
    piped.stop();
    let record = record(&shared);
    assert!(record.holder().is_none(), "it has resigned: {record:?}");
}
