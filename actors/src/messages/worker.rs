//! Requests of a training thread's handle to its worker.

use crate::buffers::{ChunkedBuffer, Frozen};
use crate::data::Basis;
use crate::error::ExchangeError;
use slowmo_protocol::aggregator::Request;
use slowmo_protocol::coordinator::Outcome;
use slowmo_protocol::ident::Step;
use slowmo_protocol::model::ModelSize;
use slowmo_protocol::sampler::Progress;
use slowmo_protocol::view::Member;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Messages to a worker.
pub enum WorkerMessage {
    /// Take part in an exchange.
    Exchange(Box<ExchangeRequest>),
    /// The training thread has mixed a gossip's correction into its model, or failed to.
    Mixed {
        /// The inner step.
        step: Step,
        /// The model as its inner step left it; empty if the correction could not be mixed in.
        before: ChunkedBuffer,
        /// Whether nothing may be sent, because not all numerators are finite or there are none.
        withheld: bool,
    },
    /// Leave in an orderly way.
    Leave {
        /// Answered when the node may end.
        reply: oneshot::Sender<()>,
    },
    /// The handle was dropped without leaving.
    Gone,
}

/// One exchange as a training thread requests it.
pub struct ExchangeRequest {
    /// The requested operation.
    pub request: Request,
    /// Sizes of the node's model. In the contribution the parameters come first, followed by the
    /// averaged buffers.
    pub model: ModelSize,
    /// The frozen contribution; passed by worker 0 only, whose values stand for the node.
    /// Overlapped gossip needs none.
    pub frozen: Option<Frozen>,
    /// The base optimizer's buffers, for nodes that join with the round and for a checkpoint;
    /// passed by worker 0 only.
    pub optimizer_transfer: Option<Frozen>,
    /// The slow momentum of the whole model from which bootstrap continues (`sharded = false`);
    /// passed by worker 0 only.
    pub momentum: Option<Frozen>,
    /// The samples that were left when the round began; passed by worker 0 only.
    pub samples: Option<Progress>,
    /// The inputs of the contribution, if trace events are recorded.
    pub basis: Basis,
    /// Receives the result.
    pub reply: oneshot::Sender<Result<Exchanged, ExchangeError>>,
}

/// The result of an exchange, shared by the workers of a node.
#[derive(Clone, Debug)]
pub struct Exchanged {
    /// The new numerators `x`; the model is `x / weight`.
    pub values: Arc<ChunkedBuffer>,
    /// If set, `values` is instead a correction: added to this fraction of the model, it gives the
    /// numerators. Worker 0 answers with the model as it was before ([`WorkerMessage::Mixed`]).
    pub correction: Option<f32>,
    /// A member's buffers of the base optimizer, if this node joined and joiners get a copy.
    pub donated: Option<Arc<ChunkedBuffer>>,
    /// The node's push-sum weight.
    pub weight: f64,
    /// The decided round, if the exchange decided one.
    pub outcome: Option<Arc<Outcome>>,
    /// Number of nodes whose values were averaged, including this one.
    pub contributors: usize,
    /// The current members of the view, ascending.
    pub members: Arc<[Member]>,
    /// The members of the view in which the round began, ascending.
    pub members_before: Arc<[Member]>,
    /// The inner step that follows.
    pub next_step: Step,
    /// Whether the node has left the view: it has handed over its state and may end.
    pub drained: bool,
}
