//! Why an exchange between nodes failed. Parameters, anchor and momentum are what they were before
//! it.

use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::RoundError;
use slowmo_protocol::membership::BootstrapError;
use slowmo_protocol::node::Failure;
use slowmo_protocol::time::Span;

/// Why an exchange failed; nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExchangeError {
    /// The founding view did not form.
    #[error(transparent)]
    Bootstrapping(#[from] BootstrapError),
    /// The round ended without an outcome.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// The workers of a node asked for different things.
    #[error(
        "worker {worker} of this node asked for {asked}, the workers before it for {before}; call the same operations with the same learning rate on every worker"
    )]
    WorkersDisagree {
        /// The worker that arrived last.
        worker: usize,
        /// What it asked for.
        asked: Box<Request>,
        /// What the others asked for.
        before: Box<Request>,
    },
    /// Other workers of the node did not come.
    #[error("workers {workers:?} of this node did not come within {} s: every one of its `devices` workers needs a thread that takes its handle and makes the same calls", waited.as_millis() / 1000)]
    WorkersMissing {
        /// Which.
        workers: Vec<usize>,
        /// How long they were waited for.
        waited: Span,
    },
    /// Another worker of the node left while this one waited.
    #[error("worker {0} of this node left: the others cannot go on without it")]
    WorkerLeft(usize),
    /// The gradients were not averaged: this node was passed over, and new parameters wait for it
    /// at its next step.
    #[error("this node was passed over: new parameters wait for it at its next step")]
    Excluded,
    /// The node has left the cluster in order.
    #[error("this node has left the cluster: end the training loop and call leave")]
    Drained,
    /// The node's actors have stopped.
    #[error("the node's runtime has stopped; see its log for the first error")]
    Stopped,
}

impl From<Failure> for ExchangeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Bootstrapping(error) => Self::Bootstrapping(error),
            Failure::Round(error) => Self::Round(error),
            Failure::DataMissing(round) => {
                tracing::error!(
                    round = round.0,
                    "a decided round does not cover the model: the node stops here"
                );
                Self::Stopped
            }
        }
    }
}
