//! Boot ids that are foreign or hidden: real processes, real mounts.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::servers::{said, tenure};
use crate::common::{Candidate, Ledger, Shared, TENURE, poll_until};
use rustix::process::Signal;
use serde_json::Value;
use tenure::clock;

const SOON: Duration = Duration::from_secs(40);
const LEASE: [&str; 2] = ["--lease", "2s"];

/// What hides the boot id: containers mask it so.
const HIDDEN: &str = "mount -t tmpfs none /proc/sys/kernel/random";
/// What shows another one: sandboxes do.
const FOREIGN: &str = "echo 0d9cf3a2-6b0f-4f6e-9d1a-8a4a2f3b5c6d > $ID && \
                       mount --bind $ID /proc/sys/kernel/random/boot_id";

/// What shows the boot id, and nothing else of `/proc` but the program.
const ALONE: &str = "BOOT=$(cat /proc/sys/kernel/random/boot_id) && mount -t tmpfs none /proc && \
                     mkdir -p /proc/sys/kernel/random /proc/self && \
                     echo $BOOT > /proc/sys/kernel/random/boot_id && ln -s \"$1\" /proc/self/exe";

/// A `tenure run` that reads another boot id, or none. Killed when dropped.
struct Masked(std::process::Child);

impl Masked {
    fn start(mask: &str, url: &str, name: &str, ledger: &Ledger) -> Self {
        let id = ledger.path().with_file_name(format!("{name}.id"));
        let log = fs::File::create(ledger.path().with_file_name(format!("{name}.log")));
        let process = Command::new("unshare")
            .args(unshare())
            .args(["sh", "-c", &format!("{mask} && exec \"$@\""), "sh", TENURE])
            .args(["run", "payroll", "--store", url, "--name", name, "-v"])
            .args(LEASE)
            .arg("--")
            .args(ledger.command(false))
            .env("CANDIDATE", name)
            .env("ID", id)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log.expect("a log")))
            .spawn();
        Self(process.expect("unshare runs"))
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unshare() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &["--mount"]
    } else {
        &["--mount", "--map-root-user"]
    }
}

/// Whether this machine lets a test mount something of its own.
#[expect(clippy::print_stderr, reason = "what was not tried must be seen")]
fn can_mask(test: &str) -> bool {
    let probe = Command::new("unshare")
        .args(unshare())
        .args(["sh", "-c", HIDDEN])
        .output();
    let can = probe.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("\n*** {test}: NO MOUNT NAMESPACES HERE, nothing was tried.\n");
    }
    can
}

fn log_of(ledger: &Ledger, name: &str) -> String {
    let path = ledger.path().with_file_name(format!("{name}.log"));
    fs::read_to_string(path).unwrap_or_default()
}

fn await_in(ledger: &Ledger, name: &str, words: &str) {
    let said = || log_of(ledger, name).contains(words).then_some(());
    poll_until(SOON, said)
        .unwrap_or_else(|| panic!("{name} says {words:?} in:\n{}", log_of(ledger, name)));
}

