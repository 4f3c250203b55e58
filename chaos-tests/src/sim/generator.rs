//! Draws schedules: a seed and a range of node numbers determine one. Schedules of older builds
//! that matter are kept as files, so the generator may change.

use super::config::{Class, Config, MILLI, Waits};
use super::schedule::{Act, Millis, Schedule, Timed, Way};
use super::swarm;
use crate::random::Random;
use slowmo_protocol::algorithm::{
    Algorithm, Base, BufferStrategy, Gossip, LatePeers, Outer, OuterOptimizer, TopologyName,
    WireType,
};
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::sampler;
use slowmo_protocol::time::Span;
use std::ops::RangeInclusive;

/// Distance between the ids of the bootstrap members: other ids fit between them.
const ID_GAP: u64 = 5;

/// See [`CLASSES`].
const APART_ONCE_IN: u64 = 3;
/// Additional time for which the faults of [`Class::Apart`] continue: it takes seconds until the
/// others leave a member out, and as long until it is back.
const APART_LONGER: u64 = 10_000 * MILLI;

/// Number of nodes above which time and frames are saved: the simulated work grows with the square
/// of the number.
const LARGE: usize = 64;

/// The classes that are drawn first, calm ones first. [`Class::Apart`] replaces one in
/// `APART_ONCE_IN` of [`Class::Network`], so that the other seeds keep their runs.
const CLASSES: [Class; 5] = [
    Class::Calm,
    Class::Spaced,
    Class::Churn,
    Class::Network,
    Class::Storm,
];

/// Base of the ids of new nodes; one in four new nodes gets id 0 or 1, below the bootstrap members.
const NEW_IDS: u64 = 500;
/// Maximum time that a node is stopped, or a link is disturbed, in microseconds.
const LONG: u64 = 3_000 * MILLI;
/// Maximum time that members cannot reach each other in [`Class::Apart`], in microseconds.
const APART: u64 = 12_000 * MILLI;

/// Fewest steps of a training that ends, and the most further ones.
const STEPS_MIN: u64 = 15;
const STEPS_MORE: u64 = 60;

/// The kinds of faults that are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kinds {
    /// The original kinds.
    #[default]
    Usual,
    /// The original kinds, in a training that comes to its end.
    Ends,
    /// Each seed draws a subset of all kinds of faults (module `swarm`).
    Swarm,
}

/// The schedule of `seed` with a number of nodes in this range.
#[must_use]
pub fn draw(seed: u64, nodes: &RangeInclusive<usize>, kinds: Kinds) -> Schedule {
    if kinds == Kinds::Swarm {
        return swarm::draw(seed, nodes);
    }
    let (mut config, faults) = settings(seed, nodes);
    if kinds == Kinds::Ends {
        config.trains_until = Some(STEPS_MIN + Random::new(seed, 6).below(STEPS_MORE));
    }
    let mut planner = Planner::new(Random::new(seed, 4), &config);
    let begins = 300 * MILLI;
    for index in 0..faults {
        let span = config.horizon.saturating_sub(begins);
        let at = match config.class {
            // Faults are far apart, and the last one is well before the end.
            Class::Spaced => begins + index * span / faults,
            _ => begins + planner.random.below(span),
        };
        planner.plan(at);
    }
    let faults = planner.finish();
    Schedule {
        what: String::new(),
        config,
        faults,
    }
}

