//! How far a node's model was from the result of a round: `‖x − x̄‖ / ‖x̄‖`, for status and
//! metrics.
//!
//! Up to [`COMPARED_MAX`] values it is exact. A larger model is divided into equal parts, and a run
//! of each part is compared, at a place that is random anew in each round. Every value of a part is
//! in its run with the same probability, so both squared norms are right in expectation, whatever
//! the layers and shards are like.

use crate::buffers::ChunkedBuffer;
use crate::data::FrozenContribution;
use slowmo_protocol::ident::Round;
use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Most values that are compared: few, since the coordinator sends no decision on meanwhile. The
/// error of a sample of so many is below five percent, unless a few values make the distance.
const COMPARED_MAX: usize = 1 << 17;
/// Values of one run: several cache lines, so that a run costs little more than one of its values.
const RUN: usize = 64;
/// Sums that are made beside each other, since each addition waits for the one before.
const LANES: usize = 8;

/// The disagreement of `own` with `values`, which `round` decided.
pub(super) fn disagreement(own: &FrozenContribution, values: &ChunkedBuffer, round: Round) -> f32 {
    let mine = own.frozen.values();
    let mine = &mine[..own.parameters.min(mine.len())];
    estimate(mine, own.weight, values, (round.0, COMPARED_MAX))
}

/// Squared norms of some values: of their difference, and of the result.
#[derive(Clone, Copy, Default)]
struct Squares {
    distance: f64,
    result: f64,
}

/// Compares at most about `compared_max` values at places drawn from `seed`.
fn estimate(
    mine: &[f32],
    weight: f64,
    values: &ChunkedBuffer,
    (seed, compared_max): (u64, usize),
) -> f32 {
    let parts = if mine.len() <= compared_max {
        1
    } else {
        compared_max / RUN
    };
    let mut all = Squares::default();
    for part in 0..parts {
        let part_of = |part: usize| (mine.len() as u128 * part as u128 / parts as u128) as usize;
        let range = part_of(part)..part_of(part + 1);
        let length = range.len();
        let runs = if parts == 1 {
            [range, 0..0]
        } else {
            let random = xxh3_64_with_seed(&(part as u64).to_le_bytes(), seed);
            run(range, random)
        };
        let mut some = Squares::default();
        let mut compared = 0;
        for run in runs {
            compared += run.len();
            some.add(mine, 1.0 / weight, values, run);
        }
        let scale = length as f64 / compared.max(1) as f64;
        all.distance += scale * some.distance;
        all.result += scale * some.result;
    }
    if all.result > 0.0 {
        (all.distance / all.result).sqrt() as f32
    } else {
        0.0
    }
}

/// A run of [`RUN`] values that begins anywhere in `part` and goes on at its begin after its end: a
/// value at its edge is in as many runs as any other.
fn run(part: Range<usize>, random: u64) -> [Range<usize>; 2] {
    let length = part.len().max(1);
    let start = part.start + (random % length as u64) as usize;
    let end = start + RUN.min(part.len());
    let beyond = end.saturating_sub(part.end);
    [start..end - beyond, part.start..part.start + beyond]
}

