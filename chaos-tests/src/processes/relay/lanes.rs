//! All directions of all pairs, and the layers that lie on them.

use super::lane::{Lane, combine};
use crate::processes::schedule::Way;
use crate::random::Random;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::trace::Link;
use std::collections::BTreeMap;

/// A disturbance that makes some links worse while it lies on them. Several may lie on one link.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Number that identifies the layer.
    pub number: usize,
    /// The directions that are affected.
    pub ways: Vec<Way>,
    /// The quality of the affected links.
    pub link: Link,
}

/// All lanes, by the indices of sender and receiver.
pub(super) struct Lanes {
    nodes: Vec<NodeId>,
    base: Link,
    lanes: BTreeMap<(usize, usize), Lane>,
    layers: Vec<Layer>,
    random: Random,
}

impl Lanes {
    pub(super) fn new(nodes: &[NodeId], base: Link, seed: u64) -> Self {
        let mut lanes = Self {
            nodes: nodes.to_vec(),
            base,
            lanes: BTreeMap::new(),
            layers: Vec::new(),
            random: Random::new(seed, 7),
        };
        lanes.update();
        lanes
    }

    pub(super) fn lay(&mut self, layer: Layer) {
        self.layers.push(layer);
        self.update();
    }

    pub(super) fn take_off(&mut self, number: usize) {
        self.layers.retain(|layer| layer.number != number);
        self.update();
    }

    pub(super) fn heal(&mut self) {
        self.layers.clear();
        self.update();
    }

    /// Times at which a datagram comes out of a lane; a node has no lane to itself.
    pub(super) fn pass(
        &mut self,
        way: (usize, usize),
        now_us: u64,
        bytes: usize,
    ) -> [Option<u64>; 2] {
        match self.lanes.get_mut(&way) {
            Some(lane) => lane.pass(now_us, bytes, &mut self.random),
            None => [None, None],
        }
    }

    fn update(&mut self) {
        for (from, sender) in self.nodes.iter().enumerate() {
            for (to, receiver) in self.nodes.iter().enumerate().filter(|(to, _)| *to != from) {
                let covers = |way: &Way| way.from.contains(sender) && way.to.contains(receiver);
                let over = self
                    .layers
                    .iter()
                    .filter(|layer| layer.ways.iter().any(covers));
                let link = over.map(|layer| layer.link).fold(self.base, combine);
                self.lanes.entry((from, to)).or_default().link = link;
            }
        }
    }
}