/// The configuration of a seed's run, and its number of faults.
pub(super) fn settings(seed: u64, nodes: &RangeInclusive<usize>) -> (Config, u64) {
    let mut random = Random::new(seed, 1);
    let class = match CLASSES[random.below(16).min(15) as usize * CLASSES.len() / 16] {
        Class::Network if Random::new(seed, 5).once_in(APART_ONCE_IN) => Class::Apart,
        class => class,
    };
    let count = random.between(*nodes.start() as u64, *nodes.end() as u64) as usize;
    let founders: Vec<NodeId> = (0..count as u64)
        .map(|rank| NodeId(rank * ID_GAP + 2))
        .collect();
    // Fewer than half of them could bootstrap two clusters.
    let min_nodes = if random.once_in(3) {
        count / 2 + 1
    } else {
        count
    };
    let quorum = if matches!(class, Class::Storm | Class::Churn) && random.once_in(4) {
        Quorum::Survivors
    } else {
        Quorum::Majority
    };
    let algorithm = algorithm(&mut random);
    let compute = 15 * MILLI + random.below(40 * MILLI);
    let delay_max = if random.once_in(5) {
        15 * MILLI
    } else {
        2 * MILLI
    };
    let grace = Span(150 * MILLI + random.below(400 * MILLI));
    let config = Config {
        seed,
        class,
        founders,
        min_nodes,
        quorum,
        replicas: random.below(4).min(2) as usize,
        // Drawn apart, so that seeds keep their other settings.
        groups: match Random::new(seed, 11).below(6) {
            0 => 2,
            1 => 3,
            _ => 1,
        },
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
        horizon: (2_000 + random.below(3_000)) * MILLI
            + if class == Class::Apart {
                APART_LONGER
            } else {
                0
            },
        recovers_within: Span::from_millis(if count > LARGE { 4_000 } else { 15_000 }),
        // Hellos and outcomes carry whole views.
        encodes_every: if count > LARGE { count as u64 } else { 1 },
        goes_on_within: None,
        settles: None,
        true_sizes: false,
        first_incarnation: 1,
        trains_until: None,
    };
    let faults = match class {
        Class::Calm => 0,
        Class::Spaced => 3,
        // Few faults, so that the other nodes are usually a quorum.
        Class::Apart => 1 + random.below(4),
        _ => 3 + random.below(9),
    };
    (config, faults)
}

/// Draws an algorithm. Exact averages close every round, so that joiners can come in.
fn algorithm(random: &mut Random) -> Algorithm {
    let frequency = 2 + random.below(4);
    let outer = Outer {
        frequency,
        optimizer: OuterOptimizer::SlowMo {
            alpha: 1.0,
            beta: 0.5,
        },
        sharded: true,
        average: true,
    };
    let base = match random.below(8) {
        0..4 => Base::Sgp(gossip(random)),
        4..6 => Base::LocalSgd {
            frequency: 1 + random.below(3),
        },
        6 => Base::AllReduce,
        _ => Base::None,
    };
    let average_every =
        (matches!(base, Base::Sgp(_)) && random.once_in(4)).then(|| 1 + random.below(5));
    let buffers = if random.once_in(2) {
        BufferStrategy::Maintain
    } else {
        BufferStrategy::Reset
    };
    Algorithm {
        base,
        outer: Some(outer),
        average_every,
        buffers,
        round_wire: WireType::Float32,
    }
}

fn gossip(random: &mut Random) -> Gossip {
    let staleness = random.below(4) as u32;
    let late_peers = if staleness > 0 && random.once_in(3) {
        LatePeers::Skip
    } else {
        LatePeers::Wait
    };
    let topology = match random.below(8) {
        0 => TopologyName::Ring,
        1 => TopologyName::BipartiteExponential,
        2 => TopologyName::Complete,
        3 => TopologyName::BandwidthAware,
        _ => TopologyName::Exponential,
    };
    Gossip {
        peers_per_step: 1 + random.below(5).saturating_sub(3) as u32,
        staleness,
        topology,
        late_peers,
        wire: WireType::Float32,
    }
}

/// Draws sampler settings, only where steps are not skipped: a node that jumps to its peers' step
/// has not seen all samples that count as its own.
fn samples(random: &mut Random, algorithm: &Algorithm) -> Option<sampler::Settings> {
    let gossips = matches!(algorithm.base, Base::Sgp(_));
    let elastic = random.once_in(2) && !gossips;
    elastic.then(|| sampler::Settings {
        samples: 20 + random.below(200),
        batch: 1 + random.below(4),
        seed: 7,
    })
}

/// The new state of links.
enum Bad {
    Cut,
    Way(Way),
}

impl Bad {
    fn act(&self, from: Vec<NodeId>, to: Vec<NodeId>, one_way: bool, healed: u64) -> Act {
        let until = Some(Millis(healed));
        match *self {
            Self::Cut => Act::Cut {
                from,
                to,
                one_way,
                until,
            },
            Self::Way(way) => Act::Links {
                from,
                to,
                one_way,
                until,
                way,
            },
        }
    }
}

