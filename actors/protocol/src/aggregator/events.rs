//! Requests of the workers, and the events and effects of the aggregator.

use crate::coordinator::{Outcome, RoundKind, RoundSpec};
use crate::ident::{Round, Step};
use crate::schedule::{Due, Exchange};
use crate::time::Span;
use std::sync::Arc;

/// The request of one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The worker's inner step.
    pub step: Step,
    /// The requested exchange.
    pub task: Task,
    /// `γ`, the inner learning rate; 0 where no slow step is taken.
    pub gamma: f32,
    /// Number of values in its contribution.
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
            Task::Bootstrap => "the bootstrap",
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

/// The exchange that a worker requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// The bootstrap parameters.
    Bootstrap,
    /// The exchange that is due by the schedule.
    Due(Due),
    /// The exact mean of the gradients over all nodes.
    Gradients,
}

impl Task {
    /// The call of a worker with which it requests this.
    #[must_use]
    pub fn call(self) -> &'static str {
        match self {
            Self::Bootstrap => "synchronize",
            Self::Due(_) => "step",
            Self::Gradients => "average_gradients",
        }
    }
}

/// Events that the aggregator handles.
#[derive(Clone, Debug)]
pub enum In {
    /// A worker arrived at an exchange.
    Arrive {
        /// Its index on the node.
        worker: usize,
        /// Its request.
        request: Request,
    },
    /// A round was decided, whether or not the workers wait for one.
    RoundDecided {
        /// The decided outcome.
        outcome: Arc<Outcome>,
        /// Whether the outcome leaves this node out because it drained.
        drained: bool,
    },
    /// The gossip is complete.
    GossipDone {
        /// The inner step that it belongs to.
        step: Step,
        /// The push-sum weight of the values.
        weight: f64,
        /// Number of nodes whose values were mixed, this one included.
        contributors: usize,
        /// The inner step that follows.
        next_step: Step,
    },
    /// The flush is done: messages that were in flight are now in the contribution of this step.
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
    /// The others went on without this node, which wanted to leave: it no longer takes part in
    /// anything.
    Drained,
    /// Time passed.
    Tick,
}

/// Effects that the aggregator asks its shell to execute.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Have the coordinator contribute to a round.
    Round {
        /// The round being worked towards.
        round: Round,
        /// The round's spec as this node expects it.
        spec: RoundSpec,
        /// The node's push-sum weight.
        weight: f64,
    },
    /// Have the gossip peer gossip.
    Gossip {
        /// The inner step.
        step: Step,
        /// The round being worked towards.
        round: Round,
    },
    /// Have the gossip peer flush: mix in-flight messages before an exact average.
    Settle {
        /// The inner step.
        step: Step,
        /// The round being worked towards.
        round: Round,
    },
    /// Take the slow step on the node's whole copy.
    WholeStep {
        /// The values to take it on.
        values: Values,
        /// `γ`, the inner learning rate.
        gamma: f32,
    },
    /// Hand every waiting worker the result.
    Release {
        /// Source of the values that the workers get.
        values: Values,
        /// The node's push-sum weight now.
        weight: f64,
        /// The decided outcome, if there is one.
        outcome: Option<Arc<Outcome>>,
        /// Number of nodes whose values were averaged, this one included.
        contributors: usize,
        /// The inner step that follows.
        next_step: Step,
        /// Whether the outcome leaves this node out because it drained.
        drained: bool,
    },
    /// Tell the coordinator that the workers take the result of a round that was decided while they
    /// did not wait for it.
    TrainingGoesOn,
    /// Tell every waiting worker that its gradients stay unchanged: decided parameters are pending,
    /// and the workers get them at their next step.
    Unchanged,
    /// The node missed more means of gradients than it can catch up with: it must rejoin. Waiting
    /// workers keep waiting for the parameters with which the node is admitted.
    Behind,
    /// Tell every waiting worker that the node has left the cluster.
    Drained,
    /// Tell every waiting worker that other workers of the node did not arrive.
    Missing {
        /// Indices of the missing workers.
        workers: Vec<usize>,
        /// Time that was waited for them.
        waited: Span,
    },
    /// Tell every waiting worker that the workers made different requests.
    Disagree {
        /// The worker that arrived last.
        worker: usize,
        /// Its request.
        asked: Request,
        /// The request of the workers before it.
        before: Request,
    },
}

/// Source of the values of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The decided round that the result names.
    Decided,
    /// The completed gossip.
    Gossiped,
    /// The node's own slow step.
    Stepped,
    /// The node's contribution, unchanged: nothing was exchanged.
    Own,
}

impl Request {
    /// Whether a round with this spec answers the request.
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
