//! The bipartite exponential graph: symmetric exchanges between the members of even and of odd
//! rank.

use super::{Peers, Topology, cycle, window};
use crate::ident::NodeId;

/// Members of even rank exchange with members of odd rank: at distance `d` the even rank `r` and
/// the odd rank `(r+d) mod V` send to each other, where `V` is `W`, or `W+1` if that is odd. The
/// distances are `min(2^i − 1, V−1)` for `i = 1..⌈log₂ V⌉`, walked `p` a turn as in
/// [`super::Exponential`]; `p` is at most their number.
///
/// With `p = 1` a turn is a perfect matching, so pairs take their means and every weight stays 1.
/// The distances of the SGP paper's code are `1, 3, 5, 9, …, 1 + 2^i`; these are `1, 3, 7, 15, …`
/// because then the information that the two members of a pair already have never overlaps, and one
/// cycle makes the exact mean for a power of two.
///
/// Odd `W`: the odd rank `W` is missing, and the member that would exchange with it sits out at
/// that distance (with `p > 1`: has one peer less), another one at each distance. Distances `1` and
/// `V−1` join all ranks to a ring, which stays connected without one of them, so the graph mixes
/// for every `W ≥ 2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BipartiteExponential {
    members: usize,
    distances: Vec<usize>,
    peers_per_step: usize,
}

impl BipartiteExponential {
    /// The graph over `members` nodes, each with `peers_per_step` peers.
    #[must_use]
    pub fn new(members: usize, peers_per_step: u32) -> Self {
        let slots = slots(members);
        let mut distances = Vec::new();
        let mut next = 1;
        while members > 1 && distances.last() != Some(&(slots - 1)) {
            distances.push(next.min(slots - 1));
            next = 2 * next + 1;
        }
        Self {
            members,
            distances,
            peers_per_step: peers_per_step as usize,
        }
    }
}

/// Number of ranks in the graph: even; the last one is empty if `members` is odd.
fn slots(members: usize) -> usize {
    members + members % 2
}

impl Topology for BipartiteExponential {
    fn peers(&self, members: &[NodeId], me: NodeId, turn: u64) -> Peers {
        let rank = match members.binary_search(&me) {
            Ok(rank) if members.len() == self.members => rank,
            _ => return Peers::default(),
        };
        let slots = slots(self.members);
        let other = |distance| {
            if rank.is_multiple_of(2) {
                (rank + distance) % slots
            } else {
                (rank + slots - distance) % slots
            }
        };
        Peers::both_ways(
            window(&self.distances, self.peers_per_step, turn)
                .filter_map(|distance| members.get(other(distance)).copied()),
        )
    }

    fn cycle(&self) -> u64 {
        cycle(self.distances.len(), self.peers_per_step)
    }

    fn peers_max(&self) -> usize {
        self.distances.len().min(self.peers_per_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let cases: &[(usize, &[usize])] = &[
            (0, &[]),
            (1, &[]),
            (2, &[1]),
            (3, &[1, 3]),
            (4, &[1, 3]),
            (5, &[1, 3, 5]),
            (6, &[1, 3, 5]),
            (7, &[1, 3, 7]),
            (8, &[1, 3, 7]),
            (9, &[1, 3, 7, 9]),
            (16, &[1, 3, 7, 15]),
            (17, &[1, 3, 7, 15, 17]),
        ];
        for (members, expected) in cases {
            assert_eq!(
                BipartiteExponential::new(*members, 1).distances,
                *expected,
                "W={members}"
            );
        }
    }

    #[test]
    fn with_an_odd_number_one_member_sits_out_and_it_is_another_one_each_time() {
        for size in (3..=17usize).step_by(2) {
            let members: Vec<_> = (0..size as u64).map(NodeId).collect();
            let graph = BipartiteExponential::new(size, 1);
            let mut idle: Vec<_> = (0..graph.cycle())
                .flat_map(|turn| {
                    members
                        .iter()
                        .filter(move |id| graph_idle(size, **id, turn))
                })
                .collect();
            assert_eq!(idle.len() as u64, graph.cycle(), "W={size}");
            idle.dedup();
            assert_eq!(idle.len() as u64, graph.cycle(), "W={size}");
        }
    }

    fn graph_idle(size: usize, id: NodeId, turn: u64) -> bool {
        let members: Vec<_> = (0..size as u64).map(NodeId).collect();
        BipartiteExponential::new(size, 1)
            .peers(&members, id, turn)
            .out
            .is_empty()
    }
}
