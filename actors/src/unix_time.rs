//! Wall-clock time, for people and files only; deadlines use the monotonic clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
#[must_use]
pub fn unix_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
