//! Seeded randomness: one seed drives a run, with one stream per purpose and the same numbers on
//! every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Purpose of a stream of random numbers; different purposes never share numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The initial weights.
    Weights,
    /// The assignment of samples to workers.
    Shards,
    /// The order of one worker's samples in one epoch.
    Order {
        /// The worker's rank over all nodes.
        worker: u32,
        /// Number of passes over its samples so far; distinct up to 2^24.
        epoch: u64,
    },
}

/// The generator for one purpose under one seed.
#[must_use]
pub fn generator(seed: u64, purpose: Purpose) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(match purpose {
        Purpose::Weights => 0,
        Purpose::Shards => 1,
        Purpose::Order { worker, epoch } => {
            (1 << 63) | ((epoch & 0x00FF_FFFF) << 32) | u64::from(worker)
        }
    });
    generator
}

/// A random number in `[0, 1)` with 24 random bits.
pub fn unit(generator: &mut impl Rng) -> f32 {
    (generator.next_u32() >> 8) as f32 / (1u32 << 24) as f32
}

/// Fisher and Yates' shuffle, with indices taken from 64 random bits (the bias is below 2^-32 for
/// any list that fits in memory).
pub fn shuffle<T>(items: &mut [T], generator: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        let scaled = u128::from(generator.next_u64()) * (last as u128 + 1);
        items.swap(last, (scaled >> 64) as usize);
    }
}

/// A well-mixed hash of a number (the finalizer of SplitMix64), so that sums of hashes distinguish
/// sets of numbers.
#[must_use]
pub fn hash(value: u64) -> u64 {
    let mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffled(seed: u64, purpose: Purpose) -> Vec<u32> {
        let mut items: Vec<u32> = (0..100).collect();
        shuffle(&mut items, &mut generator(seed, purpose));
        items
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_repeats_with_its_seed() {
        let first = shuffled(7, Purpose::Shards);
        assert_eq!(first, shuffled(7, Purpose::Shards));
        assert_ne!(first, shuffled(8, Purpose::Shards));
        assert_ne!(
            first,
            shuffled(
                7,
                Purpose::Order {
                    worker: 0,
                    epoch: 0
                }
            )
        );
        let mut sorted = first;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn units_stay_below_one() {
        let mut generator = generator(1, Purpose::Weights);
        let mean = (0..10_000)
            .map(|_| unit(&mut generator))
            .inspect(|x| assert!((0.0..1.0).contains(x)))
            .sum::<f32>()
            / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
