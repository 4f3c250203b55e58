//! Cost of an order of the members on the exponential graph, and how swaps of two members change
//! it.

use super::links::{Links, Time};

/// Cost of one cycle of the graph with one peer a step; the smaller score is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Score {
    /// Time of the slowest link of each turn, summed over the turns: gossip waits for every link of
    /// a turn.
    pub slowest: Time,
    /// Sum of the times of all links of all turns.
    pub total: Time,
}

impl Score {
    /// Whether this score justifies a change of the order: `slowest` is at least a fifth less, or
    /// is no larger and `total` is at least a fifth less.
    #[must_use]
    pub fn is_clearly_below(self, other: Self) -> bool {
        let fifth_less =
            |new: Time, old: Time| new < old && u128::from(new) * 5 <= u128::from(old) * 4;
        fifth_less(self.slowest, other.slowest)
            || (self.slowest <= other.slowest && fifth_less(self.total, other.total))
    }
}

/// The links of one turn.
#[derive(Clone, Debug)]
struct Turn {
    hop: usize,
    /// The time from each position to the one `hop` further.
    times: Vec<Time>,
    slowest: Time,
    /// Number of links that take `slowest`.
    so_slow: usize,
    total: Time,
}

impl Turn {
    fn set(&mut self, place: usize, time: Time) {
        let Some(entry) = self.times.get_mut(place) else {
            return;
        };
        let old = std::mem::replace(entry, time);
        self.total = self.total.saturating_add(time).saturating_sub(old);
        self.so_slow -= usize::from(old == self.slowest);
        match time.cmp(&self.slowest) {
            std::cmp::Ordering::Greater => (self.slowest, self.so_slow) = (time, 1),
            std::cmp::Ordering::Equal => self.so_slow += 1,
            std::cmp::Ordering::Less if self.so_slow == 0 => self.find_slowest(),
            std::cmp::Ordering::Less => {}
        }
    }

    fn find_slowest(&mut self) {
        self.slowest = self.times.iter().copied().max().unwrap_or(0);
        self.so_slow = self
            .times
            .iter()
            .filter(|time| **time == self.slowest)
            .count();
    }
}

/// An order of the members, by their positions in the given list, with its cost.
#[derive(Clone, Debug)]
pub struct Placement<'a> {
    links: &'a Links,
    order: Vec<usize>,
    turns: Vec<Turn>,
}

impl<'a> Placement<'a> {
    /// `order` contains every position of `links` once; `hops` are those of the graph.
    pub fn new(links: &'a Links, order: Vec<usize>, hops: &[usize]) -> Self {
        let size = order.len();
        let turn = |hop: &usize| {
            let times: Vec<_> = (0..size)
                .map(|place| links.time(order[place], order[(place + hop) % size]))
                .collect();
            let total = times
                .iter()
                .fold(0, |sum: Time, time| sum.saturating_add(*time));
            let mut turn = Turn {
                hop: *hop,
                times,
                slowest: 0,
                so_slow: 0,
                total,
            };
            turn.find_slowest();
            turn
        };
        let turns = hops.iter().map(turn).collect();
        Self {
            links,
            order,
            turns,
        }
    }

    pub fn score(&self) -> Score {
        let sum = |of: fn(&Turn) -> Time| self.turns.iter().map(of).fold(0, Time::saturating_add);
        Score {
            slowest: sum(|turn| turn.slowest),
            total: sum(|turn| turn.total),
        }
    }

    /// Returns the order.
    pub fn into_order(self) -> Vec<usize> {
        self.order
    }

    /// Swaps pairs of members if that lowers the score, until no pair does or `links_max` links
    /// were examined. Pairs are tried in a scattered, fixed sequence, so that reaching the bound
    /// early leaves no stretch of a large order out.
    pub fn improve(&mut self, links_max: usize) {
        // A prime above the number of pairs' square root, so that its multiples visit every
        // remainder once.
        const SCATTER: usize = 2_654_435_761;
        let size = self.order.len();
        let pairs = size * size;
        let mut at = 0;
        let mut in_vain = 0;
        let mut looked_at = 0;
        let mut score = self.score();
        while in_vain < pairs && looked_at < links_max {
            at = (at + SCATTER) % pairs;
            in_vain += 1;
            let first = at / size;
            let second = at % size;
            if first >= second {
                continue;
            }
            self.swap(first, second);
            looked_at += 8 * self.turns.len();
            if self.score() < score {
                score = self.score();
                in_vain = 0;
            } else {
                self.swap(first, second);
            }
        }
    }

    fn swap(&mut self, first: usize, second: usize) {
        self.order.swap(first, second);
        let size = self.order.len();
        let order = &self.order;
        let links = self.links;
        for turn in &mut self.turns {
            for place in [
                first,
                second,
                (first + size - turn.hop) % size,
                (second + size - turn.hop) % size,
            ] {
                turn.set(
                    place,
                    links.time(order[place], order[(place + turn.hop) % size]),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::NodeId;
    use crate::simulation::Random;
    use crate::topology::{Rate, Rates, hops};

    #[test]
    fn swaps_keep_the_score_that_counting_anew_finds() {
        let mut random = Random(11);
        for size in [2usize, 3, 5, 8, 13] {
            // Few different times, so that many links tie for the slowest.
            let mut rate = |to: usize| Rate {
                to: NodeId(to as u64),
                kilobytes: 1 + random.below(3) as u32,
            };
            let rates: Rates = (0..size)
                .map(|from| (NodeId(from as u64), (0..size).map(&mut rate).collect()))
                .collect();
            let members: Vec<_> = (0..size as u64).map(NodeId).collect();
            let links = Links::new(&members, &rates);
            let hops = hops(size, 1);
            let mut placement = Placement::new(&links, (0..size).collect(), &hops);
            for _ in 0..200 {
                let place = |random: &mut Random| random.below(size as u64) as usize;
                let first = place(&mut random);
                let second = place(&mut random);
                placement.swap(first, second);
                let anew = Placement::new(&links, placement.order.clone(), &hops);
                assert_eq!(placement.score(), anew.score(), "W={size}");
            }
            let before = placement.score();
            placement.improve(usize::MAX);
            assert!(placement.score() <= before);
        }
    }

    #[test]
    fn clearly_below_is_a_fifth() {
        let score = |slowest, total| Score { slowest, total };
        assert!(score(80, 900).is_clearly_below(score(100, 100)));
        assert!(!score(81, 99).is_clearly_below(score(100, 100)));
        assert!(score(100, 80).is_clearly_below(score(100, 100)));
        assert!(!score(101, 1).is_clearly_below(score(100, 100)));
        assert!(!score(0, 0).is_clearly_below(score(0, 0)));
    }
}
