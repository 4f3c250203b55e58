//! Trace of a run: a sequence of events, in the same format for the simulation, real actors and
//! real processes, so that one set of invariants checks all of them. In a file, each line is one
//! JSON object.
//!
//! Numbers are exact: digests and lineages are written in hexadecimal, because JSON's numbers are
//! not wide enough for them.

mod digest;
mod fault;
mod hexadecimal;

pub use digest::{Digest, digest, digest_values};
pub use fault::{Fault, Link, Timed};

use crate::algorithm::OuterOptimizer;
use crate::coordinator::{self, Outcome, RoundKind, Voter, Voters};
use crate::ident::{Epoch, Incarnation, Lineage, NodeId, Round, ShardId, Step};
use crate::policy::Quorum;
use crate::time::{Instant, Span};
use serde::{Deserialize, Serialize};

/// An event and its time, in microseconds since the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Time of the event.
    pub at: Instant,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// One incarnation of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Start {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// A position in history: the outcome of a round of a lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The lineage.
    #[serde(with = "hexadecimal::lineage")]
    pub lineage: Lineage,
    /// The round.
    pub round: Round,
}

/// The way in which a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Killed, without notice.
    Killed,
    /// Left the cluster in order.
    Left,
    /// Failed with an error.
    Failed,
}

/// Settings of a run that the invariants need before it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Seed of the run.
    pub seed: u64,
    /// The quorum rule.
    pub quorum: Quorum,
    /// `R`: replicas of a shard beside its owner.
    pub replicas: usize,
    /// Number of groups of the nodes: with several, sums are rounded in another order than that of
    /// the ids.
    #[serde(default = "one_group")]
    pub groups: u32,
    /// Number of parameters of the model; 0 if unknown.
    pub parameters: u64,
    /// Whether slow momentum is kept in shards.
    pub sharded: bool,
    /// Optimizer of the slow step, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OuterOptimizer>,
    /// Time after the last fault within which a round must be decided; after that, all live nodes
    /// must be members with equal parameters.
    pub recovers_within: Span,
    /// Number of samples of an epoch, if the training follows an elastic sampler; 0 if that number
    /// is unknown.
    pub samples: Option<u64>,
}

const fn one_group() -> u32 {
    1
}

/// A decided outcome, as a node applies it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// The history and the round.
    #[serde(flatten)]
    pub place: Place,
    /// The history that the round began in.
    #[serde(with = "hexadecimal::lineage")]
    pub began_in: Lineage,
    /// Kind of the round.
    pub kind: RoundKind,
    /// Inner step of the round.
    pub step: Step,
    /// `γ` of a slow step.
    pub gamma: f32,
    /// Nodes whose contributions were averaged, ascending.
    pub contributors: Vec<NodeId>,
    /// Nodes that took part, ascending.
    pub participants: Vec<NodeId>,
    /// The members of the view that it began with, ascending by node.
    pub members: Vec<Start>,
    /// The number of the next view.
    pub epoch: Epoch,
    /// The members of the next view, ascending by node.
    pub next: Vec<Start>,
    /// Members of the next view that start to vote one entry later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<NodeId>,
    /// Voters of the next round that are not members of its view.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retained: Vec<Start>,
    /// Leader of the next round; it also breaks ties in its votes.
    pub leader: NodeId,
    /// Shards without a holder after this round.
    pub absent: Vec<ShardId>,
    /// Number of shards whose momentum restarted at zero since the bootstrap.
    pub momentum_lost: u64,
}

/// The votes behind a leader's decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Votes {
    /// Nodes that voted for it, ascending.
    pub accepted: Vec<NodeId>,
    /// The voters of the round, ascending by node.
    pub voters: Vec<Start>,
    /// The voter that makes exactly half of the voters a quorum.
    pub tie_breaker: Option<NodeId>,
}

impl From<&coordinator::Votes> for Votes {
    fn from(votes: &coordinator::Votes) -> Self {
        let start = |voter: &Voter| Start {
            node: voter.node,
            incarnation: voter.incarnation,
        };
        let voters = votes.voters.iter().map(start).collect();
        Self {
            accepted: votes.accepted.clone(),
            voters,
            tie_breaker: votes.voters.tie_breaker(),
        }
    }
}

