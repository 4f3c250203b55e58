//! What a simulated run is like: everything follows from its seed.

use super::random::Random;
use slowmo_protocol::algorithm::{Algorithm, Base, BufferStrategy, Gossip, LatePeers, Outer, OuterOptimizer, TopologyName, WireType};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::sampler;
use slowmo_protocol::time::Span;
use std::ops::RangeInclusive;

/// One millisecond of simulated time.
pub const MILLI: u64 = 1_000;
/// Ids of the founders are so far apart: others come between them.
const ID_GAP: u64 = 5;

/// See [`CLASSES`].
const APART: u64 = 3;
/// How much longer the faults of [`Class::Apart`] go on: it takes seconds until a member is parted from, and as long until it is back.
const APART_LONGER: u64 = 10_000 * MILLI;

/// From more nodes on, time and frames are spared: what is simulated grows with the square of their number.
const LARGE: usize = 64;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Nothing.
    Calm,
    /// Faults far apart: between two of them a round is decided, and nothing may be lost.
    Spaced,
    /// Nodes die, come back, pause, join and leave.
    Churn,
    /// Links are cut in one or both directions, slow, lossy; connections break.
    Network,
    /// Links between members that others reach both of are cut for long.
    Apart,
    /// All of the others, at any moment.
    Storm,
}

/// The classes that are drawn first, calm ones first. [`Class::Apart`] takes the place of one in so many of [`Class::Network`], so that
/// the other seeds stay the runs that they were.
const CLASSES: [Class; 5] = [Class::Calm, Class::Spaced, Class::Churn, Class::Network, Class::Storm];

/// What a run is like.
#[derive(Clone, Debug)]
pub struct Config {
    /// What drives it.
    pub seed: u64,
    /// What goes wrong.
    pub class: Class,
    /// The nodes that are started at the beginning.
    pub founders: Vec<NodeId>,
    /// How many of them found the cluster; the others join it.
    pub min_nodes: usize,
    /// Who may decide.
    pub quorum: Quorum,
    /// `R`: replicas of a shard beside its owner.
    pub replicas: usize,
    /// Parameters of the model.
    pub parameters: usize,
    /// Values of the base optimizer's buffers, of which joiners get a copy; 0: none.
    pub buffers: usize,
    /// What the nodes run.
    pub algorithm: Algorithm,
    /// The elastic sampler, if training follows one.
    pub samples: Option<sampler::Settings>,
    /// How long an inner step takes, and how much longer it may take, in microseconds.
    pub compute: (u64, u64),
    /// How long a packet travels, and how much longer it may travel, in microseconds.
    pub delay: (u64, u64),
    /// How long what one part of a node tells another waits at most, in microseconds.
    pub mail_delay_max: u64,
    /// See the configuration keys of the same names.
    pub waits: Waits,
    /// When the faults are over, in microseconds.
    pub horizon: u64,
    /// How many faults there are until then.
    pub faults: u64,
    /// How soon all must be well afterwards.
    pub recovers_within: Span,
    /// Every so many-th frame is encoded and decoded; 0: none.
    pub encodes_every: u64,
}

/// Times that nodes are configured with.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For a straggler.
    pub grace: Span,
    /// For a round of live members.
    pub round: Span,
    /// For peers to appear.
    pub connect: Span,
    /// For anything to be heard on a connection.
    pub idle: Span,
    /// Between probes.
    pub probe: Span,
    /// For a suspected node to show that it is alive.
    pub suspect: Span,
}

