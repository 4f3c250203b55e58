//! Digests of values: equal bits, equal digest. Not for security.

use xxhash_rust::xxh3::Xxh3;

/// Of float64 values, bit by bit.
#[must_use]
pub fn digest_values(values: &[f64]) -> u64 {
    let mut hash = Xxh3::new();
    values.iter().for_each(|value| hash.update(&value.to_bits().to_le_bytes()));
    hash.digest()
}

/// Of bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}
