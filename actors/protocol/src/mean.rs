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

/// The numerator after the user's optimizer stepped on the de-biased model: `x' = x + (z' − z)` with `x = w·z`
/// (gradient taken at `z`, step taken on `x`; algorithm section 2). `values` holds `z'` and becomes `x'`.
pub fn rebias(values: &mut [f32], debiased_before: &[f32], weight: f64) {
    let excess = (weight - 1.0) as f32;
    for (value, before) in values.iter_mut().zip(debiased_before) {
        *value += excess * before;
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
    fn rebias_steps_on_the_numerator() {
        // w = 0.5, z = 4, so x = 2; the optimizer moved z by −1: x' = 1.
        let mut values = [3.0f32];
        rebias(&mut values, &[4.0], 0.5);
        assert_eq!(values, [1.0]);
        let mut untouched = [3.0f32];
        rebias(&mut untouched, &[4.0], 1.0);
        assert_eq!(untouched, [3.0]);
    }
}
