//! How long the machine kept somebody waiting, so that a test can have a tight
//! bound on a quiet machine that a starved one does not break.
//!
//! The kernel adds up for how long at least one task waited for a core, or for
//! a disk (`/proc/pressure`), and its host for how long it took the cores away
//! (*steal*, in `/proc/stat`). What Tenure is late by itself, because it looks
//! too seldom or waits for something that it need not wait for, is in none of
//! these: it sleeps meanwhile. Left out: who waited. A compiler beside a test
//! makes its bound as loose as if the test itself had waited.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;

/// What anything may be late on a quiet machine, in seconds: more than a
/// process takes to start, and less than two seconds by so much that what is
/// two seconds late is seen wherever in its interval the last beat was.
const QUIET: f64 = 1.0;

/// What it may be where nothing is known of the machine.
const UNKNOWN: f64 = 6.0;

/// How long somebody had waited when a measurement began.
pub(crate) struct Pressure(Option<f64>);

impl Pressure {
    /// Begins to measure.
    pub(crate) fn begin() -> Self {
        Self(waited())
    }

    /// By how many seconds something may be late that has taken since then.
    pub(crate) fn allows(&self) -> f64 {
        QUIET + self.waited()
    }

    /// For how many seconds somebody has waited since then; more than that
    /// where nothing is known.
    pub(crate) fn waited(&self) -> f64 {
        match (self.0, waited()) {
            (Some(before), Some(now)) => now - before,
            _ => UNKNOWN - QUIET,
        }
    }
}

/// Seconds so far in which somebody waited; what is in two of the counts is
/// counted twice. `None` on a kernel that does not count.
fn waited() -> Option<f64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let cores = stalled(&read("/proc/pressure/cpu")?)?;
    let disks = stalled(&read("/proc/pressure/io")?)?;
    let ticks = stolen(&read("/proc/stat")?)?;
    let hertz = rustix::param::clock_ticks_per_second() as f64;
    Some(cores + disks + ticks / hertz)
}

/// The seconds of the line `some avg10=0.00 … total=MICROSECONDS`.
fn stalled(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let (_, total) = some.rsplit_once(" total=")?;
    Some(total.parse::<f64>().ok()? / 1e6)
}

/// The ticks of the line `cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL …`.
fn stolen(text: &str) -> Option<f64> {
    let all = text.lines().find(|line| line.starts_with("cpu "))?;
    all.split_whitespace().nth(8)?.parse().ok()
}

#[test]
fn what_the_kernel_counts_is_read() {
    let text = "some avg10=93.02 avg60=59.99 avg300=21.61 total=2500000\nfull avg10=0.00 \
                avg60=0.00 avg300=0.00 total=7\n";
    assert_eq!(stalled(text), Some(2.5));
    assert_eq!(stalled("full avg10=0.00 total=7\n"), None);
    assert_eq!(
        stolen("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 0 0 0 0 0 0 0 0 0 0\n"),
        Some(8.0)
    );
    assert_eq!(stolen("cpu  1 2 3\n"), None);
}

/// More threads than cores: some of them wait, and that is seen. (Without any
/// the count grows by what others do, which is not for a test to say.)
#[test]
fn a_starved_machine_is_seen() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pressure = Pressure::begin();
    let until = std::time::Instant::now() + std::time::Duration::from_millis(300);
    std::thread::scope(|scope| {
        for _ in 0..cores * 3 {
            scope.spawn(|| while std::time::Instant::now() < until {});
        }
    });
    let allows = pressure.allows();
    assert!(allows > QUIET + 0.1, "{allows} s");
}
