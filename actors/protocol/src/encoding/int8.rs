//! Int8: a scale for each block and a signed byte for each value. Rounding adds a large number,
//! after which the lowest bits of the sum are the rounded value: the smallest vector units have no
//! other way.

use super::{BLOCK_ELEMENTS, Rounding};
use crate::sound::is_within;

/// Encoded size of a block's scale, in bytes.
pub const SCALE_BYTES: usize = 4;

/// Number of steps on each side of zero.
const STEPS: f32 = 127.0;
/// Largest magnitude of a signed byte.
const STEPS_MAX: f32 = 128.0;
/// `1.5·2²³`: float32 has no fractional bits there, so a sum is rounded to nearest even and its
/// lowest bits are the integer.
const ROUNDS: f32 = 12_582_912.0;
/// Mask that keeps 17 significant bits, so that a product with seven more is exact.
const SCALE_BITS: u32 = 0xffff_ff80;
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Rounds to multiples of a 127th of the block's largest magnitude.
pub struct Int8;

impl Rounding for Int8 {
    const BLOCK_BYTES: usize = SCALE_BYTES + BLOCK_ELEMENTS;

    fn encode(values: &[f32], bytes: &mut [u8], decoded: &mut [f32]) {
        let Some((first, bytes)) = bytes.split_first_chunk_mut::<SCALE_BYTES>() else {
            return;
        };
        let scale = scale(values);
        *first = scale.to_le_bytes();
        if scale.is_nan() {
            // The whole block is NaN: the bytes have no meaning and are zero, so that they are the
            // same on every processor.
            decoded.fill(f32::NAN);
            return bytes.fill(0);
        }
        let inverse = scale.recip();
        for ((decoded, value), byte) in decoded.iter_mut().zip(values).zip(bytes) {
            let shifted = value * inverse + ROUNDS;
            *byte = shifted.to_bits() as u8;
            *decoded = (shifted - ROUNDS) * scale;
        }
    }

    fn decode(bytes: &[u8], target: &mut [f32], rule: impl Fn(&mut f32, f32)) {
        let Some((scale, bytes)) = bytes.split_first_chunk::<SCALE_BYTES>() else {
            return;
        };
        let scale = f32::from_le_bytes(*scale);
        for (target, byte) in target.iter_mut().zip(bytes) {
            rule(target, f32::from(*byte as i8) * scale);
        }
    }

    /// Judges a block by the largest magnitude that its scale allows.
    fn first_beyond(bytes: &[u8], most: f32) -> Option<(usize, f32)> {
        let (scale, _) = bytes.split_first_chunk::<SCALE_BYTES>()?;
        let largest = f32::from_le_bytes(*scale) * STEPS_MAX;
        (!is_within(largest, most)).then_some((0, largest))
    }
}

/// The scale of a block; NaN if one of its values is not finite. Never below the smallest normal
/// float32, whose inverse is finite.
fn scale(values: &[f32]) -> f32 {
    // As integers, magnitudes have the same order as the numbers, and a NaN is above all.
    let largest = values
        .iter()
        .map(|value| (value.to_bits() & MAGNITUDE) as i32)
        .fold(0, i32::max);
    let largest = f32::from_bits(largest as u32);
    if !largest.is_finite() {
        return f32::NAN;
    }
    f32::from_bits((largest / STEPS).to_bits() & SCALE_BITS).max(f32::MIN_POSITIVE)
}
