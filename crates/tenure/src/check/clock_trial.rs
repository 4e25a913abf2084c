//! The store's clock: how far it is off, how fast it goes, and whether it jumps.
//!
//! Every answer that tells the store's time says within which bounds its clock is
//! ahead of this machine's boot-time clock: it was read after the call began and
//! before its answer came. Between two answers that can change by what rates of
//! clocks differ, 1 % at most, and by no more. An answer outside of that proves a
//! jump, however long the network took.
//!
//! A jump forward is what does harm: a grant looks older than it is. A step back only
//! makes it look younger, and the time of a log stands still while no server leads.
//! Time may be told a little late, so a little more than before is no jump.

use std::fmt;
use std::time::Duration;

use tenure_core::time::{Drift, nanos};

use super::connection::{Connection, Sample, Stop};
use super::finding::{Fault, Finding};
use crate::clock as clocks;
use crate::error::about;
use crate::store::{Clock, Key};

/// How often the clock is read for this alone, and how far apart.
const LOOKS: u32 = 20;
const APART: Duration = Duration::from_millis(100);
/// What a clock may be ahead of its bounds: it may have told its time late before.
const STEP: i128 = 250_000_000;
/// What is told of a clock that has fallen back.
const BEHIND: Duration = Duration::from_secs(1);
/// The shortest time over which a rate means something.
const LONG_ENOUGH: Duration = Duration::from_secs(1);

/// What was seen of a store's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockSeen {
    /// Whether it is the boot-time clock of this machine.
    pub is_of_this_machine: bool,
    /// How far it is ahead of this machine's calendar (less than zero: behind), in
    /// milliseconds, and how exactly that is known; `None` if it does not count
    /// from 1970.
    pub ahead_ms: Option<(i64, u64)>,
    /// How much faster than this machine's it goes (less than zero: slower), in
    /// parts per million, and how exactly that is known; `None` if it was not looked
    /// at for long enough.
    pub rate_ppm: Option<(i64, u64)>,
    /// The farthest jump forward that was seen.
    pub forward: Duration,
    /// The farthest step back.
    pub back: Duration,
}

impl fmt::Display for ClockSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_of_this_machine, self.ahead_ms) {
            (true, _) => f.write_str("it is this machine's boot-time clock")?,
            (false, None) => f.write_str("it counts from a moment of its own")?,
            (false, Some((ahead, exactly))) => {
                let side = if ahead < 0 { "behind" } else { "ahead of" };
                let by = ahead.unsigned_abs();
                write!(
                    f,
                    "it is {by} ms {side} this machine's calendar (to {exactly} ms)"
                )?;
            }
        }
        match self.rate_ppm {
            Some((rate, exactly)) if !self.is_of_this_machine => write!(
                f,
                ", and goes {} ppm {} (to {exactly} ppm)",
                rate.unsigned_abs(),
                if rate < 0 { "slower" } else { "faster" }
            ),
            _ => Ok(()),
        }
    }
}

/// Reads the clock for a while.
pub(super) async fn look(store: &Connection, key: &Key) -> Result<(), Stop> {
    let version = store.create(key, b"").await?;
    for _ in 0..LOOKS {
        store.read(key).await?;
        tokio::time::sleep(APART).await;
    }
    store.remove(key, &version).await
}

/// What the readings say together; `None` without any.
pub(super) fn seen(mut samples: Vec<Sample>) -> Option<ClockSeen> {
    samples.sort_by_key(|sample| sample.ended);
    let last = *samples.last()?;
    // Of another clock nothing can be said.
    samples.retain(|sample| sample.told.clock == last.told.clock);
    let first = *samples.first()?;
    let (forward, back) = jumps(&samples);
    let watched = last.began.since(first.ended);
    let exact = |sample: &Sample| nanos(sample.ended.since(sample.began)) / 2;
    let rate = || {
        let moved = middle(&last) - middle(&first);
        let ppm = |part: i128| part * 1_000_000 / i128::from(nanos(watched)).max(1);
        let known_to = ppm(i128::from(exact(&first) + exact(&last)));
        (clamped(ppm(moved)), clamped(known_to).unsigned_abs() + 1)
    };
    Some(ClockSeen {
        is_of_this_machine: clocks::id() == Some(last.told.clock),
        ahead_ms: ahead(&last).map(|ahead| (ahead, exact(&last) / 1_000_000 + 1)),
        rate_ppm: (watched >= LONG_ENOUGH).then(rate),
        forward: duration(forward),
        back: duration(back),
    })
}

/// What to make of it; `judges` says whether grants are judged by it.
pub(super) fn verdict(seen: &ClockSeen, clock: Clock, judges: bool) -> Result<String, Finding> {
    let jumped = (seen.forward > Duration::ZERO).then(|| {
        format!(
            "it jumped forward by {} against this machine's boot-time clock",
            about(seen.forward)
        )
    });
    match jumped {
        Some(said) if clock == Clock::CannotStep => Err(Finding::new(
            Fault::ClockJumps,
            format!("expected a clock that cannot step, found that {said}"),
        )),
        Some(said) if judges => Err(Finding::new(
            Fault::ClockJumps,
            format!("grants are judged by the store's clock (expiry=store-clock), and {said}"),
        )),
        Some(said) => Ok(format!(
            "{said}; grants are judged by silence, so that does no harm: never use \
             expiry=store-clock here"
        )),
        None if seen.back > BEHIND => Ok(format!(
            "it did not jump forward; it fell back by {}, which makes a grant look younger",
            about(seen.back)
        )),
        None => Ok("it did not jump".to_owned()),
    }
}

