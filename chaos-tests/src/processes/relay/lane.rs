//! One direction of one link: decides when a datagram arrives, if at all. Pure.

use crate::random::Random;
use slowmo_protocol::trace::Link;

/// Maximum number of bytes that a link with a limited rate holds back; more is dropped, as by a
/// router. 200 ms at 10 Mbit/s.
pub const QUEUE_BYTES_MAX: u64 = 256 << 10;
/// Bytes of a datagram on the wire beside its payload: IPv4 and UDP headers.
const HEADER_BYTES: u64 = 28;

/// One direction of one link.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    pub link: Link,
    /// Time at which everything that entered the lane will have left a limited link, in
    /// microseconds.
    free_us: u64,
}

impl Lane {
    /// Times at which a datagram that enters now comes out: none (it is lost), one or two.
    pub(super) fn pass(
        &mut self,
        now_us: u64,
        bytes: usize,
        random: &mut Random,
    ) -> [Option<u64>; 2] {
        let link = self.link;
        if link.cut || random.per_million(link.lost_per_million) {
            return [None, None];
        }
        let Some(sent_us) = self.serialize(now_us, bytes as u64 + HEADER_BYTES) else {
            return [None, None];
        };
        let arrives = |random: &mut Random| {
            sent_us
                .saturating_add(link.delay_us)
                .saturating_add(random.below(link.jitter_us))
        };
        let once = Some(arrives(random));
        let twice = random
            .per_million(link.doubled_per_million)
            .then(|| arrives(random));
        [once, twice]
    }

    /// Time at which the last bit has left; `None` if the queue is full.
    fn serialize(&mut self, now_us: u64, bytes: u64) -> Option<u64> {
        let rate = self.link.bytes_per_second;
        if rate == 0 {
            return Some(now_us);
        }
        let micros = |bytes: u64| bytes.saturating_mul(1_000_000) / rate;
        let begins = self.free_us.max(now_us);
        if begins - now_us > micros(QUEUE_BYTES_MAX) {
            return None;
        }
        self.free_us = begins.saturating_add(micros(bytes));
        Some(self.free_us)
    }
}

/// Combines both links: the worse value where they cannot be added.
pub(super) fn combine(one: Link, other: Link) -> Link {
    let either = |a: u32, b: u32| {
        let a = u64::from(a.min(1_000_000));
        let b = u64::from(b.min(1_000_000));
        // A datagram gets through if neither link loses it; the result is at most a million.
        (1_000_000 - (1_000_000 - a) * (1_000_000 - b) / 1_000_000) as u32
    };
    let slower = |a: u64, b: u64| if a == 0 || b == 0 { a.max(b) } else { a.min(b) };
    Link {
        cut: one.cut || other.cut,
        delay_us: one.delay_us.saturating_add(other.delay_us),
        jitter_us: one.jitter_us.saturating_add(other.jitter_us),
        lost_per_million: either(one.lost_per_million, other.lost_per_million),
        doubled_per_million: either(one.doubled_per_million, other.doubled_per_million),
        bytes_per_second: slower(one.bytes_per_second, other.bytes_per_second),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(link: Link, datagrams: u64) -> (usize, usize) {
        let mut lane = Lane {
            link,
            ..Lane::default()
        };
        let mut random = Random::new(1, 1);
        let passed: Vec<_> = (0..datagrams)
            .map(|at| lane.pass(at * 1000, 1000, &mut random))
            .collect();
        (
            passed.iter().filter(|times| times[0].is_some()).count(),
            passed.iter().filter(|times| times[1].is_some()).count(),
        )
    }

    #[test]
    fn datagrams_are_lost_and_doubled_as_often_as_the_link_says() {
        assert_eq!(count(Link::default(), 1000), (1000, 0));
        assert_eq!(
            count(
                Link {
                    cut: true,
                    ..Link::default()
                },
                1000
            ),
            (0, 0)
        );
        let (passed, _) = count(
            Link {
                lost_per_million: 100_000,
                ..Link::default()
            },
            10_000,
        );
        assert!((8_800..9_200).contains(&passed), "{passed}");
        let (_, doubled) = count(
            Link {
                doubled_per_million: 50_000,
                ..Link::default()
            },
            10_000,
        );
        assert!((400..600).contains(&doubled), "{doubled}");
    }

    #[test]
    fn a_limited_link_passes_its_rate_and_drops_what_finds_no_room() {
        let link = Link {
            bytes_per_second: 1_250_000,
            ..Link::default()
        };
        let mut lane = Lane {
            link,
            ..Lane::default()
        };
        let mut random = Random::new(1, 1);
        let times: Vec<u64> = (0..1000)
            .filter_map(|_| lane.pass(0, 972, &mut random)[0])
            .collect();
        assert_eq!(times.len() as u64, QUEUE_BYTES_MAX / 1000 + 1);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 800));
    }

    proptest! {
        #[test]
        fn nothing_arrives_before_its_delay_nor_after_its_jitter(
            delay_us in 0u64..100_000,
            jitter_us in 0u64..100_000,
            now in 0u64..1_000_000
        ) {
            let link = Link {
                delay_us,
                jitter_us,
                doubled_per_million: 500_000,
                ..Link::default()
            };
            let mut lane = Lane { link, ..Lane::default() };
            let mut random = Random::new(now, 1);
            for at in lane.pass(now, 100, &mut random).into_iter().flatten() {
                prop_assert!(at >= now + delay_us && at <= now + delay_us + jitter_us);
            }
        }

        #[test]
        fn combined_links_are_no_better_than_either(
            lost in 0u32..=1_000_000,
            more in 0u32..=1_000_000,
            rate in 0u64..100,
            other in 0u64..100
        ) {
            let one = Link { lost_per_million: lost, bytes_per_second: rate, ..Link::default() };
            let two = Link { lost_per_million: more, bytes_per_second: other, ..Link::default() };
            let both = combine(one, two);
            prop_assert_eq!(both, combine(two, one));
            prop_assert!(
                both.lost_per_million >= lost.max(more) && both.lost_per_million <= 1_000_000
            );
            for rate in [rate, other] {
                let is_bound = both.bytes_per_second > 0 && both.bytes_per_second <= rate;
                prop_assert!(rate == 0 || is_bound);
            }
        }
    }
}
