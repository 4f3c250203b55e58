//! The time-varying directed exponential graph (SGP, arXiv 1811.10792).

use super::{Peers, Topology, cycle, window};
use crate::ident::NodeId;

/// The hop distances of the directed exponential graph: `j·(p+1)^i mod W` for `i =
/// 0..⌊log_{p+1}(W−1)⌋`, `j = 1..p`, without 0 and without repeats. Empty for `W = 1`.
#[must_use]
pub fn hops(members: usize, peers_per_step: u32) -> Vec<usize> {
    let mut hops = Vec::new();
    let base = u128::from(peers_per_step) + 1;
    let mut power: u128 = 1;
    while power < members as u128 {
        for j in 1..base {
            // The remainder is below `members`, so it fits.
            let hop = (j * power % members as u128) as usize;
            if hop != 0 && !hops.contains(&hop) {
                hops.push(hop);
            }
        }
        power *= base;
    }
    hops
}

/// Walks the hop list: entries `0..p−1` in the first gossip, shifted by `p` in each following one.
/// All members have the same number of receivers, so every weight stays 1; for one peer and a power
/// of two, one cycle makes the exact mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exponential {
    members: usize,
    hops: Vec<usize>,
    peers_per_step: usize,
}

impl Exponential {
    /// The graph over `members` nodes with `peers_per_step` out-peers.
    #[must_use]
    pub fn new(members: usize, peers_per_step: u32) -> Self {
        Self {
            members,
            hops: hops(members, peers_per_step),
            peers_per_step: peers_per_step as usize,
        }
    }

    /// The peers of the member at `place` in `order`, which has as many entries as there are
    /// members.
    pub(super) fn peers_in(&self, order: &[NodeId], place: usize, turn: u64) -> Peers {
        let size = order.len();
        let now = || window(&self.hops, self.peers_per_step, turn);
        Peers::of(
            now().map(|hop| order[(place + hop) % size]),
            now().map(|hop| order[(place + size - hop) % size]),
        )
    }
}

impl Topology for Exponential {
    fn peers(&self, members: &[NodeId], me: NodeId, turn: u64) -> Peers {
        match members.binary_search(&me) {
            Ok(rank) if members.len() == self.members => self.peers_in(members, rank, turn),
            _ => Peers::default(),
        }
    }

    fn cycle(&self) -> u64 {
        cycle(self.hops.len(), self.peers_per_step)
    }

    fn peers_max(&self) -> usize {
        self.hops.len().min(self.peers_per_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_lists() {
        let cases: &[(usize, u32, &[usize])] = &[
            (1, 1, &[]),
            (2, 1, &[1]),
            (3, 1, &[1, 2]),
            (4, 1, &[1, 2]),
            (5, 1, &[1, 2, 4]),
            (6, 1, &[1, 2, 4]),
            (8, 1, &[1, 2, 4]),
            (9, 1, &[1, 2, 4, 8]),
            (17, 1, &[1, 2, 4, 8, 16]),
            (3, 2, &[1, 2]),
            (4, 2, &[1, 2, 3]),
            (9, 2, &[1, 2, 3, 6]),
            (5, 3, &[1, 2, 3, 4]),
        ];
        for (members, peers, expected) in cases {
            assert_eq!(hops(*members, *peers), *expected, "W={members} p={peers}");
        }
    }

    #[test]
    fn hops_are_distinct_nonzero_and_reach_everybody() {
        for members in 1..=17usize {
            for peers_per_step in 1..=3u32 {
                let hops = hops(members, peers_per_step);
                let distinct: std::collections::BTreeSet<_> = hops.iter().copied().collect();
                assert_eq!(distinct.len(), hops.len(), "W={members} p={peers_per_step}");
                assert!(distinct.iter().all(|hop| (1..members).contains(hop)));
                let mut reached = std::collections::BTreeSet::from([0]);
                for hop in hops {
                    let further: Vec<_> =
                        reached.iter().map(|rank| (rank + hop) % members).collect();
                    reached.extend(further);
                }
                assert_eq!(reached.len(), members, "W={members} p={peers_per_step}");
            }
        }
    }

    #[test]
    fn every_gossip_walks_p_entries_further_and_wraps() {
        // W, p, the hops that node rank 0 sends over in each gossip.
        let cases: &[(usize, u32, &[&[u64]])] = &[
            (2, 1, &[&[1], &[1]]),
            (3, 1, &[&[1], &[2], &[1]]),
            (6, 1, &[&[1], &[2], &[4], &[1]]),
            (2, 3, &[&[1], &[1]]),
            (3, 2, &[&[1, 2], &[1, 2]]),
            (4, 2, &[&[1, 2], &[1, 3], &[2, 3]]),
            (9, 2, &[&[1, 2], &[3, 6], &[1, 2]]),
            (
                5,
                3,
                &[&[1, 2, 3], &[1, 2, 4], &[1, 3, 4], &[2, 3, 4], &[1, 2, 3]],
            ),
        ];
        for (size, peers_per_step, expected) in cases {
            let members: Vec<_> = (0..*size as u64).map(NodeId).collect();
            let graph = Exponential::new(*size, *peers_per_step);
            for (turn, hops) in (0..).zip(*expected) {
                let out: Vec<u64> = graph
                    .peers(&members, NodeId(0), turn)
                    .out
                    .iter()
                    .map(|id| id.0)
                    .collect();
                assert_eq!(out, *hops, "W={size} p={peers_per_step} gossip {turn}");
            }
        }
    }
}
