//! The clock of a process, which may run too fast or too slow.

use slowmo_protocol::time::Instant;

/// The correct speed, in millionths.
pub const RIGHT: u64 = 1_000_000;

/// A clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    since: u64,
    read_then: u64,
    millionths: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self {
            since: 0,
            read_then: 0,
            millionths: RIGHT,
        }
    }
}

impl Clock {
    /// Reading of the clock at `now`.
    #[must_use]
    pub fn read(&self, now: u64) -> Instant {
        Instant(self.read_then + (now - self.since) * self.millionths / RIGHT)
    }

    /// Time at which the clock reads `local` or more.
    #[must_use]
    pub fn when(&self, local: Instant) -> u64 {
        let ahead = local.0.saturating_sub(self.read_then);
        self.since
            .saturating_add(ahead.saturating_mul(RIGHT).div_ceil(self.millionths))
    }

    /// Changes the speed of the clock from `now` on.
    pub fn drift(&mut self, now: u64, millionths: u64) {
        self.read_then = self.read(now).0;
        self.since = now;
        self.millionths = millionths.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_drifts_is_read_and_awaited_alike() {
        let mut clock = Clock::default();
        clock.drift(1_000, 900_000);
        clock.drift(11_000, 1_100_000);
        assert_eq!(clock.read(11_000), Instant(10_000));
        for local in [10_001, 12_345, 99_999] {
            let at = clock.when(Instant(local));
            assert!(
                clock.read(at) >= Instant(local) && clock.read(at - 1) < Instant(local),
                "{local}"
            );
        }
    }
}
