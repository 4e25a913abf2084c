//! Processes that were told to stop.
//!
//! The signal is sent when `kill` returns, and not yet heeded: threads that run
//! on other processors go on for a moment, and may answer a call.

use std::fs;
use std::time::Duration;

use rustix::process::Pid;
use tenure::clock;

/// Waits until none of a process' threads runs.
pub(crate) fn await_stopped(process: Pid) {
    let until = clock::boot().after(Duration::from_secs(20));
    while !is_stopped(process) {
        assert!(clock::boot() < until, "process {process:?} does not stop");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn is_stopped(process: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    tasks.into_iter().flatten().flatten().all(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, it)| it.chars().next());
        // Stopped, or gone.
        matches!(state, None | Some('T' | 't' | 'Z' | 'X'))
    })
}