impl Squares {
    /// Adds the values of a run; `share` is the inverse of the push-sum weight of `mine`.
    fn add(&mut self, mine: &[f32], share: f64, values: &ChunkedBuffer, run: Range<usize>) {
        values.visit(run.start, run.len(), |offset, after| {
            let start = run.start + offset;
            let before = &mine[start..start + after.len()];
            let mut lanes = [Self::default(); LANES];
            for (before, after) in before.chunks(LANES).zip(after.chunks(LANES)) {
                for ((sums, before), after) in lanes.iter_mut().zip(before).zip(after) {
                    let after = f64::from(*after);
                    sums.distance += (f64::from(*before) * share - after).powi(2);
                    sums.result += after.powi(2);
                }
            }
            for sums in lanes {
                self.distance += sums.distance;
                self.result += sums.result;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::{Pool, chunks};
    use std::sync::Arc;

    const WEIGHT: f64 = 0.5;

    /// A value in [−1, 1) that looks random.
    fn noise(index: usize, seed: u64) -> f32 {
        let hash = xxh3_64_with_seed(&(index as u64).to_le_bytes(), seed);
        (hash >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A result, and a contribution (of weight [`WEIGHT`]) that differs from it as `moved` says.
    fn models(size: usize, moved: impl Fn(usize) -> f32) -> (Vec<f32>, ChunkedBuffer) {
        let pool: Arc<Pool> = Pool::new();
        // Layers differ in scale, as those of a model do.
        let value = |index: usize| noise(index, 1) * if index % 5000 < 1000 { 1.0 } else { 0.05 };
        let mut result = ChunkedBuffer::default();
        for range in chunks(0..size) {
            let mut chunk = pool.take(range.len());
            for (target, index) in chunk.values_mut().iter_mut().zip(range.clone()) {
                *target = value(index);
            }
            result.insert(range.start, chunk.freeze());
        }
        let mine = (0..size).map(|index| (value(index) + moved(index)) * WEIGHT as f32);
        (mine.collect(), result)
    }

    /// The norms over all values, in one pass without parts.
    fn exact(mine: &[f32], result: &ChunkedBuffer) -> f32 {
        let mut flat = vec![0.0; mine.len()];
        result.copy_to(0, &mut flat);
        let square = |value: f64| value * value;
        let difference =
            |(mine, after): (&f32, &f32)| square(f64::from(*mine) / WEIGHT - f64::from(*after));
        let distance: f64 = mine.iter().zip(&flat).map(difference).sum();
        let norm: f64 = flat.iter().map(|value| square(f64::from(*value))).sum();
        (distance / norm).sqrt() as f32
    }

    fn assert_near(found: f32, expected: f32, what: &str) {
        assert!(
            (found - expected).abs() <= 0.05 * expected,
            "{what}: {found} instead of {expected}"
        );
    }

    #[test]
    fn is_the_exact_norm_within_five_percent_at_every_size() {
        for size in [
            1, 2, 63, 64, 65, 1000, 65_537, 300_000, 1_000_003, 10_000_000,
        ] {
            let (mine, result) = models(size, |index| 0.01 * noise(index, 2));
            let expected = exact(&mine, &result);
            let found = estimate(&mine, WEIGHT, &result, (7, COMPARED_MAX));
            assert_near(found, expected, &format!("{size} values"));
        }
    }

    #[test]
    fn one_weight_that_moved_is_seen() {
        // Two layers in 8 shards: only the last value differs.
        for size in [8, 1000, 100_000] {
            let (mine, result) = models(size, |index| if index + 1 == size { 3.2e-2 } else { 0.0 });
            let found = estimate(&mine, WEIGHT, &result, (1, COMPARED_MAX));
            assert!(found > 0.0);
            assert_near(found, exact(&mine, &result), &format!("{size} values"));
        }
    }

    #[test]
    fn every_value_of_a_large_model_counts_in_expectation() {
        // 31 parts of 66 or 67 values: each is compared in 64 of them.
        let size = 2_050;
        let compared_max = 31 * RUN;
        for moved in [0, 65, 66, 1_000, size - 1] {
            let (mine, result) = models(size, |index| if index == moved { 0.1 } else { 0.0 });
            let rounds = 500;
            let square = |round| {
                let found = estimate(&mine, WEIGHT, &result, (round, compared_max));
                f64::from(found).powi(2)
            };
            let mean = (0..rounds).map(square).sum::<f64>() / rounds as f64;
            let expected = exact(&mine, &result);
            assert_near(mean.sqrt() as f32, expected, &format!("value {moved}"));
        }
    }

    #[test]
    fn nothing_to_compare_is_no_disagreement() {
        let (mine, result) = models(0, |_| 0.0);
        assert_eq!(estimate(&mine, WEIGHT, &result, (1, COMPARED_MAX)), 0.0);
        let (_, zero) = models(0, |_| 0.0);
        assert_eq!(estimate(&[1.0; 4], WEIGHT, &zero, (1, COMPARED_MAX)), 0.0);
    }
}
