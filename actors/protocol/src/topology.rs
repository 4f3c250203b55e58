//! Who gossips with whom: the time-varying directed exponential graph on the ordered members (algorithm section 5).

use crate::ident::NodeId;

/// The hop distances of the directed exponential graph: `j·(p+1)^i mod W` for `i = 0..⌊log_{p+1}(W−1)⌋`, `j = 1..p`,
/// without 0 and without repeats. Empty for `W = 1`.
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

/// Walks the hop list: entries `0..p−1` in the first gossip, `p` further in each that follows. Which gossip it is comes from the
/// schedule, not from what a node counted: nodes that jumped over steps agree with the others all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exponential {
    hops: Vec<usize>,
    peers_per_step: usize,
}

/// The peers of one gossip, as ids of the ordered members; both lists ascending and without repeats.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Whom this node sends to.
    pub out: Vec<NodeId>,
    /// Whom it receives from.
    pub inward: Vec<NodeId>,
}

impl Exponential {
    /// The graph over `members` nodes with `peers_per_step` out-peers.
    #[must_use]
    pub fn new(members: usize, peers_per_step: u32) -> Self {
        Self { hops: hops(members, peers_per_step), peers_per_step: peers_per_step as usize }
    }

    /// The peers of `me` among the ascending `members` in the gossip that `turn` others came before; empty if `me` is alone or
    /// no member.
    #[must_use]
    pub fn peers(&self, members: &[NodeId], me: NodeId, turn: u64) -> Peers {
        let Ok(rank) = members.binary_search(&me) else { return Peers::default() };
        let size = members.len();
        let entries = u128::from(turn) * self.peers_per_step as u128;
        // The remainder is below the length, so it fits.
        let cursor = entries.checked_rem(self.hops.len() as u128).unwrap_or(0) as usize;
        let now = self.hops.iter().cycle().skip(cursor).take(self.peers_per_step.min(self.hops.len()));
        let (mut out, mut inward) = (Vec::new(), Vec::new());
        for hop in now {
            out.push(members[(rank + hop) % size]);
            inward.push(members[(rank + size - hop) % size]);
        }
        out.sort_unstable();
        inward.sort_unstable();
        Peers { out, inward }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
    fn every_gossip_is_regular_without_loops_or_repeats() {
        for size in 1..=17usize {
            for peers_per_step in 1..=3u32 {
                let members: Vec<_> = (0..size as u64).map(|i| NodeId(i * 7 + 3)).collect();
                let graph = Exponential::new(size, peers_per_step);
                for turn in 0..12 {
                    let all: Vec<_> = members.iter().map(|id| graph.peers(&members, *id, turn)).collect();
                    for (me, peers) in members.iter().zip(&all) {
                        let mut unique = peers.out.clone();
                        unique.dedup();
                        assert_eq!(unique, peers.out, "repeat at W={size} p={peers_per_step}");
                        assert!(!peers.out.contains(me), "self loop at W={size} p={peers_per_step}");
                        assert_eq!(peers.out.len(), peers.inward.len());
                        assert_eq!(peers.out.len(), all[0].out.len(), "irregular at W={size}");
                        for to in &peers.out {
                            let rank = members.binary_search(to).unwrap();
                            assert!(all[rank].inward.contains(me));
                        }
                    }
                }
            }
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
                    let further: Vec<_> = reached.iter().map(|rank| (rank + hop) % members).collect();
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
            (5, 3, &[&[1, 2, 3], &[1, 2, 4], &[1, 3, 4], &[2, 3, 4], &[1, 2, 3]]),
        ];
        for (size, peers_per_step, expected) in cases {
            let members: Vec<_> = (0..*size as u64).map(NodeId).collect();
            let graph = Exponential::new(*size, *peers_per_step);
            for (turn, hops) in (0..).zip(*expected) {
                let out: Vec<u64> = graph.peers(&members, NodeId(0), turn).out.iter().map(|id| id.0).collect();
                assert_eq!(out, *hops, "W={size} p={peers_per_step} gossip {turn}");
            }
        }
    }

    #[test]
    fn a_stranger_has_no_peers() {
        assert_eq!(Exponential::new(2, 1).peers(&[NodeId(1), NodeId(5)], NodeId(2), 0), Peers::default());
    }
}