pub(super) struct Planner<'a> {
    random: Random,
    config: &'a Config,
    ids: Vec<NodeId>,
    new: u64,
    faults: Vec<Timed>,
}

impl<'a> Planner<'a> {
    pub fn new(random: Random, config: &'a Config) -> Self {
        Self {
            random,
            config,
            ids: config.founders.clone(),
            new: 0,
            faults: Vec::new(),
        }
    }

    /// The planned faults, in order.
    pub fn finish(mut self) -> Vec<Timed> {
        self.faults.sort_by_key(|timed| timed.at);
        self.faults
    }

    fn push(&mut self, at: u64, act: Act) {
        self.faults.push(Timed {
            at: Millis(at),
            act,
        });
    }

    /// Draws a victim. Every other fault hits one of the two lowest ids, since one of them leads.
    fn victim(&mut self) -> NodeId {
        let reach = if self.random.once_in(2) {
            2
        } else {
            self.ids.len() as u64
        };
        self.ids[self.random.below(reach.min(self.ids.len() as u64)) as usize]
    }

    fn newcomer(&mut self) -> NodeId {
        self.new += 1;
        let id = if self.random.once_in(4) {
            NodeId(self.new % 2)
        } else {
            NodeId(NEW_IDS + self.new)
        };
        if !self.ids.contains(&id) {
            self.ids.push(id);
        }
        id
    }

    fn plan(&mut self, at: u64) {
        let node = self.victim();
        let choice = self.random.below(16);
        self.plan_one(at, node, (self.config.class, choice));
    }

    /// Plans one of the kinds of faults that a class has.
    pub fn plan_kind(&mut self, at: u64, kind: (Class, u64)) {
        let node = self.victim();
        self.plan_one(at, node, kind);
    }

    fn plan_one(&mut self, at: u64, node: NodeId, kind: (Class, u64)) {
        match kind {
            (Class::Calm, _) => {}
            (Class::Network, choice) => self.plan_links(at, choice),
            (Class::Apart, choice) => self.plan_apart(at, choice),
            (Class::Storm, choice) if choice < 7 => {
                self.plan_links(at, self.random.clone().below(16))
            }
            (_, 0..3) => {
                self.push(at, Act::Kill { node });
                if self.random.once_in(2) {
                    let back = at + self.random.below(1_500 * MILLI);
                    self.push(back, Act::start(node));
                }
            }
            (_, 3..6) => {
                self.push(at, Act::Kill { node });
                let back = at + self.random.below(30 * MILLI);
                self.push(back, Act::start(node));
            }
            (_, 6 | 7) => {
                let lasts = Millis(self.random.below(LONG));
                self.push(at, Act::Pause { node, lasts });
            }
            (_, 8..11) => self.plan_arrival(at),
            (_, 11) => self.push(at, Act::Drain { node }),
            (_, 12) => {
                self.push(at, Act::Drain { node });
                let soon = at + self.random.below(200 * MILLI);
                self.push(soon, Act::Kill { node });
                let back = soon + self.random.below(200 * MILLI);
                self.push(back, Act::start(node));
            }
            (_, 13) => {
                let hundredths = 100 + self.random.below(900) as u32;
                self.push(at, Act::Slow { node, hundredths });
            }
            (_, 14) => {
                let takes = Millis(self.random.below(400 * MILLI));
                self.push(at, Act::SlowDisk { node, takes });
            }
            _ => {
                let millionths = 950_000 + self.random.below(100_000) as u32;
                self.push(at, Act::Drift { node, millionths });
            }
        }
    }

    /// Plans a new node, which may die, drain or pause while it joins.
    fn plan_arrival(&mut self, at: u64) {
        let node = self.newcomer();
        self.push(at, Act::start(node));
        let soon = at + self.random.below(400 * MILLI);
        match self.random.below(5) {
            0 => self.push(soon, Act::Kill { node }),
            1 => {
                let lasts = Millis(self.random.below(LONG));
                self.push(soon, Act::Pause { node, lasts });
            }
            2 => self.push(soon, Act::Drain { node }),
            _ => {}
        }
    }

