//! A small seeded generator that is handed in, never global.
//!
//! xoshiro256** (Blackman and Vigna, 2018), seeded through splitmix64. It is
//! for jitter and for identifiers that must not *collide*; it is no
//! generator for secrets. Uniqueness of leader ids rests on the seed: the
//! driver draws 256 bits from the operating system for each incarnation.

use core::time::Duration;

/// The generator. Cloning it repeats its future.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// From one word, for simulations and tests.
    pub fn from_seed(seed: u64) -> Self {
        let mut x = seed;
        Self {
            state: core::array::from_fn(|_| splitmix(&mut x)),
        }
    }

    /// From 256 bits of real entropy, for production.
    pub fn from_entropy(seed: [u64; 4]) -> Self {
        // The all-zero state is the one fixed point of the generator.
        if seed == [0; 4] {
            Self::from_seed(0)
        } else {
            Self { state: seed }
        }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// The next 128 bits.
    pub fn next_u128(&mut self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0. The bias is below
    /// `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `low..=high` (`low` if they are in the wrong order).
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        if high <= low {
            low
        } else {
            low + self.below((high - low).saturating_add(1))
        }
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A span uniform in `0..=most`.
    pub fn span(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.between(0, crate::time::nanos(most)))
    }

    /// A generator whose future is independent of this one's.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::from_seed(self.next_u64())
    }
}

fn splitmix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