impl Config {
    /// The run of `seed` with a number of nodes in this range.
    #[must_use]
    pub fn of(seed: u64, nodes: &RangeInclusive<usize>) -> Self {
        let mut random = Random::new(seed, 1);
        let class = match CLASSES[random.below(16).min(15) as usize * CLASSES.len() / 16] {
            Class::Network if Random::new(seed, 5).once_in(APART) => Class::Apart,
            class => class,
        };
        let count = random.between(*nodes.start() as u64, *nodes.end() as u64) as usize;
        let founders: Vec<NodeId> = (0..count as u64).map(|rank| NodeId(rank * ID_GAP + 2)).collect();
        // Fewer than half of them could found two clusters.
        let min_nodes = if random.once_in(3) { count / 2 + 1 } else { count };
        let quorum = if matches!(class, Class::Storm | Class::Churn) && random.once_in(4) { Quorum::Survivors } else { Quorum::Majority };
        let algorithm = algorithm(&mut random);
        let compute = 15 * MILLI + random.below(40 * MILLI);
        let delay_max = if random.once_in(5) { 15 * MILLI } else { 2 * MILLI };
        let grace = Span(150 * MILLI + random.below(400 * MILLI));
        Self {
            seed,
            class,
            founders,
            min_nodes,
            quorum,
            replicas: random.below(4).min(2) as usize,
            parameters: 8 + random.below(24) as usize,
            buffers: if random.once_in(3) { 5 } else { 0 },
            algorithm,
            samples: samples(&mut random, &algorithm),
            compute: (compute, 1 + random.below(compute)),
            delay: (50, 1 + random.below(delay_max)),
            mail_delay_max: if random.once_in(4) { 2 * MILLI } else { 60 },
            waits: Waits {
                grace,
                round: Span::from_millis(30_000),
                connect: Span::from_millis(60_000),
                idle: Span(800 * MILLI + random.below(3_000 * MILLI)),
                probe: Span(60 * MILLI + random.below(140 * MILLI)),
                suspect: Span(250 * MILLI + random.below(750 * MILLI)),
            },
            horizon: (2_000 + random.below(3_000)) * MILLI + if class == Class::Apart { APART_LONGER } else { 0 },
            faults: match class {
                Class::Calm => 0,
                Class::Spaced => 3,
                // So few that the others are a quorum for the most part.
                Class::Apart => 1 + random.below(4),
                _ => 3 + random.below(9),
            },
            recovers_within: Span::from_millis(if count > LARGE { 4_000 } else { 15_000 }),
            // Hellos and outcomes carry whole views.
            encodes_every: if count > LARGE { count as u64 } else { 1 },
        }
    }
}

/// Exact averages close every round, so that joiners can come in.
fn algorithm(random: &mut Random) -> Algorithm {
    let frequency = 2 + random.below(4);
    let outer = Outer { frequency, optimizer: OuterOptimizer::SlowMo { alpha: 1.0, beta: 0.5 }, sharded: true, average: true };
    let base = match random.below(8) {
        0..4 => Base::Sgp(gossip(random)),
        4..6 => Base::LocalSgd { frequency: 1 + random.below(3) },
        6 => Base::AllReduce,
        _ => Base::None,
    };
    let average_every = (matches!(base, Base::Sgp(_)) && random.once_in(4)).then(|| 1 + random.below(5));
    let buffers = if random.once_in(2) { BufferStrategy::Maintain } else { BufferStrategy::Reset };
    Algorithm { base, outer: Some(outer), average_every, buffers, round_wire: WireType::Float32 }
}

fn gossip(random: &mut Random) -> Gossip {
    let staleness = random.below(4) as u32;
    let late_peers = if staleness > 0 && random.once_in(3) { LatePeers::Skip } else { LatePeers::Wait };
    let topology = match random.below(8) {
        0 => TopologyName::Ring,
        1 => TopologyName::BipartiteExponential,
        2 => TopologyName::Complete,
        3 => TopologyName::BandwidthAware,
        _ => TopologyName::Exponential,
    };
    Gossip { peers_per_step: 1 + random.below(5).saturating_sub(3) as u32, staleness, topology, late_peers, wire: WireType::Float32 }
}

/// Only where steps are not left out: a node that jumps to where its peers are has not seen all samples that count as its own.
fn samples(random: &mut Random, algorithm: &Algorithm) -> Option<sampler::Settings> {
    let gossips = matches!(algorithm.base, Base::Sgp(_));
    let elastic = random.once_in(2) && !gossips;
    elastic.then(|| sampler::Settings { samples: 20 + random.below(200), batch: 1 + random.below(4), seed: 7 })
}
