//! Clocks of simulated machines.
//!
//! The simulator alone knows *true time*, in nanoseconds from the start of a
//! run. Each node has a boot-time clock, whose rate wanders within the drift
//! bound (now and then exactly at it, where an argument with `<` instead of
//! `<=` breaks), and a calendar that may be off, step and stand still.
//!
//! A boot-time clock is drawn for the whole run in advance. So the question
//! "when will this clock show that?" has an exact answer, which is what the
//! checkers convert local deadlines with.
//!
//! Left out: boot-time clocks that stop or step. A hypervisor can do that to a
//! real one, and the election does not claim to survive it without a fence.

use tenure_core::rng::Rng;
use tenure_core::time::{Instant, Now, WallTime};

/// Nanoseconds of true time since the run began.
pub(crate) type TrueTime = u64;

/// A microsecond in nanoseconds.
pub(crate) const MICRO: u64 = 1_000;
/// A millisecond in nanoseconds.
pub(crate) const MILLI: u64 = 1_000_000;
/// A second in nanoseconds.
pub(crate) const SECOND: u64 = 1_000_000_000;

const MILLION: u128 = 1_000_000;

/// A clock of varying rate: straight pieces, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct DriftModel {
    pieces: Vec<DriftSegment>,
}

#[derive(Clone, Copy, Debug)]
struct DriftSegment {
    from: TrueTime,
    local: u64,
    /// Local nanoseconds in a million true ones.
    rate: u64,
}

impl DriftModel {
    /// A clock that shows `start` at first and whose rate stays within
    /// `bound` parts per million of true, for `until` and beyond.
    pub(crate) fn draw(rng: &mut Rng, start: u64, bound: u32, until: TrueTime) -> Self {
        let bound = u64::from(bound);
        let (fast, slow) = (1_000_000 + bound, 1_000_000 - bound);
        let mut pieces = Vec::new();
        let (mut from, mut local) = (0, start);
        let habit = rng.below(4);
        loop {
            let rate = match habit {
                0 => fast,
                1 => slow,
                2 => *pick(rng, &[fast, slow]),
                _ => rng.between(slow, fast),
            };
            pieces.push(DriftSegment { from, local, rate });
            // Steady extremes need no second piece.
            if habit < 2 || from >= until {
                return Self { pieces };
            }
            let next = from + rng.between(SECOND / 2, 30 * SECOND);
            local += span(next - from, rate, MILLION);
            from = next;
        }
    }

    /// What it shows at `t`.
    pub(crate) fn at(&self, t: TrueTime) -> u64 {
        let after = self.pieces.partition_point(|piece| piece.from <= t);
        let piece = self.pieces[after.saturating_sub(1)];
        piece.local + span(t - piece.from, piece.rate, MILLION)
    }

    /// The first moment at which it shows at least `local`.
    pub(crate) fn when(&self, local: u64) -> TrueTime {
        let after = self.pieces.partition_point(|piece| piece.local <= local);
        let Some(piece) = self.pieces[..after].last() else {
            return 0;
        };
        let true_span = (u128::from(local - piece.local) * MILLION).div_ceil(piece.rate.into());
        piece
            .from
            .saturating_add(u64::try_from(true_span).unwrap_or(u64::MAX))
    }
}

fn span(length: u64, rate: u64, per: u128) -> u64 {
    match length.checked_mul(rate) {
        Some(product) => product / 1_000_000,
        None => u64::try_from(u128::from(length) * u128::from(rate) / per).unwrap_or(u64::MAX),
    }
}

/// One of `choices`, which must not be empty.
pub(crate) fn pick<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.below(choices.len() as u64) as usize]
}

/// A calendar, in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct WallClockModel {
    /// How far it is ahead of the true calendar.
    offset_ms: i64,
    /// What it shows for as long as it stands still.
    frozen: Option<u64>,
}

impl WallClockModel {
    /// The true calendar when a run begins.
    const EPOCH_MS: i64 = 1_700_000_000_000;

    pub(crate) const fn new(offset_ms: i64) -> Self {
        Self {
            offset_ms,
            frozen: None,
        }
    }

    fn at(&self, t: TrueTime) -> u64 {
        let running = Self::EPOCH_MS + (t / MILLI) as i64 + self.offset_ms;
        self.frozen.unwrap_or_else(|| running.max(0) as u64)
    }

    pub(crate) const fn step_to(&mut self, offset_ms: i64) {
        self.offset_ms = offset_ms;
        self.frozen = None;
    }

    pub(crate) fn freeze(&mut self, t: TrueTime) {
        self.frozen = Some(self.at(t));
    }
}

/// A machine: its clocks, and whether it sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    drift_model: DriftModel,
    /// What the curve showed at the last boot.
    base: u64,
    /// Names the boot.
    pub(crate) boot_id: u64,
    pub(crate) wall: WallClockModel,
    pub(crate) suspended: bool,
}

impl Node {
    pub(crate) const fn new(drift_model: DriftModel, wall: WallClockModel) -> Self {
        Self {
            drift_model,
            base: 0,
            boot_id: 1,
            wall,
            suspended: false,
        }
    }

    pub(crate) fn boot(&self, t: TrueTime) -> Instant {
        Instant::from_nanos(self.drift_model.at(t) - self.base)
    }

    pub(crate) fn now(&self, t: TrueTime) -> Now {
        Now {
            boot: self.boot(t),
            wall: WallTime::from_millis(self.wall.at(t)),
        }
    }

    /// The first moment at which the boot-time clock shows `local`.
    pub(crate) fn when(&self, local: Instant) -> TrueTime {
        self.drift_model
            .when(local.as_nanos().saturating_add(self.base))
    }

    /// Everything on it has just ended, and its clock begins again.
    pub(crate) fn reboot(&mut self, t: TrueTime) {
        self.base = self.drift_model.at(t);
        self.boot_id += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_and_its_inverse_agree() {
        let mut rng = Rng::from_seed(7);
        for _ in 0..200 {
            let start = rng.below(1 << 50);
            let drift_model = DriftModel::draw(&mut rng, start, 10_000, 300 * SECOND);
            for _ in 0..50 {
                let t = rng.below(400 * SECOND);
                let local = drift_model.at(t);
                let back = drift_model.when(local);
                assert!(back <= t && drift_model.at(back) >= local, "{back} {t}");
                assert!(back == 0 || drift_model.at(back - 1) < local, "{back} {t}");
            }
        }
    }
}
