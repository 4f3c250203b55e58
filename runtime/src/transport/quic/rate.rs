//! Rates: how often something may happen, in total and for each group of addresses. No I/O.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Largest number of prefixes whose rates are kept; 64 bytes each. While there are more, the
/// further ones share one rate.
const PREFIXES_MAX: usize = 4096;
/// Shortest time between two searches for prefixes that need no longer be kept.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// How often something may happen: `burst` times at once, and `per_second` times in the long run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub per_second: u32,
    pub burst: u32,
}

/// The part of a rate that is not used up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Bucket {
    pub(super) fn full(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: f64::from(rate.burst),
            filled_at: now,
        }
    }

    /// Takes one token; false if there is none.
    pub(super) fn take(&mut self, rate: Rate, now: Instant) -> bool {
        self.fill(rate, now);
        let is_allowed = self.tokens >= 1.0;
        if is_allowed {
            self.tokens -= 1.0;
        }
        is_allowed
    }

    fn fill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at).as_secs_f64();
        self.filled_at = self.filled_at.max(now);
        self.tokens =
            (self.tokens + passed * f64::from(rate.per_second)).min(f64::from(rate.burst));
    }

    fn is_full(&mut self, rate: Rate, now: Instant) -> bool {
        self.fill(rate, now);
        self.tokens >= f64::from(rate.burst)
    }
}

/// The addresses that one host or one small network can send from: 24 bits of IPv4, 56 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Prefix(u64);

impl Prefix {
    pub(super) fn of(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(address) => Self(u64::from(address.to_bits() >> 8)),
            // No IPv4 prefix has the highest bit.
            IpAddr::V6(address) => Self((address.to_bits() >> 72) as u64 | 1 << 63),
        }
    }
}

/// A rate for each prefix, in bounded memory.
#[derive(Debug)]
pub(super) struct ByPrefix {
    rate: Rate,
    buckets: HashMap<Prefix, Bucket>,
    /// Shared by the prefixes for which there is no room.
    others: Bucket,
    swept_at: Instant,
}

impl ByPrefix {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self {
            rate,
            buckets: HashMap::new(),
            others: Bucket::full(rate, now),
            swept_at: now,
        }
    }

    /// Takes one token of this prefix; false if it has none.
    pub(super) fn take(&mut self, prefix: Prefix, now: Instant) -> bool {
        let rate = self.rate;
        if let Some(bucket) = self.buckets.get_mut(&prefix) {
            return bucket.take(rate, now);
        }
        if self.buckets.len() >= PREFIXES_MAX {
            self.sweep(now);
        }
        if self.buckets.len() >= PREFIXES_MAX {
            return self.others.take(rate, now);
        }
        let mut bucket = Bucket::full(rate, now);
        let is_allowed = bucket.take(rate, now);
        self.buckets.insert(prefix, bucket);
        is_allowed
    }

    /// Forgets the prefixes that have used nothing lately.
    fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept_at) < SWEEP_INTERVAL {
            return;
        }
        self.swept_at = now;
        let rate = self.rate;
        self.buckets.retain(|_, bucket| !bucket.is_full(rate, now));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 10,
        burst: 3,
    };

    #[test]
    fn a_bucket_allows_a_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = Bucket::full(RATE, start);
        let allowed = |bucket: &mut Bucket, at| (0..100).filter(|_| bucket.take(RATE, at)).count();
        assert_eq!(allowed(&mut bucket, start), 3);
        assert_eq!(allowed(&mut bucket, start + Duration::from_millis(110)), 1);
        assert_eq!(allowed(&mut bucket, start + Duration::from_secs(9)), 3);
        assert_eq!(allowed(&mut bucket, start), 0, "time never goes back");
    }

    #[test]
    fn one_prefix_leaves_the_others_their_rate() {
        let prefix = |text: &str| Prefix::of(text.parse().unwrap());
        assert_eq!(prefix("10.0.0.1:5"), prefix("10.0.0.200:6"));
        assert_eq!(prefix("10.0.0.1:5"), prefix("[::ffff:10.0.0.9]:5"));
        assert_ne!(prefix("10.0.0.1:5"), prefix("10.0.1.1:5"));
        assert_eq!(prefix("[2001:db8::1]:5"), prefix("[2001:db8::ff:1]:5"));
        assert_ne!(prefix("[2001:db8::1]:5"), prefix("[2001:db9::1]:5"));

        let start = Instant::now();
        let mut rates = ByPrefix::new(RATE, start);
        let one = prefix("10.0.0.1:5");
        assert_eq!((0..100).filter(|_| rates.take(one, start)).count(), 3);
        assert!(rates.take(prefix("10.0.1.1:5"), start));
    }

    #[test]
    fn many_prefixes_take_bounded_memory() {
        let start = Instant::now();
        let mut rates = ByPrefix::new(RATE, start);
        let allowed = (0..20_000).filter(|number| rates.take(Prefix(*number), start));
        assert_eq!(allowed.count(), PREFIXES_MAX + 3);
        assert_eq!(rates.buckets.len(), PREFIXES_MAX);
        let later = start + Duration::from_secs(5);
        assert!(rates.take(Prefix(1 << 40), later));
        assert_eq!(rates.buckets.len(), 1);
    }
}
