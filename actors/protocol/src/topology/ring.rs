//! The directed ring: every member always sends to the members after it.

use super::{Peers, Topology};
use crate::ident::NodeId;

/// Every member sends to the `p` members after it, wrapping around. Of all graphs it has the fewest
/// connections and the slowest mixing: a value needs `(W−1)/p` turns to get all around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    members: usize,
    reach: usize,
}

impl Ring {
    /// The ring over `members` nodes; every member sends to the next `peers_per_step`, at most to
    /// all the others.
    #[must_use]
    pub fn new(members: usize, peers_per_step: u32) -> Self {
        Self {
            members,
            reach: (peers_per_step as usize).min(members.saturating_sub(1)),
        }
    }
}

impl Topology for Ring {
    fn peers(&self, members: &[NodeId], me: NodeId, _turn: u64) -> Peers {
        let size = members.len();
        match members.binary_search(&me) {
            Ok(rank) if size == self.members => Peers::of(
                (1..=self.reach).map(|hop| members[(rank + hop) % size]),
                (1..=self.reach).map(|hop| members[(rank + size - hop) % size]),
            ),
            _ => Peers::default(),
        }
    }

    fn cycle(&self) -> u64 {
        1
    }

    fn peers_max(&self) -> usize {
        self.reach
    }
}
