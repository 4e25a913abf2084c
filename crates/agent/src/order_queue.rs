//! Orders that wait for the shim. They come from the machine and from the agent.
//!
//! The shim may be gone for as long as none can be started, and the group goes on
//! meanwhile. So the queue keeps what still matters, and no more:
//!
//! * The latest of settings, of notes and of confirmed heartbeats. A heartbeat
//!   moves times later and never earlier, so the latest says what all of them
//!   said. A start that waits has times of its own.
//! * The start of each run, or the firmer of its stop levels. A run that is to
//!   end while its start still waits is not started: it has ended.
//! * At most [`STARTS_MAX`] starts. One more fails. So do all that have waited
//!   for too long (`shim_client.rs`), because another node may be able to start
//!   them.
//!
//! A run that neither waits nor failed here was given to a shim, and a shim takes
//! no more than that. So the queue is bounded.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::messages::ShimOrder;

/// How many starts may wait. A machine that is to run more at once gets them
/// later: a start that failed is tried again.
pub(super) const STARTS_MAX: usize = 1_024;

/// A run that has ended without having been given to a shim, and why if it
/// failed.
pub(super) type EndedUnstarted = (u64, Option<String>);

#[derive(Default)]
pub(super) struct OrderQueue {
    queue: Mutex<VecDeque<ShimOrder>>,
    changed: Notify,
}

impl OrderQueue {
    /// Queues an order. Returns the run that has ended by that, if one has.
    pub(super) fn push(&self, order: ShimOrder) -> Option<EndedUnstarted> {
        let mut queue = self.lock();
        match &order {
            ShimOrder::Settings { .. } => {
                queue.retain(|it| !matches!(it, ShimOrder::Settings { .. }));
            }
            ShimOrder::Notes { .. } => queue.retain(|it| !matches!(it, ShimOrder::Notes { .. })),
            ShimOrder::Extend { .. } => queue.retain(|it| !matches!(it, ShimOrder::Extend { .. })),
            ShimOrder::Begin(begin) => {
                let starts = queue.iter().filter(|it| matches!(it, ShimOrder::Begin(_)));
                if starts.count() >= STARTS_MAX {
                    let why = format!(
                        "expected a shim that starts it, found none, and {STARTS_MAX} starts \
                         that wait for one"
                    );
                    return Some((begin.run, Some(why)));
                }
            }
            ShimOrder::Stop { run } | ShimOrder::Kill { run } => {
                let run = *run;
                let begins =
                    |it: &ShimOrder| matches!(it, ShimOrder::Begin(begin) if begin.run == run);
                if queue.iter().any(begins) {
                    queue.retain(|it| !begins(it));
                    return Some((run, None));
                }
                if queue.contains(&ShimOrder::Kill { run }) {
                    return None;
                }
                queue.retain(|it| *it != ShimOrder::Stop { run });
            }
            ShimOrder::Quit => queue.retain(|it| *it != ShimOrder::Quit),
        }
        queue.push_back(order);
        drop(queue);
        self.changed.notify_one();
        None
    }

    /// The next one. Cancelling this loses nothing.
    pub(super) async fn next(&self) -> ShimOrder {
        loop {
            let changed = self.changed.notified();
            if let Some(order) = self.lock().pop_front() {
                return order;
            }
            changed.await;
        }
    }

    /// Removes the starts that wait, and returns their runs.
    pub(super) fn give_up_starts(&self) -> Vec<u64> {
        let mut given_up = Vec::new();
        self.lock().retain(|it| match it {
            ShimOrder::Begin(begin) => {
                given_up.push(begin.run);
                false
            }
            _ => true,
        });
        given_up
    }

    /// Whether the agent wants to end.
    pub(super) fn is_quitting(&self) -> bool {
        self.lock().contains(&ShimOrder::Quit)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<ShimOrder>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tenure::core::election::Grant;
    use tenure::core::time::Instant;

    use super::*;
    use crate::messages::{LogLimits, RestartPolicy, RunSpec};

    fn grant(at: u64) -> Grant {
        let at = Instant::from_nanos(at);
        Grant {
            start: at,
            drain_at: at,
            kill_at: at,
            valid_until: at,
        }
    }

    fn begin(run: u64) -> ShimOrder {
        ShimOrder::Begin(Box::new(RunSpec {
            run,
            id: String::new(),
            name: String::new(),
            digest: String::new(),
            instances: 1,
            fence: run,
            times: grant(run).into(),
            argv: Vec::new(),
            env: Vec::new(),
            env_file: None,
            restart: RestartPolicy::Always,
            ready_ms: 0,
            grace_ms: 0,
            log: LogLimits { bytes: 1, files: 0 },
        }))
    }

    fn extend(at: u64) -> ShimOrder {
        let (id, times) = ("one".to_owned(), grant(at).into());
        ShimOrder::Extend { id, times }
    }

    #[test]
    fn what_waits_for_a_shim_that_is_gone_does_not_grow() {
        let orders = OrderQueue::default();
        // What a shim was given before.
        for run in 0..10 {
            assert_eq!(orders.push(ShimOrder::Stop { run }), None);
        }
        for n in 0..10_000 {
            assert_eq!(orders.push(extend(n)), None);
            let text = n.to_string();
            assert_eq!(orders.push(ShimOrder::Notes { text }), None);
            // Deployed and undeployed, over and over.
            let run = 10 + n;
            assert_eq!(orders.push(begin(run)), None);
            assert_eq!(orders.push(ShimOrder::Stop { run }), Some((run, None)));
            assert_eq!(orders.push(ShimOrder::Stop { run: n % 10 }), None);
            assert_eq!(orders.push(ShimOrder::Kill { run: n % 10 }), None);
        }
        let queue: Vec<ShimOrder> = orders.lock().iter().cloned().collect();
        assert_eq!(queue.len(), 12, "{queue:?}");
        assert!(queue.contains(&extend(9_999)));
        assert!(queue.contains(&ShimOrder::Kill { run: 9 }));
    }

    #[test]
    fn starts_that_wait_have_a_limit() {
        let orders = OrderQueue::default();
        for run in 0..STARTS_MAX as u64 {
            assert_eq!(orders.push(begin(run)), None);
        }
        let (run, why) = orders.push(begin(5_000)).expect("one too many");
        assert_eq!(run, 5_000);
        assert!(why.expect("a reason").contains("1024 starts"));
        assert_eq!(orders.lock().len(), STARTS_MAX);
    }

    #[tokio::test]
    async fn orders_keep_their_order() {
        let orders = OrderQueue::default();
        orders.push(extend(1));
        orders.push(begin(7));
        orders.push(extend(2));
        orders.push(ShimOrder::Quit);
        assert!(orders.is_quitting());
        assert_eq!(orders.next().await, begin(7));
        assert_eq!(orders.next().await, extend(2));
        assert_eq!(orders.next().await, ShimOrder::Quit);
        assert!(!orders.is_quitting());
    }
}
