//! Configuration of a simulated run.

use serde::{Deserialize, Serialize};
use slowmo_protocol::algorithm::Algorithm;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::sampler;
use slowmo_protocol::time::Span;

/// One millisecond of simulated time.
pub const MILLI: u64 = 1_000;

/// The class of faults in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// No faults.
    Calm,
    /// Faults far apart: a round is decided between any two of them, and nothing may be lost.
    Spaced,
    /// Nodes die, come back, pause, join and leave.
    Churn,
    /// Links are cut in one or both directions, slow, lossy; connections break.
    Network,
    /// Links are cut for long between members while others reach both sides.
    Apart,
    /// All kinds of faults of the other classes, at any moment.
    Storm,
    /// Kinds of faults that the seed drew.
    Swarm,
    /// Faults from a schedule that somebody wrote.
    #[default]
    Written,
}

/// Configuration of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The seed of all randomness in the run.
    pub seed: u64,
    /// The class of faults.
    pub class: Class,
    /// The nodes that are started at the beginning.
    pub founders: Vec<NodeId>,
    /// Number of them that bootstrap the cluster; the others join it.
    pub min_nodes: usize,
    /// The quorum rule.
    pub quorum: Quorum,
    /// `R`: number of replicas of a shard beside its owner.
    pub replicas: usize,
    /// Number of groups that the nodes are in: values cross between two groups once for each shard.
    pub groups: u32,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// Number of values in the base optimizer's buffers, of which joiners get a copy; 0: none.
    pub buffers: usize,
    /// The algorithm that the nodes run.
    pub algorithm: Algorithm,
    /// Settings of the elastic sampler, if training follows one.
    pub samples: Option<sampler::Settings>,
    /// Number of inner steps after which the training of every node is over, and it leaves; `None`:
    /// it trains until the run ends.
    pub trains_until: Option<u64>,
    /// Minimum duration of an inner step, and maximum addition to it, in microseconds.
    pub compute: (u64, u64),
    /// Minimum travel time of a packet, and maximum addition to it, in microseconds.
    pub delay: (u64, u64),
    /// Maximum delay of a message between parts of a node, in microseconds.
    pub mail_delay_max: u64,
    /// Timeouts; see the configuration keys of the same names.
    pub waits: Waits,
    /// Time at which the faults are over, in microseconds.
    pub horizon: u64,
    /// Time after the faults within which everything must have recovered.
    pub recovers_within: Span,
    /// Time within which the live nodes must continue without the dead, before these come back;
    /// `None`: not checked.
    pub goes_on_within: Option<Span>,
    /// The run ends once every live node contributes again and this much time has passed since the
    /// faults; `None`: when all of `recovers_within` has passed.
    pub settles: Option<Span>,
    /// Whether control frames on links of limited rate have their encoded size; otherwise all have
    /// the same size.
    pub true_sizes: bool,
    /// Incarnation of the first start; each later start has the next one.
    pub first_incarnation: u64,
    /// Every n-th frame is encoded and decoded; 0: none.
    pub encodes_every: u64,
}

/// Timeouts with which nodes are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Wait for a straggler.
    pub grace: Span,
    /// Wait for a round of live members.
    pub round: Span,
    /// Wait for peers to appear.
    pub connect: Span,
    /// Wait for anything to be heard on a connection.
    pub idle: Span,
    /// Interval between probes.
    pub probe: Span,
    /// Wait for a suspected node to show that it is alive.
    pub suspect: Span,
}
