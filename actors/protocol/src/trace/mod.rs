//! What happened in a run, one event after the other: the same in the simulation, among real actors
//! and among real processes, so that one set of invariants judges all of them. As a file, one JSON
//! object a line.
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

/// An event and when it happened, in microseconds since the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at: Instant,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// One start of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Start {
    /// The node.
    pub node: NodeId,
    /// Which start of it.
    pub incarnation: Incarnation,
}

/// A place in history: the outcome of a round of a lineage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The history.
    #[serde(with = "hexadecimal::lineage")]
    pub lineage: Lineage,
    /// The round.
    pub round: Round,
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Without a word.
    Killed,
    /// It left in order.
    Left,
    /// By an error of its own.
    Failed,
}

/// What the invariants must know of a run before it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// What drives the run.
    pub seed: u64,
    /// Who may decide.
    pub quorum: Quorum,
    /// `R`: replicas of a shard beside its owner.
    pub replicas: usize,
    /// Parameters of the model; 0 where that is not known.
    pub parameters: u64,
    /// Whether slow momentum is kept in shards.
    pub sharded: bool,
    /// What takes the slow step, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OuterOptimizer>,
    /// Once faults are over, how soon a round must be decided, and then all who live be members
    /// with equal parameters.
    pub recovers_within: Span,
    /// Samples of an epoch, if the training follows an elastic sampler; 0 where their number is not
    /// known.
    pub samples: Option<u64>,
}

/// What was decided, as a node applies it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// The history and the round.
    #[serde(flatten)]
    pub place: Place,
    /// The history that the round began in.
    #[serde(with = "hexadecimal::lineage")]
    pub began_in: Lineage,
    /// What it did.
    pub kind: RoundKind,
    /// At which inner step.
    pub step: Step,
    /// `γ` of a slow step.
    pub gamma: f32,
    /// Whose contributions were averaged, ascending.
    pub contributors: Vec<NodeId>,
    /// Who took part, ascending.
    pub participants: Vec<NodeId>,
    /// The members of the view that it began with, ascending by node.
    pub members: Vec<Start>,
    /// The number of the next view.
    pub epoch: Epoch,
    /// The members of the next view, ascending by node.
    pub next: Vec<Start>,
    /// Members of the next view that vote one entry later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<NodeId>,
    /// Voters of the next round that are no members of its view.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retained: Vec<Start>,
    /// Who leads the next round, and breaks its ties.
    pub leader: NodeId,
    /// Shards without a holder after this round.
    pub absent: Vec<ShardId>,
    /// Shards whose momentum restarted at zero since the founding.
    pub momentum_lost: u64,
}

/// How a leader came to its decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Votes {
    /// Who voted for it, ascending.
    pub accepted: Vec<NodeId>,
    /// The voters of the round, ascending by node.
    pub voters: Vec<Start>,
    /// With whom half of them are a quorum.
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

/// One shard as a holder has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Which.
    pub shard: ShardId,
    /// Of its anchor and slow momentum.
    #[serde(with = "hexadecimal::digest")]
    pub digest: u64,
    /// Its anchor; empty where only digests are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub anchor: Vec<f64>,
    /// Its slow momentum; empty where only digests are recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub momentum: Vec<f64>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins.
    Begun(Setup),
    /// Somebody did something to the cluster.
    Faulted {
        /// What.
        #[serde(flatten)]
        fault: Fault,
    },
    /// From now on nobody does anything to it any more, and all links are well.
    Quiet,
    /// A node started.
    Started(Start),
    /// A node ended.
    Ended {
        /// Who.
        #[serde(flatten)]
        start: Start,
        /// How.
        end: End,
    },
    /// A node froze its contribution to a round.
    Contributed {
        /// Who.
        #[serde(flatten)]
        start: Start,
        /// The history it works in.
        #[serde(with = "hexadecimal::lineage")]
        lineage: Lineage,
        /// The round it works towards.
        round: Round,
        /// The last outcome whose parameters it had taken when it computed this; none before the
        /// founding.
        after: Option<Place>,
        /// Its push-sum weight.
        weight: f64,
        /// The values; empty where they are not recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        values: Vec<f64>,
        /// The samples that went into it since the round before, as positions of the sample stream:
        /// `from`, `to` (exclusive).
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        samples: Vec<(u64, u64)>,
    },
    /// A node applied a decided outcome.
    Applied {
        /// Who.
        #[serde(flatten)]
        start: Start,
        /// What was decided.
        #[serde(flatten)]
        decided: Box<Decided>,
        /// Of the values that the round made, the same bits on every member.
        #[serde(with = "hexadecimal::digest")]
        digest: u64,
        /// The values; empty where only their digest is recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        values: Vec<f64>,
        /// The shards that it holds from now on, ascending; empty where they are not recorded.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<Held>,
        /// The outcome leaves this node out: it has handed over.
        drained: bool,
        /// How it was decided, if this node led.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        votes: Option<Votes>,
    },
    /// A node is no member any more and joins again.
    Resigned(Start),
    /// Of a round under way, the push-sum mass that a node answers for, and what that should be by
    /// all that it sent, accepted and got back: weight first, then values where they are recorded.
    Mass {
        /// Who.
        #[serde(flatten)]
        start: Start,
        /// The round that the masses belong to.
        #[serde(flatten)]
        place: Place,
        /// Its own, what it holds for the next mix, and what it has in escrow.
        found: Vec<f64>,
        /// What it began the round with, less what others have of it, and what it has of others.
        expected: Vec<f64>,
    },
    /// A bounded thing, as full as it is.
    Gauge {
        /// Whose.
        #[serde(flatten)]
        start: Start,
        /// The name of the bound.
        name: String,
        /// How full.
        value: u64,
        /// Its bound.
        bound: u64,
    },
    /// What a worker reports of its training.
    Loss {
        /// Who.
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
    /// What `outcome` decided, for rounds that began in history `began_in` with `members`, and were
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

    /// Who votes on the next round.
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
