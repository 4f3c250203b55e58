//! Values of 16 bits: bfloat16 and float16 (IEEE 754 binary16), as bits. Everything that nodes
//! exchange and keep is float32; a tensor of such a type is widened when it is read, and rounded
//! when it is written.
//!
//! **Rounding** is to nearest, ties to even. A finite value beyond the largest of the type becomes
//! that one, so that writing never makes an infinity; infinities and NaN stay what they are.
//! Widening is exact, and rounding undoes it. So a tensor differs from the float32 value that was
//! decided by at most half a unit of its type, and all nodes, which hold the same value, hold the
//! same bits.
//!
//! **What rounding took** is not lost. Between two rounds a training thread moves a tensor from
//! `Q(x)`, the rounded value of what was decided, to some `t`. It contributes `x + (t − Q(x))`: the
//! decided value, moved as the training moved it ([`Half::give_back`]). `x − Q(x)` has no rounding
//! error of its own, except where `x` is beyond the type's range. So a value that training left
//! alone is contributed with the decided bits, as a float32 parameter is: rounding adds nothing to
//! the pseudo-gradient of a slow step, however many rounds go by.
//!
//! A type is also known to the port of devices (`ports/device/values.rs` in actors), to runtime
//! (`device/host.rs`, `tensors`) and to its package for candle. Nodes compare the types of their
//! models by [`crate::model::Types`].

use crate::encoding::round_to_bfloat16;

/// A type of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// The upper half of a float32: its range, 8 bits of precision.
    BFloat16,
    /// IEEE 754 binary16: 11 bits of precision, magnitudes up to 65,504, and below 6.1e-5 with
    /// fewer bits.
    Float16,
}

const SIGN: u32 = 0x8000_0000;
/// Bits of precision that float32 has more than float16.
const FEWER_BITS: u32 = 23 - 10;
/// Float32's bits of the largest float16, 65,504.
const LARGEST: u32 = 0x477f_e000;
const INFINITY: u32 = 0x7f80_0000;
/// Float32's bits of the smallest float16 with full precision, 2⁻¹⁴.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
/// ½: its float32 neighbours are 2⁻²⁴ apart, as all float16 below 2⁻¹⁴ are. So adding it rounds to
/// one of those, and the lowest bits of the sum are the float16.
const ROUNDS: f32 = 0.5;
/// The difference between the exponents of float32 and of float16, in place.
const EXPONENT_SHIFT: u32 = (127 - 15) << 23;
/// 2¹¹²: the same as a factor.
const SCALE: f32 = f32::from_bits((127 + 112) << 23);

impl Half {
    /// The name: "bf16" or "f16".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BFloat16 => "bf16",
            Self::Float16 => "f16",
        }
    }

    /// The value of these bits.
    #[must_use]
    pub fn widen(self, bits: u16) -> f32 {
        match self {
            Self::BFloat16 => f32::from_bits(u32::from(bits) << 16),
            Self::Float16 => widen_float16(bits),
        }
    }

    /// The bits of the nearest value of this type.
    #[must_use]
    pub fn round(self, value: f32) -> u16 {
        match self {
            Self::BFloat16 => (round_to_bfloat16(value.to_bits()) >> 16) as u16,
            Self::Float16 => round_to_float16(value.to_bits()),
        }
    }

    /// Widens each value. Slices have the same length; the tail of a longer one is left unchanged.
    pub fn widen_all(self, bits: &[u16], values: &mut [f32]) {
        match self {
            Self::BFloat16 => each(bits, values, |bits| Self::BFloat16.widen(*bits)),
            Self::Float16 => each(bits, values, |bits| Self::Float16.widen(*bits)),
        }
    }

    /// Rounds each value. Slices have the same length; the tail of a longer one is left unchanged.
    pub fn round_all(self, values: &[f32], bits: &mut [u16]) {
        match self {
            Self::BFloat16 => each(values, bits, |value| Self::BFloat16.round(*value)),
            Self::Float16 => each(values, bits, |value| Self::Float16.round(*value)),
        }
    }

    /// Adds to each value what rounding took of the decided one: `t ← t + (x − Q(x))`. Where `t` is
    /// `Q(x)` it becomes `x`, exactly.
    pub fn give_back(self, decided: &[f32], values: &mut [f32]) {
        for (value, decided) in values.iter_mut().zip(decided) {
            *value += decided - self.widen(self.round(*decided));
        }
    }
}

fn each<T, U>(from: &[T], into: &mut [U], convert: impl Fn(&T) -> U) {
    for (into, from) in into.iter_mut().zip(from) {
        *into = convert(from);
    }
}

fn widen_float16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << FEWER_BITS;
    // Also right for the smallest magnitudes, which are those of float32 at a smaller scale.
    let scaled = (f32::from_bits(magnitude) * SCALE).to_bits();
    let beyond = magnitude | INFINITY;
    let is_finite = bits & 0x7c00 != 0x7c00;
    f32::from_bits(sign | if is_finite { scaled } else { beyond })
}

