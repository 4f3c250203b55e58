//! Sums, means and push-sum mixes of float32 slices. Callers fix the order (ascending node id), so
//! results are bitwise identical on every run and every node. Slices of one call have the same
//! length; the tail of a longer one is left unchanged.

use crate::sound::{SENT_MAX, room_below};

/// `sum += values`.
pub fn add(sum: &mut [f32], values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}

/// `sum += values`; `false` if one of the values is not finite, or beyond `most`.
#[must_use]
pub fn add_within(sum: &mut [f32], values: &[f32], most: f32) -> bool {
    let mut room = 0;
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
        room |= room_below(most, *value);
    }
    room >= 0
}

/// Final step of an exact average: `x̄ = Σx / Σw`. A weight of 1 leaves every
/// bit unchanged.
pub fn divide(sum: &mut [f32], weight: f64) {
    let weight = weight as f32;
    if weight != 1.0 {
        for sum in sum {
            *sum /= weight;
        }
    }
}

/// `target += scale · values`: mixes a received gossip message.
pub fn mix(target: &mut [f32], values: &[f32], scale: f32) {
    for (target, value) in target.iter_mut().zip(values) {
        *target += scale * value;
    }
}

/// `target = scale · values`: the part of its own numerators that a node keeps.
pub fn scale(target: &mut [f32], values: &[f32], scale: f32) {
    for (target, value) in target.iter_mut().zip(values) {
        *target = scale * value;
    }
}

/// `target = scale · target + factor · values`: mixes the node's own part into a message in place.
pub fn blend(target: &mut [f32], scale: f32, values: &[f32], factor: f32) {
    for (target, value) in target.iter_mut().zip(values) {
        *target = scale * *target + factor * value;
    }
}

/// Overlapped gossip: computes the numerators `x = stays·model + correction`
/// and leaves `x / weight` in the model. `false` if one of the results is not finite, or too large
/// to be sent ([`SENT_MAX`]).
#[must_use]
pub fn correct(model: &mut [f32], correction: &[f32], stays: f32, weight: f64) -> bool {
    let weight = weight as f32;
    let mut room = 0;
    for (value, correction) in model.iter_mut().zip(correction) {
        let z = (*correction + stays * *value) / weight;
        room |= room_below(SENT_MAX, z);
        *value = z;
    }
    room >= 0
}

/// The same as [`correct`], and `before` becomes the model before the call, in one pass over
/// memory.
#[must_use]
pub fn correct_and_keep(
    model: &mut [f32],
    before: &mut [f32],
    correction: &[f32],
    stays: f32,
    weight: f64,
) -> bool {
    let weight = weight as f32;
    let mut room = 0;
    for ((value, before), correction) in model.iter_mut().zip(before).zip(correction) {
        let z = (*correction + stays * *value) / weight;
        room |= room_below(SENT_MAX, z);
        *before = *value;
        *value = z;
    }
    room >= 0
}

/// The same on a copy of the model, which becomes the numerators `x`. `last`, the previous
/// numerators (of push-sum weight `weight`), becomes the values to send, `x + goes·Δ`, where `Δ` is
/// the movement of the model in the inner step.
pub fn share_out(
    model: &mut [f32],
    last: &mut [f32],
    correction: &[f32],
    (stays, goes): (f32, f32),
    weight: f64,
) {
    let weight = weight as f32;
    for ((model, last), correction) in model.iter_mut().zip(last).zip(correction) {
        let x = *correction + stays * *model;
        *last = x + goes * (*model - *last / weight);
        *model = x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_of_equal_values_is_that_value() {
        let mut sum = vec![0.3f32, -1.7];
        add(&mut sum, &[0.3, -1.7]);
        divide(&mut sum, 2.0);
        assert_eq!(sum, [0.3, -1.7]);
    }

    #[test]
    fn a_sum_within_a_bound_is_the_sum() {
        let values = [0.3f32, -1.7, 8.0];
        for (most, within) in [(8.0, true), (7.9, false), (f32::MAX, true)] {
            let mut plain = [1.0f32, 2.0, 3.0];
            let mut checked = plain;
            add(&mut plain, &values);
            assert_eq!(add_within(&mut checked, &values, most), within);
            assert_eq!(plain, checked);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!add_within(&mut [0.0; 3], &[0.0, bad, 0.0], f32::MAX));
        }
    }

    #[test]
    fn a_correction_steps_on_the_numerator() {
        // w = 0.5, z = 4, so x = 2; the optimizer moved z by −1, and 0.25 · 6 arrived with weight
        // 0.25.
        let moved = -1.0f32;
        let z = 4.0f32;
        let w = 0.5f64;
        let after = 0.75;
        for (stays, x) in [(1.0, 2.5), (0.5, 3.0)] {
            let mut model = [z + moved];
            let mut correction = [6.0f32];
            blend(&mut correction, 0.25, &[z], w as f32 - stays);
            let mut numerators = model;
            let mut sent = [z * w as f32];
            let mut kept = model;
            let mut before = [0.0];
            assert!(correct_and_keep(
                &mut kept,
                &mut before,
                &correction,
                stays,
                after
            ));
            assert_eq!((kept, before), ([x / after as f32], model), "stays {stays}");
            assert!(correct(&mut model, &correction, stays, after));
            assert_eq!(model, kept, "stays {stays}");
            share_out(&mut numerators, &mut sent, &correction, (stays, 2.0), w);
            assert_eq!((numerators, sent), ([x], [x + 2.0 * moved]));
        }
        let mut model = [3.0f32, -7.5];
        assert!(correct(&mut model, &[0.0; 2], 1.0, 1.0));
        assert_eq!(model, [3.0, -7.5]);
    }

    #[test]
    fn values_that_are_not_finite_or_too_large_are_noticed() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!correct(&mut [1.0, bad, 2.0], &[0.0; 3], 1.0, 1.0));
            assert!(!correct_and_keep(
                &mut [1.0, bad, 2.0],
                &mut [0.0; 3],
                &[0.0; 3],
                1.0,
                1.0
            ));
            assert!(!correct(&mut [1.0, 3.0, 2.0], &[0.0, 0.0, bad], 0.5, 1.0));
        }
        assert!(!correct(&mut [f32::MAX], &[f32::MAX], 1.0, 1.0), "overflow");
        assert!(!correct(&mut [f32::MAX], &[0.0], 1.0, 0.5), "overflow");
        assert!(correct(&mut [SENT_MAX], &[0.0], 1.0, 1.0));
        assert!(
            !correct(&mut [SENT_MAX], &[0.0], 1.0, 0.5),
            "too large to be sent"
        );
    }
}
