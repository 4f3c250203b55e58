//! Random inputs for every kernel: all magnitudes that occur in a model, with a few values that are
//! not finite where the kernel must detect them.

use crate::arithmetic::Array;
use crate::kernels::{Kernel, Wire};

/// Variants of each length: the ordinary one; and one where pointers that may be null are null, and
/// a value is not finite where the kernel checks for that.
pub const VARIANTS: u64 = 2;

/// A kernel's arrays before it runs, and its floats.
pub struct Inputs {
    /// The arrays, in the order of the kernel's pointers.
    pub arrays: Vec<Array>,
    /// The floats, in the order of the kernel's floats.
    pub floats: Vec<f32>,
}

/// A random generator that is good enough for test values (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A value in [-1, 1), times a power of two from 2^-12 to 2^3.
    fn value(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        unit * ((self.next() % 16) as f32 - 12.0).exp2()
    }

    fn values(&mut self, length: usize) -> Array {
        Array::Floats((0..length).map(|_| self.value()).collect())
    }
}

impl Inputs {
    /// The inputs of `kernel` for `length` values.
    pub fn new(kernel: Kernel, length: usize, variant: u64, seed: u64) -> Self {
        let mut numbers = Numbers(seed ^ (length as u64) << 8 ^ variant);
        let nulls = variant == 1;
        let bytes = |wire: Wire| Array::Bytes(vec![0; wire.kind().encoded_bytes(length)]);
        let mut values = || numbers.values(length);
        let empty = || Array::Floats(vec![0.0; length]);
        let or_null = |array: Array| if nulls { Array::Null } else { array };
        let (mut arrays, floats) = match kernel {
            Kernel::Mix => (
                vec![
                    values(),
                    or_null(values()),
                    or_null(empty()),
                    Array::Word(u64::MAX),
                ],
                vec![0.37, 0.81],
            ),
            Kernel::Divide => (vec![values()], vec![0.73]),
            Kernel::Accumulate => (vec![values(), values()], vec![0.31]),
            // `rate / gamma` gives `alpha` again, exactly.
            Kernel::SlowMo => (
                vec![values(), values(), values(), empty()],
                vec![0.125, 0.5, 0.125],
            ),
            Kernel::Nesterov | Kernel::BmufNbm => {
                (vec![values(), values(), values(), empty()], vec![0.7, 0.9])
            }
            Kernel::NotFinite => (vec![values(), Array::Word(u64::MAX)], vec![]),
            Kernel::Digest => (vec![values(), Array::Word(7)], vec![]),
            Kernel::EncodeGossip(wire) => (vec![values(), small(values()), bytes(wire)], vec![0.5]),
            Kernel::EncodeContribution(wire) => (
                vec![
                    values(),
                    values(),
                    or_null(small(values())),
                    bytes(wire),
                    empty(),
                ],
                vec![0.75],
            ),
            Kernel::EncodePublication(wire) => {
                (vec![values(), values(), bytes(wire), empty()], vec![])
            }
            Kernel::Encode(wire) => (vec![values(), bytes(wire)], vec![]),
            Kernel::Decode(wire) => (vec![encoded(wire, values()), empty()], vec![]),
            Kernel::AccumulateEncoded(wire) => {
                (vec![encoded(wire, values()), values()], vec![0.31])
            }
        };
        if nulls
            && matches!(
                kernel,
                Kernel::Mix | Kernel::NotFinite | Kernel::Encode(_) | Kernel::Digest
            )
            && let Some(Array::Floats(values)) = arrays.first_mut()
        {
            spoil(values, &mut numbers);
        }
        Self { arrays, floats }
    }
}

/// Scales an array to a residual: much smaller than the values it is added to.
fn small(array: Array) -> Array {
    if let Array::Floats(values) = array {
        Array::Floats(values.iter().map(|value| value / 512.0).collect())
    } else {
        array
    }
}

fn encoded(wire: Wire, array: Array) -> Array {
    let mut values = array.floats().to_vec();
    let mut bytes = vec![0; wire.kind().encoded_bytes(values.len())];
    wire.kind().encode_in_place(&mut values, &mut bytes);
    Array::Bytes(bytes)
}

/// Puts NaN, infinities, and the largest and smallest numbers at random places.
fn spoil(values: &mut [f32], numbers: &mut Numbers) {
    for bad in [
        f32::NAN,
        f32::NEG_INFINITY,
        f32::INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        -0.0,
    ] {
        if !values.is_empty() {
            let at = (numbers.next() % values.len() as u64) as usize;
            values[at] = bad;
        }
    }
}