fn round_to_float16(bits: u32) -> u16 {
    let sign = ((bits & SIGN) >> 16) as u16;
    let magnitude = bits & !SIGN;
    let capped = magnitude.min(LARGEST);
    let lowest_kept = (capped >> FEWER_BITS) & 1;
    // Wraps for magnitudes below 2⁻¹⁵, of which `small` is the result.
    let shifted = capped.wrapping_sub(EXPONENT_SHIFT);
    let nearest = shifted.wrapping_add(0xfff + lowest_kept) >> FEWER_BITS;
    let small = (f32::from_bits(capped) + ROUNDS).to_bits() - ROUNDS.to_bits();
    let finite = if capped < SMALLEST_NORMAL {
        small
    } else {
        nearest
    };
    let beyond = if magnitude > INFINITY { 0x7e00 } else { 0x7c00 };
    let rounded = if magnitude < INFINITY { finite } else { beyond };
    sign | rounded as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Half; 2] = [Half::BFloat16, Half::Float16];

    fn is_nan(half: Half, bits: u16) -> bool {
        half.widen(bits).is_nan()
    }

    #[test]
    fn rounding_undoes_widening_for_all_bits() {
        for half in BOTH {
            for bits in 0..=u16::MAX {
                let again = half.round(half.widen(bits));
                if is_nan(half, bits) {
                    assert!(is_nan(half, again), "{half:?} {bits:04x}");
                } else {
                    assert_eq!(again, bits, "{half:?} {bits:04x}");
                }
            }
        }
    }

    #[test]
    fn values_by_hand() {
        for (half, bits, value) in [
            (Half::BFloat16, 0x3f80, 1.0),
            (Half::BFloat16, 0xc049, -3.140_625),
            (Half::BFloat16, 0x7f80, f32::INFINITY),
            (Half::Float16, 0x3c00, 1.0),
            (Half::Float16, 0x3555, 0.333_251_95),
            (Half::Float16, 0xc000, -2.0),
            (Half::Float16, 0x7bff, 65_504.0),
            (Half::Float16, 0x0001, 5.960_464_5e-8),
            (Half::Float16, 0x0400, 6.103_515_6e-5),
            (Half::Float16, 0xfc00, f32::NEG_INFINITY),
            (Half::Float16, 0x8000, -0.0),
        ] {
            assert_eq!(half.widen(bits).to_bits(), value.to_bits(), "{bits:04x}");
            assert_eq!(half.round(value), bits, "{value}");
        }
    }

    #[test]
    fn ties_go_to_even_and_nothing_finite_becomes_infinite() {
        for (half, value, bits) in [
            // Between 1 and its neighbour, and one step further.
            (Half::BFloat16, 1.0 + 1.0 / 256.0, 0x3f80),
            (Half::BFloat16, 1.0 + 3.0 / 256.0, 0x3f82),
            (Half::BFloat16, f32::MAX, 0x7f7f),
            (Half::Float16, 1.0 + 1.0 / 2048.0, 0x3c00),
            (Half::Float16, 1.0 + 3.0 / 2048.0, 0x3c02),
            (Half::Float16, 65_519.0, 0x7bff),
            (Half::Float16, 65_520.0, 0x7bff),
            (Half::Float16, -1e30, 0xfbff),
            // Half of the smallest value, a little more, and one and a half.
            (Half::Float16, 2.980_232_2e-8, 0x0000),
            (Half::Float16, 2.980_233e-8, 0x0001),
            (Half::Float16, 8.940_697e-8, 0x0002),
            // The largest below 2⁻¹⁴ rounds up to it, and that below 2⁻¹⁵.
            (Half::Float16, f32::from_bits(SMALLEST_NORMAL - 1), 0x0400),
            (Half::Float16, f32::from_bits(EXPONENT_SHIFT - 1), 0x0200),
        ] {
            assert_eq!(half.round(value), bits, "{half:?} {value}");
        }
    }

    #[test]
    fn slices_are_converted_as_single_values_are() {
        for half in BOTH {
            let values: Vec<f32> = (-40..40).map(|n| (n as f32).powi(3) * 1.7e-4).collect();
            let mut bits = vec![0; values.len()];
            half.round_all(&values, &mut bits);
            let mut wide = vec![0.0; values.len()];
            half.widen_all(&bits, &mut wide);
            for ((value, bits), wide) in values.iter().zip(&bits).zip(&wide) {
                assert_eq!((*bits, *wide), (half.round(*value), half.widen(*bits)));
            }
        }
    }

    proptest! {
        /// No value of the type is nearer.
        #[test]
        fn rounding_is_to_the_nearest(value in -65_000.0f32..65_000.0, scale in -30i32..1) {
            let value = value * 2.0f32.powi(scale);
            for half in BOTH {
                let bits = half.round(value);
                let error = |bits: u16| (f64::from(half.widen(bits)) - f64::from(value)).abs();
                let least = error(bits);
                prop_assert!(
                    error(bits.wrapping_add(1)) >= least || is_nan(half, bits.wrapping_add(1))
                );
                prop_assert!(
                    error(bits.wrapping_sub(1)) >= least || is_nan(half, bits.wrapping_sub(1))
                );
            }
        }

        #[test]
        fn what_training_left_alone_is_the_decided_value(bits in any::<u32>()) {
            let decided = f32::from_bits(bits);
            prop_assume!(decided.is_finite());
            for half in BOTH {
                if half == Half::Float16 && decided.abs() > 65_504.0 {
                    continue;
                }
                let mut value = [half.widen(half.round(decided))];
                half.give_back(&[decided], &mut value);
                prop_assert_eq!(value[0], decided, "{:?}", half);
            }
        }

        /// A movement of the tensor moves the decided value by the same, to float32's rounding.
        #[test]
        fn a_movement_is_given_to_the_decided_value(decided in -8.0f32..8.0, steps in -40i16..40) {
            for half in BOTH {
                let rounded = half.round(decided);
                let moved = half.widen(rounded.wrapping_add_signed(steps));
                prop_assume!(moved.is_finite());
                let mut value = [moved];
                half.give_back(&[decided], &mut value);
                let by = f64::from(moved) - f64::from(half.widen(rounded));
                let off = f64::from(value[0]) - (f64::from(decided) + by);
                prop_assert!(
                    off.abs() <= f64::from(f32::EPSILON) * f64::from(value[0].abs()),
                    "{}",
                    off
                );
            }
        }
    }
}
