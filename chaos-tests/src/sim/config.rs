//! What a simulated run is like.

use serde::{Deserialize, Serialize};
use slowmo_protocol::algorithm::Algorithm;
use slowmo_protocol::ident::NodeId;
use slowmo_protocol::policy::Quorum;
use slowmo_protocol::sampler;
use slowmo_protocol::time::Span;

/// One millisecond of simulated time.
pub const MILLI: u64 = 1_000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// Kinds of faults that the seed drew.
    Swarm,
    /// What somebody wrote down.
    #[default]
    Written,
}

/// What a run is like.
#[derive(Clone, Debug, PartialEq)]
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
    /// How soon all must be well afterwards.
    pub recovers_within: Span,
    /// How soon those who live must go on without those who do not, before these come back; `None`:
    /// that is not looked at.
    pub goes_on_within: Option<Span>,
    /// The run ends once everybody who lives contributes again and so much time has passed since
    /// the faults; `None`: when all of `recovers_within` has.
    pub settles: Option<Span>,
    /// Control frames are as large on links of limited rate as they are encoded; else all are the
    /// same.
    pub true_sizes: bool,
    /// The incarnation of the first start; each start after it has the next one.
    pub first_incarnation: u64,
    /// Every so many-th frame is encoded and decoded; 0: none.
    pub encodes_every: u64,
}

/// Times that nodes are configured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