    fn plan_links(&mut self, at: u64, choice: u64) {
        let node = self.victim();
        let other = self.ids[self.random.below(self.ids.len() as u64) as usize];
        let cut = &Bad::Cut;
        let healed = at + self.random.below(LONG);
        match choice {
            0 | 1 => self.push(at, Act::Break { one: node, other }),
            2..4 => {
                // One node hears no other, or no other hears it.
                let alone = vec![node];
                let rest = self.ids.clone();
                let (from, to) = if self.random.once_in(2) {
                    (alone, rest)
                } else {
                    (rest, alone)
                };
                self.links_for(at, healed, (from, to), cut);
            }
            4 | 5 => self.links_for(at, healed, (vec![node], vec![other]), cut),
            6..9 => {
                let (one, rest) = self.sides();
                self.both_ways(at, healed, (one, rest), cut);
            }
            9 | 10 => self.bridge(at, healed, node),
            11 | 12 => {
                let link = Bad::Way(Way {
                    delay: Millis(self.random.below(80 * MILLI)),
                    jitter: Millis(self.random.below(60 * MILLI)),
                    lost_per_million: self.random.below(200_000) as u32,
                    doubled_per_million: self.random.below(100_000) as u32,
                    ..Way::default()
                });
                let (one, rest) = self.sides();
                self.both_ways(at, healed, (one, rest), &link);
            }
            13 => {
                let link = Bad::Way(Way {
                    bytes_per_second: 2_000 + self.random.below(60_000),
                    ..Way::default()
                });
                let rest = self.ids.clone();
                self.links_for(at, healed, (vec![node], rest), &link);
            }
            _ => {
                // A link that flaps.
                for flap in 0..2 + self.random.below(4) {
                    let down = at + flap * 400 * MILLI;
                    let up = down + self.random.below(390 * MILLI);
                    self.both_ways(down, up, (vec![node], vec![other]), cut);
                }
            }
        }
    }

    /// Plans a cut between members, in one direction or both, while others reach both of them;
    /// sometimes one dies meanwhile.
    fn plan_apart(&mut self, at: u64, choice: u64) {
        let node = self.victim();
        let other = self.ids[self.random.below(self.ids.len() as u64) as usize];
        let cut = &Bad::Cut;
        let healed = at + self.random.below(APART);
        match choice {
            0..6 => self.both_ways(at, healed, (vec![node], vec![other]), cut),
            6..9 => self.links_for(at, healed, (vec![node], vec![other]), cut),
            9..12 => self.bridge(at, healed, node),
            12 | 13 => {
                let third = self.victim();
                self.both_ways(at, healed, (vec![node], vec![other, third]), cut);
            }
            _ => {
                self.both_ways(at, healed, (vec![node], vec![other]), cut);
                let dies = at + self.random.below(APART);
                let node = self.victim();
                self.push(dies, Act::Kill { node });
                let back = dies + self.random.below(LONG);
                self.push(back, Act::start(node));
            }
        }
    }

    /// Plans two sides, both of which only `node` can reach.
    fn bridge(&mut self, at: u64, healed: u64, node: NodeId) {
        let (one, mut rest) = self.sides();
        rest.retain(|id| *id != node);
        let one = one.into_iter().filter(|id| *id != node).collect();
        self.both_ways(at, healed, (one, rest), &Bad::Cut);
    }

    fn sides(&mut self) -> (Vec<NodeId>, Vec<NodeId>) {
        let ids = self.ids.clone();
        ids.into_iter().partition(|_| self.random.once_in(3))
    }

    fn both_ways(
        &mut self,
        at: u64,
        healed: u64,
        (from, to): (Vec<NodeId>, Vec<NodeId>),
        way: &Bad,
    ) {
        self.push(at, way.act(from, to, false, healed));
    }

    fn links_for(
        &mut self,
        at: u64,
        healed: u64,
        (from, to): (Vec<NodeId>, Vec<NodeId>),
        way: &Bad,
    ) {
        self.push(at, way.act(from, to, true, healed));
    }
}
