//! The kernels' formulas in float64, and the allowed error of a result: one rounding for each
//! operation of float32, and half a step of the wire type where values are encoded.

use crate::arithmetic::{Array, digest};
use crate::kernels::{Kernel, Wire};

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
    let c = float(2);
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
    let worst = |n: usize, each: &dyn Fn(usize) -> Vec<(f64, f64, f64)>| {
        (0..n)
            .flat_map(each)
            .map(|(found, expected, size)| distance(found, expected, 4.0 * ULP * size + TINY))
            .fold(0.0, f64::max)
    };
    match kernel {
        Kernel::Mix => {
            let n = length(0);
            let mixed = |i| (was(1, i) + a * was(0, i)) / b;
            let values = worst(n, &|i| {
                vec![(
                    is(0, i),
                    mixed(i),
                    (was(1, i).abs() + (a * was(0, i)).abs()) / b,
                )]
            });
            let kept = if before.get(2) == Some(&Array::Null) {
                0.0
            } else {
                worst(n, &|i| vec![(is(2, i), was(0, i), 0.0)])
            };
            values
                .max(kept)
                .max(word(after.get(3), first(after.first())))
        }
        Kernel::Divide => worst(length(0), &|i| {
            vec![(is(0, i), was(0, i) / a, (was(0, i) / a).abs())]
        }),
        Kernel::Accumulate => worst(length(0), &|i| {
            vec![(
                is(0, i),
                was(0, i) + a * was(1, i),
                was(0, i).abs() + (a * was(1, i)).abs(),
            )]
        }),
        Kernel::SlowMo | Kernel::Nesterov | Kernel::BmufNbm => worst(length(0), &|i| {
            let average = was(0, i);
            let anchor = was(1, i);
            let momentum = was(2, i);
            let delta = anchor - average;
            let size = anchor.abs() + average.abs() + momentum.abs();
            let (value, next, gain) = match kernel {
                Kernel::SlowMo => {
                    let next = b * momentum + delta / c;
                    (anchor - a * next, next, 1.0 / c)
                }
                Kernel::Nesterov => {
                    let next = b * momentum + delta;
                    (anchor - a * (delta + b * next), next, 1.0)
                }
                _ => {
                    let next = b * momentum + a * delta;
                    (anchor - next - b * next, next, 1.0)
                }
            };
            vec![
                (is(0, i), value, 2.0 * size),
                (is(3, i), next, 2.0 * size * gain),
            ]
        }),
        Kernel::NotFinite => word(after.get(1), first(before.first())),
        Kernel::Digest => word(
            after.get(1),
            digest(before.first().map_or(&[], Array::floats)).wrapping_add(7),
        ),
        Kernel::EncodeGossip(wire) => {
            let sent = decoded(wire, after.get(2), length(0));
            let owed = worst(length(0), &|i| {
                // Mass conservation: what was sent plus the residual equals what was there before.
                let mass = a * was(0, i) + was(1, i);
                vec![(
                    a * sent[i] + is(1, i),
                    mass,
                    (a * was(0, i)).abs() + (a * sent[i]).abs() + was(1, i).abs(),
                )]
            });
            owed.max(steps(wire, &sent, &|i| {
                (
                    was(0, i) + was(1, i) / a,
                    was(0, i).abs() + (was(1, i) / a).abs(),
                )
            }))
        }
        Kernel::EncodeContribution(wire) => {
            let sent = decoded(wire, after.get(3), length(0));
            let wanted = |i| was(0, i) - a * was(1, i) + was(2, i);
            let size = |i: usize| was(0, i).abs() + (a * was(1, i)).abs() + was(2, i).abs();
            worst(length(0), &|i| {
                vec![(sent[i] + is(4, i), wanted(i), size(i))]
            })
            .max(steps(wire, &sent, &|i| (wanted(i), size(i))))
        }
        Kernel::EncodePublication(wire) => {
            let sent = decoded(wire, after.get(2), length(0));
            let kept = worst(length(0), &|i| {
                let size = was(0, i).abs() + was(1, i).abs();
                vec![
                    (is(0, i), was(1, i) + sent[i], size),
                    (is(0, i) + is(3, i), was(0, i), size),
                ]
            });
            kept.max(steps(wire, &sent, &|i| {
                (was(0, i) - was(1, i), was(0, i).abs() + was(1, i).abs())
            }))
        }
        Kernel::Encode(wire) => {
            let sent = decoded(wire, after.get(1), length(0));
            worst(length(0), &|i| vec![(is(0, i), sent[i], 0.0)])
                .max(steps(wire, &sent, &|i| (was(0, i), 0.0)))
        }
        Kernel::Decode(wire) => {
            let sent = decoded(wire, before.first(), length(1));
            worst(length(1), &|i| vec![(is(1, i), sent[i], 0.0)])
        }
        Kernel::AccumulateEncoded(wire) => {
            let sent = decoded(wire, before.first(), length(1));
            worst(length(1), &|i| {
                vec![(
                    is(1, i),
                    was(1, i) + a * sent[i],
                    was(1, i).abs() + (a * sent[i]).abs(),
                )]
            })
        }
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
    let values = array.map_or(&[][..], Array::floats);
    values
        .iter()
        .position(|value| !value.is_finite())
        .map_or(u64::MAX, |index| index as u64)
}

/// The values that the bytes encode, in float64.
fn decoded(wire: Wire, bytes: Option<&Array>, length: usize) -> Vec<f64> {
    let bytes = bytes.map_or(&[][..], Array::bytes);
    match wire {
        Wire::BFloat16 => {
            let value = |pair: &[u8]| {
                f64::from(f32::from_bits(
                    u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16,
                ))
            };
            bytes.chunks_exact(2).map(value).take(length).collect()
        }
        Wire::Int8 => bytes
            .chunks(260)
            .flat_map(|block| {
                let scale = f64::from(f32::from_le_bytes([block[0], block[1], block[2], block[3]]));
                block[4..]
                    .iter()
                    .map(move |byte| f64::from(*byte as i8) * scale)
            })
            .take(length)
            .collect(),
    }
}

/// The largest rounding error of the wire type, in units of half a step and of float32's own
/// rounding: `wanted` is the value to send, with the sum of the magnitudes that it was computed
/// from. A block of int8 that holds a value that is not finite must not decode to any finite value.
fn steps(wire: Wire, sent: &[f64], wanted: &dyn Fn(usize) -> (f64, f64)) -> f64 {
    let wanted: Vec<(f64, f64)> = (0..sent.len()).map(wanted).collect();
    let worst = |(wanted, sent): (&[(f64, f64)], &[f64])| {
        let whole = wanted.iter().all(|(value, _)| value.is_finite());
        let step = wanted
            .iter()
            .fold(0.0f64, |largest, (value, _)| largest.max(value.abs()))
            / 127.0
            * 0.51;
        let each = wanted.iter().zip(sent).map(|((wanted, size), sent)| {
            let room = 4.0 * ULP * size + TINY;
            let numbers = if wire == Wire::Int8 {
                whole
            } else {
                wanted.is_finite()
            };
            match (wire, numbers) {
                (Wire::BFloat16, true) => (sent - wanted).abs() / (wanted.abs() / 255.0 + room),
                (Wire::Int8, true) => (sent - wanted).abs() / (step + room),
                (_, false) if sent.is_finite() => f64::INFINITY,
                (_, false) => 0.0,
            }
        });
        each.fold(0.0, f64::max)
    };
    wanted
        .chunks(256)
        .zip(sent.chunks(256))
        .map(worst)
        .fold(0.0, f64::max)
}