fn json(args: &[&str]) -> Value {
    let output = tenure(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{args:?}: {text} {}", said(&output)))
}

/// Changes a SQLite store behind everybody's back.
fn sql(shared: &Shared, statement: &str) {
    let path = shared.url().replacen("sqlite://", "", 1);
    let connection = rusqlite::Connection::open(path).expect("the file");
    connection
        .busy_timeout(Duration::from_secs(5))
        .expect("a timeout");
    // A statement alone begins as a reader. SQLite answers BUSY at once to a
    // reader that would write while a writer waits for it to end.
    let whole = format!("BEGIN IMMEDIATE; {statement}; COMMIT");
    connection.execute_batch(&whole).expect("a change");
}

/// What a query of a SQLite store says.
fn number(shared: &Shared, query: &str) -> i64 {
    let path = shared.url().replacen("sqlite://", "", 1);
    let connection = rusqlite::Connection::open(path).expect("the file");
    connection
        .busy_timeout(Duration::from_secs(5))
        .expect("a timeout");
    let row = connection.query_row(query, [], |row| row.get(0));
    row.expect("a number")
}

/// A lease that is renewed is never taken by somebody who is shown another
/// boot id, or none; when its holder dies they take it, by silence.
#[test]
fn a_foreign_or_hidden_boot_id_takes_no_election() {
    if !can_mask("a_foreign_or_hidden_boot_id_takes_no_election") {
        return;
    }
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let a = Candidate::start(&shared.url(), "a", &ledger, &LEASE);
    ledger.await_term_above(0, SOON);
    let hidden = Masked::start(HIDDEN, &shared.url(), "hidden", &ledger);
    let foreign = Masked::start(FOREIGN, &shared.url(), "foreign", &ledger);
    await_in(&ledger, "hidden", "a leads in term 1");
    await_in(&ledger, "foreign", "a leads in term 1");
    // Three leases of renewals with both of them looking on.
    let renewed = || a.log().matches("renewed term 1").count();
    let before = renewed();
    poll_until(SOON, || (renewed() >= before + 15).then_some(())).expect("renewals");
    assert_eq!(ledger.runs().len(), 1, "{:?}", ledger.runs());
    drop(a);
    let next = ledger.await_term_above(1, SOON);
    assert_ne!(next.candidate, "a");
    drop((hidden, foreign));
}

/// A boot has as many boot-time clocks as time namespaces. A process that
/// cannot read which one is its own stamps nothing, and judges by no stamp.
#[test]
fn a_hidden_time_namespace_stamps_and_dates_nothing() {
    if !can_mask("a_hidden_time_namespace_stamps_and_dates_nothing") {
        return;
    }
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let hidden = Masked::start(ALONE, &shared.url(), "hidden", &ledger);
    await_in(&ledger, "hidden", "leads in term 1");
    let stamped = "SELECT count(stamp_boot) FROM tenure_register";
    assert_eq!(number(&shared, stamped), 0);
    drop(hidden);
    let _a = Candidate::start(&shared.url(), "a", &ledger, &LEASE);
    ledger.await_term_above(1, SOON);
    assert_eq!(number(&shared, stamped), 1);
    // One look: by the stamp it is certain that a leads, without it is not.
    let words = ["leader", "payroll", "--json", "--store", &shared.url()];
    assert_eq!(json(&words)["certainty"], "proven");
    let masked = Command::new("unshare")
        .args(unshare())
        .args(["sh", "-c", &format!("{ALONE} && exec \"$@\""), "sh", TENURE])
        .args(words)
        .output()
        .expect("unshare runs");
    let text = String::from_utf8_lossy(&masked.stdout);
    let seen: Value = serde_json::from_str(&text).expect("an object");
    assert_eq!(seen["certainty"], "assumed", "{seen}");
}

/// The rightful case: the process that wrote the stamp was on another boot and
/// is dead. The next one waits a lease, and leads.
#[test]
fn after_a_reboot_a_candidate_waits_out_one_lease() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let a = Candidate::start(&shared.url(), "a", &ledger, &LEASE);
    ledger.await_term_above(0, SOON);
    a.signal(Signal::KILL);
    drop(a);
    // As a reboot leaves it: the stamp is of another boot, and long ago on
    // its own clock.
    let statement = "UPDATE tenure_register SET stamp_boot = stamp_boot + 1, stamp_ns = 1";
    sql(&shared, statement);
    let seen = json(&["leader", "payroll", "--json", "--store", &shared.url()]);
    assert_eq!(seen["certainty"], "assumed", "{seen}");
    let started = clock::wall().as_millis() as f64 / 1_000.0;
    let _b = Candidate::start(&shared.url(), "b", &ledger, &LEASE);
    let next = ledger.await_term_above(1, SOON);
    assert_eq!(next.candidate, "b");
    assert!(next.first - started >= 2.0, "{next:?} from {started}");
}