/// The bounds of how far the store's clock is ahead of the boot-time clock.
fn bounds(sample: &Sample) -> (i128, i128) {
    let told = i128::from(sample.told.nanos);
    let at = |instant: tenure_core::time::Instant| i128::from(instant.as_nanos());
    (told - at(sample.ended), told - at(sample.began))
}

fn middle(sample: &Sample) -> i128 {
    let (low, high) = bounds(sample);
    i128::midpoint(low, high)
}

/// The farthest jump forward and the farthest step back.
fn jumps(samples: &[Sample]) -> (i128, i128) {
    let (mut forward, mut back) = (0, 0);
    let mut so_far: Option<(i128, i128, Sample)> = None;
    for sample in samples {
        let (low, high) = bounds(sample);
        let Some((least, most, before)) = so_far else {
            so_far = Some((low, high, *sample));
            continue;
        };
        // What the rates may have made of it meanwhile.
        let passed = sample.ended.since(before.began);
        let drifted = Drift::DEFAULT.lengthen(passed).saturating_sub(passed);
        let drifted = i128::from(nanos(drifted));
        let (least, most) = (least - drifted, most + drifted);
        if low > most + STEP {
            forward = forward.max(low - most);
            so_far = Some((low, high, *sample));
        } else if high < least {
            back = back.max(least - high);
            // If it comes forward again, what was stamped meanwhile looks older.
            so_far = Some((low, high, *sample));
        } else {
            so_far = Some((least.max(low), most.min(high), *sample));
        }
    }
    (forward, back)
}

/// Milliseconds ahead of this machine's calendar, of a clock that counts from 1970.
fn ahead(sample: &Sample) -> Option<i64> {
    const YEARS_10: i128 = 10 * 366 * 86_400_000;
    let told = i128::from(sample.told.nanos / 1_000_000);
    let ahead = told - i128::from(sample.wall.as_millis());
    (ahead.abs() < YEARS_10).then(|| clamped(ahead))
}

fn clamped(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn duration(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use tenure_core::time::{ClockId, Instant, StoreTime, WallTime};

    use super::*;

    /// Readings every 100 ms that took `trip`, of a clock that shows what `shown`
    /// makes of the true time, in the middle of each call; all in milliseconds.
    fn readings(trip: u64, shown: impl Fn(i64) -> i64) -> Vec<Sample> {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let reading = |number: u64| {
            let began = 1_000_000 + number * 100;
            let told = shown(i64::try_from(began + trip / 2).expect("a time"));
            Sample {
                began: at(began),
                ended: at(began + trip),
                wall: WallTime::from_millis(1_800_000_000_000),
                told: StoreTime {
                    clock: ClockId::default(),
                    nanos: told.unsigned_abs() * 1_000_000,
                },
            }
        };
        (0..100).map(reading).collect()
    }

    fn found(trip: u64, shown: impl Fn(i64) -> i64) -> ClockSeen {
        seen(readings(trip, shown)).expect("readings")
    }

    #[test]
    fn a_clock_that_is_off_or_fast_does_not_jump() {
        let fast = found(10, |time| time + 5_000 + (time - 1_000_000) / 200);
        assert_eq!((fast.forward, fast.back), (Duration::ZERO, Duration::ZERO));
        let (ppm, exactly) = fast.rate_ppm.expect("a rate");
        assert!((ppm - 5_000).unsigned_abs() <= exactly, "{fast:?}");
        assert!(exactly < 2_000, "{fast:?}");
        assert_eq!(seen(Vec::new()), None);
        let judged = verdict(&fast, Clock::CannotStep, true).expect("no jump");
        assert_eq!(judged, "it did not jump");
    }

    #[test]
    fn a_jump_is_seen_through_any_round_trip_that_is_shorter() {
        let jumping = |time: i64| if time > 1_005_000 { time + 3_000 } else { time };
        for trip in [2, 200, 1_000] {
            let seen = found(trip, jumping);
            let forward = seen.forward.as_millis();
            assert!((1_000..=3_000).contains(&forward), "{trip}: {seen:?}");
            let judged = verdict(&seen, Clock::CannotStep, false).expect_err("a jump");
            assert_eq!(judged.fault, Fault::ClockJumps);
            verdict(&seen, Clock::MayStep, true).expect_err("a jump that counts");
            let harmless = verdict(&seen, Clock::MayStep, false).expect("silence judges");
            assert!(harmless.contains("expiry=store-clock"), "{harmless}");
        }
        // Within a call that took longer it cannot be told from the call.
        assert_eq!(found(8_000, jumping).forward, Duration::ZERO);
    }

    #[test]
    fn time_that_is_told_late_or_set_back_is_no_jump() {
        let late = |time: i64| time - (time / 100 % 7) * 20;
        let seen = found(2, late);
        assert_eq!(seen.forward, Duration::ZERO, "{seen:?}");
        verdict(&seen, Clock::CannotStep, false).expect("no jump");
        let back = found(2, |time| if time > 1_005_000 { time - 5_000 } else { time });
        assert!(back.back > Duration::from_secs(4), "{back:?}");
        let said = verdict(&back, Clock::CannotStep, false).expect("it does no harm");
        assert!(said.contains("fell back by 5s"), "{said}");
        // What it stamped meanwhile looks older when it comes forward again.
        let both = |time: i64| match time {
            1_003_000..1_005_000 => time - 5_000,
            _ => time,
        };
        assert!(found(2, both).forward > Duration::from_secs(4));
    }
}
