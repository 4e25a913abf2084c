//! Noticing that the machine has slept.
//!
//! Timers of the runtime stand still while the machine is suspended, the
//! boot-time clock does not. After waking up every deadline may have passed
//! without a timer firing. So a few times a second we compare the two clocks
//! and, when they have parted, wake every machine to look at the time.
//!
//! Nothing safe depends on this: `is_valid()` compares clocks by itself. It
//! only makes the *telling* prompt.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock;

const CHECK_EVERY: Duration = Duration::from_millis(250);
/// The two clocks are read one after the other; this much is no suspend.
const SLACK: Duration = Duration::from_millis(5);

fn resume_signal() -> &'static watch::Sender<u64> {
    static RESUME_SIGNAL: OnceLock<watch::Sender<u64>> = OnceLock::new();
    RESUME_SIGNAL.get_or_init(|| watch::Sender::new(0))
}

/// Changes whenever the machine has woken up.
pub(super) fn resumed() -> watch::Receiver<u64> {
    resume_signal().subscribe()
}

/// Watches for suspends, for ever.
pub(super) async fn notice() {
    let mut known = clock::suspended();
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let now = clock::suspended();
        if now > known + SLACK {
            tracing::warn!(slept = ?now.saturating_sub(known), "the machine was suspended");
            resume_signal().send_modify(|count| *count += 1);
        }
        known = now;
    }
}
