//! How the seeds of a sweep are shared out among threads.

use std::sync::atomic::{AtomicU64, Ordering};

use tenure_sim::kernel::{Counts, Report};

/// How many seeds a thread takes at a time.
const BLOCK: u64 = 16;

/// The seeds of a sweep, and how many threads share them.
#[derive(Clone, Copy)]
pub(super) struct Seeds {
    pub(super) first: u64,
    pub(super) runs: u64,
    pub(super) threads: usize,
}

impl Seeds {
    /// Each thread sweeps over the next few seeds that nobody has, until all
    /// are done or what a thread found says not to `go_on`. The first violation
    /// is the one with the lowest seed that was tried.
    pub(super) fn split<S: Counts + Send, C: Send>(
        self,
        sweep: impl Fn(u64, u64) -> Report<S, C> + Sync,
        go_on: impl Fn(&Report<S, C>) -> bool + Sync,
    ) -> Report<S, C> {
        let next = AtomicU64::new(0);
        let work = || {
            let mut report = Report::new(self.first);
            loop {
                let from = next.fetch_add(BLOCK, Ordering::Relaxed);
                if from >= self.runs {
                    return report;
                }
                let count = BLOCK.min(self.runs - from);
                report.merge(sweep(self.first.wrapping_add(from), count));
                if !go_on(&report) {
                    next.store(self.runs, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            let mut report = Report::new(self.first);
            for worker in workers {
                match worker.join() {
                    Ok(part) => report.merge(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            report
        })
    }
}
