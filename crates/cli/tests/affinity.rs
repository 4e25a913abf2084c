//! `tenure run --with`: a candidate stands while it leads other elections.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::common::{Candidate, Ledger, Shared, TENURE, memory_directory, poll_until};

const SOON: Duration = Duration::from_secs(40);
// A busy machine must not end a lease; no test here waits for its end.
const LEASE: [&str; 2] = ["--lease", "10s"];

/// A `tenure run` of another election, whose command does nothing.
struct Other(Child);

impl Other {
    fn start(url: &str, election: &str, name: &str) -> Self {
        let child = Command::new(TENURE)
            .args(["run", election, "--store", url, "--name", name])
            .args(LEASE)
            .args(["--", "sleep", "600"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("tenure runs"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn tenure(args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["60", TENURE]).args(args);
    command.output().expect("tenure runs")
}

/// Waits until this candidate leads this election.
fn await_leader(url: &str, election: &str, name: &str) {
    let leads = || {
        let output = tenure(&["leader", election, "--json", "--store", url]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said: serde_json::Value = serde_json::from_str(&text).ok()?;
        (said["name"] == name).then_some(())
    };
    poll_until(SOON, leads).unwrap_or_else(|| panic!("{name} leads {election}"));
}

#[test]
fn a_candidate_stands_while_it_leads_each_of_several_others() {
    let (shared, ledger) = (Shared::sqlite(), Ledger::new());
    let url = shared.url();
    let cache = Other::start(&url, "cache", "a");
    let queue = Other::start(&url, "queue", "b");
    await_leader(&url, "cache", "a");
    await_leader(&url, "queue", "b");
    let flags = [&LEASE[..], &["--with", "cache,queue"]].concat();
    let a = Candidate::start(&url, "a", &ledger, &flags);
    let b = Candidate::start(&url, "b", &ledger, &flags);
    // Each leads one of the two, and neither stands.
    for candidate in [&a, &b] {
        let follows = || candidate.log().contains("the watch is up").then_some(());
        poll_until(SOON, follows).expect("it follows the elections");
    }
    assert_eq!(
        tenure(&["leader", "payroll", "--store", &url])
            .status
            .code(),
        Some(3)
    );
    assert!(ledger.runs().is_empty(), "neither of them stands");

    let queue_of_a = Other::start(&url, "queue", "a");
    let handed = tenure(&["transfer", "queue", "--to", "a", "--store", &url]);
    assert!(handed.status.success(), "{handed:?}");
    let first = ledger.await_term_above(0, SOON);
    assert_eq!(first.candidate, "a");

    // It goes when one of the two is led elsewhere, and b stands when it leads both.
    let cache_of_b = Other::start(&url, "cache", "b");
    let handed = tenure(&["transfer", "cache", "--to", "b", "--store", &url]);
    assert!(handed.status.success(), "{handed:?}");
    let told = "the election it goes with is led elsewhere";
    let ended = || a.log().contains(told).then_some(());
    poll_until(SOON, ended).expect("a steps down");
    let handed = tenure(&["transfer", "queue", "--to", "b", "--store", &url]);
    assert!(handed.status.success(), "{handed:?}");
    let second = ledger.await_term_above(first.term, SOON);
    assert_eq!((second.term, second.candidate.as_str()), (2, "b"));
    drop((a, b, cache, queue, queue_of_a, cache_of_b));
    ledger.runs();
}

/// What `tenure run` says that refuses its settings.
fn refused(directory: &std::path::Path, file: &str, flags: &[&str]) -> String {
    let settings = directory.join("settings.toml");
    fs::write(&settings, file).expect("a file");
    let url = format!("sqlite://{}", directory.join("tenure.db").display());
    let output = Command::new("timeout")
        .args(["60", TENURE, "run", "payroll", "--store", &url, "--config"])
        .arg(&settings)
        .args(flags)
        .args(["--once", "--", "true"])
        .output()
        .expect("tenure runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

#[test]
fn a_list_is_written_in_the_flag_the_file_and_the_variable_alike() {
    let directory = memory_directory();
    let itself = "an affinity to another election, found one to itself";
    for (file, flags, words) in [
        ("", &["--with", "cache,payroll"][..], itself),
        ("", &["--with", "cache", "--with", "payroll"], itself),
        ("[run]\nwith = \"cache,payroll\"\n", &[], itself),
        ("[run]\nwith = [\"cache\", \"payroll\"]\n", &[], itself),
        ("[elections.payroll]\nwith = \"payroll\"\n", &[], itself),
        ("", &["--with", "cache,cache"], "found cache twice"),
        ("", &["--with", ""], "affinity"),
    ] {
        let said = refused(directory.path(), file, flags);
        assert!(said.contains(words), "{file:?} {flags:?}: {said}");
    }
}
