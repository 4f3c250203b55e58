//! Self-test of a GPU: every kernel on fresh random inputs of awkward lengths, compared with the
//! same formulas in float64 and with the CPU's float32 bits; then the rates of copying and
//! computing.

mod exact;
mod inputs;
mod speed;

use crate::arithmetic::{Arithmetic, Array, Host};
use crate::error::GpuError;
use crate::kernels::{KERNELS, Kernel};
use inputs::Inputs;

pub use speed::{Rate, rates};

/// Tested lengths: none, one, around a block of threads and of values, odd, and many.
pub const LENGTHS: [usize; 10] = [0, 1, 3, 255, 256, 257, 1_023, 4_099, 65_536, 300_001];

/// Test result of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Tested {
    /// The tested kernel.
    pub kernel: Kernel,
    /// Values that were compared.
    pub values: u64,
    /// The largest error against float64, in units of the bound that rounding sets: at most 1 is
    /// correct.
    pub error: f64,
    /// Values whose bits differ from the CPU's.
    pub other_bits: u64,
    /// Description of the fault, if there is one.
    pub wrong: Option<String>,
}

/// Runs every kernel on `arithmetic` with inputs of these lengths, derived from `seed`.
///
/// # Errors
/// A kernel could not be run.
pub fn kernels(
    arithmetic: &dyn Arithmetic,
    lengths: &[usize],
    seed: u64,
) -> Result<Vec<Tested>, GpuError> {
    KERNELS
        .into_iter()
        .map(|kernel| test(arithmetic, kernel, lengths, seed))
        .collect()
}

fn test(
    arithmetic: &dyn Arithmetic,
    kernel: Kernel,
    lengths: &[usize],
    seed: u64,
) -> Result<Tested, GpuError> {
    let mut tested = Tested {
        kernel,
        values: 0,
        error: 0.0,
        other_bits: 0,
        wrong: None,
    };
    for &length in lengths {
        for variant in 0..inputs::VARIANTS {
            let Inputs { arrays, floats } = Inputs::new(kernel, length, variant, seed);
            let mut found = arrays.clone();
            let mut expected = arrays.clone();
            arithmetic.run(kernel, &mut found, length, &floats)?;
            Host.run(kernel, &mut expected, length, &floats)?;
            tested.values += length as u64;
            tested.other_bits += other_bits(&found, &expected);
            let error = exact::error(kernel, &arrays, &found, &floats);
            tested.error = tested.error.max(error);
            let differs = tested.other_bits > 0;
            let off = error.is_nan() || error > 1.0;
            if tested.wrong.is_none() && (off || differs) {
                tested.wrong = Some(format!(
                    "{length} values, variant {variant}: error {error}, {} values of other bits",
                    tested.other_bits
                ));
            }
        }
    }
    Ok(tested)
}

/// Counts the values and words that differ. All NaN count as equal.
fn other_bits(found: &[Array], expected: &[Array]) -> u64 {
    let same = |one: &f32, other: &f32| {
        one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan())
    };
    let pairs = found.iter().zip(expected);
    pairs
        .map(|(found, expected)| match (found, expected) {
            (Array::Floats(found), Array::Floats(expected)) => found
                .iter()
                .zip(expected)
                .filter(|(one, other)| !same(one, other))
                .count() as u64,
            (found, expected) => u64::from(found != expected),
        })
        .sum()
}
