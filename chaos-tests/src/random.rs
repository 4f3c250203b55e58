//! The randomness of a run: one seed drives all of it.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A seeded generator.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The generator of `seed` for one purpose: other purposes draw other numbers from the same
    /// seed.
    #[must_use]
    pub fn new(seed: u64, purpose: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(
            seed ^ purpose.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        ))
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias is below one in 2^32 for every bound used here.
        self.0.next_u64() % bound.max(1)
    }

    /// A number from `from` to `to`, both included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// True once in `times` on average; never if `times` is 0.
    pub fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// True this many times in a million on average.
    pub fn per_million(&mut self, times: u32) -> bool {
        times > 0 && self.below(1_000_000) < u64::from(times)
    }

    /// One of these elements; `None` if there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}
