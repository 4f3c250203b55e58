//! Errors of exchanges between nodes. A failed exchange leaves parameters, anchor and momentum
//! unchanged.

use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::RoundError;
use slowmo_protocol::membership::BootstrapError;
use slowmo_protocol::node::Failure;
use slowmo_protocol::time::Span;

/// Error of a failed exchange; nothing was changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExchangeError {
    /// The bootstrap view did not form.
    #[error(transparent)]
    Bootstrapping(#[from] BootstrapError),
    /// The round ended without an outcome.
    #[error(transparent)]
    Round(#[from] RoundError),
    /// The workers of a node requested different operations.
    #[error(
        "worker {worker} of this node asked for {asked}, the workers before it asked for {before}; \
         make the same calls with the same learning rate on every worker"
    )]
    WorkersDisagree {
        /// The worker that arrived last.
        worker: usize,
        /// The request of that worker.
        asked: Box<Request>,
        /// The request of the workers before it.
        before: Box<Request>,
    },
    /// Other workers of the node did not arrive in time.
    #[error(
        "{} of this node did not call {call} within {} s (round_timeout_ms): {}",
        Workers(workers), waited.as_millis() / 1000, EachNeedsAThread(*devices)
    )]
    WorkersMissing {
        /// The missing workers.
        workers: Vec<usize>,
        /// Number of the node's workers.
        devices: usize,
        /// The call that they did not make.
        call: &'static str,
        /// Time that the node waited for them.
        waited: Span,
    },
    /// Another worker of the node left while this one waited.
    #[error("worker {0} of this node left: the others cannot continue without it")]
    WorkerLeft(usize),
    /// The gradients were not averaged because this node was excluded from the round; it receives
    /// new parameters at its next step.
    #[error("this node was excluded from the round: its next step takes the new parameters")]
    Excluded,
    /// The node has left the cluster in an orderly way.
    #[error("this node has left the cluster: end the training loop and call leave")]
    Drained,
    /// The node's actors have stopped.
    #[error("the node's runtime has stopped; see its log for the first error")]
    Stopped,
}

/// Workers of a node in words.
pub(crate) struct Workers<'a>(pub &'a [usize]);

impl std::fmt::Display for Workers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let listed = |workers: &[usize]| {
            let words: Vec<_> = workers.iter().map(ToString::to_string).collect();
            words.join(", ")
        };
        match self.0 {
            [worker] => write!(f, "worker {worker}"),
            [most @ .., last] => write!(f, "workers {} and {last}", listed(most)),
            [] => f.write_str("no worker"),
        }
    }
}

/// Advice for the program of a node with so many workers.
pub(crate) struct EachNeedsAThread(pub usize);

impl std::fmt::Display for EachNeedsAThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(devices) = self;
        write!(
            f,
            "devices = {devices}, so each worker from Runtime::worker(0) to Runtime::worker({}) \
             needs a thread that makes the same calls",
            devices.saturating_sub(1)
        )
    }
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
