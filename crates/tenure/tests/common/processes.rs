//! What processes have cost so far, as `/proc` tells.

#![allow(dead_code, reason = "each user takes a part of it")]

use std::fs;
use std::time::Duration;

/// The unit of `/proc/PID/stat` (`USER_HZ`), the same on all machines that run tests.
const TICK: Duration = Duration::from_millis(10);

/// The processor time that processes have used, with that of their children that
/// have ended.
pub(crate) fn processor_time(processes: &[u32]) -> Duration {
    let of = |process: &u32| ticks(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?);
    let ticks: u64 = processes.iter().filter_map(of).sum();
    TICK * u32::try_from(ticks).expect("fewer")
}

/// The processor time that this process has used, to the nanosecond.
pub(crate) fn processor_time_here() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// The resident memory of this process, in bytes: now, and at most so far.
pub(crate) fn memory_here() -> (u64, u64) {
    let status = fs::read_to_string("/proc/self/status").expect("what the kernel tells");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kilobytes.expect("kilobytes") * 1_024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// The ticks in user and kernel space of a line of `/proc/PID/stat`, and those of
/// the children that were waited for. The second field is the program's name, in
/// which anything may stand.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields = fields.split_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}
