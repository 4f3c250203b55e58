//! Random inputs for every kernel: all magnitudes that occur in a model, with a few values that are
//! not finite where the kernel must detect them.

use crate::arithmetic::Array;
use crate::kernels::Kernel;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

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

/// A value in [-1, 1), times a power of two from 2^-12 to 2^3.
fn value(random: &mut ChaCha8Rng) -> f32 {
    let unit = (random.next_u32() >> 8) as f32 / (1u64 << 23) as f32 - 1.0;
    unit * ((random.next_u32() % 16) as f32 - 12.0).exp2()
}

impl Inputs {
    /// The inputs of `kernel` for `length` values.
    pub fn new(kernel: Kernel, length: usize, variant: u64, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed ^ (length as u64) << 8 ^ variant);
        let nulls = variant == 1;
        let mut values = || Array::Floats((0..length).map(|_| value(&mut random)).collect());
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
            Kernel::NotFinite => (vec![values(), Array::Word(u64::MAX)], vec![]),
        };
        if nulls
            && kernel != Kernel::Divide
            && let Some(Array::Floats(values)) = arrays.first_mut()
        {
            spoil(values, &mut random);
        }
        Self { arrays, floats }
    }
}

/// Puts NaN, infinities, and the largest and smallest numbers at random places.
fn spoil(values: &mut [f32], random: &mut ChaCha8Rng) {
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
            let at = (random.next_u64() % values.len() as u64) as usize;
            values[at] = bad;
        }
    }
}
