//! Memory copy on one core.

use super::{REPETITIONS, median};
use std::hint::black_box;
use std::time::Instant;

/// Bytes of each side of the copy: far more than any cache.
const COPY_BYTES: usize = 64 << 20;

/// Bytes copied per second from one buffer into another: median of [`REPETITIONS`] runs.
#[must_use]
pub fn copy_bytes_per_second() -> f64 {
    let from = vec![1u8; COPY_BYTES];
    let mut to = vec![0u8; COPY_BYTES];
    let mut once = || {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        COPY_BYTES as f64 / start.elapsed().as_secs_f64()
    };
    once(); // touches the pages
    let mut rates: Vec<f64> = (0..REPETITIONS).map(|_| once()).collect();
    median(&mut rates)
}
