//! Summarizes many numbers in three.

use serde::{Deserialize, Serialize};

/// Median, 90th percentile and maximum of some numbers; all 0 if there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: usize,
    /// Half of the values are at most this.
    pub p50: f64,
    /// Nine tenths of the values are at most this.
    pub p90: f64,
    /// The largest value.
    pub max: f64,
}

impl Quantiles {
    /// Quantiles of these numbers, by nearest rank.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| (values.len() * percent).div_ceil(100).max(1) - 1;
        let at = |percent| values.get(rank(percent)).copied().unwrap_or(0.0);
        Self {
            count: values.len(),
            p50: at(50),
            p90: at(90),
            max: at(100),
        }
    }
}

/// The median of some numbers; 0 if there are none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Quantiles::of(values).p50
}
