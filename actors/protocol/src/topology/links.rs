//! Times of the links between members, from measured rates, and what an order of the members costs.

use super::hops;
use crate::ident::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Measured rate of one node's messages to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rate {
    /// The peer.
    pub to: NodeId,
    /// Rate in units of 1,000 bytes per second; 0 counts as 1.
    pub kilobytes: u32,
}

/// Maximum number of rates that a node reports: a graph has few edges at a node, and the leader
/// keeps those of all nodes.
pub const RATES_MAX: usize = 64;

/// The rates that each node measured, by node.
pub type Rates = BTreeMap<NodeId, Vec<Rate>>;

/// Nanoseconds per megabyte: an integer, so that sums are exact and the same everywhere.
pub type Time = u64;

/// Cost of one cycle of the exponential graph with one peer a step; the smaller score is better.
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

/// Known links between members, by their positions in the given list. A link is as fast as its
/// slower direction; an unmeasured link takes the mean of the measured times.
#[derive(Clone, Debug)]
pub struct Links {
    /// Known times per member, by peer.
    pub known: Vec<BTreeMap<usize, Time>>,
    /// Time of a link that nobody measured.
    pub unknown: Time,
}

impl Links {
    /// The links between `members`; rates of and to others are left out.
    pub fn new(members: &[NodeId], rates: &Rates) -> Self {
        let places: BTreeMap<_, _> = members
            .iter()
            .enumerate()
            .map(|(place, id)| (*id, place))
            .collect();
        let mut known = vec![BTreeMap::new(); members.len()];
        for (from, measured) in rates {
            let Some(from) = places.get(from) else {
                continue;
            };
            for rate in measured {
                let Some(to) = places.get(&rate.to).filter(|to| *to != from) else {
                    continue;
                };
                let time = 1_000_000_000_000 / Time::from(rate.kilobytes.max(1));
                for (one, other) in [(*from, *to), (*to, *from)] {
                    let slower: &mut Time = known[one].entry(other).or_default();
                    *slower = time.max(*slower);
                }
            }
        }
        let times = || known.iter().flat_map(BTreeMap::values);
        let sum = times().copied().fold(0, Time::saturating_add);
        let unknown = sum / times().count().max(1) as Time;
        Self { known, unknown }
    }

    /// The time of the link between two members.
    pub(super) fn time(&self, from: usize, to: usize) -> Time {
        self.known[from].get(&to).copied().unwrap_or(self.unknown)
    }

    /// The cost of an order, which contains every position once.
    pub fn score(&self, order: &[usize]) -> Score {
        let mut score = Score::default();
        for hop in hops(order.len(), 1) {
            let mut slowest = 0;
            for (place, from) in order.iter().enumerate() {
                let time = self.time(*from, order[(place + hop) % order.len()]);
                slowest = time.max(slowest);
                score.total = score.total.saturating_add(time);
            }
            score.slowest = score.slowest.saturating_add(slowest);
        }
        score
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
