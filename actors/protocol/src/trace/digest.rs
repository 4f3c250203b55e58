//! Digests of values: equal bits give equal digests. Not for security.

use xxhash_rust::xxh3::Xxh3;

/// An incremental digest of bytes; the split into parts does not affect it.
#[derive(Default)]
pub struct Digest(Xxh3);

impl Digest {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// The digest of the bits of float64 values.
#[must_use]
pub fn digest_values(values: &[f64]) -> u64 {
    let mut hash = Xxh3::new();
    values
        .iter()
        .for_each(|value| hash.update(&value.to_bits().to_le_bytes()));
    hash.digest()
}

/// The digest of bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_bytes_are_cut_makes_no_difference() {
        let bytes: Vec<u8> = (0..=255).cycle().take(3_001).collect();
        let mut parts = Digest::default();
        [0..7, 7..7, 7..1_500, 1_500..3_001]
            .into_iter()
            .for_each(|range| parts.update(&bytes[range]));
        assert_eq!(parts.finish(), digest(&bytes));
    }
}
