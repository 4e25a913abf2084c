//! How much a stream of changes may bring.
//!
//! A stream is read on the thread that keeps leaderships alive. A broken or hostile server
//! that pours changes would keep renewals waiting, though it answers each of them at once.
//! So a reader that has taken more than a sane server tells of pauses. What it does not
//! take fills the windows of HTTP/2 and TCP, and the server waits. News come later then,
//! and nothing safe depends on them: a watch is a hint.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tenure_core::time::Instant;
use tokio::time::sleep;

use crate::clock;

/// What may be taken in a second, in bytes. 10,000 leases that are renewed every two
/// seconds take half of it.
const RATE: u32 = 16 * 1_024 * 1_024;
/// What may be taken at once after a silence.
const BURST: Duration = Duration::from_secs(1);
/// What a part or an event costs beside its bytes, however short it is.
const PART: usize = 512;

/// The pace of one store, for all of its streams together.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until when what was taken is paid for at the rate.
    paid_until: Mutex<Option<Instant>>,
}

impl Pace {
    /// Takes a part with so many bytes, and waits where that is more than the pace.
    pub(super) async fn take(&self, bytes: usize) {
        let pause = self.pause_after(bytes, clock::boot());
        if !pause.is_zero() {
            sleep(pause).await;
        }
    }

    /// For how long nothing more is to be taken.
    fn pause_after(&self, bytes: usize, now: Instant) -> Duration {
        let cost = u32::try_from(bytes + PART).unwrap_or(u32::MAX);
        let paid_by = Duration::from_secs(1).mul_f64(f64::from(cost) / f64::from(RATE));
        let mut until = self
            .paid_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let paid_until = until.unwrap_or(now).max(now).after(paid_by);
        *until = Some(paid_until);
        paid_until.since(now).saturating_sub(BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sane_server_tells_is_not_kept_waiting() {
        let (pace, began) = (Pace::default(), clock::boot());
        // A burst, and then 4,000 leases a second.
        for _ in 0..10 {
            assert_eq!(pace.pause_after(1_000_000, began), Duration::ZERO);
        }
        for event in 0..100_000_u32 {
            let now = began.after(Duration::from_secs(1) + Duration::from_micros(250) * event);
            assert_eq!(pace.pause_after(1_500, now), Duration::ZERO, "{event}");
        }
    }

    #[test]
    fn what_pours_is_taken_at_the_pace() {
        for bytes in [1, 60_000] {
            let (pace, began) = (Pace::default(), clock::boot());
            let (mut now, mut taken) = (began, 0);
            while now < began.after(Duration::from_secs(10)) {
                now = now.after(pace.pause_after(bytes, now));
                taken += bytes + PART;
            }
            let most = RATE as usize * 12;
            assert!((most / 2..=most).contains(&taken), "{bytes}: {taken}");
        }
    }
}
