//! Bfloat16: the upper half of a float32, rounded to nearest even. Uses bit arithmetic on signed
//! integers, because the smallest vector units can compare only those.

use super::{BLOCK_ELEMENTS, Rounding};
use crate::sound::{is_within, room_below};

/// Encoded size of one value, in bytes.
pub const VALUE_BYTES: usize = 2;

const SIGN: u32 = 0x8000_0000;
const INFINITY: i32 = 0x7f80_0000;
/// The largest finite bfloat16 as float32. Values above would round to infinity; they become this
/// one, and the rest is kept as residual.
const LARGEST: i32 = 0x7f7f_0000;
/// Keeps a NaN a NaN if its payload is only in the lower half, which is dropped.
const QUIET: u32 = 0x0040_0000;

/// Rounds to bfloat16.
pub struct BFloat16;

impl Rounding for BFloat16 {
    const BLOCK_BYTES: usize = VALUE_BYTES * BLOCK_ELEMENTS;

    fn encode(values: &[f32], bytes: &mut [u8], decoded: &mut [f32]) {
        let (bytes, _) = bytes.as_chunks_mut::<VALUE_BYTES>();
        for ((decoded, value), bytes) in decoded.iter_mut().zip(values).zip(bytes) {
            let rounded = round(value.to_bits());
            *decoded = f32::from_bits(rounded);
            *bytes = ((rounded >> 16) as u16).to_le_bytes();
        }
    }

    fn decode(bytes: &[u8], target: &mut [f32], rule: impl Fn(&mut f32, f32)) {
        let (values, _) = bytes.as_chunks::<VALUE_BYTES>();
        for (target, value) in target.iter_mut().zip(values) {
            rule(
                target,
                f32::from_bits(u32::from(u16::from_le_bytes(*value)) << 16),
            );
        }
    }

    fn first_beyond(bytes: &[u8], most: f32) -> Option<(usize, f32)> {
        let (values, _) = bytes.as_chunks::<VALUE_BYTES>();
        let decoded =
            |value: &[u8; VALUE_BYTES]| f32::from_bits(u32::from(u16::from_le_bytes(*value)) << 16);
        let room = values
            .iter()
            .fold(0, |room, value| room | room_below(most, decoded(value)));
        if room >= 0 {
            return None;
        }
        let decoded = values.iter().map(decoded);
        decoded
            .enumerate()
            .find(|(_, value)| !is_within(*value, most))
    }
}

/// The bits of the nearest bfloat16, as float32.
pub fn round(bits: u32) -> u32 {
    let magnitude = (bits & !SIGN) as i32;
    let capped = if magnitude < LARGEST {
        magnitude
    } else {
        LARGEST
    } as u32;
    let nearest = capped + 0x7fff + ((capped >> 16) & 1);
    let beyond = if magnitude > INFINITY {
        magnitude as u32 | QUIET
    } else {
        magnitude as u32
    };
    let rounded = if magnitude < INFINITY {
        nearest
    } else {
        beyond
    };
    (rounded & 0x7fff_0000) | (bits & SIGN)
}