/// State of one shard at one of its holders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// The shard.
    pub shard: ShardId,
    /// Digest of its anchor and slow momentum.
    #[serde(with = "hexadecimal::digest")]
    pub digest: u64,
    /// Its anchor; empty if only digests are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchor: Vec<f64>,
    /// Its slow momentum; empty if only digests are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub momentum: Vec<f64>,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins.
    Begun(Setup),
    /// A fault was injected into the cluster.
    Faulted {
        /// The fault.
        #[serde(flatten)]
        fault: Fault,
    },
    /// From now on no faults are injected, and all links are healthy.
    Quiet,
    /// A node started.
    Started(Start),
    /// A node ended.
    Ended {
        /// The node and its incarnation.
        #[serde(flatten)]
        start: Start,
        /// The way in which it ended.
        end: End,
    },
    /// A node froze its contribution to a round.
    Contributed {
        /// The node and its incarnation.
        #[serde(flatten)]
        start: Start,
        /// The lineage that it works in.
        #[serde(with = "hexadecimal::lineage")]
        lineage: Lineage,
        /// The round it works towards.
        round: Round,
        /// The last outcome whose parameters it had taken when it computed this; none before the
        /// bootstrap.
        after: Option<Place>,
        /// Its push-sum weight.
        weight: f64,
        /// The values; empty if they are not recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        values: Vec<f64>,
        /// The samples used for it since the previous round, as positions of the sample stream:
        /// `from`, `to` (exclusive).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        samples: Vec<(u64, u64)>,
    },
    /// A node applied a decided outcome.
    Applied {
        /// The node and its incarnation.
        #[serde(flatten)]
        start: Start,
        /// The decided outcome.
        #[serde(flatten)]
        decided: Box<Decided>,
        /// Digest of the values that the round produced; these are bitwise identical on every
        /// member.
        #[serde(with = "hexadecimal::digest")]
        digest: u64,
        /// The values; empty if only their digest is recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        values: Vec<f64>,
        /// The shards that it holds from now on, ascending; empty if they are not recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<Held>,
        /// Whether the outcome leaves this node out because it has handed over.
        drained: bool,
        /// The votes that decided it, if this node led.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        votes: Option<Votes>,
    },
    /// A node is no longer a member and rejoins.
    Resigned(Start),
    /// Push-sum mass that a node answers for in the current round, and the mass that it should have
    /// by all that it sent, accepted and got back: weight first, then values if they are recorded.
    Mass {
        /// The node and its incarnation.
        #[serde(flatten)]
        start: Start,
        /// The round that the masses belong to.
        #[serde(flatten)]
        place: Place,
        /// Actual mass: its own, that of messages held for the next mix, and that in escrow.
        found: Vec<f64>,
        /// Expected mass: its mass at the start of the round, minus what others have of it, plus
        /// what it has of others.
        expected: Vec<f64>,
    },
    /// Current level of a bounded quantity.
    Gauge {
        /// The node and its incarnation.
        #[serde(flatten)]
        start: Start,
        /// The name of the bound.
        name: String,
        /// Current level.
        value: u64,
        /// Its bound.
        bound: u64,
    },
    /// Loss that a worker reports.
    Loss {
        /// The node and its incarnation.
        #[serde(flatten)]
        start: Start,
        /// The inner step.
        step: Step,
        /// The loss.
        #[serde(with = "crate::real")]
        loss: f64,
    },
    /// The run is over.
    Over,
}

impl Decided {
    /// The record of `outcome`, for a round that began in lineage `began_in` with `members` and was
    /// carried by `participants`.
    #[must_use]
    pub fn new(
        outcome: &Outcome,
        began_in: Lineage,
        members: Vec<Start>,
        participants: Vec<NodeId>,
    ) -> Self {
        let next = outcome.view.members().iter().map(|member| Start {
            node: member.id,
            incarnation: member.incarnation,
        });
        Self {
            place: Place {
                lineage: outcome.lineage,
                round: outcome.round,
            },
            began_in,
            kind: outcome.spec.kind,
            step: outcome.spec.step,
            gamma: outcome.spec.gamma,
            contributors: outcome.contributors.clone(),
            participants,
            members,
            epoch: outcome.view.epoch(),
            next: next.collect(),
            waiting: outcome.waiting.clone(),
            retained: outcome
                .retained
                .iter()
                .map(|voter| Start {
                    node: voter.id,
                    incarnation: voter.incarnation,
                })
                .collect(),
            leader: outcome.leader,
            absent: outcome.absent.clone(),
            momentum_lost: outcome.momentum_lost,
        }
    }

    /// The voters of the next round.
    #[must_use]
    pub fn next_voters(&self) -> Voters {
        let voting = self
            .next
            .iter()
            .filter(|start| !self.waiting.contains(&start.node));
        let voter = |start: &Start| Voter {
            node: start.node,
            incarnation: start.incarnation,
        };
        Voters::new(
            voting.chain(&self.retained).map(voter).collect(),
            self.leader,
        )
    }
}
