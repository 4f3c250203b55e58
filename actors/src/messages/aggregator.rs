//! Messages to the aggregator.

use super::worker::Exchanged;
use crate::buffers::{ChunkedBuffer, Frozen};
use crate::data::{Basis, Buffers, WholeState};
use crate::error::ExchangeError;
use slowmo_protocol::node::{Arrive, ToAggregator};
use tokio::sync::oneshot;

/// Messages to the aggregator.
pub enum AggregatorMessage {
    /// A worker arrived at an exchange.
    Arrive(Box<Arrival>),
    /// Another part of the node sends the aggregator a message.
    Told(ToAggregator<Buffers>),
    /// The node's own slow step is done.
    WholeStepDone(Box<WholeState>, ChunkedBuffer),
    /// A worker leaves in an orderly way.
    Leave {
        /// Index of the worker.
        worker: usize,
        /// Answered when the node may end.
        reply: oneshot::Sender<()>,
    },
    /// A worker's handle is gone without leaving.
    Gone {
        /// Index of the worker.
        worker: usize,
        /// The error that the other workers get.
        error: ExchangeError,
    },
}

/// A worker's arrival at an exchange, and the data that it passes. The handle of a worker has at
/// most one exchange in progress.
pub struct Arrival {
    /// The request.
    pub arrive: Arrive<Buffers>,
    /// The base optimizer's buffers, for joining nodes and for a checkpoint, from worker 0.
    pub optimizer_transfer: Option<Frozen>,
    /// The slow momentum of the whole model from which bootstrap continues, from worker 0.
    pub momentum: Option<Frozen>,
    /// The inputs of the contribution, if trace events are recorded.
    pub basis: Basis,
    /// Receives the result.
    pub reply: oneshot::Sender<Result<Exchanged, ExchangeError>>,
}
