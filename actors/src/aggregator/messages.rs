//! What the aggregator is told.

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::data::Buffers;
use crate::error::ExchangeError;
use crate::worker::{Basis, Exchanged};
use slowmo_protocol::node::{Arrive, ToAggregator};
use tokio::sync::oneshot;

/// Messages to the aggregator.
pub enum AggregatorMessage {
    /// A worker arrived at an exchange.
    Arrive(Arrival),
    /// Another part of the node tells it something.
    Told(ToAggregator<Buffers>),
    /// The node's own slow step is done.
    WholeStepDone(Box<super::WholeState>, ChunkedBuffer),
    /// A worker leaves in order.
    Leave {
        /// Which one.
        worker: usize,
        /// Answered when the node may go.
        reply: oneshot::Sender<()>,
    },
    /// A worker is gone without leaving.
    Gone {
        /// Which one.
        worker: usize,
        /// What the others are told.
        error: ExchangeError,
    },
}

/// A worker at an exchange, and what it lends.
pub struct Arrival {
    /// The request.
    pub arrive: Arrive<Buffers>,
    /// The base optimizer's buffers, for whoever joins and for a checkpoint, from worker 0.
    pub optimizer_transfer: Option<Frozen>,
    /// The slow momentum of the whole model that the founding goes on from, from worker 0.
    pub momentum: Option<Frozen>,
    /// What it was made from, where that is recorded.
    pub basis: Basis,
    /// Where the result goes.
    pub reply: oneshot::Sender<Result<Exchanged, ExchangeError>>,
}
