//! Time for the machines, read by the shells only.

use slowmo_protocol::time::Instant;

/// Reads the machines' time: microseconds since the node started.
pub trait Clock: Send + Sync + 'static {
    /// The time now.
    fn now(&self) -> Instant;
}

/// tokio's clock, which tests can pause.
#[derive(Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
}

impl Default for TokioClock {
    fn default() -> Self {
        Self {
            start: tokio::time::Instant::now(),
        }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Instant {
        let elapsed = self.start.elapsed().as_micros();
        Instant(u64::try_from(elapsed).unwrap_or(u64::MAX))
    }
}
