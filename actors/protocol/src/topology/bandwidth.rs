//! The directed exponential graph over an order in which few turns wait for slow links.

use super::{Exponential, Peers, Topology};
use crate::ident::NodeId;

/// [`Exponential`] over a given order of the members instead of ascending ids. The order is decided
/// with the view (it must be the same on every node); [`super::order_by_rate`] computes it, and
/// documents which turns become fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthAware {
    graph: Exponential,
    members: Vec<NodeId>,
    order: Vec<NodeId>,
}

impl BandwidthAware {
    /// The graph over the ascending `members` in `order`. An order that does not contain every
    /// member once is ignored on every node alike: ascending ids are used instead.
    #[must_use]
    pub fn new(members: &[NodeId], peers_per_step: u32, order: &[NodeId]) -> Self {
        let order = if is_order_of(order, members) {
            order
        } else {
            members
        };
        Self {
            graph: Exponential::new(members.len(), peers_per_step),
            members: members.to_vec(),
            order: order.to_vec(),
        }
    }
}

/// Whether `order` contains each of the ascending `members` exactly once.
pub(super) fn is_order_of(order: &[NodeId], members: &[NodeId]) -> bool {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    sorted == members
}

impl Topology for BandwidthAware {
    fn peers(&self, members: &[NodeId], me: NodeId, turn: u64) -> Peers {
        match self.order.iter().position(|id| *id == me) {
            Some(place) if members == self.members => self.graph.peers_in(&self.order, place, turn),
            _ => Peers::default(),
        }
    }

    fn cycle(&self) -> u64 {
        self.graph.cycle()
    }

    fn peers_max(&self) -> usize {
        self.graph.peers_max()
    }
}
