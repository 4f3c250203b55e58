//! Float32, unchanged.

use super::{BLOCK_ELEMENTS, Rounding};
use crate::sound::{is_within, room_below};

/// Encoded size of one value, in bytes.
pub const VALUE_BYTES: usize = 4;

/// Exact encoding, without rounding.
pub struct Exact;

impl Rounding for Exact {
    const BLOCK_BYTES: usize = VALUE_BYTES * BLOCK_ELEMENTS;

    fn encode(values: &[f32], bytes: &mut [u8], decoded: &mut [f32]) {
        encode(values, bytes);
        for (decoded, value) in decoded.iter_mut().zip(values) {
            *decoded = *value;
        }
    }

    fn decode(bytes: &[u8], target: &mut [f32], rule: impl Fn(&mut f32, f32)) {
        let (values, _) = bytes.as_chunks::<VALUE_BYTES>();
        for (target, value) in target.iter_mut().zip(values) {
            rule(target, f32::from_le_bytes(*value));
        }
    }

    fn first_beyond(bytes: &[u8], most: f32) -> Option<(usize, f32)> {
        let (values, _) = bytes.as_chunks::<VALUE_BYTES>();
        let room = values.iter().fold(0, |room, value| {
            room | room_below(most, f32::from_le_bytes(*value))
        });
        if room >= 0 {
            return None;
        }
        let decoded = values.iter().map(|value| f32::from_le_bytes(*value));
        decoded
            .enumerate()
            .find(|(_, value)| !is_within(*value, most))
    }
}

/// Writes the values' bytes.
pub fn encode(values: &[f32], bytes: &mut [u8]) {
    let (bytes, _) = bytes.as_chunks_mut::<VALUE_BYTES>();
    for (bytes, value) in bytes.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}
