//! What workers ask for, what happens to the aggregator, and what it asks its shell for.

use crate::coordinator::{Outcome, RoundKind, RoundSpec};
use crate::ident::{Round, Step};
use crate::schedule::{Due, Exchange};
use crate::time::Span;
use std::sync::Arc;

/// What one worker asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Its inner step.
    pub step: Step,
    /// What it asks for.
    pub task: Task,
    /// `γ`, the inner learning rate; 0 where no slow step is taken.
    pub gamma: f32,
    /// Values of its contribution.
    pub elements: u64,
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            step,
            task,
            gamma,
            elements,
        } = self;
        let task = match task {
            Task::Bootstrap => "the founding",
            Task::Gradients => "a gradient mean",
            Task::Due(Due {
                exchange: Exchange::Gossip,
                ..
            }) => "a gossip",
            Task::Due(Due {
                exchange: Exchange::Average,
                ..
            }) => "an exact average",
            Task::Due(_) => "a slow step",
        };
        write!(
            f,
            "{task} at {step} of {elements} values with learning rate {gamma}"
        )
    }
}

/// What a request asks the node for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The founding parameters.
    Bootstrap,
    /// What the schedule says is due.
    Due(Due),
    /// The exact mean of the gradients over all nodes.
    Gradients,
}

/// What happens to the aggregator.
#[derive(Clone, Debug)]
pub enum In {
    /// A worker arrived at an exchange.
    Arrive {
        /// Its index on the node.
        worker: usize,
        /// What it asks for.
        request: Request,
    },
    /// A round was decided, whether or not the workers wait for one.
    RoundDecided {
        /// What.
        outcome: Arc<Outcome>,
        /// The outcome leaves this node out.
        drained: bool,
    },
    /// The gossip is complete.
    GossipDone {
        /// The inner step that it belongs to.
        step: Step,
        /// The push-sum weight of the values.
        weight: f64,
        /// Nodes whose values were mixed, this one included.
        contributors: usize,
        /// The inner step that follows.
        next_step: Step,
    },
    /// What was in flight is in the contribution of this step now.
    Settled {
        /// The inner step.
        step: Step,
        /// The contribution's push-sum weight.
        weight: f64,
    },
    /// The node's own slow step is done.
    WholeStepDone,
    /// The exchange failed.
    Failed,
    /// The others went on without this node, which wanted to leave: it takes part in nothing any
    /// more.
    Drained,
    /// Time passed.
    Tick,
}

/// What the aggregator asks its shell for.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Let the coordinator contribute.
    Round {
        /// The round being worked towards.
        round: Round,
        /// What this node expects the round to be.
        spec: RoundSpec,
        /// The node's push-sum weight.
        weight: f64,
    },
    /// Let the gossip peer gossip.
    Gossip {
        /// The inner step.
        step: Step,
        /// The round being worked towards.
        round: Round,
    },
    /// Let the gossip peer bring in what is in flight, before an exact average.
    Settle {
        /// The inner step.
        step: Step,
        /// The round being worked towards.
        round: Round,
    },
    /// Take the slow step on the node's whole copy.
    WholeStep {
        /// On which values.
        values: Values,
        /// `γ`.
        gamma: f32,
    },
    /// Hand every waiting worker the result.
    Release {
        /// Whose values the workers get.
        values: Values,
        /// The node's push-sum weight now.
        weight: f64,
        /// The decided round, if one was.
        outcome: Option<Arc<Outcome>>,
        /// Nodes that were averaged with, this one included.
        contributors: usize,
        /// The inner step that follows.
        next_step: Step,
        /// The outcome leaves this node out.
        drained: bool,
    },
    /// Tell every waiting worker that its gradients stay as they are: parameters wait for it, at
    /// its next step.
    Unchanged,
    /// The node missed more means of gradients than it can catch up with: it must join again.
    /// Whoever waits goes on waiting, for the parameters with which the node is admitted.
    Behind,
    /// Tell every waiting worker that the node has left the cluster.
    Drained,
    /// Tell every waiting worker that others of the node did not come.
    Missing {
        /// Which.
        workers: Vec<usize>,
        /// How long they were waited for.
        waited: Span,
    },
    /// Tell every waiting worker that they asked for different things.
    Disagree {
        /// The worker that arrived last.
        worker: usize,
        /// What it asked for.
        asked: Request,
        /// What the workers before it asked for.
        before: Request,
    },
}

/// Where values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// From the round that the result names.
    Decided,
    /// From the gossip that is complete.
    Gossiped,
    /// From the node's own slow step.
    Stepped,
    /// The node's contribution as it was: nothing was exchanged.
    Own,
}

impl Request {
    /// Whether a round of this spec is what was asked for.
    pub(super) fn is_answered_by(&self, spec: RoundSpec) -> bool {
        let kind = match self.task {
            Task::Bootstrap => RoundKind::Bootstrap,
            Task::Gradients => RoundKind::Gradients,
            Task::Due(Due {
                exchange: Exchange::SlowRound,
                ..
            }) => RoundKind::Slow,
            Task::Due(_) => RoundKind::Average,
        };
        self.step == spec.step && kind == spec.kind
    }
}
