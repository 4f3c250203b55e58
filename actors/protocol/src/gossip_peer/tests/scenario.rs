//! The configuration of a simulated run. Everything follows from its seed.

use crate::algorithm::{Gossip, LatePeers, TopologyName};
use crate::simulation::Random;
use crate::time::Span;

/// One millisecond of simulated time.
pub const MILLI: u64 = 1_000;

/// The kinds of faults in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing: nodes are about equally fast.
    Quiet,
    /// Nodes are unequally fast and stall now and then.
    Slow,
    /// Streams break, frames come twice and out of order, connections break.
    Lossy,
    /// All of that; nodes die, leave, are cut off, pause, and are taken for dead.
    Churn,
    /// Nobody dies, but many are taken for dead.
    Doubt,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub class: Class,
    pub nodes: u64,
    pub gossip: Gossip,
    pub grace: Span,
    /// How long an inner step takes, and how much longer it may take.
    pub compute: (u64, u64),
    /// How long a message takes at most.
    pub delay_max: u64,
    /// When the faults end.
    pub horizon: u64,
    /// Whether training moves the models until then.
    pub trains: bool,
    /// How many faults there are until then.
    pub faults: u64,
}

impl Scenario {
    pub fn of(seed: u64, class: Class) -> Self {
        let mut random = Random(seed ^ 0x5ce_4a51);
        let staleness = random.below(5) as u32;
        let late_peers = if staleness > 0 && random.below(3) == 0 {
            LatePeers::Skip
        } else {
            LatePeers::Wait
        };
        let peers_per_step = 1 + random.below(6).saturating_sub(3) as u32;
        let mut topologies = Random(seed ^ 0x7090_1091);
        let topology = match topologies.below(8) {
            0 => TopologyName::Ring,
            1 => TopologyName::BipartiteExponential,
            2 => TopologyName::Complete,
            _ => TopologyName::Exponential,
        };
        let delay_max = if random.below(4) == 0 {
            60 * MILLI
        } else {
            200 + random.below(5 * MILLI)
        };
        Self {
            seed,
            class,
            nodes: if random.below(3) == 0 {
                1 + random.below(16)
            } else {
                2 + random.below(6)
            },
            gossip: Gossip {
                peers_per_step,
                staleness,
                late_peers,
                topology,
                ..Gossip::default()
            },
            grace: Span::from_millis(200 + random.below(1_300)),
            compute: (
                10 * MILLI + random.below(20 * MILLI),
                1 + random.below(10 * MILLI),
            ),
            delay_max,
            horizon: (500 + random.below(2_000)) * MILLI,
            trains: random.below(2) == 0,
            faults: random.below(12),
        }
    }

    /// A run in which nothing goes wrong and all nodes are equally fast: its values can be
    /// calculated.
    pub fn regular(nodes: u64, gossip: Gossip) -> Self {
        Self {
            seed: 1,
            class: Class::Quiet,
            nodes,
            gossip,
            grace: Span::from_millis(1_000),
            compute: (10 * MILLI, 1),
            delay_max: 200,
            horizon: 0,
            trains: false,
            faults: 0,
        }
    }

    pub fn breaks(&self) -> bool {
        matches!(self.class, Class::Lossy | Class::Churn | Class::Doubt)
    }

    pub fn staleness(&self) -> u64 {
        self.gossip.staleness.into()
    }

    /// How many steps late a message may be.
    pub fn late_max(&self) -> u64 {
        self.staleness().max(1)
    }
}
