//! The kernels' formulas in float64, and the allowed error of a result: one rounding for each
//! operation of float32.

use crate::arithmetic::{Array, first_not_finite};
use crate::kernels::Kernel;

/// Float32's relative rounding error.
const ULP: f64 = 1.0 / (1u64 << 23) as f64;
/// The smallest normal float32; residuals below it are zero.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// The largest error of a run, in units of the allowed error, from the arrays `before` and `after`
/// it. Infinite where a word or a value that is not finite differs from the expected one.
pub fn error(kernel: Kernel, before: &[Array], after: &[Array], floats: &[f32]) -> f64 {
    let float = |index: usize| f64::from(floats.get(index).copied().unwrap_or(0.0));
    let a = float(0);
    let b = float(1);
    let was = |array: usize, i: usize| {
        before.get(array).map_or(0.0, |array| {
            array.floats().get(i).map_or(0.0, |value| f64::from(*value))
        })
    };
    let is = |array: usize, i: usize| {
        after.get(array).map_or(0.0, |array| {
            array
                .floats()
                .get(i)
                .map_or(f64::NAN, |value| f64::from(*value))
        })
    };
    let length = |array: usize| before.get(array).map_or(0, |array| array.floats().len());
    // The worst error over values; each value gives (found, expected, sum of the magnitudes that
    // were rounded).
    let worst = |n: usize, each: &dyn Fn(usize) -> (f64, f64, f64)| {
        (0..n)
            .map(each)
            .map(|(found, expected, size)| distance(found, expected, 4.0 * ULP * size + TINY))
            .fold(0.0, f64::max)
    };
    match kernel {
        Kernel::Mix => {
            let values = worst(length(0), &|i| {
                let size = (was(1, i).abs() + (a * was(0, i)).abs()) / b;
                (is(0, i), (was(1, i) + a * was(0, i)) / b, size)
            });
            let kept = if before.get(2) == Some(&Array::Null) {
                0.0
            } else {
                worst(length(0), &|i| (is(2, i), was(0, i), 0.0))
            };
            values
                .max(kept)
                .max(word(after.get(3), first(after.first())))
        }
        Kernel::Divide => worst(length(0), &|i| {
            (is(0, i), was(0, i) / a, (was(0, i) / a).abs())
        }),
        Kernel::NotFinite => word(after.get(1), first(before.first())),
    }
}

/// The distance in units of `bound`. Values that are not finite, or overflow as float32, must be so
/// in both.
fn distance(found: f64, expected: f64, bound: f64) -> f64 {
    let overflows = !expected.is_finite() || expected.abs() > f64::from(f32::MAX);
    match (found.is_finite(), overflows) {
        (true, false) => (found - expected).abs() / bound,
        (false, true) => 0.0,
        // The value is within `bound` of the largest number.
        (true, true) if (found.abs() - f64::from(f32::MAX)).abs() <= bound => 0.0,
        _ => f64::INFINITY,
    }
}

fn word(found: Option<&Array>, expected: u64) -> f64 {
    if found == Some(&Array::Word(expected)) {
        0.0
    } else {
        f64::INFINITY
    }
}

fn first(array: Option<&Array>) -> u64 {
    first_not_finite(array.map_or(&[], Array::floats))
}
