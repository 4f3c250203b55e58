//! A throttled line with one queue in front of it, which all kinds of traffic share. Reads only the
//! clock.
//!
//! Bulk keeps the queue full (200 ms), as a congestion controller that reacts only to losses does.
//! All other traffic waits behind what is queued, and a datagram that finds more than twice as much
//! queued is lost.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Queueing delay above which bulk waits instead of entering the queue.
const QUEUE_MAX: Duration = Duration::from_millis(200);

/// A throttled line with its queue.
pub(super) struct Line(Mutex<State>);

struct State {
    bytes_per_second: Option<u64>,
    /// The time when everything queued will have passed.
    free_at: Instant,
}

impl Line {
    pub(super) fn new(bytes_per_second: Option<u64>) -> Self {
        Self(Mutex::new(State {
            bytes_per_second,
            free_at: Instant::now(),
        }))
    }

    pub(super) fn set_rate(&self, bytes_per_second: Option<u64>) {
        let mut state = self.0.lock();
        state.bytes_per_second = bytes_per_second;
        if bytes_per_second.is_none() {
            state.free_at = Instant::now();
        }
    }

    /// Whether the line has no throttle.
    pub(super) fn is_free(&self) -> bool {
        self.0.lock().bytes_per_second.is_none()
    }

    pub(super) fn queued(&self) -> Duration {
        self.0
            .lock()
            .free_at
            .saturating_duration_since(Instant::now())
    }

    /// The time when the queue has room for more bulk; now, if it has room.
    pub(super) fn room_at(&self) -> Instant {
        let now = Instant::now();
        self.0
            .lock()
            .free_at
            .checked_sub(QUEUE_MAX)
            .unwrap_or(now)
            .max(now)
    }

    /// Whether the queue is so full (more than 2 * [`QUEUE_MAX`]) that datagrams are dropped.
    pub(super) fn overflows(&self) -> bool {
        self.queued() > 2 * QUEUE_MAX
    }

    /// Queues bytes behind what is queued already, and returns the time when they will have passed.
    pub(super) fn enter(&self, bytes: usize) -> Instant {
        self.0.lock().queue(bytes)
    }
}

impl State {
    fn queue(&mut self, bytes: usize) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.bytes_per_second else {
            return now;
        };
        self.free_at =
            self.free_at.max(now) + Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        self.free_at
    }
}
