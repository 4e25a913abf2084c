//! Orders on their way from a handle to the watchdog.
//!
//! The thread that orders also renews the lease, so no order may wait for the
//! watchdog, which can be busy for seconds (it walks and kills what a hung
//! guardian has left). A queue of a fixed length would fill and block. Here
//! orders of one kind share a place, because two of them are as good as one: the
//! later times count, the earlier end of a stop, and one KILL is enough. Signals
//! alone are a queue. [`SIGNALS`] of them wait, and those that come then are
//! dropped.
//!
//! Orders that wait together are taken in this order: the go-ahead, times,
//! signals, the stop, the KILL. So signals keep their order among themselves only:
//! CMD may get a USR1 before the TERM of a stop that was ordered earlier. A KILL
//! takes a go-ahead that still waits away.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::core::time::Instant;

use super::messages::{GuardianOrder, StartOrder};

/// Signals that may wait to be passed on.
const SIGNALS: usize = 32;

#[derive(Default)]
struct Waiting {
    start: Option<StartOrder>,
    times: Option<(Instant, Instant)>,
    signals: VecDeque<i32>,
    stop_by: Option<Instant>,
    kill: bool,
    closed: bool,
}

impl Waiting {
    /// Everything is to be killed, and nothing is to begin before that.
    fn end(&mut self) {
        self.start = None;
        self.kill = true;
    }
}

type Shared = Arc<Mutex<Waiting>>;

/// The end of the handle. When it is dropped, everything is to be killed.
pub(super) struct OrderSender(Shared);

/// The end of the watchdog.
pub(super) struct OrderReceiver(Shared);

/// A mailbox without orders.
pub(super) fn order_mailbox() -> (OrderSender, OrderReceiver) {
    let shared = Shared::default();
    (OrderSender(Arc::clone(&shared)), OrderReceiver(shared))
}

fn lock(shared: &Shared) -> MutexGuard<'_, Waiting> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OrderSender {
    /// Puts an order in. Never blocks: the lock is held for a few instructions.
    pub(super) fn send(&self, order: GuardianOrder) {
        let mut waiting = lock(&self.0);
        match order {
            // It opens the channel, before there is a handle.
            GuardianOrder::Hello => {}
            GuardianOrder::Start(start) => waiting.start = Some(start),
            GuardianOrder::Extend { drain_at, kill_at } => {
                let (drain, kill) = waiting.times.unwrap_or((drain_at, kill_at));
                waiting.times = Some((drain.max(drain_at), kill.max(kill_at)));
            }
            GuardianOrder::Signal(number) => {
                if waiting.signals.len() < SIGNALS {
                    waiting.signals.push_back(number);
                }
            }
            GuardianOrder::Stop { stop_by } => {
                waiting.stop_by = Some(waiting.stop_by.map_or(stop_by, |it| it.min(stop_by)));
            }
            GuardianOrder::Kill => waiting.end(),
        }
    }
}

impl Drop for OrderSender {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0);
        waiting.end();
        waiting.closed = true;
    }
}

impl OrderReceiver {
    /// Whether the handle was dropped. No order is added from then on; what waits
    /// can still be taken, and the KILL is the last of it.
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }

    /// The next order, if one waits.
    pub(super) fn next(&self) -> Option<GuardianOrder> {
        let mut waiting = lock(&self.0);
        if let Some(start) = waiting.start.take() {
            return Some(GuardianOrder::Start(start));
        }
        if let Some((drain_at, kill_at)) = waiting.times.take() {
            return Some(GuardianOrder::Extend { drain_at, kill_at });
        }
        if let Some(number) = waiting.signals.pop_front() {
            return Some(GuardianOrder::Signal(number));
        }
        if let Some(stop_by) = waiting.stop_by.take() {
            return Some(GuardianOrder::Stop { stop_by });
        }
        std::mem::take(&mut waiting.kill).then_some(GuardianOrder::Kill)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn all(receiver: &OrderReceiver) -> Vec<GuardianOrder> {
        std::iter::from_fn(|| receiver.next()).collect()
    }

    #[test]
    fn orders_that_nobody_takes_block_no_sender_and_lose_no_end() {
        let (sender, receiver) = order_mailbox();
        for number in 0..1_000 {
            sender.send(GuardianOrder::Signal(number));
            sender.send(GuardianOrder::Extend {
                drain_at: at(1_000 - u64::from(number.unsigned_abs())),
                kill_at: at(u64::from(number.unsigned_abs())),
            });
            sender.send(GuardianOrder::Stop {
                stop_by: at(5 + u64::from(number.unsigned_abs())),
            });
        }
        sender.send(GuardianOrder::Kill);
        let orders = all(&receiver);
        let signals = 32;
        assert_eq!(orders.len(), 1 + signals + 2);
        let extend = GuardianOrder::Extend {
            drain_at: at(1_000),
            kill_at: at(999),
        };
        assert_eq!(orders[0], extend);
        assert_eq!(orders[1], GuardianOrder::Signal(0));
        assert_eq!(orders[signals], GuardianOrder::Signal(31));
        assert_eq!(orders[signals + 1], GuardianOrder::Stop { stop_by: at(5) });
        assert_eq!(orders[signals + 2], GuardianOrder::Kill);
    }

    #[test]
    fn a_handle_that_is_dropped_orders_the_kill_and_takes_its_go_ahead_back() {
        let (sender, receiver) = order_mailbox();
        assert_eq!(receiver.next(), None);
        assert!(!receiver.is_closed());
        sender.send(GuardianOrder::Start(StartOrder {
            argv: vec!["true".into()],
            env: Vec::new(),
            drain_at: at(1),
            kill_at: at(2),
        }));
        drop(sender);
        assert!(receiver.is_closed());
        assert_eq!(all(&receiver), [GuardianOrder::Kill]);
    }
}
