//! Many numbers in three.

use serde::{Deserialize, Serialize};

/// The middle, the ninth tenth and the largest of some numbers; all 0 of none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many numbers.
    pub count: usize,
    /// Half of them are at most this.
    pub p50: f64,
    /// Nine tenths of them are at most this.
    pub p90: f64,
    /// None is larger.
    pub max: f64,
}

impl Quantiles {
    /// Of these numbers, by nearest rank.
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

/// The middle of some numbers; 0 of none.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    Quantiles::of(values).p50
}
