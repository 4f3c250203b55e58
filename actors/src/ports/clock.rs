//! Clock of the state machines. Only the actor shells read it.

use slowmo_protocol::time::Instant;

/// Reads the time of the state machines: microseconds since the node started.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
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
