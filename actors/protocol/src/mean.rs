//! Sums, means and push-sum mixes of float32 slices. Callers fix the order (ascending node id), so results are the same
//! bits on every run and every node. Slices of one call have the same length; a longer one's tail is left alone.

/// `sum += values`.
pub fn add(sum: &mut [f32], values: &[f32]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += value;
    }
}

/// Ends an exact average: `x̄ = Σx / Σw` (algorithm section 3). A weight of 1 leaves every bit as it is.
pub fn divide(sum: &mut [f32], weight: f64) {
    let weight = weight as f32;
    if weight != 1.0 {
        for sum in sum {
            *sum /= weight;
        }
    }
}

/// `target += scale · values`: mixes what arrived in a gossip (algorithm section 5).
pub fn mix(target: &mut [f32], values: &[f32], scale: f32) {
    for (target, value) in target.iter_mut().zip(values) {
        *target += scale * value;
    }
}

/// `target = scale · values`: what a node keeps of its own numerator.
pub fn scale(target: &mut [f32], values: &[f32], scale: f32) {
    for (target, value) in target.iter_mut().zip(values) {
        *target = scale * value;
    }
}

/// `target = scale · target + factor · values`: a gossip message becomes a correction in its own place.
pub fn blend(target: &mut [f32], scale: f32, values: &[f32], factor: f32) {
    for (target, value) in target.iter_mut().zip(values) {
        *target = scale * *target + factor * value;
    }
}

/// Turns the model that the user's optimizer stepped on into the mixed one: the numerators are `x = z + correction`, the model is
/// `x / weight` (gradient taken at `z`, step taken on `x`; algorithm section 2). `numerators` holds the correction and becomes
/// `x`. Returns whether all numerators are finite.
pub fn correct(model: &mut [f32], numerators: &mut [f32], weight: f64) -> bool {
    let weight = weight as f32;
    let mut exponents = 0;
    for (value, numerator) in model.iter_mut().zip(numerators) {
        let x = *value + *numerator;
        exponents |= u32::from(x.to_bits() & INFINITE == INFINITE);
        *numerator = x;
        *value = x;
    }
    if weight != 1.0 {
        model.iter_mut().for_each(|value| *value /= weight);
    }
    exponents == 0
}

/// All bits of the exponent: infinities and NaN have them set.
const INFINITE: u32 = 0x7f80_0000;

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
    fn a_correction_steps_on_the_numerator() {
        // w = 0.5, z = 4, so x = 2; the optimizer moved z by −1, and 0.25 · 6 arrived with weight 0.25.
        let (mut model, mut correction) = ([3.0f32], [6.0f32]);
        blend(&mut correction, 0.25, &[4.0], 0.5 - 1.0);
        assert!(correct(&mut model, &mut correction, 0.75));
        assert_eq!((model, correction), ([2.5 / 0.75], [2.5]));
        let (mut model, mut none) = ([3.0f32, -7.5], [0.0f32; 2]);
        assert!(correct(&mut model, &mut none, 1.0));
        assert_eq!((model, none), ([3.0, -7.5], [3.0, -7.5]));
    }

    #[test]
    fn values_that_are_not_finite_are_noticed() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut model, mut none) = ([1.0, bad, 2.0], [0.0f32; 3]);
            assert!(!correct(&mut model, &mut none, 1.0));
        }
        let (mut model, mut correction) = ([f32::MAX], [f32::MAX]);
        assert!(!correct(&mut model, &mut correction, 1.0), "overflow");
    }
}
