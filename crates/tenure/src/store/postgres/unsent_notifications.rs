//! Notifications that were not sent, since others held the lock under which a
//! server takes them.
//!
//! They are hints, and writes do not wait for them. But a process that hears of
//! no change reads none, so they are sent again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;

use super::connect::PgConnection;
use super::error_text::{self, PgError};
use crate::clock;
use crate::store::dial::Dialer;

/// How many are kept. One more takes the place of the oldest: the next change
/// of its register is told as well.
const QUEUE_MAX: usize = 64;
/// How often they are sent again, and how often at most.
const AGAIN_EVERY: Duration = Duration::from_secs(1);
const TRIES_MAX: usize = 60;
/// How long a try may take.
const WITHIN: Duration = Duration::from_secs(5);

/// What stands in an error that says that the lock was held for too long.
pub(super) const LOCK_TIMEOUT: &str = "SQLSTATE 55P03";

#[derive(Default, Debug)]
pub(super) struct UnsentNotifications(Mutex<Queue>);

#[derive(Default, Debug)]
struct Queue {
    statements: VecDeque<String>,
    /// A task sends them again.
    sending: bool,
}

/// Whether this says that the lock was held for too long.
pub(super) fn is_lock_timeout(error: &PgError) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

impl UnsentNotifications {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in one that was not sent, and sends it again until it is.
    pub(super) fn resend(self: &Arc<Self>, statement: String, dialer: &Arc<Dialer<PgConnection>>) {
        let mut queue = self.lock();
        if queue.statements.len() == QUEUE_MAX {
            queue.statements.pop_front();
        }
        queue.statements.push_back(statement);
        if !std::mem::replace(&mut queue.sending, true) {
            let (unsent, dialer) = (Arc::clone(self), Arc::clone(dialer));
            crate::drive::background().spawn(async move { unsent.send(&dialer).await });
        }
    }

    async fn send(&self, dialer: &Arc<Dialer<PgConnection>>) {
        for _ in 0..TRIES_MAX {
            sleep(AGAIN_EVERY).await;
            let statements: Vec<_> = self.lock().statements.iter().cloned().collect();
            let until = clock::boot().after(WITHIN);
            let Ok(connected) = dialer.connected(until).await else {
                continue;
            };
            let all = statements.join("; ");
            let sent = timeout(WITHIN, connected.query(&all)).await;
            match sent {
                Ok(Err(error)) if is_lock_timeout(&error) => continue,
                Ok(Err(error)) => {
                    tracing::debug!("telling of changes once more: {}", error_text::text(&error));
                }
                Ok(Ok(_)) => {}
                Err(_) => continue,
            }
            let mut queue = self.lock();
            // More may have come meanwhile, and the oldest may have gone.
            queue.statements.retain(|it| !statements.contains(it));
            if queue.statements.is_empty() {
                queue.sending = false;
                return;
            }
        }
        *self.lock() = Queue::default();
    }
}
