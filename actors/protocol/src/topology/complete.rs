//! The complete graph: every member exchanges with all others.

use super::{Peers, Topology};
use crate::ident::NodeId;

/// Every member sends to all the others: the exact mean in every turn, for `W−1` messages a node.
/// It ignores `p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complete {
    members: usize,
}

impl Complete {
    /// The complete graph over `members` nodes.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self { members }
    }
}

impl Topology for Complete {
    fn peers(&self, members: &[NodeId], me: NodeId, _turn: u64) -> Peers {
        if members.len() != self.members || members.binary_search(&me).is_err() {
            return Peers::default();
        }
        Peers::both_ways(members.iter().copied().filter(|id| *id != me))
    }

    fn cycle(&self) -> u64 {
        1
    }

    fn peers_max(&self) -> usize {
        self.members.saturating_sub(1)
    }
}
