//! The order of an epoch: a seeded permutation, computed for each place separately, so that it
//! needs no memory. Pure.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Rounds of the Feistel network.
const ROUNDS: u64 = 6;

/// The sample at `place` of an epoch; `place < samples`. A Feistel network permutes the next power
/// of four; results beyond the samples are permuted again, fewer than four times on average.
pub fn place(seed: u64, epoch: u64, samples: u64, place: u64) -> u64 {
    let bits = (u64::BITS - samples.saturating_sub(1).leading_zeros())
        .div_ceil(2)
        .max(1);
    let mut at = permute(seed, epoch, bits, place);
    while at >= samples {
        at = permute(seed, epoch, bits, at);
    }
    at
}

fn permute(seed: u64, epoch: u64, bits: u32, value: u64) -> u64 {
    let mask = (1 << bits) - 1;
    let mut left = value >> bits;
    let mut right = value & mask;
    for round in 0..ROUNDS {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&round.to_le_bytes());
        bytes[16..].copy_from_slice(&right.to_le_bytes());
        (left, right) = (right, left ^ (xxh3_64_with_seed(&bytes, seed) & mask));
    }
    (left << bits) | right
}
